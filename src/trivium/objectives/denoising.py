"""Denoising: a text is damaged, and the decoder writes all of it as it was."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom
from trivium.models import LanguageModule
from trivium.nn.loss import Loss
from trivium.objectives.base import TensorBatch, TextObjective, token_loss
from trivium.objectives.span_corruption import shift_right

_LENGTH, _PLACE, _ORDER, _MASK, _DELETE, _TURNS, _FIRST = range(7)
# Chances of Poisson lengths beyond these are below 1e-12 for any mean up to 20.
_LONGEST = 64
_CLOSING = "\"')]}\u201d\u2019\u00bb\u300d\u300f\uff09"
_SENTENCE_ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f", "\u2026")


@dataclass(frozen=True)
class Denoising(TextObjective):
    """BART's objective, drawn anew whenever a row is seen: text infilling in permuted sentences.

    All five noises of the paper are there, each with its own option; those that are on follow one
    another so: sentences permuted, documents rotated, tokens masked, tokens deleted, text infilled.

    The sentences of every document are put in another order. Then a share of `probability` of the
    tokens is hidden in spans whose lengths are Poisson, each replaced by one mask; a span of length
    0 inserts a mask where nothing is hidden. With the two sentences exchanged, <m> the mask, "sat
    on" hidden and a mask before "we":

        row                the  cat sat  on   it   . we   saw  it   . </s>
        input_ids          <m>  we  saw  it   . the  cat  <m>  it   . </s>
        decoder_input_ids  </s> the cat  sat  on   it . we   saw  it   .
        labels             the  cat sat  on   it   . we   saw  it   . </s>

    What the other noises make of that row, each drawing "cat":

        mask_tokens        the  <m> sat  on   it   . we   saw  it   . </s>
        delete_tokens      the  sat on   it   .    we saw it   .    </s>
        rotate_documents   cat  sat on   it   .    we saw it   .    the </s>

    Args:
        mask_id: stands for a span.
        start_id: what the decoder begins with (BART: the end of a text).
        end_id: ends a document; it stays where it is, and may be hidden as other tokens.
        pad_id: fills up rows that are shorter than others.
        sentence_ends: bool [V], True for tokens that end a sentence; None: no sentence is moved.
        begin_id: begins a document, where documents have such a token; it stays first.
        mask_tokens: share of tokens that a mask of their own hides.
        delete_tokens: share of tokens that are left out without a trace; one of a row stays.
        rotate_documents: share of documents that begin with another of their tokens, any of them
            alike, and end with those before it. Of a document cut by the row it is the part there.

    Source: Lewis et al. 2019, section 2.2 and 4 (30 %, mean 3, all sentences permuted; their final
    model does without the last three). Noises of order come first, so that documents are still
    whole. Where we differ: spans never touch, and in one row there are never more masks for spans
    than hidden tokens, so that no row grows longer.
    """

    mask_id: int
    start_id: int
    end_id: int
    pad_id: int
    probability: float = 0.3
    mean_span: float = 3.0
    sentence_ends: NDArray[np.bool_] | None = None
    begin_id: int = -1
    mask_tokens: float = 0.0
    delete_tokens: float = 0.0
    rotate_documents: float = 0.0
    heads: tuple[str, ...] = ("lm",)

    def lengths(self, length: int) -> tuple[int, int]:
        """Tokens that the encoder, about, and the decoder read for a row of `length` tokens."""
        left = length * (1.0 - self.delete_tokens)
        hidden = left * self.probability
        return round(left - hidden + min(hidden, hidden / self.mean_span)), length

    def prepare(self, rows: RowBatch, random: RowRandom) -> Batch:
        """Damage rows: int64 [B, T] -> input_ids [B, S]; decoder_input_ids and labels [B, T]."""
        original, length = rows.input_ids, rows.input_ids.shape[1]
        real = np.arange(length) < rows.lengths[:, None]
        ids = self._rotate(self._permute(original, real, random), real, random)
        if self.mask_tokens:
            alone = random.uniform(length, _MASK) < self.mask_tokens
            ids = np.where(alone & real, self.mask_id, ids)
        ids, left = self._delete(ids, rows.lengths, random)
        input_ids, sizes = self._infill(ids, left, random)
        shown = np.arange(input_ids.shape[1]) < sizes[:, None]
        return Batch(
            input_ids=input_ids,
            attention_mask=None if shown.all() else shown.astype(np.int64),
            decoder_input_ids=shift_right(original, self.start_id),
            labels=np.where(real, original, NO_LOSS),
        )

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats of every token of the text."""
        return token_loss(model, batch)

    def _permute(
        self, ids: NDArray[np.int64], real: NDArray[np.bool_], random: RowRandom
    ) -> NDArray[np.int64]:
        """Rows whose sentences stand in another order within their document."""
        if self.sentence_ends is None:
            return ids
        closes = ids == self.end_id
        ends = self.sentence_ends[ids] | closes
        sentence, document = (np.cumsum(found, axis=1) - found for found in (ends, closes))
        key = np.take_along_axis(random.uniform(ids.shape[1], _ORDER), sentence, axis=1)
        # Documents keep their order, their beginnings and their ends, and padding stays last.
        key = np.where(closes, 2.0, np.where(ids == self.begin_id, 0.0, 1.0 + key))
        key = np.where(real, 3.0 * document + key, np.inf)
        return np.take_along_axis(ids, np.argsort(key, axis=1, kind="stable"), axis=1)

    def _rotate(
        self, ids: NDArray[np.int64], real: NDArray[np.bool_], random: RowRandom
    ) -> NDArray[np.int64]:
        """Rows whose documents begin elsewhere; their first and last special token stay."""
        if not self.rotate_documents:
            return ids
        width = ids.shape[1]
        closes = ids == self.end_id
        document = np.cumsum(closes, axis=1) - closes
        turns = random.uniform(width, _TURNS) < self.rotate_documents
        first = np.where(turns, random.uniform(width, _FIRST), 0.0)
        # The tokens that move, one after another: m counts them, and d their documents.
        moves = real & ~closes & (ids != self.begin_id)
        row, column = np.nonzero(moves)
        d = row * width + document[row, column]
        counts = np.bincount(d, minlength=ids.size)
        m, start = np.arange(len(d)), (np.cumsum(counts) - counts)[d]
        begins = (first[row, document[row, column]] * counts[d]).astype(np.int64)
        turned = ids.copy()
        turned[moves] = ids[moves][start + (m - start + begins) % counts[d]]
        return turned

    def _delete(
        self, ids: NDArray[np.int64], lengths: NDArray[np.int64], random: RowRandom
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows without some of their tokens, and their lengths."""
        if not self.delete_tokens:
            return ids, lengths
        width = ids.shape[1]
        stays = random.uniform(width, _DELETE) >= self.delete_tokens
        stays &= np.arange(width) < lengths[:, None]
        # A row of nothing would leave the decoder nothing to look at.
        stays[:, :1] |= ~stays.any(axis=1, keepdims=True)
        left = np.full_like(ids, self.pad_id)
        place = np.cumsum(stays, axis=1) - 1
        row, column = np.nonzero(stays)
        left[row, place[row, column]] = ids[row, column]
        return left, stays.sum(axis=1)

    def _infill(
        self, ids: NDArray[np.int64], lengths: NDArray[np.int64], random: RowRandom
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows with masks for spans, padded, and their lengths.

        A row is its kept tokens with a gap before each and one after the last; some gaps hold a
        span. g counts gaps and kept tokens: [B, T + 1].
        """
        width = ids.shape[1]
        spans, chosen = self._gaps(lengths, width, random)
        hidden = np.cumsum(spans, axis=1)
        kept = lengths - hidden[:, -1]
        masks = np.cumsum(chosen, axis=1)
        sizes = kept + masks[:, -1]
        found = np.full((len(ids), int(sizes.max(initial=0))), self.pad_id, dtype=np.int64)
        row, g = np.nonzero(np.arange(width + 1) < kept[:, None])
        found[row, g + masks[row, g]] = ids[row, g + hidden[row, g]]
        row, g = np.nonzero(chosen)
        found[row, g + masks[row, g] - 1] = self.mask_id
        return found, sizes

    def _gaps(
        self, lengths: NDArray[np.int64], width: int, random: RowRandom
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The length of the span in every gap, and which gaps have one: [B, T + 1] each."""
        wanted = np.round(lengths * self.probability).astype(np.int64)[:, None]
        drawn = np.searchsorted(self._poisson(), random.uniform(width, _LENGTH), side="right")
        before = np.cumsum(drawn, axis=1) - drawn
        gaps = lengths[:, None] - wanted + 1
        # Spans until enough is hidden, the last one cut; each needs a gap of its own.
        most = np.minimum(wanted, gaps)
        used = (before < wanted) & (np.arange(width) < most)
        sizes = np.where(used, np.minimum(drawn, wanted - before), 0)
        # A mask that hides nothing needs room: as many masks as hidden tokens fit.
        empty = used & (sizes == 0)
        room = sizes.sum(axis=1) - (sizes > 0).sum(axis=1)
        used &= ~empty | (np.cumsum(empty, axis=1) <= room[:, None])
        place = random.uniform(width + 1, _PLACE)
        place = np.where(np.arange(width + 1) < gaps, place, np.inf)
        order = np.argsort(place, axis=1, kind="stable")[:, :width]
        spans = np.zeros((len(lengths), width + 1), dtype=np.int64)
        chosen = np.zeros((len(lengths), width + 1), dtype=bool)
        np.put_along_axis(spans, order, sizes, axis=1)
        np.put_along_axis(chosen, order, used, axis=1)
        return spans, chosen

    def _poisson(self) -> NDArray[np.float64]:
        """P(length <= k) for k = 0, 1, ..."""
        ks = range(_LONGEST)
        logs = [k * math.log(self.mean_span) - self.mean_span - math.lgamma(k + 1) for k in ks]
        return np.cumsum(np.exp(logs))


def ends_sentence(texts: Iterable[str]) -> NDArray[np.bool_] | None:
    """Which tokens, given as the text they stand for, end a sentence; None where none does.

    >>> ends_sentence(["the", " .", '?"', "3.5"]).tolist()
    [False, True, True, False]
    """
    found = [text.strip().rstrip(_CLOSING).endswith(_SENTENCE_ENDS) for text in texts]
    return np.array(found) if any(found) else None
