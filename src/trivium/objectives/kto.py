"""Kahneman-Tversky optimization: a model learns from responses that were judged one by one."""

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
from trivium.errors import DataError, shorten
from trivium.language_model import LanguageModel
from trivium.messages import english
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.objectives.conversations import (
    SYSTEM,
    Turn,
    are_texts,
    conversation,
    join_note,
    plain,
    read_prompt,
    read_turn,
)
from trivium.objectives.labelled import column_key
from trivium.objectives.preference import AgainstReference, log_probabilities
from trivium.objectives.preference_pairs import OPTIONAL_PROMPT, pair_up, response_rows
from trivium.objectives.task_metrics import Metrics, perplexity_of
from trivium.objectives.tensor_batch import LossTerms, MicroBatchSlice, TensorBatch
from trivium.text.vocabulary import Vocabulary

RESPONSE = Fields(
    "response", ("response",), ("completion", "answer", "output"), ("messages", "conversations")
)
LABEL = Fields("label", ("label",), ("desirable", "thumbs_up", "kto_tag"))
_DESIRABLE, _UNDESIRABLE = ("true", "1", "1.0", "yes"), ("false", "0", "0.0", "-1", "no")


@dataclass(frozen=True, slots=True)
class UnpairedPreference:
    """A response to a prompt, and whether it is good."""

    prompt: Turn
    response: Turn
    good: bool
    where: str

    @property
    def group(self) -> str:
        """Judgements of a prompt share a side of the validation split."""
        return plain(self.prompt) or plain(self.response)


