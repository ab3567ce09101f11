"""Masked language modelling: some tokens are hidden, and both sides tell what they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trivium.data import NO_LOSS, Batch, RowBatch, RowRandom
from trivium.models import LanguageModule
from trivium.nn.loss import Loss
from trivium.objectives.base import TensorBatch, row_inputs, token_loss

_CHOOSE, _REPLACE, _TOKEN = range(3)


@dataclass(frozen=True)
class Masked:
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

    Source: Devlin et al. 2018, section 3.1 (15 %, 80/10/10); drawn anew as in Liu et al. 2019.
    We draw each token (or word) by itself, so the number chosen in a row varies around its share.
    """

    mask_id: int
    regular_ids: np.ndarray
    special: np.ndarray
    probability: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    continues_word: np.ndarray | None = None
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
        )

    def prepare(self, rows: RowBatch, random: RowRandom) -> Batch:
        """Hide tokens: int64 [B, T] -> input_ids and labels [B, T]."""
        original, length = rows.input_ids, rows.input_ids.shape[1]
        draw = random.uniform(length, _CHOOSE)
        if self.continues_word is not None:
            # All pieces of a word share one draw; a row may begin in the middle of a word.
            begins = ~self.continues_word[original]
            begins[:, :1] = True
            draw = np.take_along_axis(draw, np.cumsum(begins, axis=1) - 1, axis=1)
        chosen = (draw < self.probability) & ~self.special[original]
        chosen &= np.arange(length) < rows.lengths[:, None]
        fate = random.uniform(length, _REPLACE)
        replacement = self.regular_ids[random.integers(len(self.regular_ids), length, _TOKEN)]
        hidden = chosen & (fate < self.mask_share)
        swapped = chosen & ~hidden & (fate < self.mask_share + self.random_share)
        return Batch(
            input_ids=np.where(hidden, self.mask_id, np.where(swapped, replacement, original)),
            labels=np.where(chosen, original, NO_LOSS),
            **row_inputs(rows),
        )

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats of the chosen tokens, given all others."""
        return token_loss(model, batch)
