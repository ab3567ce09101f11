"""Base class of pretraining objectives for encoder-decoders."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from trivium.data.batch import IGNORE_INDEX, Batch, Bools, Ints, RowBatch, make_length_mask
from trivium.data.row_order import RowRandom
from trivium.objectives.objective import Objective
from trivium.objectives.row_arrays import left_pack
from trivium.text.vocabulary import Vocabulary

Padded = tuple[Ints, Ints]
"""Rows of token ids [B, T], padded on the right, and the number of tokens in each row, [B]."""
PaddedPair = tuple[Padded, Padded]
"""The input rows of the encoder, and the target rows of the decoder."""


class EncoderDecoderObjective(Objective):
    """Base class of pretraining objectives for encoder-decoders.

    L = - sum_t log P(y_t | y_1 ... y_(t-1), x)

    The encoder input x and the target y are made from the same row of text. If a row contains
    several documents, tokens attend to all of them.
    """

    separates_documents: ClassVar[bool] = False
    supported_family: ClassVar[str | None] = "encoder-decoder"
    special_tokens: ClassVar[tuple[str, ...]] = ("<pad>", "</s>")

    def decoder_start_id(self, vocabulary: Vocabulary) -> int | None:
        """Return the decoder start token id, from the vocabulary or else `default_start_id`."""
        start = vocabulary.decoder_start_id
        return self.default_start_id(vocabulary) if start is None else start

    def default_start_id(self, vocabulary: Vocabulary) -> int | None:
        """Return the id of the padding token, which is T5's decoder start token."""
        return vocabulary.pad_id

    @abstractmethod
    def corrupt(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> PaddedPair:
        """Make encoder inputs and decoder targets from rows of text. Returns both, padded."""

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Corrupt B rows of text, and return a batch of encoder inputs, decoder inputs and labels.

        `input_ids` are [B, S] for S encoder positions. `decoder_input_ids` and `labels` are [B, U]
        for U decoder positions.
        """
        start = self.decoder_start_id(vocabulary)
        assert start is not None
        (input_ids, lengths), (targets, target_lengths) = self.corrupt(rows, rng, vocabulary)
        has_label = np.arange(targets.shape[1]) < target_lengths[:, None]
        return Batch(
            input_ids=input_ids,
            attention_mask=make_length_mask(lengths, input_ids.shape[1]),
            decoder_input_ids=shift_right(targets, start),
            labels=np.where(has_label, targets, IGNORE_INDEX),
        )


def pack_with_eos(ids: Ints, keep: Bools, vocabulary: Vocabulary) -> Padded:
    """Keep only the tokens where `keep` is True, and append the end token to each row.

    Returns the new rows, padded on the right, and their lengths [B].
    """
    assert vocabulary.pad_id is not None
    assert vocabulary.end_id is not None
    one_column = ((0, 0), (0, 1))
    ids = np.pad(ids, one_column, constant_values=vocabulary.end_id)
    return left_pack(ids, np.pad(keep, one_column, constant_values=True), vocabulary.pad_id)


def shift_right(targets: Ints, start_id: int) -> Ints:
    """Return the decoder inputs for `targets`: the start token and all targets except the last.

    >>> shift_right(np.array([[11, 12, 1]]), 0).tolist()
    [[0, 11, 12]]
    """
    shifted = np.roll(targets, 1, axis=1)
    shifted[:, 0] = start_id
    return shifted
