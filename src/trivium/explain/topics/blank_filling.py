"""GLM's blank filling of the reader's text."""

from __future__ import annotations

from trivium.explain.batch_parts import objective_page, text_rows
from trivium.explain.page import Page, bilingual
from trivium.objectives.blank_filling import BlankFilling
from trivium.text.roles import TEXT_SPECIALS


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
    keys = {"probability": probability, "mean_span": mean_span}
    return objective_page(
        bilingual("blank_filling.blank_filling"),
        BlankFilling.from_tree({**keys, "document_share": 0.0, "whole_share": 0.0}),
        *text_rows(texts, tokenizer, TEXT_SPECIALS, ends=False),
        bilingual("blank_filling.note"),
        seed=seed,
    )
