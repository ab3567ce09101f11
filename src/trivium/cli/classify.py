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
from trivium.cli._shared import join_cells, load, print_result, read_text_batches, split_pair


def classify(
    model: opt.Model,
    texts: opt.Texts = None,
    pair: str | None = None,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    as_json: opt.Json = False,
) -> None:
    """Print the most probable label of each text, its probability and the text, one line per text.

    --json prints the probabilities of all labels. For a blank line, a blank line is printed.

    Args:
        pair: The second text, if the model classifies pairs. In lines of stdin, the second text
            follows a tab.
    """
    lm = load(model, device=device).reading(special_tokens)
    # A model of single texts reads a tab as a space.
    splits = not texts and pair is None and lm.settings.reads_pairs is not False
    blank: list[int] = []
    numbers = itertools.count(1)
    file_command = f"trivium predict {shlex.quote(model)} FILE --out scored.csv"
    for batch in read_text_batches(texts, lm.source_tokenizer, file_command=file_command):
        pairs = [split_pair(text) if splits else (text, pair) for text in batch]
        labels = iter(lm.classify([texts for texts in pairs if texts[0].strip()]))
        for (text, second), number in zip(pairs, numbers):
            record = {"text": text, **({"pair": second} if second else {})}
            if text.strip():
                label = next(labels)
                line = join_cells(label.label_text, f"{label.score:.4f}", text)
                print_result(record | asdict(label), line, as_json=as_json)
            else:
                blank.append(number)
                print_result(record | {"label": None}, "", as_json=as_json)
    if blank:
        shown = ", ".join(map(str, blank[:10])) + (", ..." if len(blank) > 10 else "")
        unit = "text" if texts else "line"
        warnings.warn(f"blank, so no label is predicted: {unit} {shown}.", stacklevel=2)
