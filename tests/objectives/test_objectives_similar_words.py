"""Tokens with the same neighbours are similar, and take the place of each other."""

from __future__ import annotations

import numpy as np

from trivium.data.row_order import RowRandom
from trivium.data.rows import Rows
from trivium.objectives.similar_words import SimilarWords, find_similar_tokens
from trivium.text import Tokenizer

ANIMALS, FOODS = ["cat", "dog", "fox"], ["soup", "rice", "cake"]


def test_animals_replace_animals_and_food_food():
    rng = np.random.default_rng(0)
    text = [
        f"the {rng.choice(ANIMALS)} sat there and i ate {rng.choice(FOODS)} today"
        for _ in range(300)
    ]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer.train(
        "whitespace", texts=text, vocab_size=100, special_tokens=specials, progress=False
    )
    vocabulary, names = tokenizer.vocabulary, tokenizer.tokens
    rows = Rows(np.concatenate([tokenizer.encode(one).ids for one in text]), 50)
    ids = rows.take(np.arange(len(rows))).input_ids
    nearest = find_similar_tokens(ids, vocabulary, 2)
    for group in (ANIMALS, FOODS):
        for one in group:
            found = {names[token] for token in nearest[names.index(one)]}
            assert found == {*group} - {one}
    assert (nearest[: len(specials)] == -1).all()  # special tokens neither have nor are neighbours
    objective = SimilarWords(probability=0.5, mask_share=1.0, random_share=0.0, neighbours=2)
    learned, noise = objective.fit(rows, vocabulary), RowRandom(0, np.arange(len(rows)))
    batch = learned.prepare(rows.take(np.arange(len(rows))), noise, vocabulary)
    chosen = batch.labels >= 0
    assert not (batch.input_ids == vocabulary.mask_id).any()
    assert (batch.input_ids[~chosen] == ids[~chosen]).all()
    assert (nearest[ids[chosen]] == batch.input_ids[chosen][:, None]).any(1).all()
