"""`trivium generate`: continue a text."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.lines import texts_or_lines
from trivium.language_model import load

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium generate runs/gpt "Once upon a time"

  trivium generate runs/gpt "The weather" --greedy --max-new-tokens 20

  trivium generate runs/gpt "The weather" --top-p 0.95 --num-samples 3 --seed 1

  cat prompts.txt | trivium generate runs/gpt --json
"""


@app.command(epilog=_EPILOG)
def generate(
    model: Annotated[Path, typer.Argument(help="A run, a checkpoint or a saved model.")],
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT", help="Without one: lines of stdin, or nothing on a terminal."
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to add at most.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy; higher surprises more.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Only the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Only the fewest tokens that add up to this probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Only tokens at least this share of the best one's.")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: what was said becomes less probable.")
    ] = 1.0,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Always the most probable token.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same text.", min=0)
    ] = None,
    num_samples: Annotated[int, typer.Option(help="Continuations of each prompt.", min=1)] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a continuation, when it is whole.")
    ] = False,
) -> None:
    """Continue a text, shown while it is made; it stops at the end of text.

    Also stops after --max-new-tokens, and where the model's positions end.
    """
    language_model = load(model, device=device)
    first = secrets.randbits(31) if seed is None else seed
    separate = False
    for prompt in _prompts(prompts):
        for number in range(num_samples):
            pieces = language_model.stream(
                prompt,
                max_new_tokens=max_new_tokens,
                temperature=0.0 if greedy else temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                repetition_penalty=repetition_penalty,
                seed=first + number,
            )
            if as_json:
                found = {"prompt": prompt, "text": "".join(pieces), "seed": first + number}
                typer.echo(json.dumps(found, ensure_ascii=False))
            else:
                # What a decoder adds reads on from the prompt; a translation stands for itself.
                shown = "" if language_model.spec.family == "encoder-decoder" else prompt
                _show(shown, pieces, separate=separate)
            separate = True


def _prompts(given: list[str] | None) -> Iterable[str]:
    """Prompts given or piped in; on a terminal without one, the model begins by itself."""
    if given:
        return given
    return [""] if sys.stdin.isatty() else texts_or_lines(None)


def _show(prompt: str, pieces: Iterable[str], *, separate: bool) -> None:
    typer.echo(("\n" if separate else "") + prompt, nl=False)
    for piece in pieces:
        typer.echo(piece, nl=False)
    typer.echo()
