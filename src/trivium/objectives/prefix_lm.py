"""Prefix language modelling: the model reads the beginning of a text and predicts the rest."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from trivium.data.batch import IGNORE_INDEX, Batch, Ints, RowBatch
from trivium.data.row_order import RowRandom
from trivium.language_model import LanguageModel
from trivium.objectives.causal import LeftToRight, build_causal_batch, next_token_labels
from trivium.objectives.encoder_decoder import EncoderDecoderObjective, PaddedPair, pack_with_eos
from trivium.objectives.excerpt import generate_continuation
from trivium.objectives.row_arrays import token_mask
from trivium.text.vocabulary import Vocabulary

# The channel of random numbers for prefix lengths.
_SPLIT = 0


class PrefixLM(LeftToRight):
    """Prefix language modelling with a decoder: the first p tokens of a row are not predicted.

    L = - sum over t > p of log P(x_t | x_1 ... x_(t-1))

    For each row of T tokens, p is drawn uniformly from 1 ... T - 1. With p = 2:

        input_ids  once  upon  a     time  there
        labels     -100  a     time  there -100

    Attention is also causal within the prefix.

    Source: the decoder of Liu et al. 2018, section 4.2.3, with a loss only on the second part.
    """

    kind: Literal["prefix-lm"] = "prefix-lm"

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Build a batch with input_ids and next-token labels, int64 [B, T] each.

        The tokens of the prefix are not predicted.
        """
        in_prefix = (
            np.arange(rows.input_ids.shape[1]) < _draw_prefix_lengths(rows, rng)[:, None] - 1
        )
        labels = np.where(in_prefix, IGNORE_INDEX, next_token_labels(rows))
        return build_causal_batch(rows, labels)


class Seq2SeqPrefixLM(EncoderDecoderObjective):
    """Prefix language modelling with an encoder-decoder.

    The encoder reads a prefix of the row, and the decoder generates the rest. With a prefix of 3
    tokens and the decoder start token <p>:

        row                thank you  for  inviting me to your party
        input_ids          thank you  for  </s>
        decoder_input_ids  <p>   inviting  me  to   your  party
        labels             inviting  me    to  your party </s>

    For each row of T tokens, the length of the prefix is drawn uniformly from 1 ... T - 1. A row of
    one token has no label. The end of a document within a row is treated like any other token.

    Source: Raffel et al. 2019, section 3.2.3, and their released `random_prefix_noise_mask`.
    """

    kind: Literal["seq2seq-prefix-lm"] = "seq2seq-prefix-lm"
    start_token: Literal["pad", "eos"] = Field(
        "pad", description="first decoder input: padding (T5) or the end-of-text token (BART)"
    )

    def default_start_id(self, vocabulary: Vocabulary) -> int | None:
        """Return the id of the decoder start token, which `start_token` selects.

        It is the padding token or the end-of-text token. Returns None if the vocabulary lacks this
        token.
        """
        return vocabulary.pad_id if self.start_token == "pad" else vocabulary.end_id

    def corrupt(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> PaddedPair:
        """Split each row at a random position into an encoder input and a decoder target.

        Returns the padded prefixes and the padded suffixes, each ending with an end token. Both are
        pairs (token ids, int64 [B, S]; lengths, int64 [B]).
        """
        in_prefix = np.arange(rows.input_ids.shape[1]) < _draw_prefix_lengths(rows, rng)[:, None]
        rest = token_mask(rows) & ~in_prefix
        targets, lengths = pack_with_eos(rows.input_ids, rest, vocabulary)
        lengths = np.where(rest.any(axis=1), lengths, 0)
        return pack_with_eos(rows.input_ids, in_prefix, vocabulary), (targets, lengths)

    def generate_sample(self, lm: LanguageModel, text: str) -> tuple[str, str] | None:
        """Return the first words of a text, and the continuation that the model generates.

        Returns None if these words alone are too long for the model.
        """
        return generate_continuation(lm, text, 8, temperature=0.0)


def _draw_prefix_lengths(rows: RowBatch, rng: RowRandom) -> Ints:
    """Draw a random prefix length for each of B rows, int64 [B].

    A prefix has at least one token, and is shorter than its row unless the row has only one token.
    """
    draw = rng.uniform(1, _SPLIT)[:, 0]
    return 1 + (draw * (rows.lengths - 1)).astype(np.int64)
