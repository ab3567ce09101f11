"""`trivium classify`: classify texts or pairs of texts.

Examples:

  trivium classify runs/sentiment "a warm and funny film"

  trivium classify runs/nli "A man sleeps." --pair "He is awake."

  cut -f1,2 pairs.tsv | trivium classify runs/nli --json
"""

from __future__ import annotations

import itertools
import shlex
import warnings
from dataclasses import asdict

from trivium.cli import _options as opt
from trivium.cli._shared import load, show, split_pair, tab_separated, text_batches


def classify(
    model: opt.Model,
    texts: opt.Texts = None,
    pair: str | None = None,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    as_json: opt.Json = False,
) -> None:
    """The label of every text with its probability, one line each; --json has all labels.

    A blank line stays blank.

    Args:
        pair: The second text of a pair; in lines of stdin it follows a tab.
    """
    lm = load(model, device=device).reading(special_tokens)
    # To a model of single texts a tab is a space like others.
    splits = not texts and pair is None and lm.settings.reads_pairs is not False
    blank: list[int] = []
    numbers = itertools.count(1)
    for_files = f"trivium predict {shlex.quote(model)} FILE --out scored.csv"
    for batch in text_batches(texts, lm.source_tokenizer, for_files=for_files):
        pairs = [split_pair(text) if splits else (text, pair) for text in batch]
        labels = iter(lm.classify([each for each in pairs if each[0].strip()]))
        for (text, second), number in zip(pairs, numbers):
            record = {"text": text, **({"pair": second} if second else {})}
            if text.strip():
                label = next(labels)
                line = tab_separated(label.label_text, f"{label.score:.4f}", text)
                show(record | asdict(label), line, as_json=as_json)
            else:
                blank.append(number)
                show(record | {"label": None}, "", as_json=as_json)
    if blank:
        some = ", ".join(map(str, blank[:10])) + (", ..." if len(blank) > 10 else "")
        unit = "text" if texts else "line"
        warnings.warn(f"blank, and so without a label: {unit} {some}.", stacklevel=2)
