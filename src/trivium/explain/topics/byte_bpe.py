"""Explanation of byte-level BPE (Radford et al. 2019): merges of bytes, without unknown tokens."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tokenizers import pre_tokenizers

from trivium.explain.merges import Ties, build_merging_page, build_training_page
from trivium.explain.page import Page, get_text
from trivium.explain.tokens import choose_texts

_NOTE = get_text("byte_bpe.words_note")


def explain(
    texts: list[str] | None = None,
    *,
    merges: int = 6,
    ties: Ties = "first",
    tokenizer: Path | None = None,
) -> Page:
    """Learn merges of bytes from texts, or apply the merges of a tokenizer.

    Args:
        texts: Short texts. Default: 今天 (twice), 天气 and the cat.
        merges: Number of merges to learn.
        ties: Which of several equally frequent pairs to merge.
        tokenizer: A tokenizer file or run folder; show how this tokenizer encodes the texts
            instead.
    """
    texts = choose_texts(texts, ["今天", "今天", "天气", "the cat"])
    if tokenizer is not None:
        return build_merging_page(tokenizer, texts)
    split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    words = Counter(word for text in texts for word, _ in split(text))
    return build_training_page(words, merges, ties, byte_level=True, notes=[_NOTE])
