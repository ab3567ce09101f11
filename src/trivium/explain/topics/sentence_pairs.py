"""Explanation of next-sentence prediction (BERT) and sentence-order prediction (ALBERT)."""

from __future__ import annotations

from typing import Literal

from trivium.explain.batch_parts import build_objective_page, encode_rows
from trivium.explain.page import Page, get_text
from trivium.objectives.sentence_pairs import SentencePairs
from trivium.text.roles import BERT_SPECIALS

_TEXTS = ["I love you. Because you are wonderful.", "Dinner is ready. The soup is so nice."]


def explain(
    text: list[str] | None = None,
    *,
    pairs: Literal["nsp", "order"] = "nsp",
    tokenizer: str | None = None,
    seed: int = 0,
) -> Page:
    """Make pairs of segments; in half of the pairs, replace the second segment, or swap both.

    Args:
        text: Documents of at least two sentences. Negative examples come from the other documents.
        pairs: The objective: nsp (BERT, replaces the second segment) or order (ALBERT, swaps both).
        tokenizer: A tokenizer file, or the folder of a model. Default: each word is a token.
        seed: Random seed.
    """
    return build_objective_page(
        get_text("sentence_pairs.sentence_pairs"),
        SentencePairs.from_tree({"pairs": pairs}),
        *encode_rows(text or _TEXTS, tokenizer, BERT_SPECIALS, num_copies=2),
        get_text("sentence_pairs.note"),
        seed=seed,
    )
