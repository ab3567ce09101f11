"""Masked language modelling of the reader's text, and how often each replacement comes."""

from __future__ import annotations

import numpy as np

from trivium.data.batch import IGNORE_INDEX, RowBatch
from trivium.data.row_order import RowRandom
from trivium.explain.batch_parts import objective_page, text_rows
from trivium.explain.page import Page, Table, bilingual
from trivium.objectives.masked import Masked
from trivium.text.roles import BERT_SPECIALS
from trivium.text.vocabulary import Vocabulary

_TEXT = "I love you because you are kind and the dog and the cat are friends of yours."


def explain(
    text: list[str] | None = None,
    *,
    probability: float = 0.15,
    whole_words: bool = False,
    max_span: int = 1,
    tokenizer: str | None = None,
    seed: int = 0,
    draws: int = 2000,
) -> Page:
    """Mask the reader's text as training does, twice, and count what happens in many draws.

    Args:
        text: Texts, each a row.
        probability: Share of tokens that are predicted.
        whole_words: Choose whole words.
        max_span: Tokens in a row chosen together, at most.
        tokenizer: A tokenizer, or a model's folder. Default: words.
        seed: Of the draws.
        draws: Times that all texts are masked for the counts.
    """
    keys = {"probability": probability, "whole_words": whole_words, "max_span": max_span}
    objective = Masked.from_tree(keys)
    chosen, rows = text_rows(text or [_TEXT], tokenizer, BERT_SPECIALS, draws=2)
    page = objective_page(
        bilingual("masked.masked_language_modelling"), objective, chosen, rows, seed=seed
    )
    shares = count_shares(objective, rows, chosen.vocabulary, seed=seed, draws=draws)
    same = objective.random_share / len(chosen.vocabulary.regular_ids)
    left = 1.0 - objective.mask_share - objective.random_share
    table = Table(
        [bilingual("masked.many_draws"), bilingual("masked.share"), bilingual("masked.expected")],
        [
            [bilingual("masked.chosen_all_tokens"), shares["chosen"], probability],
            [bilingual("masked.mask"), shares["masked"], objective.mask_share],
            [bilingual("masked.another_token"), shares["replaced"], objective.random_share - same],
            [bilingual("masked.unchanged"), shares["kept"], left + same],
        ],
    )
    return Page(page.title, [*page.parts, table, _NOTE], {**page.data, "shares": shares})


_NOTE = bilingual("masked.note")


def count_shares(
    objective: Masked, rows: RowBatch, vocabulary: Vocabulary, *, seed: int, draws: int
) -> dict[str, float]:
    """The share of tokens that are chosen, and of these what became of them."""
    numbers = np.arange(draws) % rows.num_rows
    repeated = RowBatch(rows.input_ids[numbers], rows.lengths[numbers])
    batch = objective.prepare(repeated, RowRandom(seed, np.arange(draws)), vocabulary)
    assert batch.labels is not None
    chosen = batch.labels != IGNORE_INDEX
    real = ~vocabulary.is_special[repeated.input_ids]
    masked = chosen & (batch.input_ids == vocabulary.mask_id)
    kept = chosen & (batch.input_ids == batch.labels)
    count = max(1, int(chosen.sum()))
    return {
        "chosen": float(chosen.sum() / real.sum()),
        "masked": float(masked.sum() / count),
        "replaced": float((chosen & ~masked & ~kept).sum() / count),
        "kept": float(kept.sum() / count),
    }
