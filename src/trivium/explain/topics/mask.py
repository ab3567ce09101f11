"""Which tokens a token may attend to: padding, causal, prefix, cross, packed, sliding."""

from __future__ import annotations

from typing import Any

import torch

from trivium import spec
from trivium.errors import TriviumError
from trivium.explain.page import Bilingual, Grid, Page, Part
from trivium.nn.context import Context
from trivium.nn.mask import allowed

SUMMARY = Bilingual("which tokens a token may attend to", "注意力掩码：每个词元能看到哪些词元")

_PADDING = (
    Bilingual("padding", "填充掩码"),
    Bilingual(
        "An encoder sees all real tokens. What padding itself computes is not used.",
        "编码器能看到所有真实词元，看不到填充；填充位置自己的输出不会被使用。",
    ),
)
_CAUSAL = (
    Bilingual("causal", "因果掩码"),
    Bilingual(
        "A token sees itself and those before it: GPT, LLaMA.",
        "每个词元只能看到自己和它之前的词元：GPT、LLaMA。",
    ),
)
_BOTH = (
    Bilingual("causal and padding", "因果掩码与填充掩码"),
    Bilingual(
        "The decoder of a translation model: a token sees another only if all limits allow it.",
        "翻译模型的解码器：所有限制都允许时，一个词元才能看到另一个。",
    ),
)
_CROSS = (
    Bilingual("cross-attention", "交叉注意力的掩码"),
    Bilingual(
        "Every token of the target sees the whole source, without its padding.",
        "目标语言的每个词元都能看到整个源语言句子，但看不到其中的填充。",
    ),
)
_PREFIX = (
    Bilingual("prefix", "前缀掩码"),
    Bilingual(
        "The first {} tokens see one another in both directions, the others are causal: the "
        "prefix LM of T5's paper, GLM.",
        "前 {} 个词元双向可见，之后的词元是因果的：T5 论文中的前缀语言模型、GLM。",
    ),
)
_PACKED = (
    Bilingual("packed documents", "打包在一行的多个文档"),
    Bilingual(
        "Two documents in one row, causal: a token sees its own document.",
        "两个文档拼在同一行，使用因果掩码：词元只能看到自己所在的文档。",
    ),
)
_SLIDING = (
    Bilingual("sliding window", "滑动窗口"),
    Bilingual(
        "A token sees itself and {} before it: Mistral. More layers reach further.",
        "词元只能看到自己和前面 {} 个词元：Mistral。层数越多，能间接看到的范围越远。",
    ),
)


def explain(text: str = "the cat sat on the mat", *, prefix: int = 3, window: int = 1) -> Page:
    """Show the masks of attention as grids: a row is a query, a filled square a key that it sees.

    Args:
        text: Words, 4 to 24 of them.
        prefix: Tokens that a prefix language model reads in both directions.
        window: Tokens before it that a token sees in a sliding window.
    """
    words = text.split()
    if not 4 <= len(words) <= 24:
        raise TriviumError(f"the text has {len(words)} words: give 4 to 24, with spaces between.")
    size, half = len(words), (len(words) + 1) // 2
    padded, target = [*words, "[PAD]", "[PAD]"], ["y_1", "y_2", "y_3", "y_4"]
    numbered = [f"{word} ({1 + (i >= half)})" for i, word in enumerate(words)]
    real: dict[str, Any] = {"real": torch.tensor([[1] * size + [0, 0]])}
    documents = torch.tensor([[1] * half + [2] * (size - half)])
    parts: list[Part] = []
    facts: dict[str, Any] = {}
    masks: list[tuple[Any, ...]] = [
        (_PADDING, "", padded, padded, real, None),
        (_CAUSAL, "", words, words, {"causal": True}, None),
        (_BOTH, "", padded, padded, {"causal": True, **real}, None),
        (_CROSS, "", target, padded, {}, None),
        (_PREFIX, prefix, words, words, {"causal": True, "prefix": torch.tensor([prefix])}, None),
        (_PACKED, "", numbered, numbered, {"causal": True, "documents": documents}, None),
        (_SLIDING, window, words, words, {"causal": True}, spec.Sliding(window=window)),
    ]
    for name, said, rows, columns, limits, pattern in masks:
        queries = Context.of_length(len(rows), **limits)
        keys = Context.of_length(len(columns), **real) if rows is target else queries
        seen = allowed(queries, keys, pattern)
        assert seen is not None
        grid = seen.expand(1, 1, len(rows), len(columns))[0, 0].int().tolist()
        caption, words_of = name
        parts += [
            Grid(grid, rows, columns, caption, digits=False),
            Bilingual(words_of.en.format(said), words_of.zh.format(said)),
        ]
        facts[caption.en] = {"queries": rows, "keys": columns, "mask": grid}
    return Page(Bilingual("Masks of attention", "注意力掩码"), parts, facts)
