"""`trivium embed`: sentence embeddings.

Examples:

  trivium embed hf/minilm "A sentence." --json

  cat sentences.txt | trivium embed hf/minilm --out vectors.npy

  trivium embed runs/mine "two texts" "to compare" --similarities
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from trivium.cli import _options as opt
from trivium.cli._shared import show, text_batches
from trivium.files import replace_file
from trivium.model_loading import load


def embed(
    model: opt.Model,
    texts: opt.Texts = None,
    pooling: Annotated[
        Literal["mean", "first", "last"] | None, typer.Option(show_default="as the model suggests")
    ] = None,
    normalize: bool = True,
    out: Path | None = None,
    similarities: bool = False,
    device: opt.Device = "auto",
    as_json: opt.Json = False,
) -> None:
    """The vector of every text: numbers separated by spaces, one line each.

    For search take a model that was trained for similarity (`trivium finetune contrastive`). One
    that learned to predict tokens, above all for minutes, finds less than BM25.

    Args:
        pooling: Pool the hidden states: their mean, the first or the last.
        normalize: Scale vectors to length 1.
        out: Write all vectors to this .npy file.
        similarities: Print cosine similarities of all pairs.
    """
    path = None
    if out is not None:
        path = out if out.suffix == ".npy" else out.with_name(f"{out.name}.npy")
        path.parent.mkdir(parents=True, exist_ok=True)
    lm = load(model, device=device)
    vectors: list[np.ndarray] = []
    seen: list[str] = []
    for batch in text_batches(texts, lm.source_tokenizer):
        rows = lm.embed(batch, pooling=pooling, normalize=normalize).numpy()
        if out is None and not similarities:
            for text, row in zip(batch, rows):
                _show_numbers(text, "vector", row, as_json)
        else:
            vectors.append(rows)
            seen += batch
    if not vectors:
        return
    matrix = np.concatenate(vectors)
    if path is not None:
        with replace_file(path) as file:
            np.save(file, matrix)
        typer.echo(f"{path}: {matrix.shape[0]} vectors of {matrix.shape[1]} numbers", err=True)
    if similarities:
        matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        for text, row in zip(seen, matrix @ matrix.T):
            _show_numbers(text, "similarities", row, as_json)


def _show_numbers(text: str, name: str, row: np.ndarray, as_json: bool) -> None:
    """Print six significant digits of each number."""
    numbers = [float(f"{value:.6g}") for value in row.tolist()]
    line = " ".join(f"{value:g}" for value in numbers)
    show({"text": text, name: numbers}, line, as_json=as_json)
