"""`trivium tag`: what words are."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.answers import in_batches, say
from trivium.cli.lines import texts_or_lines
from trivium.language_model import load

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium tag runs/names "Ada Lovelace was born in London ."

  cat sentences.txt | trivium tag runs/pos --json
"""


@app.command(epilog=_EPILOG)
def tag(
    model: Annotated[Path, typer.Argument(help="A run of `trivium finetune tagging`.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Words parted by spaces. Without one: lines of stdin."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a text, with probabilities.")
    ] = False,
) -> None:
    """Every word with its tag, as word/TAG, one line a text."""
    language_model = load(model, device=device)
    for batch in in_batches(texts_or_lines(texts, blank=True)):
        for text, words in zip(batch, language_model.tag(batch)):
            plain = " ".join(f"{each.word}/{each.tag}" for each in words)
            say({"text": text, "words": [asdict(each) for each in words]}, plain, as_json=as_json)
