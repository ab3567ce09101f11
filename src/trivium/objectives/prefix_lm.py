"""Prefix language modelling: the beginning of a text is given, and the rest of it told."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom
from trivium.errors import SpecError
from trivium.models import LanguageModule, Transformer
from trivium.nn.loss import Loss
from trivium.objectives.base import TensorBatch, TextObjective, token_loss
from trivium.objectives.causal import Causal
from trivium.objectives.span_corruption import shift_right

_SPLIT = 0


@dataclass(frozen=True)
class PrefixLM(TextObjective):
    """A decoder's: L = - sum over t > p of log P(x_t | x_1 ... x_(t-1)), p drawn for every row.

    With a prefix of 2 tokens:

        input_ids  once  upon  a     time  there
        labels     -100  a     time  there -100

    The prefix has 1 to T - 1 tokens, each as often as another. With `both_ways` the tokens of the
    prefix see one another, later ones too; those after it see what is before them, as ever. A model
    so trained wants its prompts read that way (`prefix_lengths` of its forward pass).

    Source: Raffel et al. 2019, sections 3.2.1 and 3.2.3; without `both_ways` the decoder of Liu et
    al. 2018, section 4.2.3, but asked for the second part alone.
    """

    both_ways: bool = False
    heads: tuple[str, ...] = ("lm",)

    def prepare(self, rows: RowBatch, random: RowRandom) -> Batch:
        """Shift by one: int64 [B, T] -> input_ids and labels [B, T].

        With `both_ways` the lengths of prefixes, int64 [B], go along as `text_labels`: what a batch
        says of whole rows.
        """
        batch, prefix = Causal().prepare(rows, random), _prefix_lengths(rows, random)
        assert batch.labels is not None
        given = np.arange(rows.input_ids.shape[1]) < prefix[:, None] - 1
        labels = np.where(given, NO_LOSS, batch.labels)
        told = prefix if self.both_ways else None
        return dataclasses.replace(batch, labels=labels, text_labels=told)

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats of every token after the prefix.

        Raises:
            SpecError: `both_ways` of a model that is no Transformer.
        """
        if not self.both_ways:
            return token_loss(model, batch)
        if not isinstance(model, Transformer):
            raise SpecError("only a Transformer can read a prefix both ways: set both_ways off.")
        hidden = model(
            **batch.inputs, prefix_lengths=batch.text_labels, select=batch.label_positions
        )
        return Loss(model.vocabulary_loss(hidden, batch.targets), len(batch.targets))


@dataclass(frozen=True)
class PrefixPairs(TextObjective):
    """An encoder-decoder's: the encoder reads the prefix, and the decoder writes the rest.

    With a prefix of 3 tokens, <p> the start:

        row                thank you  for  inviting me to your party
        input_ids          thank you  for  </s>
        decoder_input_ids  <p>   inviting  me  to   your  party
        labels             inviting  me    to  your party </s>

    The prefix has 1 to T - 1 tokens, each as often as another; a row of one token asks nothing.

    Args:
        start_id: what the decoder begins with (T5: padding).
        end_id: ends the prefix and the rest.
        pad_id: fills up rows that are shorter than others.

    Source: Raffel et al. 2019, section 3.2.3, and their released `random_prefix_noise_mask`. Ends
    of documents inside a row are tokens as others.
    """

    start_id: int
    end_id: int
    pad_id: int
    heads: tuple[str, ...] = ("lm",)

    def lengths(self, length: int) -> tuple[int, int]:
        """Tokens that the encoder and the decoder read, on average, for a row of `length`."""
        return round(length / 2) + 1, length - round(length / 2) + 1

    def prepare(self, rows: RowBatch, random: RowRandom) -> Batch:
        """Split rows: int64 [B, T] -> input_ids [B, S]; decoder_input_ids and labels [B, U]."""
        prefix = _prefix_lengths(rows, random)
        rest = rows.lengths - prefix
        input_ids = self._ended(rows.input_ids, np.zeros_like(prefix), prefix)
        targets = self._ended(rows.input_ids, prefix, rest)
        shown = np.arange(input_ids.shape[1]) <= prefix[:, None]
        asked = (np.arange(targets.shape[1]) <= rest[:, None]) & (rest[:, None] > 0)
        return Batch(
            input_ids=input_ids,
            attention_mask=None if shown.all() else shown.astype(np.int64),
            decoder_input_ids=shift_right(targets, self.start_id),
            labels=np.where(asked, targets, NO_LOSS),
        )

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats of every token after the prefix, and of the end."""
        return token_loss(model, batch)

    def _ended(
        self, ids: NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """`sizes` tokens of every row from `starts` on, ended and padded."""
        column = np.arange(sizes.max(initial=0) + 1)
        places = np.minimum(starts[:, None] + column, ids.shape[1] - 1)
        found = np.take_along_axis(ids, places, axis=1)
        found[column > sizes[:, None]] = self.pad_id
        found[column == sizes[:, None]] = self.end_id
        return found


def _prefix_lengths(rows: RowBatch, random: RowRandom) -> NDArray[np.int64]:
    """Tokens of each row's prefix, int64 [B]: at least one, and less than the row where it can."""
    draw = random.uniform(1, _SPLIT)[:, 0]
    return 1 + (draw * (rows.lengths - 1)).astype(np.int64)
