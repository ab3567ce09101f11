"""Explanation of masked language modelling, with the frequency of each kind of replacement."""

from __future__ import annotations

import numpy as np

from trivium.data.batch import IGNORE_INDEX, RowBatch
from trivium.data.row_order import RowRandom
from trivium.explain.batch_parts import build_objective_page, encode_rows
from trivium.explain.page import Page, Table, get_text
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
    """Mask texts with two random draws, as in training, and count replacements over many draws.

    Args:
        text: The texts; each text is a row.
        probability: Fraction of tokens that are predicted.
        whole_words: Select whole words.
        max_span: Maximum number of adjacent tokens selected together.
        tokenizer: A tokenizer file, or the folder of a model. Default: each word is a token.
        seed: Random seed.
        draws: Total number of random draws for the counts, each for one text.
    """
    keys = {"probability": probability, "whole_words": whole_words, "max_span": max_span}
    objective = Masked.from_tree(keys)
    chosen, rows = encode_rows(text or [_TEXT], tokenizer, BERT_SPECIALS, num_copies=2)
    page = build_objective_page(
        get_text("masked.masked_language_modelling"), objective, chosen, rows, seed=seed
    )
    shares = count_replacements(objective, rows, chosen.vocabulary, seed=seed, draws=draws)
    same = objective.random_share / len(chosen.vocabulary.regular_ids)
    left = 1.0 - objective.mask_share - objective.random_share
    table = Table(
        [get_text("masked.many_draws"), get_text("masked.share"), get_text("masked.expected")],
        [
            [get_text("masked.chosen_all_tokens"), shares["chosen"], probability],
            [get_text("masked.mask"), shares["masked"], objective.mask_share],
            [get_text("masked.another_token"), shares["replaced"], objective.random_share - same],
            [get_text("masked.unchanged"), shares["kept"], left + same],
        ],
    )
    return Page(page.title, [*page.parts, table, _NOTE], {**page.data, "shares": shares})


_NOTE = get_text("masked.note")


def count_replacements(
    objective: Masked, rows: RowBatch, vocabulary: Vocabulary, *, seed: int, draws: int
) -> dict[str, float]:
    """Measure how many tokens are selected and replaced in `draws` random draws over the rows.

    Returns:
        A dict of fractions. "chosen" is the fraction of tokens that are selected for prediction.
        "masked", "replaced" and "kept" are the fractions of selected tokens that become [MASK],
        become another token, or stay unchanged.
    """
    indices = np.arange(draws) % rows.num_rows
    repeated = RowBatch(rows.input_ids[indices], rows.lengths[indices])
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
