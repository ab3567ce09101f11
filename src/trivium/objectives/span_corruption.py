"""Span corruption: stretches of text are cut out, and the decoder writes them one after another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom
from trivium.errors import TriviumError
from trivium.models import LanguageModule
from trivium.nn.loss import Loss
from trivium.objectives.base import TensorBatch, TextObjective, token_loss

_NOISE, _KEPT = range(2)


@dataclass(frozen=True)
class SpanCorruption(TextObjective):
    """T5's objective, drawn anew whenever a row is seen.

    A share of `probability` of a row, in spans of `mean_span` tokens on average, is replaced by
    one sentinel a span; the decoder writes each sentinel with what it stands for. With <x> and <y>
    the first two sentinels, <p> the start and two spans hidden:

        row                thank you for inviting me to your party last week
        input_ids          thank you <x> me to your party <y> </s>
        decoder_input_ids  <p> <x> for inviting <y> last week
        labels             <x> for inviting <y> last week </s>

    How many tokens and spans are hidden follows from the length of a row alone (`lengths`): full
    rows need no padding. A row has `data.length` tokens of the text; the encoder reads fewer, what
    is left of them with the sentinels, where T5 takes so long a stretch that the encoder reads 512.

    Args:
        sentinels: ids of the sentinels, the first one first.
        start_id: what the decoder begins with (T5: padding).
        end_id: ends the inputs and the targets.
        pad_id: fills up rows that are shorter than others.

    Source: Raffel et al. 2019, section 3.1.4, and their released `random_spans_helper` and
    `random_spans_noise_mask`: a row begins with a kept span and ends with a hidden one, and no
    sentinel follows the last target. Ends of documents inside a row are tokens as others.
    """

    sentinels: NDArray[np.int64]
    start_id: int
    end_id: int
    pad_id: int
    probability: float = 0.15
    mean_span: float = 3.0
    heads: tuple[str, ...] = ("lm",)

    def hidden(self, length: int) -> tuple[int, int]:
        """Tokens hidden in a row of `length` tokens, and spans; none where it has only one."""
        if length < 2:
            return 0, 0
        noise = min(max(round(length * self.probability), 1), length - 1)
        spans = max(round(noise / self.mean_span), 1)
        return noise, min(spans, noise, length - noise)

    def lengths(self, length: int) -> tuple[int, int]:
        """Tokens that the encoder and the decoder read for a row of `length` tokens.

        Kept tokens, sentinels and an end; hidden tokens, sentinels and an end.
        """
        noise, spans = self.hidden(length)
        return length - noise + spans + 1, noise + spans + 1

    def prepare(self, rows: RowBatch, random: RowRandom) -> Batch:
        """Hide spans: int64 [B, T] -> input_ids [B, S]; decoder_input_ids and labels [B, U].

        Raises:
            TriviumError: a row with more spans than there are sentinels.
        """
        noise = self._noise(rows.lengths, rows.input_ids.shape[1], random)
        real = np.arange(rows.input_ids.shape[1]) < rows.lengths[:, None]
        input_ids, sizes = self._with_sentinels(rows.input_ids, noise, real)
        targets, answers = self._with_sentinels(rows.input_ids, ~noise, real)
        # A row that hides nothing asks nothing.
        asked = noise.any(axis=1, keepdims=True) & (np.arange(targets.shape[1]) < answers[:, None])
        shown = np.arange(input_ids.shape[1]) < sizes[:, None]
        return Batch(
            input_ids=input_ids,
            attention_mask=None if shown.all() else shown.astype(np.int64),
            decoder_input_ids=shift_right(targets, self.start_id),
            labels=np.where(asked, targets, NO_LOSS),
        )

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats of sentinels, hidden tokens and the end."""
        return token_loss(model, batch)

    def _noise(
        self, lengths: NDArray[np.int64], width: int, random: RowRandom
    ) -> NDArray[np.bool_]:
        """Which tokens are hidden, bool [B, T]: kept and hidden spans take turns."""
        draws = random.uniform(width, _NOISE), random.uniform(width, _KEPT)
        noise = np.zeros((len(lengths), width), dtype=bool)
        for length in np.unique(lengths):
            hidden, spans = self.hidden(int(length))
            if spans > len(self.sentinels):
                raise TriviumError(
                    f"a row of {length} tokens hides {spans} spans, but the tokenizer has only "
                    f"{len(self.sentinels)} sentinels: take a shorter data.length, a larger "
                    "objective.mean_span or a smaller objective.probability."
                )
            if not spans:
                continue
            here = np.flatnonzero(lengths == length)
            kept_spans = _partition(draws[_KEPT][here], int(length) - hidden, spans)
            noise_spans = _partition(draws[_NOISE][here], hidden, spans)
            turns = np.stack((kept_spans, noise_spans), axis=2).reshape(len(here), 2 * spans)
            stops = np.cumsum(turns, axis=1)[:, :, None]
            turn = (np.arange(length) >= stops).sum(axis=1)
            noise[here, :length] = turn % 2 == 1
        return noise

    def _with_sentinels(
        self, ids: NDArray[np.int64], hidden: NDArray[np.bool_], real: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows with a sentinel for every hidden span, ended and padded, and their lengths."""
        hidden = hidden & real
        first = hidden.copy()
        first[:, 1:] &= ~hidden[:, :-1]
        number = np.minimum(np.cumsum(first, axis=1) - 1, len(self.sentinels) - 1)
        shown = real & (first | ~hidden)
        place = np.cumsum(shown, axis=1) - 1
        sizes = shown.sum(axis=1)
        found = np.full((len(ids), int(sizes.max(initial=0)) + 1), self.pad_id, dtype=np.int64)
        row, column = np.nonzero(shown)
        values = np.where(first, self.sentinels[number], ids)
        found[row, place[row, column]] = values[row, column]
        found[np.arange(len(ids)), sizes] = self.end_id
        return found, sizes + 1


def shift_right(targets: NDArray[np.int64], start_id: int) -> NDArray[np.int64]:
    """What the decoder reads to write `targets`: the start, and all but the last of them.

    >>> shift_right(np.array([[11, 12, 1]]), 0).tolist()
    [[0, 11, 12]]
    """
    shifted = np.roll(targets, 1, axis=1)
    shifted[:, 0] = start_id
    return shifted


def _partition(draws: NDArray[np.float64], items: int, parts: int) -> NDArray[np.int64]:
    """Sizes of `parts` pieces of `items`, none empty, every division alike: [B, >= items - 1] ->
    int64 [B, parts].
    """
    order = np.argsort(draws[:, : items - 1], axis=1, kind="stable")[:, : parts - 1]
    cuts = np.sort(order, axis=1) + 1
    return np.diff(cuts, axis=1, prepend=0, append=items)
