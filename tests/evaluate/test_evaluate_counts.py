"""Count models against the formulas of Chen and Goodman, counted in dictionaries."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from trivium.errors import DataError
from trivium.evaluate.counts import KneserNey, Unigram


def text(length: int, vocab_size: int, *, seed: int = 0) -> np.ndarray:
    """Ids with much repetition: each follows from the last two or, at times, from nothing."""
    chance = np.random.default_rng(seed)
    ids = [1, 2]
    while len(ids) < length:
        follow = (3 * ids[-1] + 5 * ids[-2]) % vocab_size
        ids.append(follow if chance.random() < 0.6 else int(chance.zipf(1.6)) % vocab_size)
    return np.array(ids)


class Formula:
    """p(w | h) as it is written in the paper, one word at a time."""

    def __init__(self, tokens: list[int], vocab_size: int, order: int) -> None:
        self.vocab_size = vocab_size
        grams = {
            n: [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
            for n in range(1, order + 2)
        }
        self.counts: dict[int, dict[tuple[int, ...], int]] = {order: Counter(grams[order])}
        for n in range(1, order):
            before = defaultdict(set)
            for gram in grams[n + 1]:
                before[gram[1:]].add(gram[0])
            self.counts[n] = {gram: len(tokens) for gram, tokens in before.items()}
        self.seen = {n: Counter(counts.values()) for n, counts in self.counts.items()}
        self.after: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
        for gram in (gram for counts in self.counts.values() for gram in counts):
            self.after[gram[:-1]].append(gram)

    def discount(self, n: int, count: int) -> float:
        of = self.seen[n]
        share = of[1] / (of[1] + 2 * of[2])
        times = min(count, 3)
        return times - (times + 1) * share * of[times + 1] / of[times]

    def probability(self, word: int, history: tuple[int, ...]) -> float:
        n = len(history) + 1
        after = {g: self.counts[n][g] for g in self.after[history]}
        shorter = self.probability(word, history[1:]) if history else 1 / self.vocab_size
        total = sum(after.values())
        if not total:
            return shorter
        left = sum(self.discount(n, c) for c in after.values()) / total
        count = after.get((*history, word), 0)
        seen = (count - self.discount(n, count)) / total if count else 0.0
        return seen + left * shorter


@pytest.mark.parametrize("order", [1, 2, 3])
def test_kneser_ney_is_the_formula(order: int) -> None:
    tokens, vocab_size = text(3001, 499), 503
    model = KneserNey(tokens, vocab_size, order=order)
    formula = Formula(tokens.tolist(), vocab_size, order)
    rows = np.concatenate([tokens[500:533].reshape(3, 11), text(22, 503, seed=1).reshape(2, 11)])
    found = model.log_probabilities(rows)
    assert found.shape == (5, 10)
    for row, logs in zip(rows.tolist(), found.tolist(), strict=True):
        for place, log in enumerate(logs, start=1):
            history = tuple(row[max(0, place - order + 1) : place])
            expected = math.log(formula.probability(row[place], history))
            assert log == pytest.approx(expected, abs=1e-9)


def test_kneser_ney_by_hand() -> None:
    """a b a b a c, bigrams: too little text to estimate discounts, so 1/2, 1 and 3/2."""
    a, b, c = 0, 1, 2
    model = KneserNey(np.array([a, b, a, b, a, c]), 4, order=2)
    # Different tokens before a: b. Before b: a. Before c: a. Each 1 - 1/2 of 3, and 1/2 for 1/4.
    alone = (1 - 0.5) / 3 + 1.5 / 3 / 4
    # After a: b twice, c once, of 3; taken away 1 + 1/2.
    rows = np.array([[a, b], [a, c], [a, a], [b, a], [3, a]])
    expected = [
        (2 - 1) / 3 + 1.5 / 3 * alone,
        (1 - 0.5) / 3 + 1.5 / 3 * alone,
        1.5 / 3 * alone,
        (2 - 1) / 2 + 1 / 2 * alone,
        alone,
    ]
    np.testing.assert_allclose(np.exp(model.log_probabilities(rows))[:, 0], expected, rtol=1e-12)


def test_probabilities_add_up_to_one() -> None:
    tokens, vocab_size = text(2003, 29), 31
    model = KneserNey(tokens, vocab_size, order=5)
    for history in (tokens[100:104], tokens[:4], np.array([30, 30, 30, 30]), tokens[7:9]):
        rows = np.concatenate(
            [np.tile(history, (vocab_size, 1)), np.arange(vocab_size)[:, None]], axis=1
        )
        assert np.exp(model.log_probabilities(rows)[:, -1]).sum() == pytest.approx(1.0)


def test_longer_histories_tell_more() -> None:
    tokens, held_out = text(20_011, 37), text(1100, 37, seed=5).reshape(11, 100)
    losses = [-KneserNey(tokens, 37, order=n).log_probabilities(held_out).mean() for n in (1, 2, 3)]
    unigram = -Unigram(tokens, 37).log_probabilities(held_out).mean()
    assert losses[0] > losses[1] + 0.1 > losses[2] + 0.2
    assert unigram > losses[1]


def test_unigram_is_add_one() -> None:
    model = Unigram(np.array([0, 0, 2]), 5)
    found = model.log_probabilities(np.array([[4, 0, 2, 1]]))
    np.testing.assert_allclose(np.exp(found), [[3 / 8, 2 / 8, 1 / 8]])


def test_a_text_shorter_than_an_n_gram_is_refused() -> None:
    with pytest.raises(DataError, match="3 tokens"):
        KneserNey(np.array([1, 2, 3]), 7, order=5)
