"""`trivium answer`: questions on a text."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.answers import columns, in_batches, say
from trivium.cli.lines import texts_or_lines
from trivium.errors import DataError
from trivium.language_model import load

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium answer runs/qa "Who wrote it?" --context "Ada wrote the first program."

  trivium answer runs/qa "Who wrote it?" --context-file article.txt --top-k 3

  cat questions_and_contexts.tsv | trivium answer runs/qa --json
"""


@app.command(epilog=_EPILOG)
def answer(
    model: Annotated[Path, typer.Argument(help="A run of `trivium finetune qa`.")],
    questions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUESTION",
            help="Without one: lines of stdin, a tab between question and context.",
        ),
    ] = None,
    context: Annotated[str | None, typer.Option(help="The text that has the answer.")] = None,
    context_file: Annotated[Path | None, typer.Option(help="A file with that text.")] = None,
    top_k: Annotated[int, typer.Option(help="Answers for each question.", min=1)] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a question, with places and scores.")
    ] = False,
) -> None:
    """The answers to questions, best first, one line each: answer, tab, probability.

    The answer is empty where the text has none.
    """
    if context is not None and context_file is not None:
        raise DataError("--context and --context-file are one text: leave out one of them.")
    if context_file is not None:
        context = _read(context_file)
    language_model = load(model, device=device)
    for batch in in_batches(texts_or_lines(questions)):
        asked = [_with_context(each, context) for each in batch]
        for (question, _), found in zip(asked, language_model.answer_all(asked, top_k=top_k)):
            record = {"question": question, "answers": [asdict(each) for each in found]}
            plain = "\n".join(columns(each.text, f"{each.score:.4f}") for each in found)
            say(record, plain, as_json=as_json)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 (byte {error.start + 1}).") from None


def _with_context(line: str, context: str | None) -> tuple[str, str]:
    if context is not None:
        return line, context
    question, tab, found = line.partition("\t")
    if not tab:
        raise DataError(
            f"{line[:60]!r} has no context: give --context TEXT or --context-file FILE, or lines "
            "with a tab between question and context."
        )
    return question, found
