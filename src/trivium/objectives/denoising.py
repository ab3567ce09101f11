"""Denoising (BART): the decoder reconstructs a text that was corrupted for the encoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from trivium.data.batch import Bools, Floats, Ints, RowBatch, round_up
from trivium.data.row_order import RowRandom
from trivium.models.base_model import Spec
from trivium.nn.positions.learned import Learned
from trivium.objectives.encoder_decoder import EncoderDecoderObjective, Padded, PaddedPair
from trivium.objectives.row_arrays import left_pack, poisson_probabilities, token_mask
from trivium.text.vocabulary import Vocabulary

# Channels of random numbers.
_LENGTH, _POSITION, _ORDER, _MASK, _DELETE, _ROTATE, _FIRST = range(7)
# The probability of longer spans is below 1e-12 for means up to 20.
_MAX_SPAN = 64


class Denoising(EncoderDecoderObjective):
    """The denoising objective of BART: text infilling and sentence permutation.

    New noise is sampled for each row in every epoch. All five kinds of noise in the paper are
    available. They are applied in this order: sentence permutation, document rotation, token
    masking, token deletion, text infilling.

    The default noise is sentence permutation and text infilling. First, the sentences of each
    document are shuffled. Then spans of tokens are replaced with one mask token each. The span
    lengths follow a Poisson distribution, and a fraction `probability` of the tokens is replaced. A
    span of length 0 only inserts a mask. In this example `<m>` is the mask token. The two sentences
    are swapped, "sat on" is replaced, and a mask is inserted before "we":

        row                the  cat sat  on   it   . we   saw  it   . </s>
        input_ids          <m>  we  saw  it   . the  cat  <m>  it   . </s>
        decoder_input_ids  </s> the cat  sat  on   it . we   saw  it   .
        labels             the  cat sat  on   it   . we   saw  it   . </s>

    The other kinds of noise are off by default. If they select the token "cat", they change the
    same row as follows:

        mask_tokens        the  <m> sat  on   it   . we   saw  it   . </s>
        delete_tokens      the  sat on   it   .    we saw it   .    </s>
        rotate_documents   cat  sat on   it   .    we saw it   .    the </s>

    Permutation and rotation come first, because they need complete documents.

    Source: Lewis et al. 2019, sections 2.2 and 4. The final model in the paper also uses only
    permutation of all sentences, and infilling of 30 % of the tokens with a mean span length of 3.
    There are two differences. Spans are never adjacent. A row never has more masks for spans than
    replaced tokens, so rows do not become longer.
    """

    special_tokens: ClassVar[tuple[str, ...]] = (*EncoderDecoderObjective.special_tokens, "<mask>")
    kind: Literal["denoising"] = "denoising"
    probability: float = Field(0.3, gt=0, lt=1, description="fraction of tokens in replaced spans")
    mean_span: float = Field(3.0, ge=1, le=20, description="mean length of replaced spans")
    permute_sentences: bool = Field(True, description="shuffle the sentences of each document")
    mask_tokens: float = Field(0.0, ge=0, le=1, description="fraction of tokens for token masking")
    delete_tokens: float = Field(0.0, ge=0, lt=1, description="fraction of tokens deleted")
    rotate_documents: float = Field(
        0.0, ge=0, le=1, description="fraction of documents rotated to start at a random token"
    )

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Return True for encoder-decoders with learned positions, of which this is the default."""
        learned = isinstance(spec.absolute_position_encoding, Learned)
        return spec.family == "encoder-decoder" and learned

    @classmethod
    def tokenizer_defaults(cls, spec: Spec) -> dict[str, Any]:
        """Return the default `[tokenizer]` keys: byte-level BPE and the special tokens of BART."""
        special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
        return {"kind": "byte-bpe", "special_tokens": special}

    def default_start_id(self, vocabulary: Vocabulary) -> int | None:
        """Return the id of the end-of-text token, which is BART's decoder start token."""
        return vocabulary.end_id

    def corrupt(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> PaddedPair:
        """Return the corrupted rows as encoder inputs, and the original rows as targets."""
        ids, lengths, is_token = rows.input_ids, rows.lengths, token_mask(rows)
        if self.permute_sentences:
            ids = _permute_sentences(ids, is_token, rng, vocabulary)
        if self.rotate_documents:
            ids = self._rotate_documents(ids, is_token, rng, vocabulary)
        if self.mask_tokens:
            assert vocabulary.mask_id is not None
            is_masked = rng.uniform(ids.shape[1], _MASK) < self.mask_tokens
            ids = np.where(is_masked & is_token, vocabulary.mask_id, ids)
        if self.delete_tokens:
            ids, lengths = self._delete_tokens(ids, is_token, rng)
        return self._infill(ids, lengths, rng, vocabulary), (rows.input_ids, rows.lengths)

    def _rotate_documents(
        self, ids: Ints, is_token: Bools, rng: RowRandom, vocabulary: Vocabulary
    ) -> Ints:
        """Rotate some of the documents so that they start at a random token. Returns rows [B, T].

        Special tokens at the start and at the end of each document are not moved.
        """
        is_end = ids == vocabulary.end_id
        document = np.cumsum(is_end, axis=1) - is_end
        is_movable = is_token & ~is_end & (ids != _find_start_id(vocabulary))
        is_rotated = rng.uniform(ids.shape[1], _ROTATE) < self.rotate_documents
        first = np.where(is_rotated, rng.uniform(ids.shape[1], _FIRST), 0.0)
        rotated = ids.copy()
        for row in range(len(ids)):
            columns = np.flatnonzero(is_movable[row])
            borders = np.flatnonzero(np.diff(document[row, columns])) + 1
            for place in np.split(columns, borders) if len(columns) else ():
                start = int(first[row, document[row, place[0]]] * len(place))
                rotated[row, place] = np.roll(ids[row, place], -start)
        return rotated

    def _delete_tokens(self, ids: Ints, is_token: Bools, rng: RowRandom) -> tuple[Ints, Ints]:
        """Delete random tokens in each row. At least one token remains.

        Returns the shortened rows, padded on the right, and their lengths [B].
        """
        keep = is_token & (rng.uniform(ids.shape[1], _DELETE) >= self.delete_tokens)
        # The encoder of an empty row would have nothing to attend to.
        keep[:, :1] |= ~keep.any(axis=1, keepdims=True)
        return left_pack(ids, keep, 0)

    def _infill(self, ids: Ints, lengths: Ints, rng: RowRandom, vocabulary: Vocabulary) -> Padded:
        """Replace random spans in each row with one mask token each (text infilling).

        Returns the new rows, padded on the right, and their lengths [B].
        """
        assert vocabulary.mask_id is not None
        width = ids.shape[1]
        cdf = np.cumsum(poisson_probabilities(self.mean_span, range(_MAX_SPAN)))
        sizes = np.searchsorted(cdf, rng.uniform(width, _LENGTH), side="right")
        position = rng.uniform(width + 1, _POSITION)
        rows = []
        for tokens, length, *noise in zip(ids, lengths, sizes, position):
            tokens, row, copied = tokens[:length], list[int](), 0
            for start, stop in self._place_spans(int(length), *noise):
                row += [*tokens[copied:start], vocabulary.mask_id]
                copied = stop
            rows.append([*row, *tokens[copied:]])
        new_lengths = np.array([len(row) for row in rows])
        columns = min(round_up(new_lengths.max(initial=0)), width)
        infilled = np.full((len(rows), columns), vocabulary.pad_id, dtype=np.int64)
        infilled[np.arange(columns) < new_lengths[:, None]] = np.concatenate(rows)
        return infilled, new_lengths

    def _place_spans(self, length: int, sizes: Ints, position: Floats) -> Iterator[tuple[int, int]]:
        """Yield the (start, stop) positions of the spans to replace in a row, from left to right.

        There is a gap before each token that is kept, and a gap after the last one. Each span is
        placed in a different gap, so that spans are never adjacent.

        Args:
            length: the number of tokens in the row.
            sizes: the sampled span lengths. They are used in order until a fraction `probability`
                of the tokens is replaced.
            position: a random number for each gap. The gaps with the smallest numbers are used.
        """
        budget = round(length * self.probability)
        gaps = length - budget + 1
        # Use spans until the budget is used up. The last span is shortened.
        before = np.cumsum(sizes) - sizes
        count = min(np.count_nonzero(before < budget), budget, gaps)
        sizes = np.minimum(sizes, budget - before)[:count]
        # An inserted mask needs space, which other spans make by becoming one mask each.
        is_insertion = sizes == 0
        spare = sizes.sum() - np.count_nonzero(sizes)
        fits = ~is_insertion | (np.cumsum(is_insertion) <= spare)
        chosen = np.argsort(position[:gaps], kind="stable")[:count]
        replaced = 0
        for gap, size in sorted(zip(chosen[fits].tolist(), sizes[fits].tolist())):
            yield gap + replaced, gap + replaced + size
            replaced += size


def _permute_sentences(ids: Ints, is_token: Bools, rng: RowRandom, vocabulary: Vocabulary) -> Ints:
    """Shuffle the sentences of each document. Returns rows [B, T]."""
    is_end = ids == vocabulary.end_id
    ends_sentence = vocabulary.ends_sentence[ids] | is_end
    sentence, document = (np.cumsum(ends, axis=1) - ends for ends in (ends_sentence, is_end))
    key = np.take_along_axis(rng.uniform(ids.shape[1], _ORDER), sentence, axis=1)
    # Documents keep their order and their first and last special tokens. Padding stays last.
    key = np.where(is_end, 2.0, np.where(ids == _find_start_id(vocabulary), 0.0, 1.0 + key))
    key = np.where(is_token, 3.0 * document + key, np.inf)
    return np.take_along_axis(ids, np.argsort(key, axis=1, kind="stable"), axis=1)


def _find_start_id(vocabulary: Vocabulary) -> int:
    """Return the id of the special token that starts each document, or -1 if there is none."""
    return next(iter(vocabulary.prefix_ids), -1)
