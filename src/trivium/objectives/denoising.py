"""Denoising (BART): a text is corrupted, and the decoder generates the original."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from trivium.data.batch import Bools, Ints, RowBatch, rounded
from trivium.data.row_order import RowRandom
from trivium.models.base_model import Spec
from trivium.nn.positions.learned import Learned
from trivium.objectives.encoder_decoder import EncoderDecoderObjective, Padded, PaddedPair
from trivium.objectives.row_arrays import compact, poisson_chances, real_tokens
from trivium.text.vocabulary import Vocabulary

# Channels of noise.
_LENGTH, _POSITION, _ORDER, _MASK, _DELETE, _TURNS, _FIRST = range(7)
# Chances of Poisson lengths beyond these are below 1e-12 for any mean up to 20.
_LONGEST = 64


class Denoising(EncoderDecoderObjective):
    """BART's objective, drawn anew whenever a row is seen: text infilling in permuted sentences.

    All five noises of the paper are there, each with its own key; those that are on follow one
    another so: sentences permuted, documents rotated, tokens masked, tokens deleted, text infilled.

    The sentences of every document are put in another order. Then a share of `probability` of the
    tokens is replaced in spans whose lengths are Poisson, each by one mask; a span of length 0
    inserts a mask and replaces nothing. With the two sentences exchanged, <m> the mask, "sat on"
    replaced and a mask inserted before "we":

        row                the  cat sat  on   it   . we   saw  it   . </s>
        input_ids          <m>  we  saw  it   . the  cat  <m>  it   . </s>
        decoder_input_ids  </s> the cat  sat  on   it . we   saw  it   .
        labels             the  cat sat  on   it   . we   saw  it   . </s>

    What the other noises make of that row, each drawing "cat":

        mask_tokens        the  <m> sat  on   it   . we   saw  it   . </s>
        delete_tokens      the  sat on   it   .    we saw it   .    </s>
        rotate_documents   cat  sat on   it   .    we saw it   .    the </s>

    Source: Lewis et al. 2019, section 2.2 and 4 (30 %, mean 3, all sentences permuted; their final
    model does without the last three). Noises of order come first, so that documents are still
    whole. Where we differ: spans never touch, and in one row there are never more masks for spans
    than replaced tokens, so that no row grows longer.
    """

    special_tokens: ClassVar[tuple[str, ...]] = (*EncoderDecoderObjective.special_tokens, "<mask>")
    kind: Literal["denoising"] = "denoising"
    probability: float = Field(0.3, gt=0, lt=1, description="share of tokens in replaced spans")
    mean_span: float = Field(3.0, ge=1, le=20, description="mean tokens of a replaced span")
    permute_sentences: bool = Field(True, description="put the sentences of documents in disorder")
    mask_tokens: float = Field(0.0, ge=0, le=1, description="share of tokens masked one by one")
    delete_tokens: float = Field(0.0, ge=0, lt=1, description="share of tokens deleted")
    rotate_documents: float = Field(
        0.0, ge=0, le=1, description="share of documents that begin at another of their tokens"
    )

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Encoder-decoders with learned positions."""
        learned = isinstance(spec.absolute_position_encoding, Learned)
        return spec.family == "encoder-decoder" and learned

    @classmethod
    def tokenizer_defaults(cls, spec: Spec) -> dict[str, Any]:
        """Return byte-level BPE as in BART, with its special tokens."""
        special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
        return {"kind": "byte-bpe", "special_tokens": special}

    def default_start(self, vocabulary: Vocabulary) -> int | None:
        """Return the token that ends a text, as in BART."""
        return vocabulary.end_id

    def corrupt(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> PaddedPair:
        """Return the corrupted row, and the row itself."""
        ids, lengths, real = rows.input_ids, rows.lengths, real_tokens(rows)
        if self.permute_sentences:
            ids = _permute(ids, real, rng, vocabulary)
        if self.rotate_documents:
            ids = self._rotate(ids, real, rng, vocabulary)
        if self.mask_tokens:
            assert vocabulary.mask_id is not None
            alone = rng.uniform(ids.shape[1], _MASK) < self.mask_tokens
            ids = np.where(alone & real, vocabulary.mask_id, ids)
        if self.delete_tokens:
            ids, lengths = self._delete(ids, real, rng)
        return self._infill(ids, lengths, rng, vocabulary), (rows.input_ids, rows.lengths)

    def _rotate(self, ids: Ints, real: Bools, rng: RowRandom, vocabulary: Vocabulary) -> Ints:
        """Rows whose documents begin elsewhere; their first and last special token stay."""
        width = ids.shape[1]
        closes = ids == vocabulary.end_id
        document = np.cumsum(closes, axis=1) - closes
        turns = rng.uniform(width, _TURNS) < self.rotate_documents
        first = np.where(turns, rng.uniform(width, _FIRST), 0.0)
        # The tokens that move, one after another: m counts them, and d their documents.
        moves = real & ~closes & (ids != _begin_id(vocabulary))
        row, column = np.nonzero(moves)
        d = row * width + document[row, column]
        counts = np.bincount(d, minlength=ids.size)
        m, start = np.arange(len(d)), (np.cumsum(counts) - counts)[d]
        begins = (first[row, document[row, column]] * counts[d]).astype(np.int64)
        rotated = ids.copy()
        rotated[moves] = ids[moves][start + (m - start + begins) % counts[d]]
        return rotated

    def _delete(self, ids: Ints, real: Bools, rng: RowRandom) -> tuple[Ints, Ints]:
        """Delete some tokens of every row. Returns the rows and their lengths."""
        stays = real & (rng.uniform(ids.shape[1], _DELETE) >= self.delete_tokens)
        # The encoder of an empty row would have nothing to attend to.
        stays[:, :1] |= ~stays.any(axis=1, keepdims=True)
        return compact(ids, stays, 0)

    def _infill(self, ids: Ints, lengths: Ints, rng: RowRandom, vocabulary: Vocabulary) -> Padded:
        """Rows with masks for spans, padded, and their lengths.

        A row is its kept tokens with a gap before each and one after the last; some gaps hold a
        span. g counts gaps and kept tokens: [B, T + 1].
        """
        assert vocabulary.mask_id is not None
        assert vocabulary.pad_id is not None
        width = ids.shape[1]
        spans, chosen = self._gaps(lengths, width, rng)
        g, replaced = np.arange(width + 1), np.cumsum(spans, axis=1)
        kept = g < (lengths - replaced[:, -1])[:, None]
        tokens = np.take_along_axis(ids, np.minimum(g + replaced, width - 1), axis=1)
        # The mask of each gap before the token after it.
        both = np.stack((np.full_like(tokens, vocabulary.mask_id), tokens), axis=2)
        shown = np.stack((chosen, kept), axis=2)
        flat = len(ids), -1
        ids, lengths = compact(both.reshape(flat), shown.reshape(flat), vocabulary.pad_id)
        more = max(0, min(rounded(ids.shape[1]), width) - ids.shape[1])
        return np.pad(ids, ((0, 0), (0, more)), constant_values=vocabulary.pad_id), lengths

    def _gaps(self, lengths: Ints, width: int, rng: RowRandom) -> tuple[Ints, Bools]:
        """The length of the span in every gap, and which gaps have one: [B, T + 1] each."""
        budget = np.round(lengths * self.probability).astype(np.int64)[:, None]
        at_most = np.cumsum(poisson_chances(self.mean_span, range(_LONGEST)))
        drawn = np.searchsorted(at_most, rng.uniform(width, _LENGTH), side="right")
        before = np.cumsum(drawn, axis=1) - drawn
        gaps = lengths[:, None] - budget + 1
        # Spans until the budget is used up, the last one cut; each needs a gap of its own.
        most = np.minimum(budget, gaps)
        used = (before < budget) & (np.arange(width) < most)
        sizes = np.where(used, np.minimum(drawn, budget - before), 0)
        # An inserted mask needs space: as many masks as replaced tokens fit.
        empty = used & (sizes == 0)
        spare = sizes.sum(axis=1) - (sizes > 0).sum(axis=1)
        used &= ~empty | (np.cumsum(empty, axis=1) <= spare[:, None])
        position = rng.uniform(width + 1, _POSITION)
        position = np.where(np.arange(width + 1) < gaps, position, np.inf)
        order = np.argsort(position, axis=1, kind="stable")[:, :width]
        spans = np.zeros((len(lengths), width + 1), dtype=np.int64)
        chosen = np.zeros((len(lengths), width + 1), dtype=bool)
        np.put_along_axis(spans, order, sizes, axis=1)
        np.put_along_axis(chosen, order, used, axis=1)
        return spans, chosen


def _permute(ids: Ints, real: Bools, rng: RowRandom, vocabulary: Vocabulary) -> Ints:
    """Put the sentences of every document into another order."""
    closes = ids == vocabulary.end_id
    ends = vocabulary.ends_sentence[ids] | closes
    sentence, document = (np.cumsum(flags, axis=1) - flags for flags in (ends, closes))
    key = np.take_along_axis(rng.uniform(ids.shape[1], _ORDER), sentence, axis=1)
    # Documents keep their order, their beginnings and their ends, and padding stays last.
    key = np.where(closes, 2.0, np.where(ids == _begin_id(vocabulary), 0.0, 1.0 + key))
    key = np.where(real, 3.0 * document + key, np.inf)
    return np.take_along_axis(ids, np.argsort(key, axis=1, kind="stable"), axis=1)


def _begin_id(vocabulary: Vocabulary) -> int:
    """The token that begins every document, which stays first; -1 where there is none."""
    return next(iter(vocabulary.prefix_ids), -1)
