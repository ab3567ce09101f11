"""Denoising (BART): a text is corrupted, and the decoder generates the original."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from trivium.data.batch import Bools, Floats, Ints, RowBatch, padded_length
from trivium.data.row_order import RowRandom
from trivium.models.base_model import Spec
from trivium.nn.positions.learned import Learned
from trivium.objectives.encoder_decoder import EncoderDecoderObjective, Padded, PaddedPair
from trivium.objectives.row_arrays import left_pack, poisson_chances, real_tokens
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
        """Return rows whose documents begin elsewhere; first and last special tokens stay."""
        closes = ids == vocabulary.end_id
        document = np.cumsum(closes, axis=1) - closes
        moves = real & ~closes & (ids != _begin_id(vocabulary))
        turns = rng.uniform(ids.shape[1], _TURNS) < self.rotate_documents
        first = np.where(turns, rng.uniform(ids.shape[1], _FIRST), 0.0)
        rotated = ids.copy()
        for row in range(len(ids)):
            columns = np.flatnonzero(moves[row])
            borders = np.flatnonzero(np.diff(document[row, columns])) + 1
            for one in np.split(columns, borders) if len(columns) else ():
                begin = int(first[row, document[row, one[0]]] * len(one))
                rotated[row, one] = np.roll(ids[row, one], -begin)
        return rotated

    def _delete(self, ids: Ints, real: Bools, rng: RowRandom) -> tuple[Ints, Ints]:
        """Delete some tokens of every row. Returns the rows and their lengths."""
        stays = real & (rng.uniform(ids.shape[1], _DELETE) >= self.delete_tokens)
        # The encoder of an empty row would have nothing to attend to.
        stays[:, :1] |= ~stays.any(axis=1, keepdims=True)
        return left_pack(ids, stays, 0)

    def _infill(self, ids: Ints, lengths: Ints, rng: RowRandom, vocabulary: Vocabulary) -> Padded:
        """Return rows with a mask in place of every span, padded, and their lengths."""
        assert vocabulary.mask_id is not None
        width = ids.shape[1]
        at_most = np.cumsum(poisson_chances(self.mean_span, range(_LONGEST)))
        sizes = np.searchsorted(at_most, rng.uniform(width, _LENGTH), side="right")
        position = rng.uniform(width + 1, _POSITION)
        rows = []
        for tokens, length, *draws in zip(ids, lengths, sizes, position):
            tokens, row, kept = tokens[:length], list[int](), 0
            for start, stop in self._spans(int(length), *draws):
                row += [*tokens[kept:start], vocabulary.mask_id]
                kept = stop
            rows.append([*row, *tokens[kept:]])
        new_lengths = np.array([len(row) for row in rows])
        columns = min(padded_length(new_lengths.max(initial=0)), width)
        infilled = np.full((len(rows), columns), vocabulary.pad_id, dtype=np.int64)
        infilled[np.arange(columns) < new_lengths[:, None]] = np.concatenate(rows)
        return infilled, new_lengths

    def _spans(self, length: int, sizes: Ints, position: Floats) -> Iterator[tuple[int, int]]:
        """Yield where the spans of a row begin and end, in their order.

        There is a gap before every kept token, and one after the last. Each span has a gap of its
        own, in the order of the drawn numbers `position`, so that spans never touch.
        """
        budget = round(length * self.probability)
        gaps = length - budget + 1
        # Spans until the budget is used up, the last one cut.
        before = np.cumsum(sizes) - sizes
        count = min(np.count_nonzero(before < budget), budget, gaps)
        sizes = np.minimum(sizes, budget - before)[:count]
        # An inserted mask needs space: as many masks as replaced tokens fit.
        is_insertion = sizes == 0
        spare = sizes.sum() - np.count_nonzero(sizes)
        fits = ~is_insertion | (np.cumsum(is_insertion) <= spare)
        chosen = np.argsort(position[:gaps], kind="stable")[:count]
        replaced = 0
        for gap, size in sorted(zip(chosen[fits].tolist(), sizes[fits].tolist())):
            yield gap + replaced, gap + replaced + size
            replaced += size


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
