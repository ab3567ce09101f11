"""Masked language modelling: some tokens are hidden, and both sides tell what they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom
from trivium.models import LanguageModule
from trivium.nn.loss import Loss
from trivium.objectives.base import TensorBatch, TextObjective, row_inputs, token_loss

_CHOOSE, _REPLACE, _TOKEN, _SPAN = range(4)


@dataclass(frozen=True)
class Masked(TextObjective):
    """BERT's first objective, drawn anew whenever a row is seen.

    Of the tokens that are not special, a share of `probability` is chosen; of the chosen,
    `mask_share` become [MASK], `random_share` another token, the rest stay as they are.

    With probability 0.2, 5 = [MASK], and the fourth token chosen:

        row        [CLS]  the   cat   sat   on    it  [SEP]
        input_ids  [CLS]  the   cat  [MASK] on    it  [SEP]
        labels     -100  -100  -100   sat  -100  -100  -100

    Args:
        mask_id: the token that hides.
        regular_ids: the ids that may be put in place of a chosen token (no special ones).
        special: bool [V], True for ids that are never chosen.
        continues_word: bool [V], True for ids that go on with the word before them; given, whole
            words are chosen.
        span_lengths: how often 1, 2, 3, ... tokens (or words) in a row are chosen together, in
            proportion: (6, 3, 2) has ALBERT's n-grams (`harmonic_lengths`), (1,) single ones.

    Source: Devlin et al. 2018, section 3.1 (15 %, 80/10/10), drawn anew as in Liu et al. 2019;
    spans as in Lan et al. 2019, section 4.1, and Joshi et al. 2019, section 3.1. Each token, word
    or span is drawn by itself, so the number chosen in a row varies around its share, where they
    fill up a number. A row is cut out of an endless series of spans and gaps, in which every place
    has the same share; special tokens take part in it and stay as they are.
    """

    mask_id: int
    regular_ids: np.ndarray
    special: np.ndarray
    probability: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    continues_word: np.ndarray | None = None
    span_lengths: tuple[float, ...] = (1.0,)
    heads: tuple[str, ...] = ("mlm",)

    @classmethod
    def for_vocabulary(
        cls,
        vocab_size: int,
        mask_id: int,
        special_ids: Sequence[int],
        *,
        probability: float = 0.15,
        mask_share: float = 0.8,
        random_share: float = 0.1,
        continues_word: Sequence[bool] | None = None,
        span_lengths: tuple[float, ...] = (1.0,),
    ) -> Masked:
        """The objective over ids 0 to `vocab_size` - 1, of which some are special."""
        special = np.zeros(vocab_size, dtype=bool)
        special[list(special_ids)] = True
        return cls(
            mask_id=mask_id,
            regular_ids=np.flatnonzero(~special),
            special=special,
            probability=probability,
            mask_share=mask_share,
            random_share=random_share,
            continues_word=None if continues_word is None else np.array(continues_word),
            span_lengths=span_lengths,
        )

    def prepare(self, rows: RowBatch, random: RowRandom) -> Batch:
        """Hide tokens: int64 [B, T] -> input_ids and labels [B, T]."""
        real = np.arange(rows.input_ids.shape[1]) < rows.lengths[:, None]
        input_ids, labels = self.hide(rows.input_ids, real, random)
        return Batch(input_ids=input_ids, labels=labels, **row_inputs(rows))

    def hide(
        self, original: NDArray[np.int64], real: NDArray[np.bool_], random: RowRandom
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Some tokens replaced, and the labels that ask for them: int64 [B, T] each."""
        length = original.shape[1]
        drawn = self._chosen_units(length, random)
        if self.continues_word is not None:
            # All pieces of a word share one draw; a row may begin in the middle of a word.
            begins = ~self.continues_word[original]
            begins[:, :1] = True
            drawn = np.take_along_axis(drawn, np.cumsum(begins, axis=1) - 1, axis=1)
        chosen = drawn & ~self.special[original] & real
        fate = random.uniform(length, _REPLACE)
        replacement = self.regular_ids[random.integers(len(self.regular_ids), length, _TOKEN)]
        hidden = chosen & (fate < self.mask_share)
        swapped = chosen & ~hidden & (fate < self.mask_share + self.random_share)
        input_ids = np.where(hidden, self.mask_id, np.where(swapped, replacement, original))
        return input_ids, np.where(chosen, original, NO_LOSS)

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats of the chosen tokens, given all others."""
        return token_loss(model, batch)

    def _chosen_units(self, length: int, random: RowRandom) -> NDArray[np.bool_]:
        """Which of `length` tokens or words are chosen, bool [B, length]: spans and gaps in turn.

        A step is a span of drawn length n or one token that stays. With the chance s of a span,
        the share of chosen tokens is s E[n] / (s E[n] + 1 - s), which gives s for a share.
        """
        draw = random.uniform(length, _CHOOSE)
        if len(self.span_lengths) == 1:
            return draw < self.probability
        chances = np.array(self.span_lengths) / sum(self.span_lengths)
        mean = chances @ np.arange(1, len(chances) + 1)
        chance = self.probability / (mean * (1.0 - self.probability) + self.probability)
        spans = draw < chance
        size = random.uniform(length, _SPAN)
        steps = 1 + np.searchsorted(np.cumsum(chances)[:-1], size, side="right")
        # The row begins anywhere in the series, so that the first span may have begun before it.
        spans[:, :1] = draw[:, :1] < self.probability
        left = np.cumsum(chances[::-1])[::-1] / mean
        steps[:, :1] = 1 + np.searchsorted(np.cumsum(left)[:-1], size[:, :1], side="right")
        steps = np.where(spans, steps, 1)
        begins = np.zeros((len(draw), length + 1), dtype=np.int64)
        places = np.minimum(np.cumsum(steps, axis=1) - steps, length)
        np.put_along_axis(begins, places, 1, axis=1)
        step = np.cumsum(begins[:, :length], axis=1) - 1
        return np.take_along_axis(spans, step, axis=1)


def harmonic_lengths(longest: int) -> tuple[float, ...]:
    """Spans of n tokens in proportion to 1/n, up to `longest` (Lan et al. 2019, equation 1: 3).

    >>> harmonic_lengths(2)
    (1.0, 0.5)
    """
    return tuple(1.0 / n for n in range(1, longest + 1))


def geometric_lengths(longest: int, stop: float = 0.2) -> tuple[float, ...]:
    """Spans that end after every token with probability `stop`, none above `longest`.

    Source: Joshi et al. 2019, section 3.1: 0.2 and 10, a mean of 3.8.

    >>> geometric_lengths(3, 0.5)
    (0.5, 0.25, 0.125)
    """
    return tuple(stop * (1.0 - stop) ** (n - 1) for n in range(1, longest + 1))
