"""Language models that only count: word frequencies, and n-grams with Kneser-Ney smoothing.

What a network of any kind has to be better than. Numpy alone; ids in, nats out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.errors import DataError

Ids = NDArray[np.integer]

# Where a text is too small to estimate them; those that KenLM falls back to.
_FALLBACK = (0.5, 1.0, 1.5)


class Unigram:
    """p(w) = (c(w) + 1) / (N + V), whatever stands before.

    Args:
        tokens: int [M], a text as ids below `vocab_size`.
    """

    def __init__(self, tokens: Ids, vocab_size: int) -> None:
        counts = np.bincount(tokens, minlength=vocab_size)
        self._logs = np.log(counts + 1.0) - np.log(len(tokens) + float(vocab_size))

    def log_probabilities(self, rows: Ids) -> NDArray[np.float64]:
        """Of every token but the first of each row: [R, T] -> [R, T - 1], in nats."""
        return self._logs[rows[:, 1:]]


@dataclass(frozen=True)
class _Order:
    """The n-grams of one length: sorted keys (history * V + last token) and what they are worth.

    `gain` is the discounted count over that of the history, [n-grams]; `rest` is what is left of
    a history for the shorter one, [histories], 1 where nothing was counted.
    """

    keys: NDArray[np.int64]
    gain: NDArray[np.float64]
    rest: NDArray[np.float64]

    def find(self, history: NDArray[np.int64], tokens: Ids, vocab_size: int) -> NDArray[np.int64]:
        """The n-gram of each history and token, -1 where it was never seen."""
        wanted = history * vocab_size + tokens
        place = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        return np.where((history >= 0) & (self.keys[place] == wanted), place, -1)


class KneserNey:
    """Interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999, section 3).

        p(w | h) = max(c(h w) - D(c), 0) / c(h) + g(h) p(w | h'),   h' = h without its first token

    with D(1), D(2) and D(3 and more) estimated from how many n-grams were seen once to four times,
    and g(h) what they take away. Below the highest order c counts the different tokens that were
    seen before an n-gram; below the first stands 1 / V. The text is one stream, as packed rows are.

    Args:
        tokens: int [M], a text as ids below `vocab_size`, M at least `order`.
        order: the longest n-grams, n.

    Raises:
        DataError: a text shorter than one n-gram.
    """

    def __init__(self, tokens: Ids, vocab_size: int, *, order: int = 5) -> None:
        if len(tokens) < order:
            raise DataError(f"{len(tokens)} tokens hold no n-gram of {order}: give more text.")
        self.vocab_size, self.order = vocab_size, order
        self._orders = self._count(tokens.astype(np.int64))

    def log_probabilities(self, rows: Ids) -> NDArray[np.float64]:
        """Of every token but the first of each row, given those before it in the row.

        Shape: [R, T] -> [R, T - 1], in nats.
        """
        history = np.zeros(rows.shape, dtype=np.int64)
        probability = np.full(rows.shape, 1.0 / self.vocab_size)
        for order in self._orders:
            gram = order.find(history, rows, self.vocab_size)
            gain = np.where(gram >= 0, order.gain[gram], 0.0)
            rest = np.where(history >= 0, order.rest[history], 1.0)
            probability = gain + rest * probability
            # The n-gram up to a token is the history of the token after it.
            history = np.full_like(gram, -1)
            history[:, 1:] = gram[:, :-1]
        return np.log(probability[:, 1:])

    def _count(self, tokens: NDArray[np.int64]) -> list[_Order]:
        orders: list[_Order] = []
        history, histories = np.zeros(len(tokens), dtype=np.int64), 1
        shorter: _Grams | None = None
        for length in range(1, self.order + 1):
            keys, gram, counts = np.unique(
                history * self.vocab_size + tokens[length - 1 :],
                return_inverse=True,
                return_counts=True,
            )
            if shorter is not None:
                # Every different n-gram is one more token seen before what follows its first.
                ending = np.empty_like(keys)
                ending[gram] = shorter.gram[1:]
                before = np.bincount(ending, minlength=len(shorter.keys))
                orders.append(_weigh(shorter, before, self.vocab_size))
            shorter = _Grams(keys, gram, counts, histories)
            history, histories = gram[:-1], len(keys)
        assert shorter is not None
        return [*orders, _weigh(shorter, shorter.counts, self.vocab_size)]


@dataclass(frozen=True)
class _Grams:
    """The different n-grams of one length, which one ends at each token, and how often each is."""

    keys: NDArray[np.int64]
    gram: NDArray[np.int64]
    counts: NDArray[np.int64]
    histories: int


def _weigh(grams: _Grams, counts: NDArray[np.int64], vocab_size: int) -> _Order:
    """What each n-gram and each history is worth."""
    history, histories = grams.keys // vocab_size, grams.histories
    discounts = np.array([0.0, *_discounts(counts)])[np.minimum(counts, 3)]
    totals = np.bincount(history, weights=counts, minlength=histories)
    taken = np.bincount(history, weights=discounts, minlength=histories)
    known = totals > 0
    rest = np.divide(taken, totals, out=np.ones(histories), where=known)
    gain = (counts - discounts) / np.where(known, totals, 1.0)[history]
    return _Order(grams.keys, gain, rest)


def _discounts(counts: NDArray[np.int64]) -> tuple[float, float, float]:
    """D(1), D(2), D(3 and more) (Chen and Goodman 1999, equation 26)."""
    once, twice, thrice, four = (int((counts == times).sum()) for times in (1, 2, 3, 4))
    if not (once and twice and thrice and four):
        return _FALLBACK
    share = once / (once + 2.0 * twice)
    found = (
        1.0 - 2.0 * share * twice / once,
        2.0 - 3.0 * share * thrice / twice,
        3.0 - 4.0 * share * four / thrice,
    )
    # A count is never worth less than nothing, nor more than before.
    inside = all(0.0 <= discount <= times for times, discount in enumerate(found, start=1))
    return found if inside else _FALLBACK
