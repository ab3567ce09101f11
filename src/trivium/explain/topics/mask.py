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

_PAD = "[PAD]"


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
    padded = [*words, _PAD, _PAD]
    real = torch.tensor([[1] * size + [0, 0]])
    documents = torch.tensor([[1] * half + [2] * (size - half)])
    names = [f"{word} ({1 + (i >= half)})" for i, word in enumerate(words)]
    target = [f"y_{i + 1}" for i in range(min(4, size))]
    parts: list[Part] = []
    facts: dict[str, Any] = {}

    def show(
        name: Bilingual,
        words: Bilingual,
        rows: list[str],
        columns: list[str],
        pattern: spec.Pattern | None = None,
        keys: Context | None = None,
        **limits: Any,
    ) -> None:
        queries = Context.of_length(len(rows), **limits)
        seen = allowed(queries, keys or queries, pattern)
        assert seen is not None
        grid = seen.expand(1, 1, len(rows), len(columns))[0, 0].int().tolist()
        parts.extend([Grid(grid, rows, columns, name, digits=False), words])
        facts[name.en] = {"queries": rows, "keys": columns, "mask": grid}

    show(
        Bilingual("Padding", "填充掩码"),
        Bilingual(
            "An encoder sees all real tokens. What padding itself computes is not used.",
            "编码器能看到所有真实词元，看不到填充；填充位置自己的输出不会被使用。",
        ),
        padded,
        padded,
        real=real,
    )
    show(
        Bilingual("Causal", "因果掩码"),
        Bilingual(
            "A token sees itself and those before it: GPT, LLaMA.",
            "每个词元只能看到自己和它之前的词元：GPT、LLaMA。",
        ),
        words,
        words,
        causal=True,
    )
    show(
        Bilingual("Causal and padding", "因果掩码与填充掩码"),
        Bilingual(
            "Both at once, in the decoder of a translation model: a token sees another only if all "
            "limits allow it.",
            "翻译模型的解码器同时使用两者：所有条件都允许时才能看到。",
        ),
        padded,
        padded,
        causal=True,
        real=real,
    )
    show(
        Bilingual("Cross", "交叉注意力的掩码"),
        Bilingual(
            "Every token of the target sees the whole source, without its padding.",
            "目标语言的每个词元都能看到整个源语言句子，但看不到其中的填充。",
        ),
        target,
        padded,
        keys=Context.of_length(size + 2, real=real),
    )
    show(
        Bilingual("Prefix", "前缀掩码"),
        Bilingual(
            f"The first {prefix} tokens see one another in both directions, the others are causal: "
            "T5's prefix LM, GLM.",
            f"前 {prefix} 个词元双向可见，之后的词元是因果的：前缀语言模型、GLM。",
        ),
        words,
        words,
        causal=True,
        prefix=torch.tensor([prefix]),
    )
    show(
        Bilingual("Packed documents", "打包的多个文档"),
        Bilingual(
            "Two documents in one row, causal: a token sees its own document.",
            "两个文档拼在同一行，因果掩码：词元只能看到自己所在的文档。",
        ),
        names,
        names,
        causal=True,
        documents=documents,
    )
    show(
        Bilingual("Sliding window", "滑动窗口"),
        Bilingual(
            f"A token sees itself and the {window} before it: Mistral. Layer upon layer reaches "
            "further.",
            f"词元只能看到自己和前面 {window} 个词元：Mistral。层数越多，能间接看到的范围越远。",
        ),
        words,
        words,
        pattern=spec.Sliding(window=window),
        causal=True,
    )
    return Page(Bilingual("Masks of attention", "注意力掩码"), parts, facts)
