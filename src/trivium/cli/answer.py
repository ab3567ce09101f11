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
    batch_items,
    check_characters,
    join_cells,
    load,
    print_result,
    read_texts,
    split_pair,
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
    """Print the answers to questions about a text, with their probabilities.

    Each answer is printed on its own line, the most probable first. For an unanswerable question,
    the answer is empty.

    Args:
        questions: The questions. Default: the lines of stdin, each with a question, a tab and its
            context.
        context: The text that contains the answers.
        context_file: A file that contains this text.
        top_k: Number of answers per question.
    """
    if context is not None and context_file is not None:
        raise DataError("--context and --context-file both give the text: leave one of them out.")
    if context_file is not None:
        with open_text(context_file) as file:
            context = file.read()
    lm = load(model, device=device).reading(special_tokens)
    lines = check_characters(chain([context or ""], read_texts(questions)), lm.source_tokenizer)
    next(lines)  # the context that all questions share
    for batch in batch_items(lines):
        pairs = [_attach_context(line, context) for line in batch]
        for (question, _), answers in zip(pairs, lm.answer_all(pairs, top_k=top_k)):
            record = {"question": question, "answers": answers}
            lines = [join_cells(found.text, f"{found.score:.4f}") for found in answers]
            print_result(record, "\n".join(lines), as_json=as_json)


def _attach_context(line: str, context: str | None) -> tuple[str, str]:
    """Return the question and its context.

    If `context` is given, the line is the question. Otherwise, the line must contain the question,
    a tab and the context. Raises DataError if there is no context.
    """
    if context is not None:
        return line, context
    question, own_context = split_pair(line)
    if own_context is None:
        raise DataError(
            f"{shorten(line)!r} has no context: give --context TEXT or --context-file FILE, or "
            "lines with a tab between question and context."
        )
    return question, own_context
