"""`trivium embed`: compute embeddings of sentences or tokens.

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
from trivium.cli._shared import join_cells, load, print_result, read_text_batches
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
    """Print the embedding of each text, or of each token, as one line of numbers.

    For search, use a model that was trained for similarity (`trivium finetune contrastive`). A
    model that was only pretrained, especially a small one, retrieves worse than BM25.

    Args:
        pooling: How to pool the hidden states into one vector: their mean, the first or the last.
        normalize: Scale the vectors to length 1. Default: the model's own setting; with
            --per-token, yes.
        out: Write all vectors to this .npy file.
        similarities: Print the cosine similarities of all pairs of texts.
        per_token: Compute a contextual embedding of each token. Its line starts with the token and
            a tab.
    """
    if per_token and pooling is not None:
        raise UsageError(
            "--pooling combines the vectors of all tokens: leave out --pooling or --per-token."
        )
    path = None
    if out is not None:
        path = out if out.suffix == ".npy" else out.with_name(f"{out.name}.npy")
        path.parent.mkdir(parents=True, exist_ok=True)
    lm = load(model, device=device).reading(special_tokens)
    rows: list[np.ndarray] = []
    names: list[dict[str, Any]] = []
    for batch in read_text_batches(texts, lm.source_tokenizer):
        vectors, named = _embed_batch(lm, batch, pooling, per_token, normalize)
        if out is None and not similarities:
            for name, row in zip(named, vectors):
                _print_vector(name, "vector", row, as_json)
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
            _print_vector(name, "similarities", row, as_json)


def _embed_batch(
    lm: trivium.LanguageModel,
    texts: list[str],
    pooling: Pooling | None,
    per_token: bool,
    normalize: bool | None,
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Compute the embeddings of a batch of texts, or of each token if `per_token` is true.

    Returns:
        The vectors, float32 [N, D], for N texts or tokens, and a list with a dict for each vector.
        The dict contains the text, and for a token also the token and its character span.
    """
    if not per_token:
        vectors = lm.embed(texts, pooling=pooling, normalize=normalize)
        return vectors.numpy(), [{"text": text} for text in texts]
    token_states = lm.embed_tokens(texts, normalize=normalize is not False)
    names = [
        {"text": text, "token": token, "span": span}
        for text, states in zip(texts, token_states)
        for token, span in zip(states.tokens, states.spans)
    ]
    return np.concatenate([states.vectors.numpy() for states in token_states]), names


def _print_vector(source: dict[str, Any], key: str, vector: np.ndarray, as_json: bool) -> None:
    """Print a vector with six significant digits per number.

    If it embeds a token, print the token first.

    Args:
        source: a dict with the text, and for a token also the token and its character span.
        key: the name of the vector in JSON output.
        vector: the vector, [D].
        as_json: whether to print JSON.
    """
    numbers = [float(f"{value:.6g}") for value in vector.tolist()]
    line = " ".join(f"{value:g}" for value in numbers)
    line = join_cells(source["token"], line) if "token" in source else line
    print_result({**source, key: numbers}, line, as_json=as_json)
