"""Byte-level BPE (Radford et al. 2019): merges of bytes, so that no text has unknown tokens."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tokenizers import pre_tokenizers

from trivium.explain.merges import Ties, merging_page, training_page
from trivium.explain.page import Bilingual, Page
from trivium.explain.tokens import texts_or_default

SUMMARY = Bilingual("byte-level BPE: merges of UTF-8 bytes", "字节级 BPE：UTF-8 字节的合并")

_NOTE = Bilingual(
    "Words are those of GPT-2's splits: a space belongs to the word after it, written ▁. A "
    "vocabulary begins with all 256 bytes; here only those of the text are listed, as \\xe4 where "
    "they are no whole character.",
    "先按 GPT-2 的规则切成词：空格归入后面的词，写作 ▁。词表以全部 256 个字节开头，"
    "这里只列出文本中出现的字节；不成完整字符的字节写作 \\xe4。",
)


def explain(
    texts: list[str] | None = None,
    *,
    merges: int = 6,
    ties: Ties = "first",
    tokenizer: Path | None = None,
) -> Page:
    """Learn merges of bytes from texts, or apply those of a tokenizer.

    Args:
        texts: Small texts. Default: 今天 (twice), 天气 and the cat.
        merges: How many to learn.
        ties: Which of pairs that are as frequent.
        tokenizer: Show how this one encodes the texts; a file, or the folder of a run.
    """
    texts = texts_or_default(texts, ["今天", "今天", "天气", "the cat"])
    if tokenizer is not None:
        return merging_page(tokenizer, texts)
    split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    words = Counter(word for text in texts for word, _ in split(text))
    return training_page(words, merges, ties, byte_level=True, notes=[_NOTE])
