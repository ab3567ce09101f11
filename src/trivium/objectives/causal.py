"""Causal language modelling: predict each token from the tokens before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from trivium.data.batch import IGNORE_INDEX, Batch, RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import RecipeError
from trivium.language_model import LanguageModel
from trivium.models.base_model import Spec
from trivium.models.heads import Head
from trivium.objectives.excerpt import generate_continuation
from trivium.objectives.objective import Objective
from trivium.objectives.row_arrays import attention_inputs, padding_mask, positions_in_documents
from trivium.text.vocabulary import Vocabulary


class LeftToRight(Objective):
    """Base class of objectives for models that predict each token from the tokens before it."""

    def fits(self, spec: Spec) -> bool:
        """Return whether the model is causal: it predicts each token from the tokens before it."""
        return is_causal(spec)

    def sample(self, lm: LanguageModel, text: str) -> tuple[str, str] | None:
        """Return the first words of a text, and the continuation that the model generates."""
        return generate_continuation(lm, text, 10, temperature=0.8, top_k=40, seed=0)


class StatefulObjective(Objective):
    """Mixin for objectives that can carry the model's state from one row to the next.

    The recipe key `carry_state` enables it. `Causal` describes the order of the rows.
    """

    carry_state: bool = Field(
        False,
        description="read the text in order and start each row with the final state of the "
        "previous row; only for unidirectional RNNs and other models with a fixed-size state",
    )

    @property
    def carries_state(self) -> bool:
        """Whether each row starts with the final state of the row before it."""
        return self.carry_state

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return the heads of the model that are trained.

        Raises RecipeError if the objective cannot train the model, or if `carry_state` is set for a
        model that cannot carry state between rows.
        """
        heads = super().heads(spec, labels)
        if self.carry_state and not spec.carries_state:
            raise RecipeError(
                "objective.carry_state = true needs a model whose state continues from row to row, "
                "such as lstm-mini, transformer-xl-mini or xlnet-mini; layers of this model keep "
                "whole texts or read a few tokens: leave it out."
            )
        return heads

    def check_rows(self, packing: str, separate_documents: bool, *, is_mixed: bool) -> None:
        """Raise RecipeError for keys of `[data]` that the objective does not support.

        With `carry_state` the rows must be one continuous text: no `[[mix]]`, no separate
        documents, no truncated rows.
        """
        super().check_rows(packing, separate_documents, is_mixed=is_mixed)
        keys = {
            "[[mix]]": is_mixed,
            "data.separate_documents": separate_documents,
            'data.packing = "truncate"': packing == "truncate",
        }
        conflicts = " and ".join(key for key, is_set in keys.items() if is_set)
        if self.carry_state and conflicts:
            raise RecipeError(
                "objective.carry_state = true reads one text from its beginning to its end: leave "
                f"{conflicts} out."
            )


class Causal(StatefulObjective, LeftToRight):
    """The causal language modelling objective: L = - sum_t log P(x_t | x_1 ... x_(t-1)).

        input_ids  once  upon  a     time
        labels     upon  a     time  -100

    The last token of a row has no label, and neither has padding. With separate documents the last
    token of each document has no label either. Source: Radford et al. 2018, equation 1.

    With `context` = c each document is split into windows of c tokens. Tokens attend only to their
    own window, so that each token is predicted from at most c tokens before it, on average from
    (c + 1) / 2. No label is lost. For c = 2, "time" is predicted only from "a":

        input_ids     once  upon  a     time
        document_ids  1     1     2     2
        position_ids  0     1     0     1

    This limits the context of any model to c tokens. Sliding-window attention in each layer would
    not do so: N layers with a window of w tokens reach N w tokens back.

    With `carry_state` the text is split into as many contiguous text streams as a step has rows,
    and each stream is read in order. Each row starts with the final state of the row before it in
    the same stream. Gradients do not flow from one row to another (truncated backpropagation
    through time, Williams and Peng 1990). With two rows per step:

        step 0  once upon a time | , said the old
        step 1  there was a king | man to his son

    The states are reset at the end of each epoch.
    """

    kind: Literal["causal"] = "causal"
    context: int | None = Field(
        None, gt=0, description="maximum number of context tokens; default: the whole row"
    )

    @model_validator(mode="after")
    def _check_context(self) -> Self:
        """Raise ValueError if both `carry_state` and `context` are set."""
        if self.carry_state and self.context is not None:
            raise ValueError(
                "carry_state = true keeps earlier text that context would discard: leave one out"
            )
        return self

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Return whether the model is a causal language model with an LM head, except GLM.

        GLM was pretrained with "blank-filling".
        """
        has_lm_head = any(head.kind == "lm" for head in spec.heads)
        return is_causal(spec) and has_lm_head and not spec.fills_blanks

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return the batch with the next token of each position as its label, int64 [B, T]."""
        windows = rows if self.context is None else _split_into_windows(rows, self.context)
        return build_causal_batch(windows, next_token_labels(rows))


def is_causal(spec: Spec) -> bool:
    """Return whether a model predicts each token only from the tokens before it."""
    return spec.family == "decoder-only" and not spec.is_bilm


def build_causal_batch(rows: RowBatch, labels: np.ndarray) -> Batch:
    """Return the batch of rows with labels [B, T] for a causal model.

    The batch has no padding mask: padding is on the right, where the causal mask hides it.
    """
    inputs = attention_inputs(rows) | {"attention_mask": None}
    return Batch(input_ids=rows.input_ids, labels=labels, **inputs)


def next_token_labels(rows: RowBatch) -> np.ndarray:
    """Return the next token of each position as its label, int64 [B, T].

    The label is -100 for padding and for the last token of each row and each document.
    """
    labels = np.full_like(rows.input_ids, IGNORE_INDEX)
    labels[:, :-1] = rows.input_ids[:, 1:]
    length = rows.input_ids.shape[1]
    labels[np.arange(length) >= rows.lengths[:, None] - 1] = IGNORE_INDEX
    if rows.document_ids is not None:
        is_last = rows.document_ids[:, :-1] != rows.document_ids[:, 1:]
        labels[:, :-1][is_last] = IGNORE_INDEX
    return labels


def _split_into_windows(rows: RowBatch, window_size: int) -> RowBatch:
    """Return the rows with each document split into windows of `window_size` tokens.

    Each window gets its own document id, so that no token attends to another window.
    """
    is_token = padding_mask(rows)
    documents = is_token.astype(np.int64) if rows.document_ids is None else rows.document_ids
    starts = is_token & (positions_in_documents(documents) % window_size == 0)
    windows = np.cumsum(starts, axis=1)
    return dataclasses.replace(rows, document_ids=np.where(is_token, windows, 0))
