"""Prefix language modelling of the reader's text, by a decoder and by an encoder-decoder."""

from __future__ import annotations

from trivium.explain.batch_parts import objective_page, text_rows
from trivium.explain.page import Bilingual, Heading, Page
from trivium.objectives.prefix_lm import PrefixLM, Seq2SeqPrefixLM
from trivium.text.roles import TEXT_SPECIALS

SUMMARY = Bilingual("what the loss of a prefix language model sees", "前缀语言模型的损失看到什么")


def explain(text: list[str] | None = None, *, tokenizer: str | None = None, seed: int = 0) -> Page:
    """The beginning of a text is given, and the rest is predicted.

    Args:
        text: Texts, each a row.
        tokenizer: A tokenizer, or a model's folder. Default: words.
        seed: Of the lengths of prefixes.
    """
    texts = text or ["Thank you for inviting me to your party."]
    chosen, rows = text_rows(texts, tokenizer, TEXT_SPECIALS, ends=False)
    title = Bilingual("Prefix language modelling", "前缀语言模型（Prefix LM）")
    decoder = objective_page(title, PrefixLM.parse({}), chosen, rows, seed=seed)
    both = objective_page(title, Seq2SeqPrefixLM.parse({}), chosen, rows, seed=seed)
    parts = [
        Heading(Bilingual("a decoder alone", "仅解码器")),
        *decoder.parts,
        Heading(Bilingual("an encoder-decoder", "编码器-解码器")),
        *both.parts,
        Bilingual(
            "A prefix is drawn whenever a row is seen: 1 to T - 1 tokens, each length as often. "
            "There is no loss in it: it is read, and the rest is written.",
            "每次读到一行都重新抽取前缀长度，从 1 到 T - 1 等概率。前缀上没有损失：它只供阅读，"
            "模型要写出的是其余部分。",
        ),
    ]
    return Page(title, parts, {"decoder": decoder.facts, "encoder_decoder": both.facts})