class KTO(AgainstReference):
    """L = w (1 - sigmoid(s beta (r - z))) for r = log (p(y) / q(y)), z = max(0, E log (p / q)).

    p is the model, q the reference: the model as it is when the run begins, whose log q is computed
    once. s is 1 and w is `desirable_weight` for desirable responses; s is -1 and w is
    `undesirable_weight` for undesirable responses. z is the reference point: its mean is over
    responses to other prompts, one after each prompt of the step, and it has no gradient.

        prompt    who wrote it ?
        response  Ada did . </s>     label  true
        other     a rose is red . </s>      of another prompt, for z

    z needs all examples of a step, which pass through the model part by part.

    Shown beside the loss: `good` and `bad`, r of both in nats, and `divergence`, z before the max.

    The default learning rate is between 5e-7 and 5e-6, as trl's documentation recommends.

    Source: Ethayarajh et al. 2024, equations 7 and 8, section 4.1 for z.
    """

    needs_whole_step: ClassVar[bool] = True
    kind: Literal["kto"] = "kto"
    responses: ClassVar[Sequence[str]] = ("response",)
    fields: ClassVar[Sequence[Slot]] = (OPTIONAL_PROMPT, RESPONSE, LABEL, SYSTEM)
    response_field: str | None = column_key("column of the response", RESPONSE)
    label_field: str | None = column_key("column of true or false, 1 or 0", LABEL)
    beta: float = Field(0.1, gt=0, description="how strongly the reference holds the model")
    desirable_weight: float = Field(
        1.0, ge=0, description="weight of the loss of desirable responses"
    )
    undesirable_weight: float = Field(
        1.0, ge=0, description="weight of the loss of undesirable responses"
    )

    def example(self, record: Record) -> UnpairedPreference:
        """Return the response of a record, its label and usually its prompt."""
        label = record.columns["label"]
        value = str(record.value(label)).strip().lower()
        if value not in (*_DESIRABLE, *_UNDESIRABLE):
            raise DataError(
                f'{record.name(label)} is "{shorten(value)}": give true or 1 for a good response, '
                "false or 0 for a bad one."
            )
        prompt, turn = read_prompt(record), read_turn(record, "response")
        if are_texts(record, prompt, turn):
            join_note(record, prompt or "", [turn])  # type: ignore[arg-type]
            return UnpairedPreference(prompt or "", turn, value in _DESIRABLE, record.where)
        messages = conversation(record, prompt, turn)
        return UnpairedPreference(messages[:-1], messages[-1:], value in _DESIRABLE, record.where)

    def resolve(self, spec: Spec, examples: Sequence[UnpairedPreference]) -> Self:
        """Return the objective. Raises DataError where all responses are good, or all are bad."""
        if len({one.good for one in examples}) == 1:
            raise DataError(
                f"all {len(examples)} responses are {'good' if examples[0].good else 'bad'}, and "
                "KTO compares both kinds: add the others."
            )
        return self

    def rows(
        self, examples: Sequence[UnpairedPreference], lm: LanguageModel
    ) -> tuple[Mapping[str, Ragged], Truncations]:
        """Every response, and that of the example half of them further, after the same prompt.

        What is cut is that of the first response.
        """
        far = len(examples) // 2
        others = [*examples[far:], *examples[:far]]
        pairs = [
            (one.prompt, each.response)
            for one, other in zip(examples, others)
            for each in (one, other)
        ]
        rows, truncations = response_rows(lm, pairs)
        return pair_up(rows), truncations[::2]

    def labels_of_rows(
        self, examples: Sequence[UnpairedPreference], logq: np.ndarray
    ) -> np.ndarray:
        """Return log q of both responses, and whether the first one is good, [N, 3]."""
        return np.column_stack((logq, [one.good for one in examples]))

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return both responses, [B, 2, U], the longest rows first."""
        batch = super().prepare(rows, rng, vocabulary)
        order = np.argsort(-rows.lengths.reshape(rows.num_rows, -1).sum(axis=1), kind="stable")
        return Batch(**{name: array[order] for name, array in batch.arrays().items()})

    def label_counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of responses, and how many are good and bad."""
        assert batch.sequence_labels is not None
        good = int(batch.sequence_labels[:, 2].sum())
        both = dict.fromkeys(("kto", "divergence"), batch.num_rows)
        return {**both, "desirable": good, "undesirable": batch.num_rows - good}

    def term_weights(self) -> Mapping[str, float]:
        """Return the weight 0 for the terms that are only shown."""
        return dict.fromkeys(("divergence", "desirable", "undesirable"), 0.0)

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return the losses of responses, and the terms that are only shown."""
        assert batch.sequence_labels is not None

        def log_p(part: TensorBatch) -> tuple[Tensor, LossTerms]:
            sums, _, terms = log_probabilities(model, part)
            return sums, terms

        sums, terms = batch.compute_rows(log_p, _parts(batch))
        reference, good = batch.sequence_labels[:, :2], batch.sequence_labels[:, 2] > 0
        ratio, other = (sums - reference).unbind(1)
        fact, other = ratio.detach(), other.detach()
        return {
            "kto": self.losses(ratio, other, good).sum(),
            "divergence": other.sum(),
            "desirable": fact[good].sum(),
            "undesirable": fact[~good].sum(),
            **terms,
        }

    def losses(self, ratio: Tensor, other: Tensor, good: Tensor) -> Tensor:
        """The loss of every response, [B].

        Args:
            ratio: r of responses, [B].
            other: log (p / q) of responses to other prompts, whose mean is z, [B].
            good: which are good, bool [B].
        """
        gain = self.beta * (ratio - other.mean().clamp(min=0))
        return torch.where(
            good,
            self.desirable_weight * (1 - gain.sigmoid()),
            self.undesirable_weight * (1 - (-gain).sigmoid()),
        )

    def compute_metrics(
        self,
        answers: list[tuple[list[float], list[int]]],
        examples: Sequence[UnpairedPreference],
        lm: LanguageModel,
    ) -> Metrics:
        """Return the AUC without the reference, and the perplexity of good responses."""
        sums, counts = (np.array(each, dtype=float)[:, 0] for each in zip(*answers))
        good = np.array([one.good for one in examples])
        means = sums / np.maximum(counts, 1)
        bad = np.sort(means[~good])
        below = np.searchsorted(bad, means[good]) / max(1, len(bad))
        values = {"auc": math.nan, "perplexity": math.nan}  # undefined without both kinds
        if counts[good].sum():
            values["perplexity"] = perplexity_of(-sums[good].sum(), counts[good].sum())
        if good.any() and len(bad):
            values["auc"] = float(below.mean())
        rows = [
            {**self.texts_of(one), "label": one.good, "log_probability": total}
            for one, total in zip(examples, sums.tolist())
        ]
        notes = english("note.auc"), english("note.perplexity_of_good")
        return Metrics(values, notes=notes).with_examples(rows)


def _parts(batch: TensorBatch) -> Iterator[tuple[MicroBatchSlice, TensorBatch]]:
    """Yield the pairs that pass through the model together, only as wide as the longest of them."""
    name = "decoder_input_ids" if "decoder_input_ids" in batch.inputs else "input_ids"
    columns = batch.inputs[name].shape[2]
    row, column = batch.label_positions // columns, batch.label_positions % columns
    for cut, inputs in batch.parts():
        inside = (row >= 2 * cut.start) & (row < 2 * cut.stop)
        positions = (row - 2 * cut.start) * inputs[name].shape[2] + column
        yield cut, TensorBatch(inputs, positions[inside], batch.targets[inside])
