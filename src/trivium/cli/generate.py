"""`trivium generate`: continue a text."""

from __future__ import annotations

import json
import secrets
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from trivium.cli.lines import texts_or_lines
from trivium.cli.weights import CompileOption, DtypeOption, QuantizeOption
from trivium.errors import TriviumError
from trivium.inference import Sampling
from trivium.inference.drafts import Draft, DraftModel, PromptLookup
from trivium.inference.text_engine import Text, TextEngine
from trivium.language_model import LanguageModel, load

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium generate runs/gpt "Once upon a time"

  trivium generate runs/gpt "The weather" --greedy --max-new-tokens 20

  trivium generate runs/gpt "The weather" --top-p 0.95 --num-samples 3 --seed 1

  trivium generate runs/gpt "The weather is" --choice rainy --choice "cold and dry"

  trivium generate runs/gpt "List: one, two," --draft lookup --stop "."

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
    presence_penalty: Annotated[
        float, typer.Option(help="Taken from the logits of tokens that were written, once.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="Taken from them as often as they were written.")
    ] = 0.0,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="A string that ends the text; may be given again.", show_default=False),
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(help="One of the only texts to be written.", show_default=False),
    ] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Always the most probable token.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same text.", min=0)
    ] = None,
    num_samples: Annotated[int, typer.Option(help="Continuations of each prompt.", min=1)] = 1,
    quantize: QuantizeOption = None,
    dtype: DtypeOption = None,
    compiled: CompileOption = False,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="lookup|MODEL",
            help="What guesses tokens ahead: the text so far, or a smaller model with the same "
            "tokenizer. It changes the speed, not the text.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[int, typer.Option(help="Texts written at the same time.", min=1)] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a continuation, when it is whole.")
    ] = False,
) -> None:
    """Continue a text, shown while it is made; it stops at the end of text.

    Also stops after --max-new-tokens, and where the model's positions end.
    """
    language_model = load(
        model, device=device, dtype=dtype, quantize=quantize, packed=True, compiled=compiled
    )
    engine = language_model.engine(rows=rows, draft=_draft(draft, device, language_model))
    sampling = Sampling(
        0.0 if greedy else temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
    )
    first = secrets.randbits(31) if seed is None else seed

    refused: list[TriviumError] = []

    def asked() -> Iterator[_Asked]:
        try:
            for prompt in _prompts(prompts):
                for number in range(first, first + num_samples):
                    text = engine.add(
                        prompt,
                        max_new_tokens=max_new_tokens,
                        sampling=sampling,
                        seed=number,
                        stop=stop or (),
                        choices=choice or (),
                    )
                    yield _Asked(prompt, number, text)
        except TriviumError as error:  # what was asked before it is still answered
            refused.append(error)

    # What a decoder adds reads on from the prompt; a translation stands for itself.
    stands_alone = language_model.spec.family == "encoder-decoder"
    separate = False
    for prompt, number, text, pieces in _in_order(engine, asked()):
        if as_json:
            for _ in pieces:
                pass
            found = {"prompt": prompt, "text": text.text, "seed": number}
            typer.echo(json.dumps(found, ensure_ascii=False))
        else:
            _show("" if stands_alone else prompt, pieces, separate=separate)
        separate = True
    if refused:
        raise refused[0]


class _Asked(NamedTuple):
    prompt: str
    seed: int
    text: Text


class _Shown(NamedTuple):
    prompt: str
    seed: int
    text: Text
    pieces: Iterator[str]


def _in_order(engine: TextEngine, asked: Iterator[_Asked]) -> Iterator[_Shown]:
    """Every text in its turn, while those behind it are written too."""
    begun: deque[_Asked] = deque(islice(asked, 1))
    while begun:
        one = begun.popleft()
        yield _Shown(*one, _pieces(engine, one.text, begun, asked))
        begun.extend(islice(asked, 0 if begun else 1))


def _pieces(
    engine: TextEngine, text: Text, begun: deque[_Asked], asked: Iterator[_Asked]
) -> Iterator[str]:
    while text.finish is None:
        begun.extend(islice(asked, max(0, engine.rows - engine.running - engine.waiting)))
        engine.step()
        if piece := text.take():
            yield piece
    if piece := text.take():
        yield piece


def _draft(draft: str | None, device: str, checks: LanguageModel) -> Draft | None:
    """What guesses ahead: the text itself, or a smaller model."""
    if draft is None:
        return None
    if draft == "lookup":
        return PromptLookup()
    smaller = load(draft, device=device, packed=True)
    if smaller.text_tokenizer.fingerprint != checks.text_tokenizer.fingerprint:
        raise TriviumError(f"{draft}: its tokenizer is another one: its guesses would be noise.")
    return DraftModel(smaller.module)


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
