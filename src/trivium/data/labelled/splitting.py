"""Dividing labelled examples into training and validation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol, TypeVar

from trivium.errors import DataError


class Example(Protocol):
    """A labelled example of any kind."""

    @property
    def where(self) -> str:
        """Its place, for messages."""
        ...

    @property
    def group(self) -> str:
        """The text that must not stand on both sides."""
        ...


AnyExample = TypeVar("AnyExample", bound=Example)


def divide(
    examples: Sequence[AnyExample], validation: float, seed: int
) -> tuple[list[AnyExample], list[AnyExample]]:
    """Training and validation examples, each in the order given.

    The side follows from the seed and a hash of the example's `group` (the text, the source, the
    context; white space does not count) alone: examples of the same text share a side, and adding
    or reordering examples moves no other. So `validation` is met on average only; neither side is
    left empty.

    Raises DataError where `validation` is not in [0, 1) or all examples share one text.
    """
    if not 0 <= validation < 1:
        raise DataError(
            f"validation is a fraction of the examples from 0 up to (not with) 1, not {validation}."
        )
    if not validation:
        return list(examples), []
    hashes = [_hash(example.group, seed) for example in examples]
    if len(set(hashes)) < 2:
        raise DataError(
            f"{len(examples)} examples of one text cannot be divided into training and "
            "validation. Give more examples, or a file of validation examples."
        )
    # The smallest hash is always in validation and the largest never.
    threshold = min(max(round(validation * 2**64), min(hashes) + 1), max(hashes))
    train = [example for example, hashed in zip(examples, hashes) if hashed >= threshold]
    held = [example for example, hashed in zip(examples, hashes) if hashed < threshold]
    return train, held


def _hash(text: str, seed: int) -> int:
    """A 64-bit hash of the seed and of the words of a text."""
    data = f"{seed} {' '.join(text.split())}".encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
