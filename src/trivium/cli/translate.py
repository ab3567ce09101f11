"""`trivium translate`: a target for a source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.answers import in_batches, say
from trivium.cli.lines import texts_or_lines
from trivium.cli.weights import CompileOption, DtypeOption, QuantizeOption
from trivium.language_model import load

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium translate runs/en-fr "The cat sleeps."

  cat news.en | trivium translate runs/en-fr > news.fr

  cat news.en | trivium translate runs/en-fr --compile > news.fr

  trivium translate runs/t5 "summarize: ..." --beams 1 --max-new-tokens 60
"""


@app.command(epilog=_EPILOG)
def translate(
    model: Annotated[Path, typer.Argument(help="A run or model with an encoder and a decoder.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Without one: lines of stdin.")
    ] = None,
    beams: Annotated[
        int | None,
        typer.Option(
            help="Texts kept while searching; 1 is greedy. As the model says, else 4.", min=1
        ),
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="The higher, the longer the targets; 1 unless told.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a target at most.", min=1)
    ] = None,
    quantize: QuantizeOption = None,
    dtype: DtypeOption = None,
    compiled: CompileOption = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a text.")] = False,
) -> None:
    """The target of every source, by beam search, one line each; of a blank line a blank one."""
    language_model = load(
        model, device=device, dtype=dtype, quantize=quantize, packed=True, compiled=compiled
    )
    told = {"num_beams": beams, "length_penalty": length_penalty}
    changes = {name: value for name, value in told.items() if value is not None}
    search = replace(language_model.usual_beams(), **changes)
    for batch in in_batches(texts_or_lines(texts, blank=True)):
        sources = [text for text in batch if text.strip()]
        found = iter(language_model.translate(sources, beams=search, max_new_tokens=max_new_tokens))
        for text in batch:
            target = next(found) if text.strip() else ""
            say({"text": text, "target": target}, " ".join(target.split("\n")), as_json=as_json)
