"""Explanation of next-sentence prediction (BERT) and sentence-order prediction (ALBERT)."""

from __future__ import annotations

from typing import Literal

from trivium.explain.batch_parts import encode_rows, objective_page
from trivium.explain.page import Page, bilingual
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
    """Split texts into two segments; in half of the pairs, the second is replaced, or both swapped.

    Args:
        text: Documents of at least two sentences. Negative examples come from the other documents.
        pairs: nsp is the objective of BERT, order the objective of ALBERT.
        tokenizer: A tokenizer file, or the folder of a model. Default: each word is a token.
        seed: Random seed.
    """
    return objective_page(
        bilingual("sentence_pairs.sentence_pairs"),
        SentencePairs.from_tree({"pairs": pairs}),
        *encode_rows(text or _TEXTS, tokenizer, BERT_SPECIALS, draws=2),
        bilingual("sentence_pairs.note"),
        seed=seed,
    )
