"""Causal language modelling: predict every token from those before it."""

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
from trivium.objectives.excerpt import continue_beginning
from trivium.objectives.objective import Objective
from trivium.objectives.row_arrays import positions_in_documents, real_tokens, row_inputs
from trivium.text.vocabulary import Vocabulary


class LeftToRight(Objective):
    """An objective of models that predict every token from those before it."""

    def fits(self, spec: Spec) -> bool:
        """Return whether the model predicts from the left alone."""
        return is_causal(spec)

    def sample(self, lm: LanguageModel, text: str) -> tuple[str, str] | None:
        """Return a continuation of the beginning of the text."""
        return continue_beginning(lm, text, 10, temperature=0.8, top_k=40, seed=0)


class Carrying(Objective):
    """Objectives whose rows can continue the row before them (`carry_state`); see `Causal`."""

    carry_state: bool = Field(
        False,
        description="rows are read in order, each with the state that the row before has left: "
        "for RNNs that read one way, and others whose layers keep a state of a fixed size",
    )

    @property
    def carries_state(self) -> bool:
        """See `Objective.carries_state`."""
        return self.carry_state

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """See `Objective.heads`; `carry_state` also needs a model that keeps a state."""
        heads = super().heads(spec, labels)
        if self.carry_state and not spec.carries_state:
            raise RecipeError(
                "objective.carry_state = true needs a model whose state goes on from row to row, "
                "such as lstm-mini, transformer-xl-mini or xlnet-mini; layers of this model keep "
                "whole texts or read a few tokens: leave it out."
            )
        return heads

    def check_rows(self, packing: str, separate_documents: bool, *, is_mixed: bool) -> None:
        """See `Objective.check_rows`. With `carry_state` every row continues another row."""
        super().check_rows(packing, separate_documents, is_mixed=is_mixed)
        keys = {
            "[[mix]]": is_mixed,
            "data.separate_documents": separate_documents,
            'data.packing = "truncate"': packing == "truncate",
        }
        apart = " and ".join(key for key, is_set in keys.items() if is_set)
        if self.carry_state and apart:
            raise RecipeError(
                "objective.carry_state = true reads one text from its beginning to its end: leave "
                f"{apart} out."
            )


class Causal(Carrying, LeftToRight):
    """L = - sum_t log P(x_t | x_1 ... x_(t-1)).

        input_ids  once  upon  a     time
        labels     upon  a     time  -100

    The last position of a row has no label, nor have padding and, where documents are kept apart,
    the last token of a document. Source: Radford et al. 2018, equation 1.

    With `context` c a document is read in windows of c tokens, none of which sees another: a token
    is predicted from at most c tokens before it, on average (c + 1) / 2, and every label is kept.
    With c = 2, "time" is predicted from "a" alone:

        input_ids     once  upon  a     time
        document_ids  1     1     2     2
        position_ids  0     1     0     1

    This holds for every model. A sliding window in each layer would not: L layers of window w see
    L w tokens back.

    With `carry_state` the rows of a text are read in order: a step's batch is as many parts of the
    text, and each row goes on with the state that the row before it has left; gradients end with
    the row (truncated backpropagation through time, Williams and Peng 1990). With two rows a step:

        step 0  once upon a time | , said the old
        step 1  there was a king | man to his son

    At the end of an epoch the states are forgotten.
    """

    kind: Literal["causal"] = "causal"
    context: int | None = Field(
        None, gt=0, description="tokens that a prediction may see; all of the row unless set"
    )

    @model_validator(mode="after")
    def _no_windows_with_state(self) -> Self:
        if self.carry_state and self.context is not None:
            raise ValueError(
                "carry_state = true remembers what context would forget: leave one out"
            )
        return self

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Decoders, n-gram models and RNNs that read one way; GLM's positions are for blanks."""
        predicts = any(head.kind == "lm" for head in spec.heads)
        return is_causal(spec) and predicts and not spec.fills_blanks

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Shift by one: int64 [B, T] -> input_ids and labels [B, T]."""
        windows = rows if self.context is None else _windows(rows, self.context)
        return causal_batch(windows, next_tokens(rows))


def is_causal(spec: Spec) -> bool:
    """Whether a model predicts from the left alone."""
    return spec.family == "decoder-only" and not spec.is_bilm


def causal_batch(rows: RowBatch, labels: np.ndarray) -> Batch:
    """Rows with their labels; padding is on the right, where causality alone hides it."""
    inputs = row_inputs(rows) | {"attention_mask": None}
    return Batch(input_ids=rows.input_ids, labels=labels, **inputs)


def next_tokens(rows: RowBatch) -> np.ndarray:
    """The token after each position, -100 at the ends of rows and documents: int64 [B, T]."""
    labels = np.full_like(rows.input_ids, IGNORE_INDEX)
    labels[:, :-1] = rows.input_ids[:, 1:]
    length = rows.input_ids.shape[1]
    labels[np.arange(length) >= rows.lengths[:, None] - 1] = IGNORE_INDEX
    if rows.document_ids is not None:
        last = rows.document_ids[:, :-1] != rows.document_ids[:, 1:]
        labels[:, :-1][last] = IGNORE_INDEX
    return labels


def _windows(rows: RowBatch, context: int) -> RowBatch:
    """The rows with every `context` tokens of a document as a document of their own."""
    real = real_tokens(rows)
    documents = real.astype(np.int64) if rows.document_ids is None else rows.document_ids
    starts = real & (positions_in_documents(documents) % context == 0)
    windows = np.cumsum(starts, axis=1)
    return dataclasses.replace(rows, document_ids=np.where(real, windows, 0))
