"""BART's denoising of the reader's text, with every noise of the paper by itself."""

from __future__ import annotations

from trivium.explain.batch_parts import objective_page, text_rows
from trivium.explain.page import Bilingual, Heading, Page, Part
from trivium.objectives.denoising import Denoising
from trivium.text.roles import TEXT_SPECIALS

SUMMARY = Bilingual(
    "what BART's loss sees: a noisy text and the original", "BART 的损失看到什么：加噪的文本与原文"
)

_NO_INFILLING = 1e-9
_NOISES = {
    Bilingual("text infilling, sentences permuted (BART)", "文本填充加句子重排（BART）"): {},
    Bilingual("sentences permuted", "句子重排"): {"probability": _NO_INFILLING},
    Bilingual("tokens masked", "词元掩码"): {"mask_tokens": 0.3},
    Bilingual("tokens deleted", "词元删除"): {"delete_tokens": 0.3},
    Bilingual("document rotated", "文档旋转"): {"rotate_documents": 1.0},
}


def explain(text: list[str] | None = None, *, tokenizer: str | None = None, seed: int = 0) -> Page:
    """The encoder reads a noisy text, and the decoder generates the original.

    Args:
        text: Texts, each a row.
        tokenizer: A tokenizer, or a model's folder. Default: words.
        seed: Of the noise.
    """
    texts = text or ["The cat sat on it. We saw it. It was late."]
    chosen, rows = text_rows(texts, tokenizer, TEXT_SPECIALS)
    title = Bilingual("Denoising", "去噪自编码（Denoising）")
    parts: list[Part] = []
    facts = {}
    for number, (name, keys) in enumerate(_NOISES.items()):
        alone = {"probability": _NO_INFILLING, "permute_sentences": False}
        keys = keys if "probability" in keys or not keys else {**alone, **keys}
        page = objective_page(title, Denoising.parse(keys), chosen, rows, seed=seed)
        # The decoder is the same for all.
        parts += [Heading(name), *(page.parts if number == 0 else page.parts[:1])]
        facts[name.en] = page.facts
    note = Bilingual(
        "A span of text infilling is one mask, whatever its length (Poisson, mean 3); of length 0 "
        "it inserts a mask. The labels are always the whole original text.",
        "文本填充中，一个片段无论多长都只换成一个掩码（长度服从均值为 3 的泊松分布）；"
        "长度为 0 时则插入一个掩码。"
        "标签始终是完整的原文。",
    )
    return Page(title, [*parts, note], facts)
