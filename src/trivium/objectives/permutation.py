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
from trivium.objectives.row_arrays import attention_inputs, left_pack, token_mask
from trivium.text.vocabulary import Vocabulary

# The channel of random numbers for orders. `MaskSelection` uses the channels before it.
_ORDER = 4


class Permutation(StatefulObjective, MaskSelection):
    """Permutation language modelling (XLNet): the target tokens are predicted in a random order.

    L = - sum over targets t of log P(x_t | non-targets, and targets before t in the random order)

        row        the  cat  sat  on  it
        order      0    2    0    0   1      "it" is predicted from "the sat on",
        predicted  1    4                    "cat" from "the sat on it"
        labels     cat  it

    `order` is the rank of each token in the random order, and `predicted` contains the positions
    of the targets. One sixth of the tokens are targets. They form spans of 1 to 5 tokens, and the
    probability of a span of n tokens is proportional to 1/n. All other tokens are visible from the
    start (order 0), except special tokens: they have a rank in the order but are not predicted. A
    row is divided into segments of `perm_size` tokens. The order is random within a segment and
    differs from epoch to epoch. Targets of a segment come before targets of later segments.

    With `carry_state`, each row continues the text of the previous row, as in "causal". The cached
    hidden states of the previous rows serve as additional keys (section 2.4). Here a row starts
    where the previous row ends. In the released code, rows overlap by half, and only the first half
    of a row is cached (`reuse_len`).

    Source: Yang et al. 2019, sections 2.2 and 2.3 (partial prediction, K = 6), and their released
    `_sample_mask` and `_local_perm`, in which all segments of a row share one order. Here spans are
    selected independently, so that the number of targets varies from row to row, and spans consist
    of tokens, not words, unless `whole_words` is set.
    """

    kind: Literal["permutation"] = "permutation"
    probability: float = Field(1 / 6, gt=0, lt=1, description="fraction of tokens to predict")
    max_span: int = Field(5, gt=0, le=64, description="maximum span length in tokens (or words)")
    perm_size: int = Field(
        256, gt=0, description="tokens per segment; the order is random only within a segment"
    )

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Return True for XLNet (two-stream attention, MLM head): this is its default objective."""
        return spec.query_stream and any(head.kind == "mlm" for head in spec.heads)

    def fits(self, spec: Spec) -> bool:
        """Return True for models with two-stream attention (XLNet), which this objective needs."""
        return spec.query_stream

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Select the targets and draw a random prediction order for each of B rows of T tokens.

        Returns:
            A batch with `input_ids` and `order`, int64 [B, T], and `predicted` and `labels`, int64
            [B, M]. `predicted` contains the positions of the targets, and `labels` their token ids.
            M is the maximum number of targets per row, rounded up to a multiple of
            `PAD_TO_MULTIPLE_OF`.
        """
        ids, length = rows.input_ids, rows.input_ids.shape[1]
        real = token_mask(rows)
        chosen = self.select_tokens(ids, real, rng, vocabulary)
        part = np.arange(length) // self.perm_size
        rank = (part + rng.uniform(length, _ORDER)).argsort(axis=1).argsort(axis=1)
        unknown = chosen | (vocabulary.is_special[ids] & real)
        predicted, _ = left_pack(np.broadcast_to(np.arange(length), ids.shape), chosen, 0)
        labels, _ = left_pack(ids, chosen, IGNORE_INDEX)
        num_targets = labels.shape[1]
        num_padding = -num_targets % PAD_TO_MULTIPLE_OF or PAD_TO_MULTIPLE_OF * (num_targets == 0)
        padding = ((0, 0), (0, num_padding))
        return Batch(
            input_ids=ids,
            order=np.where(unknown, rank + 1, 0),
            predicted=np.pad(predicted, padding),
            labels=np.pad(labels, padding, constant_values=IGNORE_INDEX),
            **attention_inputs(rows),
        )
