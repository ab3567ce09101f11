"""`trivium embed`: sentence embeddings.

Examples:

  trivium embed hf/minilm "A sentence." --json

  cat sentences.txt | trivium embed hf/minilm --out vectors.npy

  trivium embed runs/mine "two texts" "to compare" --similarities

  trivium embed runs/mine "a mouse ate" "click the mouse" --per-token --similarities
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

import trivium
from trivium.cli import UsageError
from trivium.cli import _options as opt
from trivium.cli._shared import load, show, tab_separated, text_batches
from trivium.files import replace_file
from trivium.messages import translated

Pooling = Literal["first", "last", "mean"]


def embed(
    model: opt.Model,
    texts: opt.Texts = None,
    pooling: Annotated[Pooling | None, typer.Option(show_default="as the model suggests")] = None,
    normalize: bool | None = None,
    out: Path | None = None,
    similarities: bool = False,
    per_token: bool = False,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    as_json: opt.Json = False,
) -> None:
    """The vector of every text, or token: numbers separated by spaces, one line each.

    For search take a model that was trained for similarity (`trivium finetune contrastive`). One
    that learned to predict tokens, above all for minutes, finds less than BM25.

    Args:
        pooling: Pool the hidden states: their mean, the first or the last.
        normalize: Scale vectors to length 1. By default as the model does; vectors of tokens are
            scaled by default.
        out: Write all vectors to this .npy file.
        similarities: Print cosine similarities of all pairs.
        per_token: A vector for each token, which depends on the text around it; its line begins
            with the token and a tab.
    """
    if per_token and pooling is not None:
        raise UsageError("--pooling makes one vector of all tokens: leave it or --per-token out.")
    path = None
    if out is not None:
        path = out if out.suffix == ".npy" else out.with_name(f"{out.name}.npy")
        path.parent.mkdir(parents=True, exist_ok=True)
    lm = load(model, device=device).reading(special_tokens)
    rows: list[np.ndarray] = []
    names: list[dict[str, Any]] = []
    for batch in text_batches(texts, lm.source_tokenizer):
        vectors, named = _vectors(lm, batch, pooling, per_token, normalize)
        if out is None and not similarities:
            for name, row in zip(named, vectors):
                _show_numbers(name, "vector", row, as_json)
        else:
            rows.append(vectors)
            names += named
    if not rows:
        return
    matrix = np.concatenate(rows)
    if path is not None:
        with replace_file(path) as file:
            np.save(file, matrix)
        count, size = matrix.shape
        typer.echo(translated("embed.written", path=path, count=count, size=size), err=True)
    if similarities:
        matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        for name, row in zip(names, matrix @ matrix.T):
            _show_numbers(name, "similarities", row, as_json)


def _vectors(
    lm: trivium.LanguageModel,
    texts: list[str],
    pool: Pooling | None,
    per_token: bool,
    scale: bool | None,
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Vectors of texts or of their tokens, and what each is of."""
    if not per_token:
        vectors = lm.embed(texts, pooling=pool, normalize=scale)
        return vectors.numpy(), [{"text": text} for text in texts]
    of_tokens = lm.embed_tokens(texts, normalize=scale is not False)
    names = [
        {"text": text, "token": token, "span": span}
        for text, one in zip(texts, of_tokens)
        for token, span in zip(one.tokens, one.spans)
    ]
    return np.concatenate([one.vectors.numpy() for one in of_tokens]), names


def _show_numbers(name: dict[str, Any], kind: str, row: np.ndarray, as_json: bool) -> None:
    """Print six significant digits of each number, after the token that they are of."""
    numbers = [float(f"{value:.6g}") for value in row.tolist()]
    line = " ".join(f"{value:g}" for value in numbers)
    line = tab_separated(name["token"], line) if "token" in name else line
    show({**name, kind: numbers}, line, as_json=as_json)
