"""`trivium fill-mask`: what stands behind a mask."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.lines import texts_or_lines
from trivium.inference import Fill
from trivium.language_model import load

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium fill-mask runs/mine "The [MASK] was cloudy yesterday, but today it's rainy."

  trivium fill-mask runs/mine/checkpoints/step-00000500 "It was [MASK] and [MASK]." --top-k 3

  trivium fill-mask runs/t5 "It was <mask>, and then it rained for <mask>."

  cat lines.txt | trivium fill-mask runs/mine --json
"""


@app.command(epilog=_EPILOG)
def fill_mask(
    model: Annotated[Path, typer.Argument(help="A run, a checkpoint or a saved model.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Without one: lines of stdin.")
    ] = None,
    top_k: Annotated[int, typer.Option(help="Predictions for each mask.", min=1)] = 5,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a text; `masks` has a list for each.")
    ] = False,
) -> None:
    """Predict the masked words of a text, most probable first.

    An encoder fills a [MASK] with one token; T5 and BART fill every <mask> with any words.
    """
    language_model = load(model, device=device)
    for number, text in enumerate(texts_or_lines(texts)):
        found = language_model.fill_mask(text, top_k=top_k)
        masks: list[list[Fill]] = [found] if isinstance(found[0], Fill) else found
        if as_json:
            rows = [[asdict(fill) for fill in fills] for fills in masks]
            typer.echo(json.dumps({"text": text, "masks": rows}, ensure_ascii=False))
        else:
            typer.echo(("\n" if number else "") + _table(masks))


def _table(masks: list[list[Fill]]) -> str:
    """Score, token and sequence, one prediction a line; masks in their order."""
    width = max(len(fill.token) for fills in masks for fill in fills)
    parts = []
    for number, fills in enumerate(masks, start=1):
        lines = [f"mask {number} of {len(masks)}"] if len(masks) > 1 else []
        lines += [f"{fill.score:7.2%}  {fill.token:<{width}}  {fill.sequence}" for fill in fills]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
