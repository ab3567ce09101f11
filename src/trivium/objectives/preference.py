"""Preference optimization: a model that generates learns from pairs of which one is preferred."""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor
from torch.nn import functional as F

from trivium.data.batch import IGNORE_INDEX, Batch, RowBatch
from trivium.data.encoded import EncodedExamples, Ragged, Truncations
from trivium.data.row_order import RowRandom
from trivium.language_model import LanguageModel
from trivium.messages import english
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.nn.loss import token_cross_entropy
from trivium.objectives.causal import is_causal
from trivium.objectives.labelled import LabelledObjective, batches_by_length, check_example_ids
from trivium.objectives.preference_pairs import (
    GivenResponses,
    Preference,
    PreferencePairs,
    double_truncations,
    pair_batch,
    pair_up,
    response_rows,
    unstack_pairs,
)
from trivium.objectives.task_metrics import Metrics, first_prediction, perplexity_of
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, read, to_device
from trivium.text.vocabulary import Vocabulary

LossType = Literal["sigmoid", "ipo", "hinge", "simpo", "orpo"]
FACTS = ("pair_accuracy", "margin", "chosen", "rejected")
_SHOWN_TEXT = 200  # characters of a prompt in a command


class Alignment(LabelledObjective):
    """An objective that changes how a model responds: one pass over its prompts, no dropout."""

    tensor_parallel: ClassVar[bool] = False

    def try_it(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return a command that responds to a held-out prompt."""
        if lm.settings.chat_template is not None:
            return f"chat {run}"
        command = "translate" if lm.spec.family == "encoder-decoder" else "generate"
        prompt = str(first_prediction(run).get("prompt", "a prompt"))[:_SHOWN_TEXT]
        return f"{command} {run} {shlex.quote(prompt)}"


class AgainstReference(Alignment, GivenResponses):
    """An objective on log p of responses and log q, that of the reference.

    The reference is the model as it is when the run begins. Every row has two responses.
    """

    @abstractmethod
    def rows(
        self, examples: Sequence[Any], lm: LanguageModel
    ) -> tuple[Mapping[str, Ragged], Truncations]:
        """Return the pairs of responses of examples, by the field of `RowBatch`, and the cuts."""

    @abstractmethod
    def labels_of_rows(self, examples: Sequence[Any], logq: np.ndarray) -> np.ndarray:
        """Return what the loss needs of every example, log q [N, 2] of its row first."""

    def fits(self, spec: Spec) -> bool:
        """Return whether the model generates text."""
        return spec.family == "encoder-decoder" or is_causal(spec)

    def encode(self, examples: Sequence[Any], lm: LanguageModel) -> EncodedExamples:
        """Return two responses per example, each after the prompt, with `labels_of_rows`."""
        sequences, truncations = self.rows(examples, lm)
        logq, _ = measured(sequences, lm)
        labels = self.labels_of_rows(examples, logq).astype(np.float32)
        pad_id = lm.text_tokenizer.pad_id
        return EncodedExamples.with_targets(
            sequences, truncations, sequence_labels=labels, pad_id=pad_id
        )

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return both responses, [B, 2, U]; `sequence_labels` are `labels_of_rows`."""
        return pair_batch(rows)

    def predict(
        self, lm: LanguageModel, examples: Sequence[Any]
    ) -> list[tuple[list[float], list[int]]]:
        """Log-probabilities of both responses of a row in nats, and their numbers of tokens."""
        sums, counts = measured(self.rows(examples, lm)[0], lm)
        return list(zip(sums.tolist(), counts.tolist(), strict=True))


class PreferenceOptimization(AgainstReference, PreferencePairs):
    """L = - log sigmoid(beta h) + w L_SFT for h = log (p(y+) / q(y+)) - log (p(y-) / q(y-)).

    p is the model, q the reference: the model as it is when the run begins. log q is computed once,
    before the first step, so that there is no second model in memory. L_SFT is the loss per token
    of y+. Its weight w is 0 by default, as in the paper. Both responses can become rarer while h
    grows: `sft_weight` = 0.2 prevents that.

        prompt    who wrote it ?
        chosen    Ada did . </s>      log p = -7.1    log q = -7.9
        rejected  go away . </s>      log p = -9.6    log q = -8.8    h = 1.6

    `loss_type` chooses the first term. "simpo" and "orpo" have no reference, which is then for what
    is shown alone, and their log p is the mean over the tokens of a response:

        sigmoid  - (1 - e) log sigmoid(beta h) - e log sigmoid(-beta h), e = label_smoothing
        hinge    max(0, 1 - beta h)
        ipo      (h - 1 / (2 beta))^2
        simpo    as sigmoid, with beta h = beta (log p(y+) - log p(y-)) - gamma
        orpo     - beta log sigmoid(log odds(y+) - log odds(y-)), odds = p / (1 - p)

    Shown beside the loss: `pair_accuracy`, the share of pairs with h > 0; `margin`, h; `chosen` and
    `rejected`, log (p / q) of both in nats.

    Source: Rafailov et al. 2023 (DPO), equation 7; Mitchell 2023 (e); Zhao et al. 2023 (SLiC) for
    hinge; Azar et al. 2023 (IPO), equation 17, where beta is tau (trl has means over tokens);
    Meng et al. 2024 (SimPO), equation 6; Hong et al. 2024 (ORPO), equations 6 and 7, where beta is
    lambda (L_SFT of trl has the prompt, too); Pang et al. 2024, equation 1, for L_SFT.
    """

    kind: Literal["preference"] = "preference"
    loss_type: LossType = Field(
        "sigmoid", description="sigmoid (DPO), ipo, hinge, or without a reference simpo or orpo"
    )
    beta: float | None = Field(
        None, gt=0, description="how strongly the reference holds the model; default: 0.1, simpo 2"
    )
    gamma: float = Field(0.5, ge=0, description="what simpo subtracts from beta times the margin")
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="share of pairs that are taken to be the wrong way round"
    )
    sft_weight: float | None = Field(
        None, ge=0, description="weight of the loss of the chosen response; default: 0, orpo 1"
    )

    _reference: dict[str, Any] = PrivateAttr(default_factory=dict)
    """Log q of encoded pairs by their place in a file, for metrics."""

    @model_validator(mode="after")
    def _smoothing_of_sigmoid(self) -> Self:
        if self.label_smoothing and self.loss_type not in ("sigmoid", "simpo"):
            raise ValueError(f'label_smoothing is not for loss_type = "{self.loss_type}"')
        return self

    def resolve(self, spec: Spec, examples: Sequence[Preference]) -> Self:
        """Return the objective with the default weights of its loss."""
        beta = {"simpo": 2.0}.get(self.loss_type, 0.1) if self.beta is None else self.beta
        weight = self.sft_weight
        if weight is None:
            weight = 1.0 if self.loss_type == "orpo" else 0.0
        return self.replace(beta=beta, sft_weight=weight)

    def rows(
        self, examples: Sequence[Preference], lm: LanguageModel
    ) -> tuple[Mapping[str, Ragged], Truncations]:
        """Return the rows of both responses of every pair."""
        rows, truncations = response_rows(lm, self.turns(examples))
        return pair_up(rows), double_truncations(truncations)

    def labels_of_rows(self, examples: Sequence[Preference], logq: np.ndarray) -> np.ndarray:
        """Return log q of both responses, [N, 2], and keep it for metrics."""
        self._reference.update(zip((one.where for one in examples), logq))
        return logq

    def label_counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of pairs, and of tokens of the chosen responses."""
        pairs = dict.fromkeys(("preference", *FACTS), batch.num_rows)
        return {**pairs, "sft": int(_num_labels(batch)[:, 0].sum())}

    def term_weights(self) -> Mapping[str, float]:
        """Return the weight of the loss of chosen responses, and 0 for terms only shown."""
        return {"sft": self.sft_weight or 0.0, **dict.fromkeys(FACTS, 0.0)}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return losses of pairs, nats of the chosen tokens, and the terms that are only shown."""
        assert batch.sequence_labels is not None
        sums, counts, terms = log_probabilities(model, batch)
        ratios = (sums - batch.sequence_labels).detach()
        margin = ratios[:, 0] - ratios[:, 1]
        losses = preference_losses(self, sums, batch.sequence_labels, counts)
        return {
            "preference": losses.sum(),
            "pair_accuracy": (margin > 0).to(margin.dtype).sum(),
            "margin": margin.sum(),
            "chosen": ratios[:, 0].sum(),
            "rejected": ratios[:, 1].sum(),
            "sft": -sums[:, 0].sum(),
            **terms,
        }

    def compute_metrics(
        self,
        answers: list[tuple[list[float], list[int]]],
        examples: Sequence[Preference],
        lm: LanguageModel,
    ) -> Metrics:
        """Accuracy in the run, which has the reference; without it; perplexity of chosen ones.

        Pairs of which a response is cut entirely do not count.
        """
        pairs = [(one, answer) for one, answer in zip(examples, answers) if all(answer[1])]
        examples, answers = [one for one, _ in pairs], [answer for _, answer in pairs]
        sums, counts = (np.array([answer[i] for answer in answers], float) for i in range(2))
        sums, counts = sums.reshape(-1, 2), counts.reshape(-1, 2)
        perplexity = perplexity_of(-sums[:, 0].sum(), counts[:, 0].sum())
        means = sums / np.maximum(counts, 1)
        values: dict[str, float] = {}
        notes = english("note.ranking_accuracy"), english("note.perplexity_of_chosen")
        if all(one.where in self._reference for one in examples):
            gains = sums - np.stack([self._reference[one.where] for one in examples])
            values["accuracy"] = float((gains[:, 0] > gains[:, 1]).mean())
            notes = (english("note.preference_accuracy"), *notes)
        values["ranking_accuracy"] = float((means[:, 0] > means[:, 1]).mean())
        values["perplexity"] = perplexity
        rows = [
            {**self.texts_of(one), "log_probabilities": list(both)}
            for one, (both, _) in zip(examples, answers)
        ]
        return Metrics(values, notes=notes).with_examples(rows)


