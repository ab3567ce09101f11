"""Kahneman-Tversky optimization (KTO) with unpaired desirable and undesirable responses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from trivium.data.batch import Batch, RowBatch
from trivium.data.encoded import Ragged, Truncations
from trivium.data.records import Record
from trivium.data.row_order import RowRandom
from trivium.data.schema import Fields, Slot
from trivium.data.stored_examples import read_field
from trivium.errors import DataError, shorten
from trivium.language_model import LanguageModel
from trivium.messages import english
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.objectives.conversations import (
    SYSTEM,
    Turn,
    are_texts,
    as_text,
    join_messages,
    note_missing_space,
    read_prompt,
    read_turn,
)
from trivium.objectives.labelled import column_key
from trivium.objectives.preference import ReferenceObjective, compute_log_probabilities
from trivium.objectives.preference_pairs import OPTIONAL_PROMPT, encode_responses, stack_pairs
from trivium.objectives.task_metrics import Metrics, compute_perplexity
from trivium.objectives.tensor_batch import LossTerms, MicroBatchSlice, TensorBatch
from trivium.text.vocabulary import Vocabulary

RESPONSE = Fields(
    "response", ("response",), ("completion", "answer", "output"), ("messages", "conversations")
)
LABEL = Fields("label", ("label",), ("desirable", "thumbs_up", "kto_tag"))
_DESIRABLE, _UNDESIRABLE = ("true", "1", "1.0", "yes"), ("false", "0", "0.0", "-1", "no")


@dataclass(frozen=True, slots=True)
class UnpairedPreference:
    """A prompt with a single response that is labelled as desirable or undesirable."""

    prompt: Turn
    response: Turn
    is_desirable: bool
    where: str

    @property
    def group_key(self) -> str:
        """The key by which examples are grouped when the data is split.

        It is the prompt as one text, or the response if there is no prompt. Groups are never
        divided between splits.
        """
        return as_text(self.prompt) or as_text(self.response)


class KTO(ReferenceObjective):
    """The loss of Kahneman-Tversky optimization for a response y to a prompt.

    L = w (1 - sigmoid(s beta (r - z))), where r = log(p(y) / q(y)) and z = max(0, E[log(p / q)])

    p is the probability under the model, and q is the probability under the reference model, which
    is the model at the start of the run. log q is computed only once. Desirable responses have
    s = 1 and w = `desirable_weight`. Undesirable responses have s = -1 and w =
    `undesirable_weight`.

    z is the reference point. No gradient flows through it. Its expectation is estimated from
    mismatched responses: each prompt of the step is combined with a response to another prompt:

        prompt    who wrote it ?
        response  Ada did . </s>     label  true
        other     a rose is red . </s>      response to another prompt, for z

    Since z depends on all examples of a step, the loss is computed over the whole step. It does not
    depend on the micro-batch size.

    Three metrics are logged in addition to the loss. `desirable` and `undesirable` are the mean r
    of the desirable and of the undesirable responses, in nats. `divergence` is the estimate
    of E[log(p / q)], which may be negative, unlike z.

    The default learning rate is between 5e-7 and 5e-6, as recommended in the documentation of trl.

    Source: Ethayarajh et al. 2024, equations 7 and 8, section 4.1 for z.
    """

    needs_whole_step: ClassVar[bool] = True
    example_type: ClassVar[type | None] = UnpairedPreference
    kind: Literal["kto"] = "kto"
    responses: ClassVar[Sequence[str]] = ("response",)
    fields: ClassVar[Sequence[Slot]] = (OPTIONAL_PROMPT, RESPONSE, LABEL, SYSTEM)
    response_field: str | None = column_key("column of the response", RESPONSE)
    label_field: str | None = column_key("column of the label: true or false, 1 or 0", LABEL)
    beta: float = Field(0.1, gt=0, description="strength of the pull towards the reference model")
    desirable_weight: float = Field(1.0, ge=0, description="loss weight of desirable responses")
    undesirable_weight: float = Field(1.0, ge=0, description="loss weight of undesirable responses")

    def read_example(self, record: Record) -> UnpairedPreference:
        """Read a prompt, a response and its label from a record. The prompt is optional.

        Raises DataError if the label is neither true nor false.
        """
        label = record.columns["label"]
        value = str(record.value(label)).strip().lower()
        if value not in (*_DESIRABLE, *_UNDESIRABLE):
            raise DataError(
                f'{record.locate(label)} is "{shorten(value)}": give true or 1 for a desirable '
                "response, false or 0 for an undesirable response."
            )
        prompt, turn = read_prompt(record), read_turn(record, "response")
        if are_texts(record, prompt, turn):
            note_missing_space(record, prompt or "", [turn])  # type: ignore[arg-type]
            return UnpairedPreference(prompt or "", turn, value in _DESIRABLE, record.where)
        messages = join_messages(record, prompt, turn)
        return UnpairedPreference(messages[:-1], messages[-1:], value in _DESIRABLE, record.where)

    def infer_keys(self, spec: Spec, examples: Sequence[UnpairedPreference]) -> Self:
        """Check that both labels occur in the examples. Returns the objective unchanged.

        Raises DataError if all responses are desirable, or if all are undesirable.
        """
        if len({*read_field(examples, "is_desirable")}) == 1:
            kind = "desirable" if examples[0].is_desirable else "undesirable"
            raise DataError(
                f"all {len(examples)} responses are {kind}, and KTO compares both kinds: add the "
                "other kind."
            )
        return self

    def encode_pairs(
        self, examples: Sequence[UnpairedPreference], lm: LanguageModel
    ) -> tuple[Mapping[str, Ragged], Truncations]:
        """Encode two responses to each prompt: its own response and a mismatched response.

        If there are N examples, the mismatched response of example i comes from example
        (i + N // 2) % N.

        Returns:
            The token ids and labels of both responses by field of `RowBatch`, and the truncation
            counts of each prompt's own response (see `EncodedExamples`).
        """
        half = len(examples) // 2
        others = [*examples[half:], *examples[:half]]
        pairs = [
            (example.prompt, source.response)
            for example, other in zip(examples, others)
            for source in (example, other)
        ]
        rows, truncations = encode_responses(lm, pairs)
        return stack_pairs(rows), truncations[::2]

    def build_labels(self, examples: Sequence[UnpairedPreference], logq: np.ndarray) -> np.ndarray:
        """Return three labels for each of N examples, float [N, 3].

        The first two are log q of both responses, as given by `logq` [N, 2]. The third is 1 if the
        prompt's own response is desirable, and 0 otherwise.
        """
        return np.column_stack((logq, [one.is_desirable for one in examples]))

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return a batch with both responses of B examples, [B, 2, U], the longest examples first.

        U is the length of the longest row.
        """
        batch = super().prepare(rows, rng, vocabulary)
        order = np.argsort(-rows.lengths.reshape(rows.num_rows, -1).sum(axis=1), kind="stable")
        return Batch(**{name: array[order] for name, array in batch.arrays().items()})

    def loss_denominators(self, batch: Batch) -> dict[str, int]:
        """Return the number of responses for each loss term and each logged metric."""
        assert batch.sequence_labels is not None
        is_desirable = int(batch.sequence_labels[:, 2].sum())
        both = dict.fromkeys(("kto", "divergence"), batch.num_rows)
        return {**both, "desirable": is_desirable, "undesirable": batch.num_rows - is_desirable}

    def term_weights(self) -> Mapping[str, float]:
        """Return the weights of the terms, by name. Terms that are only logged have weight 0."""
        return dict.fromkeys(("divergence", "desirable", "undesirable"), 0.0)

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return the KTO loss of the step and the logged metrics, each summed over responses."""
        assert batch.sequence_labels is not None

        def compute_log_p(part: TensorBatch) -> tuple[Tensor, LossTerms]:
            """Return the log-probabilities of both responses, [B, 2], and the auxiliary loss."""
            sums, _, terms = compute_log_probabilities(model, part)
            return sums, terms

        sums, terms = batch.compute_by_slice(compute_log_p, _split_into_slices(batch))
        reference, is_desirable = batch.sequence_labels[:, :2], batch.sequence_labels[:, 2] > 0
        ratio, other = (sums - reference).unbind(1)
        metric, other = ratio.detach(), other.detach()
        return {
            "kto": self.compute_losses(ratio, other, is_desirable).sum(),
            "divergence": other.sum(),
            "desirable": metric[is_desirable].sum(),
            "undesirable": metric[~is_desirable].sum(),
            **terms,
        }

    def compute_losses(self, log_ratio: Tensor, mismatched: Tensor, is_desirable: Tensor) -> Tensor:
        """Return the KTO loss of each response, [B].

        Args:
            log_ratio: the log-probability ratio r = log(p / q) of the model and the reference model
                for each prompt's own response, [B].
            mismatched: the same for each mismatched response, [B]. The reference point z is its
                mean, or 0 if the mean is negative.
            is_desirable: whether each prompt's own response is desirable, bool [B].
        """
        reward = self.beta * (log_ratio - mismatched.mean().clamp(min=0))
        return torch.where(
            is_desirable,
            self.desirable_weight * (1 - reward.sigmoid()),
            self.undesirable_weight * (1 - (-reward).sigmoid()),
        )

    def compute_metrics(
        self,
        predictions: list[tuple[list[float], list[int]]],
        examples: Sequence[UnpairedPreference],
        lm: LanguageModel,
    ) -> Metrics:
        """Return the AUC of all responses, and the perplexity of the desirable responses.

        For the AUC, responses are ranked by their mean log-probability per token under the model.
        The reference model is not used.
        """
        sums, counts = (np.array(column, dtype=float)[:, 0] for column in zip(*predictions))
        is_desirable = np.array([one.is_desirable for one in examples])
        means = sums / np.maximum(counts, 1)
        undesirable = np.sort(means[~is_desirable])
        below = np.searchsorted(undesirable, means[is_desirable]) / max(1, len(undesirable))
        values = {"auc": math.nan, "perplexity": math.nan}  # NaN if one kind is missing
        if counts[is_desirable].sum():
            values["perplexity"] = compute_perplexity(
                -sums[is_desirable].sum(), counts[is_desirable].sum()
            )
        if is_desirable.any() and len(undesirable):
            values["auc"] = float(below.mean())
        rows = [
            {**self.to_texts(one), "label": one.is_desirable, "log_probability": total}
            for one, total in zip(examples, sums.tolist())
        ]
        notes = english("note.auc"), english("note.perplexity_of_good")
        return Metrics(values, notes=notes).with_examples(rows)


def _split_into_slices(batch: TensorBatch) -> Iterator[tuple[MicroBatchSlice, TensorBatch]]:
    """Yield each micro-batch slice of this process, together with its part of `batch`.

    Each part is padded only to its longest row.
    """
    name = "decoder_input_ids" if "decoder_input_ids" in batch.inputs else "input_ids"
    columns = batch.inputs[name].shape[2]
    row, column = batch.label_positions // columns, batch.label_positions % columns
    for part, inputs in batch.micro_batches():
        inside = (row >= 2 * part.start) & (row < 2 * part.stop)
        positions = (row - 2 * part.start) * inputs[name].shape[2] + column
        yield part, TensorBatch(inputs, positions[inside], batch.targets[inside])
