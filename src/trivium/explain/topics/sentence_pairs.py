"""BERT's next-sentence prediction and ALBERT's sentence order on the reader's texts."""

from __future__ import annotations

from typing import Literal

from trivium.explain.batch_parts import objective_page, text_rows
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
    """Texts are cut in two; half of the second segments are replaced, or the two exchanged.

    Args:
        text: Texts of two sentences or more, each a document. Negatives come from the others.
        pairs: nsp is BERT's, order ALBERT's.
        tokenizer: A tokenizer, or a model's folder. Default: words.
        seed: Of the draws.
    """
    return objective_page(
        bilingual("sentence_pairs.sentence_pairs"),
        SentencePairs.from_tree({"pairs": pairs}),
        *text_rows(text or _TEXTS, tokenizer, BERT_SPECIALS, draws=2),
        bilingual("sentence_pairs.note"),
        seed=seed,
    )
