"""Retrieval: ranking passages for queries by embeddings, BM25, or a hybrid of both."""

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
"""An array of floats: scores of P passages for Q queries, [Q, P], or embeddings."""

_RRF_CONSTANT = 60.0  # Cormack et al. 2009
_QUERY_BATCH = 256


def split_lowercase_words(text: str) -> list[str]:
    r"""Split a text into lowercase words. Every Chinese or Japanese character is a word.

    >>> split_lowercase_words("The cat's \u732b")
    ['the', 'cat', 's', '\u732b']
    """
    return LETTERS.findall(text.lower())


class BM25:
    """An index of N passages, which scores each passage d for a query q by BM25.

    score(q, d) = sum over the words w of q of idf(w) tf (k1 + 1) / (tf + k1 (1 - b + b |d| / m))

    tf is the number of occurrences of w in d, |d| the number of words of d, and m the mean number
    of words of a passage. idf(w) = log(1 + (N - n + 0.5) / (n + 0.5)), where n is the number of
    passages that contain w. k1 limits the influence of repeated words, and b is the strength of the
    length normalization.

    Source: Robertson and Zaragoza 2009, section 3.4. The 1 in the logarithm, as in Lucene, prevents
    negative scores for frequent words.
    """

    def __init__(self, passages: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> None:
        counts = [Counter(split_lowercase_words(passage)) for passage in passages]
        sizes = np.array([count.total() for count in counts], dtype=np.float64)
        norms = k1 * (1.0 - b + b * sizes / max(sizes.mean(), 1.0))
        postings: dict[str, list[tuple[int, int]]] = {}
        for index, count in enumerate(counts):
            for word, frequency in count.items():
                postings.setdefault(word, []).append((index, frequency))
        self.num_passages = len(passages)
        self._postings: dict[str, tuple[Ints, Scores]] = {}
        for word, posting in postings.items():
            indices, frequencies = np.array(posting).T
            idf = math.log(1.0 + (len(passages) - len(posting) + 0.5) / (len(posting) + 0.5))
            weights = idf * frequencies * (k1 + 1.0) / (frequencies + norms[indices])
            self._postings[word] = indices, weights

    def score_passages(self, queries: Sequence[str]) -> Scores:
        """Return the BM25 score of every passage for each of Q queries, float64 [Q, N]."""
        scores = np.zeros((len(queries), self.num_passages))
        for row, query in zip(scores, queries, strict=True):
            for word in split_lowercase_words(query):
                indices, weights = self._postings.get(word, ((), 0.0))
                row[list(indices)] += weights
        return scores


def reciprocal_rank_fusion(*rankings: Scores) -> Scores:
    """Combine several rankings of P passages by reciprocal rank fusion.

    Each ranking is given as the scores of all passages for Q queries, [Q, P]. Returns the combined
    scores [Q, P]: the sum of 1 / (60 + rank) over the rankings.

    Source: Cormack et al. 2009.
    """
    orders = (np.argsort(-scores, axis=1, kind="stable") for scores in rankings)
    ranks = (np.argsort(order, axis=1, kind="stable") + 1 for order in orders)
    return np.sum([1.0 / (_RRF_CONSTANT + rank) for rank in ranks], axis=0)


def compute_best_ranks(scores: Scores, is_relevant: Bools) -> Ints:
    """Return the rank of the best relevant passage for each query, int64 [Q], starting at 1.

    If passages have equal scores, the relevant ones are ranked last.

    Args:
        scores: the score of every passage for every query, [Q, P].
        is_relevant: which passages are relevant to each query, bool [Q, P].
    """
    best = np.where(is_relevant, scores, -np.inf).max(axis=1, keepdims=True)
    return 1 + ((scores >= best) & ~is_relevant).sum(axis=1)


def compute_mrr_and_recall(ranks: Ints, prefix: str = "") -> dict[str, float]:
    """Return MRR (the mean of 1 / rank), recall@1 and recall@10, by name.

    Recall@k is the fraction of queries whose rank is at most k. Every name starts with `prefix`.
    """
    return {
        f"{prefix}mrr": float((1.0 / ranks).mean()),
        f"{prefix}recall@1": float((ranks <= 1).mean()),
        f"{prefix}recall@10": float((ranks <= 10).mean()),
    }


@dataclass(frozen=True)
class RetrievalResult:
    """The passages retrieved for Q queries, and the retrieval metrics.

    Args:
        values: MRR and recall by name. Names with the prefix `bm25_` are for BM25, names with
            `mixed_` for the hybrid of BM25 and embeddings, and all others for embeddings.
        ranks: the rank of each query's relevant passage, by embeddings, int64 [Q].
        best: the highest-ranked passage for each query, by embeddings.
        num_passages: the number of distinct passages.
    """

    values: dict[str, float]
    ranks: Ints
    best: list[str]
    num_passages: int


def retrieve(
    pairs: Sequence[tuple[str, str]], query_vectors: Scores, passage_vectors: Scores, hybrid: bool
) -> RetrievalResult:
    """Rank the distinct passages of all pairs for each query, and compute retrieval metrics.

    If several pairs share a query, all of their passages are relevant to it, and the best rank
    counts.

    Args:
        pairs: Q pairs (query, passage).
        query_vectors: the embeddings of the queries, with norm 1, [Q, D].
        passage_vectors: the embeddings of the passages, with norm 1, [Q, D].
        hybrid: whether to also rank by BM25, and by the hybrid of BM25 and embeddings.
    """
    index_of: dict[str, int] = {}
    relevant_indices: dict[str, list[int]] = {}
    for query, passage in pairs:
        relevant_indices.setdefault(query, []).append(index_of.setdefault(passage, len(index_of)))
    texts = list(index_of)
    first = np.unique([index_of[passage] for _, passage in pairs], return_index=True)[1]
    vectors, bm25 = passage_vectors[first], BM25(texts) if hybrid else None
    ranks: dict[str, list[Ints]] = {}
    best: list[str] = []
    for start in range(0, len(pairs), _QUERY_BATCH):
        part = [query for query, _ in pairs[start : start + _QUERY_BATCH]]
        relevant = np.zeros((len(part), len(texts)), dtype=bool)
        for row, query in zip(relevant, part):
            row[relevant_indices[query]] = True
        scores: dict[str, Scores] = {"": query_vectors[start : start + _QUERY_BATCH] @ vectors.T}
        best += [texts[index] for index in scores[""].argmax(axis=1)]
        if bm25 is not None:
            scores["bm25_"] = bm25.score_passages(part)
            scores["mixed_"] = reciprocal_rank_fusion(scores[""], scores["bm25_"])
        for name, each in scores.items():
            ranks.setdefault(name, []).append(compute_best_ranks(each, relevant))
    joined = {name: np.concatenate(each) for name, each in ranks.items()}
    values = [compute_mrr_and_recall(each, name) for name, each in joined.items()]
    return RetrievalResult(
        dict(item for one in values for item in one.items()), joined[""], best, len(texts)
    )
