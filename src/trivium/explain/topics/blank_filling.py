"""GLM's blank filling of the reader's text."""

from __future__ import annotations

from trivium.explain.batch_parts import objective_page, text_rows
from trivium.explain.page import Bilingual, Page
from trivium.objectives.blank_filling import BlankFilling
from trivium.text.roles import TEXT_SPECIALS

SUMMARY = Bilingual(
    "what GLM's loss sees: blanks that are filled at the end", "GLM 的损失看到什么：自回归填空"
)


def explain(
    text: list[str] | None = None,
    *,
    probability: float = 0.3,
    mean_span: float = 1.5,
    tokenizer: str | None = None,
    seed: int = 0,
) -> Page:
    """Spans become masks, and are generated after the text, in a random order.

    Args:
        text: Texts, each a row.
        probability: Share of tokens in blanks; 0.15 in GLM, here more, for a short text.
        mean_span: Mean tokens of a blank; 3 in GLM.
        tokenizer: A tokenizer, or a model's folder. Default: words.
        seed: Of the blanks.
    """
    texts = text or ["Thank you for inviting me to your party last week."]
    chosen, rows = text_rows(texts, tokenizer, TEXT_SPECIALS, ends=False)
    keys = {"probability": probability, "mean_span": mean_span}
    return objective_page(
        Bilingual("Blank filling", "自回归填空（GLM）"),
        BlankFilling.parse({**keys, "document_share": 0.0, "whole_share": 0.0}),
        chosen,
        rows,
        Bilingual(
            "Part A, up to the first <s>, is seen by all; part B sees part A and what is before it "
            "in part B. position_ids are two numbers: the place in the text (for a blank that of "
            "its mask) and the place inside the blank.",
            "第一个 <s> 之前是 A 部分，对所有位置可见；"
            "B 部分能看到 A 部分以及 B 部分中在它之前的内容。"
            "position_ids 有两个数：在文本中的位置（填空时为其掩码的位置）和在空内的位置。",
        ),
        seed=seed,
    )
