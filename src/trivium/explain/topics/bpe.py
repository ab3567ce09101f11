"""Byte-pair encoding on characters: which merges a text gives, and how a tokenizer applies its."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from trivium.explain.merges import Ties, merging_page, training_page
from trivium.explain.page import Page, bilingual
from trivium.explain.tokens import texts_or_default
from trivium.text.symbols import SPACE

_RATS = ["the car", "the cat", "the rat"]
_BOOK = bilingual("bpe.textbook_note")


def explain(
    texts: list[str] | None = None,
    *,
    merges: int = 5,
    ties: Ties = "first",
    spaces: bool = False,
    tokenizer: Path | None = None,
) -> Page:
    """Learn merges from texts, or apply those of a tokenizer.

    Args:
        texts: Small texts. Default: the car, the cat, the rat.
        merges: How many to learn.
        ties: Which of pairs that are as frequent.
        spaces: A space is a symbol like others, and merges cross it.
        tokenizer: Show how this one encodes the texts; a file, or the folder of a run.
    """
    texts_shown = texts_or_default(texts, _RATS)
    if tokenizer is not None:
        return merging_page(tokenizer, texts_shown)
    words = (
        [text.replace(" ", SPACE) for text in texts_shown]
        if spaces
        else " ".join(texts_shown).split()
    )
    notes = [] if texts else [_BOOK]
    return training_page(Counter(words), merges, ties, byte_level=False, notes=notes)
