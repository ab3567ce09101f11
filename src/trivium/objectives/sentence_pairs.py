"""Sentence pairs: does B follow A, predicted along with masked tokens (BERT and ALBERT)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch.nn import functional as F

from trivium.data.batch import Batch, RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import RecipeError
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule
from trivium.nn.loss import Loss
from trivium.objectives.base import Losses, Objective, TensorBatch, require_head, require_token
from trivium.objectives.masked import Masking, fill_one_word
from trivium.spec import AnySpec, Head, ModelSpec, NSPHead
from trivium.text.vocabulary import Vocabulary

# Streams of noise beside those of `Masking`.
_NEGATIVE, _CUT, _OTHER, _START = range(16, 20)
# Rows that are drawn for a negative; where all are of the same document the pair stays positive.
_TRIES = 8


class SentencePairs(Masking, Objective):
    """Two segments of text, half of them truly one after the other, with some tokens masked.

    The longest part of one document in a row, without its special tokens, is cut in two. For "nsp"
    (next-sentence prediction) the second segment of every other row is replaced by one from another
    document; for "order" (sentence order) the two are exchanged. With "sat" masked:

        row             [CLS] the cat  sat   .     it  slept . [SEP]
        input_ids       [CLS] the cat [MASK] . [SEP] it slept . [SEP]      sequence label 0: next
        token_type_ids    0    0   0    0    0   0   1    1   1   1
        "nsp"           [CLS] the cat [MASK] . [SEP] my soup is [SEP]      sequence label 1: other
        "order"         [CLS] it slept . [SEP] the cat [MASK] . [SEP]      sequence label 1: swapped

    Negatives are drawn from the other rows of the same step. A pair is no longer than a row: what
    its three special tokens push out is left out at the end. A text of less than two tokens cannot
    be cut: for "nsp" it gets a segment of another document, for "order" its label is 0.

    Source: Devlin et al. 2018, section 3.1 and appendix A.2; Lan et al. 2019, section 3.1. We cut
    one row in two where they join sentences up to a length, and have no pairs that are short by
    chance.
    """

    kind: Literal["sentence-pairs"] = "sentence-pairs"
    pairs: Literal["nsp", "order"] = Field(
        "nsp", description='negatives: a segment of another document ("nsp") or swapped ("order")'
    )

    def heads(self, spec: AnySpec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """The head over the vocabulary, and that of pairs, which can be added to any encoder."""
        if not isinstance(spec, ModelSpec) or spec.family != "encoder-only":
            raise RecipeError(
                f'objective.kind = "{self.kind}" is for Transformer encoders such as bert-mini.'
            )
        if spec.embedding.num_token_types == 1:
            raise RecipeError(
                f'objective.kind = "{self.kind}" needs two token types, and this model has one: '
                'set model.embedding.num_token_types=2, or objective.kind = "masked".'
            )
        have = (head for head in spec.heads if head.kind == "nsp")
        return require_head(spec, "mlm", self.kind), next(have, NSPHead())

    def check(self, spec: AnySpec, vocabulary: Vocabulary) -> None:
        """There must be tokens that mask, begin, separate and pad pairs."""
        self.check_mask(vocabulary, self.kind)
        require_token(vocabulary.start_id, "[CLS]", self.kind, vocabulary.kind)
        require_token(vocabulary.end_id, "[SEP]", self.kind, vocabulary.kind)
        require_token(vocabulary.pad_id, "[PAD]", self.kind, vocabulary.kind)

    @property
    def unigram_offset(self) -> float | None:
        """The label of a pair without any knowledge is a coin toss."""
        return math.log(2.0)

    @property
    def needs_documents(self) -> bool:
        """Pairs are of one document, or of two."""
        return True

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Pairs from rows [B, T]: input_ids, token_type_ids and labels; sequence_labels [B]."""
        texts = _longest_parts(rows, vocabulary)
        cut = _cut(texts, rng, vocabulary)
        first = _Segment(texts.ids, np.zeros_like(cut), cut)
        second = _Segment(texts.ids, cut, texts.sizes - cut)
        negative = rng.uniform(1, _NEGATIVE)[:, 0] < 0.5
        if self.pairs == "nsp":
            negative |= texts.sizes < 2
            second, negative = _with_others(texts, second, negative, rng, vocabulary)
        else:
            negative &= texts.sizes >= 2
            first, second = _select(negative, second, first), _select(negative, first, second)
        return self._join(first, second, negative, rng, vocabulary)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Masked tokens, and pairs."""
        return {"mlm": batch.num_labels, self.pairs: batch.num_rows}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Losses:
        """Nats of the masked tokens, and of the pairs.

        The last layer runs for masked tokens and for the first token of every row.
        """
        labels = batch.sequence_labels
        assert labels is not None
        rows, length = batch.inputs["input_ids"].shape
        firsts = torch.arange(rows, device=labels.device) * length
        select, order = torch.cat((firsts, batch.label_positions)).sort()
        hidden = model(**batch.inputs, select=select).index_select(0, order.argsort())
        first, hidden = hidden.split((rows, len(batch.targets)))
        pairs = model.logits(first[:, None], head="nsp").float()
        return {
            "mlm": Loss(model.vocabulary_loss(hidden, batch.targets), len(batch.targets)),
            self.pairs: Loss(F.cross_entropy(pairs, labels, reduction="sum"), rows),
        }

    def sample(self, lm: LanguageModel, text: str) -> tuple[str, str] | None:
        """Predictions for a masked word of the text."""
        return fill_one_word(lm, text)

    def try_it(self, run: str, lm: LanguageModel) -> str:
        """Fill a mask."""
        return f'fill-mask {run} "The [MASK] was closed."'

    def _join(
        self,
        first: _Segment,
        second: _Segment,
        negative: NDArray[np.bool_],
        rng: RowRandom,
        vocabulary: Vocabulary,
    ) -> Batch:
        """[CLS] A [SEP] B [SEP], masked and padded."""
        pad, start, end = vocabulary.pad_id, vocabulary.start_id, vocabulary.end_id
        assert pad is not None
        assert start is not None
        assert end is not None
        totals = first.sizes + second.sizes + 3
        column = np.arange(totals.max(initial=0))
        middle = first.sizes[:, None] + 1
        inner = np.where(
            column <= middle, first.at(column - 1, pad), second.at(column - middle - 1, pad)
        )
        closes = (column == middle) | (column == totals[:, None] - 1)
        ids = np.where(closes, end, np.where(column == 0, start, inner)).astype(np.int64)
        real = column < totals[:, None]
        ids, labels = self.mask(ids, real, rng, vocabulary)
        return Batch(
            input_ids=ids,
            attention_mask=None if real.all() else real.astype(np.int64),
            token_type_ids=((column > middle) & real).astype(np.int64),
            labels=labels,
            sequence_labels=negative.astype(np.int64),
        )


@dataclass(frozen=True)
class _Texts:
    """Texts int64 [B, N], padded; their sizes [B], and which document of the split each is of."""

    ids: NDArray[np.int64]
    sizes: NDArray[np.int64]
    documents: NDArray[np.int64]


@dataclass(frozen=True)
class _Segment:
    """`sizes` [B] tokens of each row of `ids` [B, N] from `starts` [B] on."""

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def at(self, positions: NDArray[np.int64], fill: int) -> NDArray[np.int64]:
        """The tokens at `positions` [B or 1, T] of the segment, `fill` outside of it: [B, T]."""
        inside = (positions >= 0) & (positions < self.sizes[:, None])
        index = np.where(inside, self.starts[:, None] + positions, 0)
        return np.where(inside, np.take_along_axis(self.ids, index, axis=1), fill)


def _select(condition: NDArray[np.bool_], yes: _Segment, no: _Segment) -> _Segment:
    """The segments of `yes` where the condition [B] holds, else those of `no`."""
    return _Segment(
        np.where(condition[:, None], yes.ids, no.ids),
        np.where(condition, yes.starts, no.starts),
        np.where(condition, yes.sizes, no.sizes),
    )


def _longest_parts(rows: RowBatch, vocabulary: Vocabulary) -> _Texts:
    """Of every row the longest part of one document, without special tokens, cut to fit a pair."""
    assert rows.document_ids is not None, "take the rows with their documents"
    assert rows.first_documents is not None
    ids, documents = rows.input_ids, rows.document_ids
    text = (ids != vocabulary.start_id) & (ids != vocabulary.end_id) & (documents > 0)
    count = int(documents.max(initial=0)) + 1
    keys = np.arange(len(ids))[:, None] * count + documents
    counts = np.bincount(keys[text], minlength=len(ids) * count).reshape(len(ids), count)
    longest = counts.argmax(axis=1)
    text &= documents == longest[:, None]
    parts = np.full_like(ids, vocabulary.pad_id)
    row, column = np.nonzero(text)
    parts[row, (np.cumsum(text, axis=1) - 1)[row, column]] = ids[row, column]
    sizes = np.minimum(text.sum(axis=1), max(ids.shape[1] - 3, 2))
    return _Texts(parts, sizes, rows.first_documents + longest - 1)


def _cut(texts: _Texts, rng: RowRandom, vocabulary: Vocabulary) -> NDArray[np.int64]:
    """How many tokens of each text go before the cut: int64 [B], all of a text of one token."""
    column = np.arange(1, texts.ids.shape[1] + 1)
    inside = column < texts.sizes[:, None]
    cut = _draw_column(texts.ids, inside, rng.uniform(1, _CUT)[:, 0], vocabulary)
    return np.where(texts.sizes < 2, texts.sizes, cut + 1)


def _draw_column(
    ids: NDArray[np.int64],
    allowed: NDArray[np.bool_],
    draw: NDArray[np.float64],
    vocabulary: Vocabulary,
) -> NDArray[np.int64]:
    """One of the columns allowed in each row, the end of a sentence where there is one: [B]."""
    ends = allowed & vocabulary.ends_sentence[ids]
    allowed = np.where(ends.any(axis=1, keepdims=True), ends, allowed)
    rank = (draw * allowed.sum(axis=1)).astype(np.int64)
    return (np.cumsum(allowed, axis=1) > rank[:, None]).argmax(axis=1)


def _with_others(
    texts: _Texts,
    second: _Segment,
    negative: NDArray[np.bool_],
    rng: RowRandom,
    vocabulary: Vocabulary,
) -> tuple[_Segment, NDArray[np.bool_]]:
    """Second segments, of other documents where they are negative, and which ones are so."""
    candidates = rng.integers(len(texts.ids), _TRIES, _OTHER)
    fits = texts.documents[candidates] != texts.documents[:, None]
    fits &= texts.sizes[candidates] > 0
    negative = negative & fits.any(axis=1)
    row = np.take_along_axis(candidates, fits.argmax(axis=1)[:, None], axis=1)[:, 0]
    ids, sizes = texts.ids[row], texts.sizes[row]
    # As long as the segment it replaces, or what is left beside a text that could not be cut.
    space = np.where(texts.sizes < 2, max(ids.shape[1] - 3, 2) - texts.sizes, second.sizes)
    latest = np.maximum(sizes - space, 0)[:, None]
    inside = np.arange(1, ids.shape[1] + 1) <= latest
    start = 1 + _draw_column(ids, inside, rng.uniform(1, _START)[:, 0], vocabulary)
    start = np.where(latest[:, 0] == 0, 0, start)
    other = _Segment(ids, start, np.minimum(sizes - start, space))
    return _select(negative, other, second), negative
