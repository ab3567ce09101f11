"""Retrieval: which of many passages a query finds, by BM25, by vectors, and by both together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.data.batch import Bools, Ints
from trivium.text.symbols import LETTERS

Scores = NDArray[np.floating[Any]]

_RRF = 60.0  # Cormack et al. 2009
_QUERIES_AT_ONCE = 256


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, Chinese and Japanese characters one by one.

    >>> words_of("The cat's \u732b")
    ['the', 'cat', 's', '\u732b']
    """
    return LETTERS.findall(text.lower())


class BM25:
    """score(q, d) = sum over the words w of q of idf(w) tf (k1 + 1) / (tf + k1 (1 - b + b |d| / m))

    tf is how often w is in d, |d| the words of d, m their mean over the N passages, and
    idf(w) = log(1 + (N - n + 0.5) / (n + 0.5)), where n passages have w.

    Source: Robertson and Zaragoza 2009, section 3.4. The 1 in the logarithm, which keeps frequent
    words from counting against a passage, is Lucene's.
    """

    def __init__(self, passages: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> None:
        counts = [Counter(words_of(passage)) for passage in passages]
        sizes = np.array([count.total() for count in counts], dtype=np.float64)
        norms = k1 * (1.0 - b + b * sizes / max(sizes.mean(), 1.0))
        postings: dict[str, list[tuple[int, int]]] = {}
        for number, count in enumerate(counts):
            for word, frequency in count.items():
                postings.setdefault(word, []).append((number, frequency))
        self.num_passages = len(passages)
        self._postings: dict[str, tuple[Ints, Scores]] = {}
        for word, posting in postings.items():
            numbers, frequencies = np.array(posting).T
            idf = math.log(1.0 + (len(passages) - len(posting) + 0.5) / (len(posting) + 0.5))
            weights = idf * frequencies * (k1 + 1.0) / (frequencies + norms[numbers])
            self._postings[word] = numbers, weights

    def scores(self, queries: Sequence[str]) -> Scores:
        """Return the score of every passage for every query: float64 [Q, P]."""
        scores = np.zeros((len(queries), self.num_passages))
        for row, query in zip(scores, queries, strict=True):
            for word in words_of(query):
                numbers, weights = self._postings.get(word, ((), 0.0))
                row[list(numbers)] += weights
        return scores


def reciprocal_rank_fusion(*several: Scores) -> Scores:
    """sum of 1 / (60 + rank) over some scores of the same passages: [Q, P], each.

    Source: Cormack et al. 2009.
    """
    orders = (np.argsort(-scores, axis=1, kind="stable") for scores in several)
    ranks = (np.argsort(order, axis=1, kind="stable") + 1 for order in orders)
    return np.sum([1.0 / (_RRF + rank) for rank in ranks], axis=0)


def first_ranks(scores: Scores, relevant: Bools) -> Ints:
    """The rank, from 1, of the best relevant passage for every query: [Q, P] -> int64 [Q].

    Of passages with equal scores the relevant ones come last.
    """
    best = np.where(relevant, scores, -np.inf).max(axis=1, keepdims=True)
    return 1 + ((scores >= best) & ~relevant).sum(axis=1)


def retrieval_values(ranks: Ints, prefix: str = "") -> dict[str, float]:
    """MRR, the mean of 1 / rank, and the shares of queries with a rank of at most 1 and 10."""
    return {
        f"{prefix}mrr": float((1.0 / ranks).mean()),
        f"{prefix}recall@1": float((ranks <= 1).mean()),
        f"{prefix}recall@10": float((ranks <= 10).mean()),
    }


@dataclass(frozen=True)
class Retrieved:
    """What queries find.

    Args:
        values: MRR and recall, by name; those of BM25 and of both begin with `bm25_` and `mixed_`.
        ranks: of the passage that belongs to each query, by vectors, int64 [Q].
        best: the passage that each query finds first, by vectors.
        num_passages: among how many different ones.
    """

    values: dict[str, float]
    ranks: Ints
    best: list[str]
    num_passages: int


def retrieve(
    pairs: Sequence[tuple[str, str]], queries: Scores, passages: Scores, *, lexical: bool
) -> Retrieved:
    """Find the passage that belongs to each query among the different ones of all pairs.

    Several passages may belong to equal queries, of which the first one found counts.

    Args:
        pairs: query and passage.
        queries, passages: their vectors of length 1, [Q, D] each.
        lexical: also by BM25, and by both.
    """
    places: dict[str, int] = {}
    belonging: dict[str, list[int]] = {}
    for query, passage in pairs:
        belonging.setdefault(query, []).append(places.setdefault(passage, len(places)))
    texts = list(places)
    first = np.unique([places[passage] for _, passage in pairs], return_index=True)[1]
    vectors, bm25 = passages[first], BM25(texts) if lexical else None
    ranks: dict[str, list[Ints]] = {}
    best: list[str] = []
    for start in range(0, len(pairs), _QUERIES_AT_ONCE):
        part = [query for query, _ in pairs[start : start + _QUERIES_AT_ONCE]]
        relevant = np.zeros((len(part), len(texts)), dtype=bool)
        for row, query in zip(relevant, part):
            row[belonging[query]] = True
        scores: dict[str, Scores] = {"": queries[start : start + _QUERIES_AT_ONCE] @ vectors.T}
        best += [texts[number] for number in scores[""].argmax(axis=1)]
        if bm25 is not None:
            scores["bm25_"] = bm25.scores(part)
            scores["mixed_"] = reciprocal_rank_fusion(scores[""], scores["bm25_"])
        for name, each in scores.items():
            ranks.setdefault(name, []).append(first_ranks(each, relevant))
    joined = {name: np.concatenate(each) for name, each in ranks.items()}
    values = [retrieval_values(each, name) for name, each in joined.items()]
    return Retrieved(
        dict(item for one in values for item in one.items()), joined[""], best, len(texts)
    )
