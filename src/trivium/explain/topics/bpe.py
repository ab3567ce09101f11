"""Byte-pair encoding on characters: which merges a text gives, and how a tokenizer applies its."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from trivium.explain.merges import Ties, merging_page, training_page
from trivium.explain.page import Bilingual, Page
from trivium.explain.tokens import texts_or_default
from trivium.text.symbols import SPACE

SUMMARY = Bilingual("BPE: merges of characters and their counts", "BPE：字符的合并与次数")

_RATS = ["the car", "the cat", "the rat"]
_BOOK = Bilingual(
    "A textbook's listing of this example also joins r and a in its last step, a pair that occurs "
    "once. Its c + a comes third only where no merge crosses a space: see --spaces.",
    "有教材在此例的最后一步把 r 和 a 也合在了一起，而这一对只出现一次。"
    "只有合并不跨越空格时，第三步才是 c + a，可用 --spaces 对照。",
)


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
