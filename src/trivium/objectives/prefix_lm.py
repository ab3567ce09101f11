"""Prefix language modelling: the beginning of a text is an input, the rest is predicted."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from trivium.data.batch import IGNORE_INDEX, Batch, Ints, RowBatch
from trivium.data.row_order import RowRandom
from trivium.language_model import LanguageModel
from trivium.objectives.causal import LeftToRight, causal_batch, next_tokens
from trivium.objectives.encoder_decoder import EncoderDecoderObjective, PaddedPair, keep_and_end
from trivium.objectives.excerpt import continue_beginning
from trivium.objectives.row_arrays import real_tokens
from trivium.text.vocabulary import Vocabulary

# The channel of noise that draws prefixes.
_SPLIT = 0


class PrefixLM(LeftToRight):
    """A decoder's: L = - sum over t > p of log P(x_t | x_1 ... x_(t-1)), p drawn for every row.

    With a prefix of 2 tokens:

        input_ids  once  upon  a     time  there
        labels     -100  a     time  there -100

    Attention is causal in the prefix, too. The prefix has 1 to T - 1 tokens, each as often as
    another. Source: the decoder of Liu et al. 2018, section 4.2.3, with a loss on the second part
    alone.
    """

    kind: Literal["prefix-lm"] = "prefix-lm"

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Shift by one: int64 [B, T] -> input_ids and labels [B, T]."""
        in_prefix = np.arange(rows.input_ids.shape[1]) < _prefix_lengths(rows, rng)[:, None] - 1
        labels = np.where(in_prefix, IGNORE_INDEX, next_tokens(rows))
        return causal_batch(rows, labels)


class Seq2SeqPrefixLM(EncoderDecoderObjective):
    """An encoder-decoder's: the encoder reads the prefix, and the decoder generates the rest.

    With a prefix of 3 tokens, <p> the decoder's start:

        row                thank you  for  inviting me to your party
        input_ids          thank you  for  </s>
        decoder_input_ids  <p>   inviting  me  to   your  party
        labels             inviting  me    to  your party </s>

    The prefix has 1 to T - 1 tokens, each as often as another; a row of one token has no label.
    Source: Raffel et al. 2019, section 3.2.3, and their released `random_prefix_noise_mask`. Ends
    of documents inside a row are tokens like others.
    """

    kind: Literal["seq2seq-prefix-lm"] = "seq2seq-prefix-lm"
    start_token: Literal["pad", "eos"] = Field(
        "pad", description="the first decoder input: padding (T5) or the end of a text (BART)"
    )

    def default_start(self, vocabulary: Vocabulary) -> int | None:
        """Padding or the end of a text."""
        return vocabulary.pad_id if self.start_token == "pad" else vocabulary.end_id

    def corrupt(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> PaddedPair:
        """Return the prefix and the rest of each row, each with an end token."""
        in_prefix = np.arange(rows.input_ids.shape[1]) < _prefix_lengths(rows, rng)[:, None]
        rest = real_tokens(rows) & ~in_prefix
        targets, lengths = keep_and_end(rows.input_ids, rest, vocabulary)
        lengths = np.where(rest.any(axis=1), lengths, 0)
        return keep_and_end(rows.input_ids, in_prefix, vocabulary), (targets, lengths)

    def sample(self, lm: LanguageModel, text: str) -> tuple[str, str] | None:
        """Return a continuation of the beginning of the text."""
        return continue_beginning(lm, text, 8, temperature=0.0)


def _prefix_lengths(rows: RowBatch, rng: RowRandom) -> Ints:
    """Tokens of each row's prefix, int64 [B]: at least one, and less than the row where it can."""
    draw = rng.uniform(1, _SPLIT)[:, 0]
    return 1 + (draw * (rows.lengths - 1)).astype(np.int64)