def preference_losses(
    objective: PreferenceOptimization, policy: Tensor, reference: Tensor, tokens: Tensor
) -> Tensor:
    """The loss of every pair, [B]; see `PreferenceOptimization`.

    Args:
        objective: with its numbers resolved.
        policy: log p of the chosen and the rejected response, [B, 2].
        reference: log q, [B, 2].
        tokens: of both responses, [B, 2].
    """
    beta, kind = objective.beta, objective.loss_type
    assert beta is not None
    ratios = policy - reference
    means = policy / tokens.clamp(min=1)
    if kind == "ipo":
        return (ratios[:, 0] - ratios[:, 1] - 1 / (2 * beta)).square()
    if kind == "hinge":
        return F.relu(1 - beta * (ratios[:, 0] - ratios[:, 1]))
    if kind == "orpo":
        log_odds = means - torch.log(-torch.expm1(means.clamp(max=-1e-6)))
        return -beta * F.logsigmoid(log_odds[:, 0] - log_odds[:, 1])
    margin = beta * (ratios[:, 0] - ratios[:, 1])
    if kind == "simpo":
        margin = beta * (means[:, 0] - means[:, 1]) - objective.gamma
    smoothing = objective.label_smoothing
    return -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)


def log_probabilities(
    model: LanguageModule, batch: TensorBatch
) -> tuple[Tensor, Tensor, LossTerms]:
    """Log p of both responses in nats, and their tokens, [B, 2] each; what layers add.

    Logits are computed again for the gradient, chunk by chunk.
    """
    inputs = unstack_pairs(batch.inputs)
    ids = inputs.get("decoder_input_ids", inputs["input_ids"])
    hidden, terms = read(model, inputs, gather_positions=batch.label_positions)
    nats = token_cross_entropy(model.logits, hidden, batch.targets, model.spec.vocab_size)
    rows, zeros = batch.label_positions // ids.shape[1], nats.new_zeros(len(ids))
    sums, counts = (zeros.index_add(0, rows, one) for one in (-nats, torch.ones_like(nats)))
    return sums.view(-1, 2), counts.view(-1, 2), terms


@torch.no_grad()
def measured(sequences: Mapping[str, Ragged], lm: LanguageModel) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of both responses, and their tokens, [N, 2] each; batch by batch."""
    encoded = EncodedExamples(sequences, pad_id=lm.text_tokenizer.pad_id)
    check_example_ids(encoded, lm.spec)
    sums, counts = np.zeros((len(encoded), 2)), np.zeros((len(encoded), 2), dtype=np.int64)
    lm.module.eval()
    for some, rows in batches_by_length(encoded):
        tensors = to_device(pair_batch(rows), lm.module.device)
        logp, tokens, _ = log_probabilities(lm.module, tensors)
        sums[some], counts[some] = logp.double().cpu(), tokens.cpu()
    return sums, counts


def _num_labels(batch: Batch) -> np.ndarray:
    """Return the number of labelled tokens of both responses, [B, 2]."""
    assert batch.labels is not None
    return (batch.labels != IGNORE_INDEX).sum(axis=2)
