"""Explanation of blank filling (GLM), applied to the reader's text."""

from __future__ import annotations

from trivium.explain.batch_parts import build_objective_page, encode_rows
from trivium.explain.page import Page, get_text
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
    """Replace spans with masks; the model generates the spans after the text, in random order.

    Args:
        text: The texts; each text is a row.
        probability: Fraction of tokens to blank out. GLM uses 0.15; a short text needs more.
        mean_span: Mean length of a blank in tokens. GLM uses 3.
        tokenizer: A tokenizer file, or the folder of a model. Default: each word is a token.
        seed: Random seed for the choice of the blanks.
    """
    texts = text or ["Thank you for inviting me to your party last week."]
    keys = {"probability": probability, "mean_span": mean_span}
    return build_objective_page(
        get_text("blank_filling.blank_filling"),
        BlankFilling.from_tree({**keys, "document_share": 0.0, "whole_share": 0.0}),
        *encode_rows(texts, tokenizer, TEXT_SPECIALS, add_special_tokens=False),
        get_text("blank_filling.note"),
        seed=seed,
    )
