"""`trivium score`: how probable texts are."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.lines import texts_or_lines
from trivium.errors import SpecError, TriviumError
from trivium.evaluate.choices import score_choice, text_tokenizer
from trivium.inference.score import TextScore, score_texts
from trivium.language_model import LanguageModel, load
from trivium.text import Tokenizer

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium score runs/gpt "The cat sat." "The cat sit."

  trivium score runs/gpt --given "The capital of France is" Paris Rome Banana

  trivium score runs/gpt "The cat sat." --per-token

  cat lines.txt | trivium score runs/mine --json
"""
# Texts that are read before the first is scored: rows of similar length are batched.
_BATCHES = 8
# Chinese, Japanese and full-width characters.
_WITHOUT_BLANKS = re.compile("[\u2e80-\u9fff\uff00-\uffef]")


@app.command(epilog=_EPILOG)
def score(
    model: Annotated[Path, typer.Argument(help="A run, a checkpoint or a saved model.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Without one: lines of stdin.")
    ] = None,
    given: Annotated[
        str | None,
        typer.Option(help="Score the texts as what follows this, or as answers to it."),
    ] = None,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="Every token with its share, one a line.")
    ] = False,
    batch_size: Annotated[
        int, typer.Option(help="Rows at a time; 1: digits that depend on no other text.", min=1)
    ] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a text.")] = False,
) -> None:
    """Log-probabilities in nats: a text's, or that of a continuation.

    A decoder sums log p(token | those before it), an encoder log p(token | all others). One line a
    text: the number, a tab, the text.
    """
    if given is not None and per_token:
        raise TriviumError("--per-token shows the tokens of whole texts: leave out --given.")
    language_model = load(model, device=device)
    if given is not None:
        for text in texts_or_lines(texts):
            _show_given(language_model, given, text, as_json)
        return
    _check(language_model)
    tokenizer = text_tokenizer(language_model)
    for chunk in _chunks(texts_or_lines(texts), batch_size * _BATCHES):
        found = score_texts(language_model.module, tokenizer, chunk, batch_size=batch_size)
        for text, scored in zip(chunk, found, strict=True):
            typer.echo(_line(tokenizer, text, scored, per_token=per_token, as_json=as_json))


def _check(lm: LanguageModel) -> None:
    """Refuse models that say nothing of a text alone."""
    if lm.spec.family == "encoder-decoder":
        raise SpecError(
            "this model has an encoder and a decoder and scores answers to what it reads: give "
            'that with --given "...".'
        )
    if "score" not in lm.verbs:
        raise SpecError("this model has no head over the vocabulary, which score needs.")


def _show_given(lm: LanguageModel, given: str, text: str, as_json: bool) -> None:
    """Every text by itself, so that its number depends on no other."""
    (found,) = score_choice(lm, given, [_parted(given, text)]).scores
    if not as_json:
        typer.echo(f"{found.log_probability:.4f}\t{text}")
        return
    line = {
        "given": given,
        "text": text,
        "log_probability": found.log_probability,
        "num_tokens": found.num_tokens,
        "greedy": found.greedy,
        "num_cut": found.num_cut,
    }
    typer.echo(json.dumps(line, ensure_ascii=False))


def _parted(given: str, text: str) -> str:
    """A text with a blank that parts it from what stands before, where its script has blanks."""
    around = given[-1:], text[:1]
    if not all(around) or any(c.isspace() or _WITHOUT_BLANKS.match(c) for c in around):
        return text
    return f" {text}"


def _line(
    tokenizer: Tokenizer, text: str, scored: TextScore, *, per_token: bool, as_json: bool
) -> str:
    tokens = [tokenizer.tokens[index] for index in scored.ids]
    if as_json:
        found = {"text": text, "log_probability": scored.total, "num_tokens": scored.num_tokens}
        if per_token:
            found["tokens"] = [
                {"token": token, "log_probability": value}
                for token, value in zip(tokens, scored.log_probabilities, strict=True)
            ]
        return json.dumps(found, ensure_ascii=False)
    lines = [f"{scored.total:.4f}\t{text}"]
    if per_token:
        values = ("-" if v is None else f"{v:.4f}" for v in scored.log_probabilities)
        lines += [f"  {value}\t{token}" for value, token in zip(values, tokens, strict=True)]
    return "\n".join(lines)


def _chunks(texts: Iterator[str], size: int) -> Iterator[Sequence[str]]:
    while chunk := list(itertools.islice(texts, size)):
        yield chunk
