"""Split the examples of a fine-tuning task into training and validation examples."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.data.batch import Bools
from trivium.data.data_cache import CacheEntry, digest_files
from trivium.data.records import RecordOptions
from trivium.data.sources import list_local_files
from trivium.data.splitting import hash_text
from trivium.data.stored_examples import ExampleWriter, StoredExamples
from trivium.errors import DataError
from trivium.objectives.labelled import LabelledObjective

Validation = float | Sequence[str]
"""The fraction of the examples for validation, or the paths of validation files."""
Hashes = NDArray[np.uint64]

_ARRAYS = ("groups", "contents", "is_validation")  # the files of a cache entry


@dataclass(frozen=True)
class ExampleTable:
    """All N examples of a data source, with their split.

    Args:
        examples: the examples, in memory or in a file. Validation files are after all other files.
        groups: the hash of the grouping key of each example, uint64 [N] (see `hash_group`).
        contents: the hash of each example without its file and line, uint64 [N].
        is_validation: whether each example is a validation example, bool [N].
        cache: the folder of the cache that contains the examples. None if they are in memory.
    """

    examples: Sequence[Any]
    groups: Hashes
    contents: Hashes
    is_validation: Bools
    cache: Path | None = None


def hash_group(example: Any) -> int:
    """Return the 64-bit hash of an example's grouping key, which determines its split.

    Differences in white space or Unicode normalisation form do not change the hash.
    """
    return hash_text(" ".join(example.group_key.split()))


def hash_content(example: Any) -> int:
    """Return the 64-bit hash of an example. Its file and line do not change the hash."""
    content = repr(example).replace(example.where, "")
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "little")


def read_table(
    objective: LabelledObjective,
    paths: Sequence[str],
    validation: Validation,
    options: RecordOptions,
    cache: Path,
) -> ExampleTable:
    """Read the labelled examples of a data source, or open them in the cache.

    A cache entry depends on the names and contents of the files, on the objective and on the
    options. The examples of hub datasets, object storage and tasks of other packages are kept in
    memory. The report and the bad records in `options` are filled in either way.

    Args:
        objective: the task.
        paths: the files to read.
        validation: the fraction of examples for validation, or the paths of validation files. If a
            validation file is also in `paths`, its examples are in both splits.
        options: the options for reading records.
        cache: the folder of the cache.

    Raises:
        DataError: there are no examples, or they cannot be read or split.
    """
    held_out = list(validation) if isinstance(validation, Sequence) else []
    files, kind = list_local_files([*paths, *held_out]), objective.example_type
    if kind is None or files is None or not type(objective).__module__.startswith("trivium."):
        examples = list[Any]()
        groups, contents, given = _read_all(objective, paths, held_out, options, examples.append)
        mask = _find_validation(objective, examples, groups, given, validation)
        return ExampleTable(examples, groups, contents, mask)
    keys = objective.to_tree(), validation, options.errors, options.encoding, options.bad is None
    entry = CacheEntry(cache, "examples", json.dumps(keys), digest_files(files))
    if entry.is_valid():
        _restore_notes(entry.read_notes(), options)
    else:
        _write_entry(entry, objective, kind, paths, validation, options)
    arrays = (np.load(entry.folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS)
    groups, contents, mask = arrays
    examples = StoredExamples(entry.folder, kind, len(groups))
    return ExampleTable(examples, groups, contents, mask, cache)


def _write_entry(
    entry: CacheEntry,
    objective: LabelledObjective,
    kind: type,
    paths: Sequence[str],
    validation: Validation,
    options: RecordOptions,
) -> None:
    """Read the examples and write them, their hashes and their split to a new cache entry.

    `kind` is the dataclass of the examples. The other arguments are those of `read_table`.
    """
    held_out = list(validation) if isinstance(validation, Sequence) else []
    notes = dict[str, Any]()
    with entry.write(notes) as folder, record_warnings() as notes["warnings"]:
        with ExampleWriter(folder, kind) as writer:
            groups, contents, given = _read_all(objective, paths, held_out, options, writer.append)
        examples = StoredExamples(folder, kind, len(groups))
        mask = _find_validation(objective, examples, groups, given, validation)
        for name, values in zip(_ARRAYS, (groups, contents, mask), strict=True):
            np.save(folder / f"{name}.npy", values)
        notes["report"] = options.report.to_notes() if options.report else None
        notes["bad_records"] = options.bad.to_notes() if options.bad else None


def _restore_notes(notes: dict[str, Any], options: RecordOptions) -> None:
    """Fill the report and the bad records, and repeat the warnings, of the reading of an entry."""
    if options.report and notes["report"]:
        options.report.restore(notes["report"])
    if options.bad and notes["bad_records"]:
        options.bad.restore(notes["bad_records"])
    for message in notes["warnings"]:
        warnings.warn(message, stacklevel=2)


@contextlib.contextmanager
def record_warnings() -> Iterator[list[str]]:
    """Yield a list that contains the warnings of the block at its end. They are shown as well."""
    messages, caught = list[str](), list[warnings.WarningMessage]()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield messages
    finally:
        messages += dict.fromkeys(str(one.message) for one in caught)
        for message in messages:
            warnings.warn(message, stacklevel=2)


def _read_all(
    objective: LabelledObjective,
    paths: Sequence[str],
    held_out: Sequence[str],
    options: RecordOptions,
    append: Callable[[Any], None],
) -> tuple[Hashes, Hashes, int]:
    """Read the examples of all files, and pass each example to `append`.

    Returns the hashes of the grouping keys, the hashes of the examples, and the number of examples
    in `paths`. The examples of the validation files `held_out` follow.
    """
    groups, contents = array("Q"), array("Q")

    def read(files: Sequence[str]) -> None:
        """Read the examples of some of the files."""
        for example in objective.read(files, options):
            append(example)
            groups.append(hash_group(example))
            contents.append(hash_content(example))

    read(paths)
    given = len(groups)
    if not given:
        skipped = options.bad.lines if options.bad else ()
        raise DataError("\n".join(skipped) or f"{', '.join(paths)}: no examples inside.")
    if held_out:
        read(held_out)
    return np.array(groups, dtype=np.uint64), np.array(contents, dtype=np.uint64), given


def _find_validation(
    objective: LabelledObjective,
    examples: Sequence[Any],
    groups: Hashes,
    given: int,
    validation: Validation,
) -> Bools:
    """Return whether each example is a validation example, bool [N].

    The first `given` examples are from the training files, and all others from validation files.
    """
    if isinstance(validation, Sequence):
        return np.arange(len(groups)) >= given
    return find_validation(groups, validation, objective.labels_by_example(examples))


def read_examples(
    objective: LabelledObjective,
    paths: Sequence[str],
    validation: Validation,
    options: RecordOptions,
) -> tuple[list[Any], list[Any]]:
    """Read labelled examples from files. Returns the training and the validation examples.

    All examples are in memory. The arguments and errors are those of `read_table`.
    """
    held_out = list(validation) if isinstance(validation, Sequence) else []
    examples = list[Any]()
    groups, _, given = _read_all(objective, paths, held_out, options, examples.append)
    mask = _find_validation(objective, examples, groups, given, validation)
    return _part(examples, mask)


def split_examples(
    examples: Sequence[Any], validation: float, labels: Iterable[Sequence[str]] | None = None
) -> tuple[list[Any], list[Any]]:
    """Split examples into training and validation examples. Both keep the original order.

    The split is that of `find_validation`. `labels` are the labels of each example; None for tasks
    without labels.
    """
    groups = np.array([hash_group(example) for example in examples], dtype=np.uint64)
    return _part(examples, find_validation(groups, validation, labels))


def _part(examples: Sequence[Any], mask: Bools) -> tuple[list[Any], list[Any]]:
    """Return the examples where the mask is False, and those where it is True."""
    train = list(itertools.compress(examples, (~mask).tolist()))
    return train, list(itertools.compress(examples, mask.tolist()))


def find_validation(
    groups: Hashes, validation: float, labels: Iterable[Sequence[str]] | None = None
) -> Bools:
    """Choose the validation examples. Returns whether each example is one of them, bool [N].

    A group consists of the examples with the same grouping key (`group_key`). It is never split. A
    group is used for validation if its hash is in the lowest fraction `validation` of all possible
    hashes. The split thus depends only on the examples, not on a seed.

    There are two exceptions, so that every label can be learned and evaluated. For each label, the
    group with the highest hash is always used for training. If a label then has no validation
    group, the group with the lowest hash among its remaining groups is used for validation, if
    there is one. As a result, when an example is added, at most one other group of each of its
    labels moves to the other split.

    Args:
        groups: the hash of the grouping key of each example, uint64 [N].
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
        return np.zeros(len(groups), dtype=bool)
    rows, codes, num_labels = _encode_labels(len(groups), labels)
    if (groups == groups[:1]).all():
        raise DataError(
            f"{len(groups)} examples with the same text cannot be split into training and "
            "validation: give more examples, or a file of validation examples."
        )
    hashes = groups[rows]  # one for each label of each example
    highest = np.zeros(num_labels, dtype=np.uint64)
    np.maximum.at(highest, codes, hashes)
    is_fixed = np.isin(groups, highest)
    limit = np.uint64(min(round(validation * 2**64), 2**64 - 1))
    mask = (groups < limit) & ~is_fixed
    has_validation = np.zeros(num_labels, dtype=bool)
    has_validation[codes[mask[rows]]] = True
    can_move = ~is_fixed[rows] & ~has_validation[codes]
    none = np.iinfo(np.uint64).max
    lowest = np.full(num_labels, none, dtype=np.uint64)
    np.minimum.at(lowest, codes[can_move], hashes[can_move])
    return mask | np.isin(groups, lowest[lowest < none])


def _encode_labels(
    count: int, labels: Iterable[Sequence[str]] | None
) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Encode the labels of `count` examples as numbers.

    An example without labels has the label "". Returns two arrays with one element per label of
    each example: the index of the example, and the number of the label. Also returns the number of
    different labels.
    """
    if labels is None:
        return np.arange(count), np.zeros(count, dtype=np.int32), 1
    rows, codes, numbers = array("q"), array("i"), dict[str, int]()
    for row, names in enumerate(labels):
        for name in names or ("",):
            rows.append(row)
            codes.append(numbers.setdefault(name, len(numbers)))
    return np.array(rows, dtype=np.int64), np.array(codes, dtype=np.int32), len(numbers)
