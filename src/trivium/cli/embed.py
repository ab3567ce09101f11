"""`trivium embed`: vectors of texts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer

from trivium.cli.answers import in_batches, listed, say
from trivium.cli.lines import texts_or_lines
from trivium.errors import TriviumError
from trivium.inference.embed import Pooling
from trivium.language_model import load

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium embed hf/minilm "A sentence." --json

  cat sentences.txt | trivium embed hf/minilm --out vectors.npy

  trivium embed runs/mine "two texts" "are compared" --similarities
"""


@app.command(epilog=_EPILOG)
def embed(
    model: Annotated[Path, typer.Argument(help="A run, a checkpoint or a saved model.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Without one: lines of stdin.")
    ] = None,
    pooling: Annotated[
        str | None, typer.Option(help="mean, first or last token; chosen by the model.")
    ] = None,
    normalize: Annotated[bool, typer.Option(help="Vectors of length 1.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write all vectors to this .npy file.")] = None,
    similarities: Annotated[
        bool, typer.Option("--similarities", help="Print the cosine of every two texts instead.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a text, with its text.")
    ] = False,
) -> None:
    """The vector of every text: numbers parted by spaces, one line each."""
    if pooling not in (None, "mean", "first", "last"):
        raise TriviumError(f"--pooling is {pooling!r}, but must be mean, first or last.")
    language_model = load(model, device=device)
    rows: list[np.ndarray] = []
    kept: list[str] = []
    for batch in in_batches(texts_or_lines(texts, blank=True)):
        chosen = cast(Pooling | None, pooling)
        found = language_model.embed(batch, pooling=chosen, normalize=normalize).numpy()
        if out is not None or similarities:
            rows.append(found)
            kept += batch
            continue
        for text, vector in zip(batch, found.tolist()):
            numbers = listed(vector)
            plain = " ".join(f"{value:g}" for value in numbers)
            say({"text": text, "vector": numbers}, plain, as_json=as_json)
    if out is not None and rows:
        out = _saved(out, np.concatenate(rows))
        typer.echo(f"{len(kept)} vectors of {rows[0].shape[1]} numbers in {out}", err=True)
    if similarities and rows:
        vectors = np.concatenate(rows)
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        for text, values in zip(kept, (vectors @ vectors.T).tolist()):
            record = {"text": text, "similarities": listed(values)}
            plain = " ".join(f"{value:6.3f}" for value in values) + f"  {text}"
            say(record, plain, as_json=as_json)


def _saved(path: Path, vectors: np.ndarray) -> Path:
    """Write an .npy file, aside and renamed; the path has that ending afterwards."""
    path = path if path.suffix == ".npy" else path.with_name(f"{path.name}.npy")
    aside = path.with_name(f".{path.name}.partial")
    try:
        with aside.open("wb") as file:
            np.save(file, vectors)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return path
