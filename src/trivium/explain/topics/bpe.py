"""Explanation of byte-pair encoding on characters: how merges are learned and applied."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from trivium.explain.merges import Ties, build_merging_page, build_training_page
from trivium.explain.page import Page, get_text
from trivium.explain.tokens import choose_texts
from trivium.text.symbols import SPACE

_RATS = ["the car", "the cat", "the rat"]
_BOOK = get_text("bpe.textbook_note")


def explain(
    texts: list[str] | None = None,
    *,
    merges: int = 5,
    ties: Ties = "first",
    spaces: bool = False,
    tokenizer: Path | None = None,
) -> Page:
    """Learn merges from texts, or apply the merges of a tokenizer.

    Args:
        texts: Short texts. Default: the car, the cat, the rat.
        merges: Number of merges to learn.
        ties: Which of several equally frequent pairs to merge.
        spaces: Treat a space like any other symbol, so that merges can cross spaces.
        tokenizer: A tokenizer file or run folder; show how this tokenizer encodes the texts
            instead.
    """
    texts_shown = choose_texts(texts, _RATS)
    if tokenizer is not None:
        return build_merging_page(tokenizer, texts_shown)
    words = (
        [text.replace(" ", SPACE) for text in texts_shown]
        if spaces
        else " ".join(texts_shown).split()
    )
    notes = [] if texts else [_BOOK]
    return build_training_page(Counter(words), merges, ties, byte_level=False, notes=notes)
