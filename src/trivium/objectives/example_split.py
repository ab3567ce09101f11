"""Training and validation examples of a fine-tuning task."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from trivium.errors import DataError


def split_examples(
    examples: Sequence[Any], validation: float, seed: int
) -> tuple[list[Any], list[Any]]:
    """Training and validation examples of any task, each in the order of `examples`.

    The side of an example is a hash of the seed and the words of its `group`: adding or reordering
    examples moves no other. `validation` is met on average; neither side is empty.

    Raises:
        DataError: `validation` is not in [0, 1), or all examples have one group.
    """
    if not 0 <= validation < 1:
        raise DataError(
            f"validation = {validation} is a fraction of the examples: at least 0 and below 1."
        )
    if not validation:
        return list(examples), []
    hashes = [_hash(example.group, seed) for example in examples]
    if len(set(hashes)) < 2:
        raise DataError(
            f"{len(examples)} examples with the same text cannot be split into training and "
            "validation: give more examples, or a file of validation examples."
        )
    threshold = min(max(round(validation * 2**64), min(hashes) + 1), max(hashes))
    train = [one for one, hashed in zip(examples, hashes) if hashed >= threshold]
    valid = [one for one, hashed in zip(examples, hashes) if hashed < threshold]
    return train, valid


def _hash(text: str, seed: int) -> int:
    """64 bits of the seed and the words of a text."""
    data = f"{seed} {' '.join(text.split())}".encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
