"""`trivium classify`: classify texts or pairs of texts.

Examples:

  trivium classify runs/sentiment "a warm and funny film"

  trivium classify runs/nli "A man sleeps." --pair "He is awake."

  cut -f1,2 pairs.tsv | trivium classify runs/nli --json
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from trivium.cli._shared import (
    DeviceOption,
    JsonOption,
    ModelArgument,
    TextsArgument,
    batched,
    read_texts,
    show,
    split_pair,
    tab_separated,
)
from trivium.model_loading import load


def classify(
    model: ModelArgument,
    texts: TextsArgument = None,
    pair: Annotated[
        str | None,
        typer.Option(help="The second text of a pair; in lines of stdin it follows a tab."),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """The label of every text with its probability, one line each; --json has all labels."""
    lm = load(model, device=device)
    for batch in batched(read_texts(texts, keep_blank=True)):
        pairs = [split_pair(text) if not texts and pair is None else (text, pair) for text in batch]
        for (text, second), label in zip(pairs, lm.classify(pairs)):
            record = {"text": text, **({"pair": second} if second else {}), **asdict(label)}
            line = tab_separated(label.label, f"{label.score:.4f}", text)
            show(record, line, as_json=as_json)
