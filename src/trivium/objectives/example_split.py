"""Split the examples of a fine-tuning task into training and validation examples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from trivium.data.records import RecordOptions
from trivium.data.splitting import hash_text
from trivium.errors import DataError
from trivium.objectives.labelled import LabelledObjective


def hash_group(example: Any) -> int:
    """Return the 64-bit hash of an example's grouping key, which determines its split.

    Differences in white space or Unicode normalisation form do not change the hash.
    """
    return hash_text(" ".join(example.group_key.split()))


def read_examples(
    objective: LabelledObjective,
    paths: Sequence[str],
    validation: float | Sequence[str],
    options: RecordOptions,
) -> tuple[list[Any], list[Any]]:
    """Read labelled examples from files. Returns the training and the validation examples.

    Args:
        objective: the task.
        paths: the files to read.
        validation: the fraction of examples for validation, or the paths of validation files. If a
            validation file is also in `paths`, its examples are in both lists.
        options: the options for reading records.

    Raises:
        DataError: there are no examples.
    """
    examples = list(objective.read(paths, options))
    if not examples:
        skipped = options.bad.lines if options.bad else ()
        raise DataError("\n".join(skipped) or f"{', '.join(paths)}: no examples inside.")
    if isinstance(validation, Sequence):
        return examples, list(objective.read(validation, options))
    return split_examples(examples, validation, objective.labels_by_example(examples))


def split_examples(
    examples: Sequence[Any], validation: float, labels: Sequence[Sequence[str]] | None = None
) -> tuple[list[Any], list[Any]]:
    """Split examples into training and validation examples. Both keep the original order.

    A group consists of the examples with the same grouping key (`group_key`). It is never split. A
    group is used for validation if its hash is in the lowest fraction `validation` of all possible
    hashes. The split thus depends only on the examples, not on a seed.

    There are two exceptions, so that every label can be learned and evaluated. For each label, the
    group with the highest hash is always used for training. If a label then has no validation
    group, the group with the lowest hash among its remaining groups is used for validation, if
    there is one. As a result, when an example is added, at most one other group of each of its
    labels moves to the other split.

    Args:
        examples: the examples of any task.
        validation: the fraction of groups for validation.
        labels: the labels of each example; None for tasks without labels.

    Raises:
        DataError: `validation` is not in [0, 1), or all examples have the same grouping key.
    """
    if not 0 <= validation < 1:
        raise DataError(
            f"validation = {validation} is a fraction of the examples: at least 0 and below 1."
        )
    if not validation:
        return list(examples), []
    hashes = [hash_group(example) for example in examples]
    by_label: defaultdict[str, set[int]] = defaultdict(set)
    for hashed, names in zip(hashes, labels or [()] * len(examples), strict=True):
        for name in names or ("",):
            by_label[name].add(hashed)
    if len({*hashes}) < 2:
        raise DataError(
            f"{len(examples)} examples with the same text cannot be split into training and "
            "validation: give more examples, or a file of validation examples."
        )
    fixed = {max(groups) for groups in by_label.values()}
    validation_hashes = {hashed for hashed in hashes if hashed < round(validation * 2**64)} - fixed
    lacking = [groups - fixed for groups in by_label.values() if not groups & validation_hashes]
    validation_hashes |= {min(groups) for groups in lacking if groups}
    train = [one for one, hashed in zip(examples, hashes) if hashed not in validation_hashes]
    return train, [one for one, hashed in zip(examples, hashes) if hashed in validation_hashes]
