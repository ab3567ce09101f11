"""`trivium answer`: answer questions about a text (extractive question answering).

Examples:

  trivium answer runs/qa "Who wrote it?" --context "Ada wrote the first program."

  trivium answer runs/qa "Who wrote it?" --context-file article.txt --top-k 3

  cat questions_and_contexts.tsv | trivium answer runs/qa --json
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli import _options as opt
from trivium.cli._shared import (
    batched,
    known_texts,
    load,
    read_texts,
    show,
    split_pair,
    tab_separated,
)
from trivium.errors import DataError, shorten
from trivium.files import open_text


def answer(
    model: opt.Model,
    questions: Annotated[list[str] | None, typer.Argument(metavar="QUESTION")] = None,
    context: str | None = None,
    context_file: Path | None = None,
    top_k: opt.Positive = 1,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    as_json: opt.Json = False,
) -> None:
    """Answers with their probabilities, best first, one per line; empty where there is none.

    Args:
        questions: Default: the lines of stdin, each a question, a tab and its context.
        context: The text with the answer.
        context_file: A file with that text.
        top_k: Answers per question.
    """
    if context is not None and context_file is not None:
        raise DataError("--context and --context-file are the same text: leave out one of them.")
    if context_file is not None:
        with open_text(context_file) as file:
            context = file.read()
    lm = load(model, device=device).reading(special_tokens)
    lines = known_texts(chain([context or ""], read_texts(questions)), lm.source_tokenizer)
    next(lines)  # the context that all questions share
    for batch in batched(lines):
        pairs = [_with_context(line, context) for line in batch]
        for (question, _), answers in zip(pairs, lm.answer_all(pairs, top_k=top_k)):
            record = {"question": question, "answers": answers}
            lines = [tab_separated(each.text, f"{each.score:.4f}") for each in answers]
            show(record, "\n".join(lines), as_json=as_json)


def _with_context(line: str, context: str | None) -> tuple[str, str]:
    """The question and its context, that of the line where none is shared by all."""
    if context is not None:
        return line, context
    question, own_context = split_pair(line)
    if own_context is None:
        raise DataError(
            f"{shorten(line)!r} has no context: give --context TEXT or --context-file FILE, or "
            "lines with a tab between question and context."
        )
    return question, own_context
