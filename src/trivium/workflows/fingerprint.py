"""What tells one set of labelled examples from another, so that a resumed run learns the same."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

from trivium.errors import RecipeError


def examples_digest(*parts: Sequence[Any]) -> str:
    """SHA-256 of what examples say, whatever file and line they stand in."""
    digest = hashlib.sha256()
    for examples in parts:
        for example in examples:
            fields = [f.name for f in dataclasses.fields(example) if f.name != "where"]
            digest.update(repr([getattr(example, name) for name in fields]).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def check_examples(noted: dict[str, Any], train: Sequence[Any], valid: Sequence[Any]) -> None:
    """Refuse examples that differ from those that a run noted when it began.

    Raises RecipeError with both numbers of examples.
    """
    if noted.get("examples_digest") in (None, examples_digest(train, valid)):
        return
    before = noted.get("train_examples", 0), noted.get("valid_examples", 0)
    now = len(train), len(valid)
    told = "as many, with other texts or labels"
    if before != now:
        told = f"{now[0]:,} and {now[1]:,}"
    raise RecipeError(
        "the example files have changed since this run began: it learned from "
        f"{before[0]:,} examples and was judged by {before[1]:,}, now there are {told}. Put the "
        "files back, or start a new run with another --out."
    )
