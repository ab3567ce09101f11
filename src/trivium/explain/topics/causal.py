"""Causal language modelling of the reader's text."""

from __future__ import annotations

from trivium.explain.batch_parts import objective_page, text_rows
from trivium.explain.page import Bilingual, Formula, Page
from trivium.objectives.causal import Causal
from trivium.text.roles import TEXT_SPECIALS

SUMMARY = Bilingual("what a causal language model's loss sees", "因果语言模型的损失看到什么")


def explain(
    text: list[str] | None = None, *, context: int | None = None, tokenizer: str | None = None
) -> Page:
    """Every token of a text is predicted from those before it.

    Args:
        text: Texts, each a row.
        context: Tokens that a prediction may see. Default: all before it.
        tokenizer: A tokenizer, or a model's folder. Default: words.
    """
    chosen, rows = text_rows(
        text or ["Once upon a time there was a king."], tokenizer, TEXT_SPECIALS
    )
    return objective_page(
        Bilingual("Causal language modelling", "因果语言模型（CLM）"),
        Causal.parse({"context": context}),
        chosen,
        rows,
        Formula("L = - 1/T sum_t log P(x_t | x_1 ... x_(t-1))"),
        Bilingual(
            "The label of a position is the next token: one pass gives a loss at every position, "
            "and the causal mask hides what is to be predicted. The last position has no label.",
            "每个位置的标签是下一个词元：一次前向计算就在每个位置上得到损失，"
            "因果掩码遮住了要预测的内容。"
            "最后一个位置没有标签。",
        ),
    )
