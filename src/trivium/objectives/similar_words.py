"""Masked language modelling as correction (MacBERT): similar tokens replace [MASK]."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from pydantic import Field, PrivateAttr

from trivium.data.batch import Bools, Ints
from trivium.data.row_order import RowRandom
from trivium.data.rows import Rows
from trivium.objectives.masked import TokenMasking
from trivium.text.vocabulary import Vocabulary

_SIMILAR = 20  # the channel of random numbers; `TokenMasking` and `SentencePairs` use lower ones
# Co-occurrences are counted in about `_ROWS` rows, with the `_CONTEXTS` most frequent tokens, up to
# `_WINDOW` tokens away on each side. Tokens with fewer than `_MIN_COUNT` occurrences are rare.
_ROWS, _CONTEXTS, _WINDOW, _MIN_COUNT = 8192, 512, 2, 5
_BATCH = 1024


class SimilarWords(TokenMasking):
    """Masked language modelling with similar tokens instead of [MASK], as in MacBERT.

    The input of the model contains no [MASK], just as in fine-tuning:

        row        [CLS]  the   cat   sat   on    it  [SEP]
        input_ids  [CLS]  the   cat  stood  on    it  [SEP]
        labels     -100  -100  -100   sat  -100  -100  -100

    The replacement is drawn from the `neighbours` most similar tokens. Similarity is the cosine of
    two co-occurrence vectors. The vector of a token contains its positive pointwise mutual
    information with frequent tokens. Co-occurrences are counted in the training text, at a distance
    of at most two tokens. Rare tokens are replaced with random tokens. Everything else is the same
    as in "masked".

    Source: Cui et al. 2020 (MacBERT), section 3.2, which uses similar words from word2vec and masks
    spans (here objective.max_span); Bullinaria and Levy 2007 for the co-occurrence vectors.
    """

    kind: Literal["similar-words"] = "similar-words"
    neighbours: int = Field(8, gt=0, le=64, description="number of similar tokens to choose from")
    _similar: Ints | None = PrivateAttr(None)
    """The most similar tokens of every token (see `find_similar_tokens`). None before `fit`."""

    def fit(self, rows: Rows, vocabulary: Vocabulary) -> Self:
        """Find the most similar tokens for every token. Returns the fitted objective.

        Similarity is computed from at most 16,383 rows, taken at regular intervals from the
        training text.
        """
        step = max(1, len(rows) // _ROWS)
        fitted = self.model_copy()
        fitted._similar = find_similar_tokens(
            rows.take(np.arange(0, len(rows), step)).input_ids, vocabulary, self.neighbours
        )
        return fitted

    def corrupt_tokens(
        self, input_ids: Ints, is_token: Bools, rng: RowRandom, vocabulary: Vocabulary
    ) -> tuple[Ints, Ints]:
        """Replace random tokens with similar tokens, where `TokenMasking` inserts [MASK].

        Returns the corrupted input_ids and the labels, int64 [B, T] each.
        """
        corrupted, labels = super().corrupt_tokens(input_ids, is_token, rng, vocabulary)
        length, regular = input_ids.shape[1], vocabulary.regular_ids
        other = regular[rng.integers(len(regular), length, _SIMILAR)]
        if self._similar is not None:
            similar = self._similar[input_ids, rng.integers(self.neighbours, length, _SIMILAR + 1)]
            other = np.where(similar < 0, other, similar)
        return np.where((labels >= 0) & (corrupted == vocabulary.mask_id), other, corrupted), labels


def find_similar_tokens(input_ids: Ints, vocabulary: Vocabulary, num_neighbours: int) -> Ints:
    """Find the tokens that are most similar to each of V tokens, int64 [V, num_neighbours].

    The most similar token comes first. For special tokens and rare tokens, all entries are -1.

    Args:
        input_ids: rows of text in which co-occurrences are counted, int64 [rows, T].
        vocabulary: the vocabulary of V tokens.
        num_neighbours: the number of similar tokens per token.
    """
    size, regular = len(vocabulary.is_special), vocabulary.regular_ids
    occurs = np.bincount(input_ids.ravel(), minlength=size)[:size]
    contexts = np.argsort(-occurs, kind="stable")[:_CONTEXTS]
    column = np.full(size, -1)
    column[contexts] = np.arange(len(contexts))
    around = np.zeros((size, len(contexts)), dtype=np.float32)
    for distance in range(1, _WINDOW + 1):
        left, right = input_ids[:, :-distance].ravel(), input_ids[:, distance:].ravel()
        for token, other in ((left, right), (right, left)):
            seen = column[other] >= 0
            np.add.at(around, (token[seen], column[other][seen]), 1.0)
    expected = around.sum(1, keepdims=True) * around.sum(0) / max(around.sum(), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        vectors = np.nan_to_num(np.maximum(np.log(around / expected), 0.0), posinf=0.0)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    known = regular[occurs[regular] >= _MIN_COUNT]
    similar = np.full((size, num_neighbours), -1, dtype=np.int64)
    if len(known) <= num_neighbours:
        return similar
    for tokens in np.array_split(known, -(-len(known) // _BATCH)):
        cosines = vectors[tokens] @ vectors[known].T
        cosines[tokens[:, None] == known] = -1.0
        similar[tokens] = known[np.argsort(-cosines, axis=1, kind="stable")[:, :num_neighbours]]
    return similar
