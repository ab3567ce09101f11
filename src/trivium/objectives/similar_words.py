"""Masked language modelling as correction: similar tokens in the place of [MASK] (MacBERT)."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from pydantic import Field, PrivateAttr

from trivium.data.batch import Bools, Ints
from trivium.data.row_order import RowRandom
from trivium.data.rows import Rows
from trivium.objectives.masked import Masking
from trivium.text.vocabulary import Vocabulary

_SIMILAR = 20  # a channel of noise beside those of `Masking` and of sentence pairs
# Rows that are counted, contexts (the most frequent tokens), how far they reach, and how often a
# token must occur.
_ROWS, _CONTEXTS, _WINDOW, _FEWEST = 8192, 512, 2, 5
_AT_ONCE = 1024


class SimilarWords(Masking):
    """Predict tokens that similar ones have replaced; no [MASK], which fine-tuning never shows.

        row        [CLS]  the   cat   sat   on    it  [SEP]
        input_ids  [CLS]  the   cat  stood  on    it  [SEP]
        labels     -100  -100  -100   sat  -100  -100  -100

    Similar are the `neighbours` tokens whose counts of tokens around them in the text of the run
    (positive pointwise mutual information, two to each side) have the largest cosines. A token
    that is too rare to have any gets a random one. All else is as of `masked`.

    Source: Cui et al. 2020 (MacBERT), section 3.2, which takes words from word2vec and masks spans
    (here objective.max_span); Bullinaria and Levy 2007 for the counts.
    """

    kind: Literal["similar-words"] = "similar-words"
    neighbours: int = Field(8, gt=0, le=64, description="similar tokens that one is drawn from")
    _similar: Ints | None = PrivateAttr(None)

    def fit(self, rows: Rows, vocabulary: Vocabulary) -> Self:
        """With the neighbours of every token in some rows, evenly taken from the text."""
        step = max(1, len(rows) // _ROWS)
        learned = self.model_copy()
        learned._similar = similar_tokens(
            rows.take(np.arange(0, len(rows), step)).input_ids, vocabulary, self.neighbours
        )
        return learned

    def mask(
        self, original: Ints, real: Bools, rng: RowRandom, vocabulary: Vocabulary
    ) -> tuple[Ints, Ints]:
        """See `Masking.mask`; another token stands where that method puts [MASK]."""
        input_ids, labels = super().mask(original, real, rng, vocabulary)
        length, regular = original.shape[1], vocabulary.regular_ids
        other = regular[rng.integers(len(regular), length, _SIMILAR)]
        if self._similar is not None:
            similar = self._similar[original, rng.integers(self.neighbours, length, _SIMILAR + 1)]
            other = np.where(similar < 0, other, similar)
        return np.where((labels >= 0) & (input_ids == vocabulary.mask_id), other, input_ids), labels


def similar_tokens(ids: Ints, vocabulary: Vocabulary, count: int) -> Ints:
    """The tokens nearest to each in rows of text, the nearest first: int64 [V, count], else -1."""
    size, regular = len(vocabulary.is_special), vocabulary.regular_ids
    occurs = np.bincount(ids.ravel(), minlength=size)[:size]
    contexts = np.argsort(-occurs, kind="stable")[:_CONTEXTS]
    column = np.full(size, -1)
    column[contexts] = np.arange(len(contexts))
    around = np.zeros((size, len(contexts)), dtype=np.float32)
    for distance in range(1, _WINDOW + 1):
        left, right = ids[:, :-distance].ravel(), ids[:, distance:].ravel()
        for token, other in ((left, right), (right, left)):
            seen = column[other] >= 0
            np.add.at(around, (token[seen], column[other][seen]), 1.0)
    expected = around.sum(1, keepdims=True) * around.sum(0) / max(around.sum(), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        vectors = np.nan_to_num(np.maximum(np.log(around / expected), 0.0), posinf=0.0)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    known = regular[occurs[regular] >= _FEWEST]
    similar = np.full((size, count), -1, dtype=np.int64)
    if len(known) <= count:
        return similar
    for some in np.array_split(known, -(-len(known) // _AT_ONCE)):
        cosines = vectors[some] @ vectors[known].T
        cosines[some[:, None] == known] = -1.0
        similar[some] = known[np.argsort(-cosines, axis=1, kind="stable")[:, :count]]
    return similar
