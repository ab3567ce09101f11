"""`trivium classify`: what texts are."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.answers import columns, in_batches, pair_of, say
from trivium.cli.lines import texts_or_lines
from trivium.language_model import load

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium classify runs/sentiment "a warm and funny film"

  trivium classify runs/nli "A man sleeps." --pair "Nobody is awake."

  cut -f1,2 pairs.tsv | trivium classify runs/nli --json
"""


@app.command(epilog=_EPILOG)
def classify(
    model: Annotated[Path, typer.Argument(help="A run of `trivium finetune classification`.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Without one: lines of stdin.")
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(help="The second text of a pair; in lines of stdin it stands behind a tab."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a text, with every class.")
    ] = False,
) -> None:
    """The class of every text and its probability, one line each."""
    language_model = load(model, device=device)
    for batch in in_batches(texts_or_lines(texts, blank=True)):
        given = [pair_of(text, pair, not texts) for text in batch]
        for (text, second), found in zip(given, language_model.classify(given)):
            record = {"text": text, **({"pair": second} if second else {}), **asdict(found)}
            say(record, columns(found.label, f"{found.score:.4f}", text), as_json=as_json)
