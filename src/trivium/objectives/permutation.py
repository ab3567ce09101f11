"""Permutation language modelling (XLNet): tokens are predicted in a random order."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from trivium.data.batch import IGNORE_INDEX, PAD_TO_MULTIPLE_OF, Batch, RowBatch
from trivium.data.row_order import RowRandom
from trivium.models.base_model import Spec
from trivium.objectives.causal import StatefulObjective
from trivium.objectives.masked import MaskSelection
from trivium.objectives.row_arrays import left_pack, real_tokens, row_inputs
from trivium.text.vocabulary import Vocabulary

# The channel of noise that draws orders; those before it choose tokens.
_ORDER = 4


class Permutation(StatefulObjective, MaskSelection):
    """L = - sum over targets t of log P(x_t | what is known before t in a random order).

        row        the  cat  sat  on  it
        order      0    2    0    0   1      "it" is predicted from "the sat on",
        predicted  1    4                    "cat" from "the sat on it"
        labels     cat  it

    Spans of 1 to 5 tokens (n with a chance in proportion to 1/n) are targets, a share of 1/6; all
    others are known from the beginning. Special tokens become known in the order, too, but are not
    predicted. Inside each part of `perm_size` tokens the order of targets is drawn anew whenever a
    row is seen; targets of a part become known before those of later parts.

    Source: Yang et al. 2019, sections 2.2 and 2.3 (partial prediction, K = 6), and their released
    `_sample_mask` and `_local_perm`, which share one order among all parts of a row. Spans are
    drawn independently, so that the number of targets varies around its share, where theirs is
    fixed; they are of tokens, not of words, unless `whole_words`.

    With `carry_state` rows are read in order, as those of "causal", and the last hidden states of
    the rows before are keys, too (section 2.4). As released, rows overlap by half, and only the
    first half of each is remembered (`reuse_len`); here a row begins where the one before ends.
    """

    kind: Literal["permutation"] = "permutation"
    probability: float = Field(1 / 6, gt=0, lt=1, description="share of tokens that are predicted")
    max_span: int = Field(
        5, gt=0, le=64, description="tokens (or words) in a row chosen together, at most"
    )
    perm_size: int = Field(
        256, gt=0, description="tokens inside which the order is random; parts keep theirs"
    )

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Encoders that can predict tokens in any order."""
        return spec.query_stream and any(head.kind == "mlm" for head in spec.heads)

    def fits(self, spec: Spec) -> bool:
        """Return whether the model can predict tokens in any order."""
        return spec.query_stream

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Draw targets and an order: int64 [B, T] -> order [B, T], predicted and labels [B, M]."""
        ids, length = rows.input_ids, rows.input_ids.shape[1]
        real = real_tokens(rows)
        chosen = self.select(ids, real, rng, vocabulary)
        part = np.arange(length) // self.perm_size
        rank = (part + rng.uniform(length, _ORDER)).argsort(axis=1).argsort(axis=1)
        unknown = chosen | (vocabulary.is_special[ids] & real)
        predicted, _ = left_pack(np.broadcast_to(np.arange(length), ids.shape), chosen, 0)
        labels, _ = left_pack(ids, chosen, IGNORE_INDEX)
        more = (
            (0, 0),
            (
                0,
                -labels.shape[1] % PAD_TO_MULTIPLE_OF
                or PAD_TO_MULTIPLE_OF * (labels.shape[1] == 0),
            ),
        )
        return Batch(
            input_ids=ids,
            order=np.where(unknown, rank + 1, 0),
            predicted=np.pad(predicted, more),
            labels=np.pad(labels, more, constant_values=IGNORE_INDEX),
            **row_inputs(rows),
        )
