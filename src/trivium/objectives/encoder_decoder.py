"""Pretraining of encoder-decoders: the encoder reads part of a text, the decoder generates text."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from trivium.data.batch import IGNORE_INDEX, Batch, Bools, Ints, RowBatch, length_mask
from trivium.data.row_order import RowRandom
from trivium.objectives.objective import Objective
from trivium.objectives.row_arrays import left_pack
from trivium.text.vocabulary import Vocabulary

Padded = tuple[Ints, Ints]
"""Rows of ids, padded on the right, [B, T], and the real tokens of each, [B]."""
PaddedPair = tuple[Padded, Padded]


class EncoderDecoderObjective(Objective):
    """L = - sum_t log P(y_t | y_1 ... y_(t-1), x) for x and y made of the same row of text.

    Encoder and decoder attend to the whole row, whatever documents it is packed of.
    """

    separates_documents: ClassVar[bool] = False
    supported_family: ClassVar[str | None] = "encoder-decoder"
    special_tokens: ClassVar[tuple[str, ...]] = ("<pad>", "</s>")

    def decoder_start(self, vocabulary: Vocabulary) -> int | None:
        """Return the model's own start token, or else `default_start`."""
        start = vocabulary.decoder_start_id
        return self.default_start(vocabulary) if start is None else start

    def default_start(self, vocabulary: Vocabulary) -> int | None:
        """Padding, as in T5."""
        return vocabulary.pad_id

    @abstractmethod
    def corrupt(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> PaddedPair:
        """Return what the encoder reads of each row, and what the decoder generates."""

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Corrupt rows: int64 [B, T] -> input_ids [B, S]; decoder_input_ids and labels [B, U]."""
        start = self.decoder_start(vocabulary)
        assert start is not None
        (input_ids, lengths), (targets, target_lengths) = self.corrupt(rows, rng, vocabulary)
        labelled = np.arange(targets.shape[1]) < target_lengths[:, None]
        return Batch(
            input_ids=input_ids,
            attention_mask=length_mask(lengths, input_ids.shape[1]),
            decoder_input_ids=shift_right(targets, start),
            labels=np.where(labelled, targets, IGNORE_INDEX),
        )


def keep_and_end(ids: Ints, keep: Bools, vocabulary: Vocabulary) -> Padded:
    """Return the kept ids of every row with an end token and padding, and their lengths."""
    assert vocabulary.pad_id is not None
    assert vocabulary.end_id is not None
    one_more = ((0, 0), (0, 1))
    ids = np.pad(ids, one_more, constant_values=vocabulary.end_id)
    return left_pack(ids, np.pad(keep, one_more, constant_values=True), vocabulary.pad_id)


def shift_right(targets: Ints, start_id: int) -> Ints:
    """Decoder inputs for `targets`: the start, then all targets but the last.

    >>> shift_right(np.array([[11, 12, 1]]), 0).tolist()
    [[0, 11, 12]]
    """
    shifted = np.roll(targets, 1, axis=1)
    shifted[:, 0] = start_id
    return shifted
