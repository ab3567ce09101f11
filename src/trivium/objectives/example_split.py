"""Training and validation examples of a fine-tuning task."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from trivium.data.records import RecordOptions
from trivium.data.splitting import text_digest
from trivium.errors import DataError
from trivium.objectives.base import LabelledObjective


def read_examples(
    objective: LabelledObjective,
    paths: Sequence[str],
    validation: float | Sequence[str],
    options: RecordOptions,
    seed: int = 0,
) -> tuple[list[Any], list[Any]]:
    """Training and validation examples of files; `validation` is a fraction, or files of its own.

    Raises DataError where there is none.
    """
    examples = list(objective.read(paths, options))
    if not examples:
        skipped = options.bad.lines if options.bad else ()
        raise DataError("\n".join(skipped) or f"{', '.join(paths)}: no examples inside.")
    if isinstance(validation, Sequence):
        return examples, list(objective.read(validation, options))
    return split_examples(examples, validation, seed, objective.labels_of(examples))


def split_examples(
    examples: Sequence[Any],
    validation: float,
    seed: int,
    labels: Sequence[Sequence[str]] | None = None,
) -> tuple[list[Any], list[Any]]:
    """Training and validation examples of any task, each in the order of `examples`.

    Examples of equal `group` are on one side. Of the groups of every label the share `validation`
    is held out, in the order of a hash of the seed and the group; a label that a single group has
    stays in training. Of several labels the rarest counts. Neither side is empty.

    Args:
        labels: of every example; None: none.

    Raises:
        DataError: `validation` is not in [0, 1), or all examples have one group.
    """
    if not 0 <= validation < 1:
        raise DataError(
            f"validation = {validation} is a fraction of the examples: at least 0 and below 1."
        )
    if not validation:
        return list(examples), []
    # Of the seed and the words: spaces and line feeds do not count.
    words = (" ".join(example.group.split()) for example in examples)
    hashes = [text_digest(f"{seed} {text}")[0] for text in words]
    groups: dict[int, set[str]] = {}
    for hashed, names in zip(hashes, labels or [()] * len(examples), strict=True):
        groups.setdefault(hashed, set()).update(names)
    if len(groups) < 2:
        raise DataError(
            f"{len(examples)} examples with the same text cannot be split into training and "
            "validation: give more examples, or a file of validation examples."
        )
    counts = Counter(name for names in groups.values() for name in names)
    rarest = {
        hashed: min(names, key=lambda name: (counts[name], name), default="")
        for hashed, names in groups.items()
    }
    order = sorted(
        (hashed for hashed in groups if counts[rarest[hashed]] != 1),
        key=lambda hashed: (rarest[hashed], hashed),
    ) or sorted(groups)

    # How many of the first n groups are held out: the same share of each label.
    counts_held_out = (np.arange(len(order) + 1) + 0.5) * validation + 0.5
    chosen = np.diff(counts_held_out.astype(np.int64)) > 0
    held_out = set(itertools.compress(order, chosen)) or {order[-1]}
    if len(held_out) == len(groups):
        held_out.remove(order[0])
    train = [one for one, hashed in zip(examples, hashes) if hashed not in held_out]
    valid = [one for one, hashed in zip(examples, hashes) if hashed in held_out]
    return train, valid
