"""Explanation of causal language modelling, applied to the reader's text."""

from __future__ import annotations

from trivium.explain.batch_parts import build_objective_page, encode_rows
from trivium.explain.page import Formula, Page, get_text
from trivium.objectives.causal import Causal
from trivium.text.roles import TEXT_SPECIALS


def explain(
    text: list[str] | None = None, *, context: int | None = None, tokenizer: str | None = None
) -> Page:
    """Predict every token of a text from the previous tokens.

    Args:
        text: The texts; each text is a row.
        context: Number of previous tokens that are visible. Default: all.
        tokenizer: A tokenizer file, or the folder of a model. Default: each word is a token.
    """
    texts = text or ["Once upon a time there was a king."]
    return build_objective_page(
        get_text("causal.causal_language_modelling"),
        Causal.from_tree({"context": context}),
        *encode_rows(texts, tokenizer, TEXT_SPECIALS),
        Formula("L = - 1/T sum_t log P(x_t | x_1 ... x_(t-1))"),
        get_text("causal.note"),
    )
