"""Training and validation examples of a fine-tuning task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from trivium.data.records import RecordOptions
from trivium.data.splitting import text_digest
from trivium.errors import DataError
from trivium.objectives.labelled import LabelledObjective


def group_of(example: Any) -> int:
    """Return a hash of the example's group; white space and Unicode form do not change it."""
    return text_digest(" ".join(example.group.split()))


def read_examples(
    objective: LabelledObjective,
    paths: Sequence[str],
    validation: float | Sequence[str],
    options: RecordOptions,
) -> tuple[list[Any], list[Any]]:
    """Read the examples of files, and return those for training and those for validation.

    Args:
        objective: the task.
        paths: the files to read.
        validation: a share of the examples to hold out, or the paths of validation files. These
            files may be among `paths`, too: their examples are then in both lists.
        options: options for reading records.

    Raises DataError if there are no examples.
    """
    examples = list(objective.read(paths, options))
    if not examples:
        skipped = options.bad.lines if options.bad else ()
        raise DataError("\n".join(skipped) or f"{', '.join(paths)}: no examples inside.")
    if isinstance(validation, Sequence):
        return examples, list(objective.read(validation, options))
    return split_examples(examples, validation, objective.labels_of(examples))


def split_examples(
    examples: Sequence[Any], validation: float, labels: Sequence[Sequence[str]] | None = None
) -> tuple[list[Any], list[Any]]:
    """Split the examples of any task into training and validation, each in their order.

    Examples of equal `group` are on one side. A group is held out if its hash is in the share
    `validation` of all hashes, so that nothing but the example decides; the seed has no influence.
    Two exceptions make sure that every label can be learned and measured. The group with the
    highest hash of a label stays in training, and so does the only group of a label. A label
    without a held-out group gives the one with its lowest hash. One more example moves at most one
    other example of each of its labels.

    Args:
        examples: the examples.
        validation: the share of the groups to hold out.
        labels: the labels of every example; None for a task without labels.

    Raises:
        DataError: `validation` is not in [0, 1), or all examples are in one group.
    """
    if not 0 <= validation < 1:
        raise DataError(
            f"validation = {validation} is a fraction of the examples: at least 0 and below 1."
        )
    if not validation:
        return list(examples), []
    hashes = [group_of(example) for example in examples]
    by_label: defaultdict[str, set[int]] = defaultdict(set)
    for hashed, names in zip(hashes, labels or [()] * len(examples), strict=True):
        for name in names or ("",):
            by_label[name].add(hashed)
    if len({*hashes}) < 2:
        raise DataError(
            f"{len(examples)} examples with the same text cannot be split into training and "
            "validation: give more examples, or a file of validation examples."
        )
    kept = {max(groups) for groups in by_label.values()}
    validation_hashes = {hashed for hashed in hashes if hashed < round(validation * 2**64)} - kept
    lacking = [groups - kept for groups in by_label.values() if not groups & validation_hashes]
    validation_hashes |= {min(groups) for groups in lacking if groups}
    train = [one for one, hashed in zip(examples, hashes) if hashed not in validation_hashes]
    valid = [one for one, hashed in zip(examples, hashes) if hashed in validation_hashes]
    return train, valid
