"""Preference optimization (DPO and variants): a generative model learns from preference pairs.

Shape letters: B pairs in a batch, N pairs in a data set. A dimension of size 2 contains the chosen
and the rejected response.
log p is the log-probability of a response under the trained model, and log q under the reference
model.
"""

from __future__ import annotations

import itertools
import shlex
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor
from torch.nn import functional as F

from trivium.data.batch import IGNORE_INDEX, Batch, RowBatch
from trivium.data.encoded import EncodedExamples, Ragged, Truncations, has_target
from trivium.data.row_order import RowRandom
from trivium.language_model import LanguageModel
from trivium.messages import english
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.nn.loss import token_cross_entropy
from trivium.objectives.causal import is_causal
from trivium.objectives.labelled import (
    LabelledObjective,
    MapOverRanks,
    batch_by_length,
    check_example_ids,
)
from trivium.objectives.preference_pairs import (
    GivenResponses,
    Preference,
    PreferencePairs,
    build_pair_batch,
    encode_responses,
    merge_truncations,
    stack_pairs,
    unstack_pairs,
)
from trivium.objectives.task_metrics import Metrics, compute_perplexity, read_prediction
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, forward_hidden, to_device
from trivium.text.vocabulary import Vocabulary

LossType = Literal["sigmoid", "ipo", "hinge", "simpo", "orpo"]
_METRICS = ("pair_accuracy", "margin", "chosen", "rejected")
# The number of pairs whose reference a process computes at a time.
_PAIRS_AT_ONCE = 256
_MAX_PROMPT = 200  # characters of a prompt in an example command


class Alignment(LabelledObjective):
    """Base class of objectives that change how a model responds to prompts (DPO, KTO, RLHF).

    By default, these objectives train for one epoch, without dropout.
    """

    tensor_parallel: ClassVar[bool] = False

    def suggest_command(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return a command that generates a response to a validation prompt, or starts a chat."""
        if lm.settings.chat_template is not None:
            return f"chat {run}"
        command = "translate" if lm.spec.family == "encoder-decoder" else "generate"
        prompt = str(read_prediction(run).get("prompt", "a prompt"))[:_MAX_PROMPT]
        return f"{command} {run} {shlex.quote(prompt)}"


class ReferenceObjective(Alignment, GivenResponses):
    """Base class of objectives that compare the model with a frozen reference model (DPO, KTO).

    The loss depends on log p, the log-probability of a response under the model, and on log q, its
    log-probability under the reference. The reference is the model at the start of the run. Every
    example has two responses to one prompt.
    """

    @abstractmethod
    def encode_pairs(
        self, examples: Sequence[Any], lm: LanguageModel
    ) -> tuple[Mapping[str, Ragged], Truncations]:
        """Encode both responses of every example as token ids.

        Returns:
            The token ids of both responses of every example, by field of `RowBatch`; and the
            truncation counts of every example (see `EncodedExamples`).
        """

    @abstractmethod
    def build_labels(self, examples: Sequence[Any], logq: np.ndarray) -> np.ndarray:
        """Return the labels that the loss needs, one row of at least two columns per example.

        The first two columns are `logq` [N, 2], the reference log-probabilities of both responses.
        """

    def fits(self, spec: Spec) -> bool:
        """Return whether the model can generate text, which the objective requires."""
        return spec.family == "encoder-decoder" or is_causal(spec)

    def encode(self, examples: Sequence[Any], lm: LanguageModel) -> EncodedExamples:
        """Encode both responses of every example.

        Their reference log-probabilities are NaN until `add_references` computes them.
        """
        sequences, truncations = self.encode_pairs(examples, lm)
        unknown = np.full((len(examples), 2), np.nan)
        labels = self.build_labels(examples, unknown).astype(np.float32)
        pad_id = lm.text_tokenizer.pad_id
        return EncodedExamples.with_targets(
            sequences, truncations, sequence_labels=labels, pad_id=pad_id
        )

    def add_references(
        self,
        data: EncodedExamples,
        lm: LanguageModel,
        map_over_ranks: MapOverRanks,
        show_progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Compute the reference log-probabilities of encoded examples, and set them as labels.

        The reference is `lm` with its current weights. All processes must call this method.

        Args:
            data: the examples that `encode` has returned.
            lm: the model at the start of the run.
            map_over_ranks: distributes the computation over the processes. All processes get all
                results.
            show_progress: called with the fraction that this process has computed of its part.
        """
        lm.module.eval()

        def compute(indices: Sequence[int]) -> list[np.ndarray]:
            """Return the log-probabilities [n, 2] of some examples, in several arrays."""
            chunks = np.split(
                np.array(indices), range(_PAIRS_AT_ONCE, len(indices), _PAIRS_AT_ONCE)
            )
            results: list[np.ndarray] = []
            for chunk in chunks:
                results.append(compute_pair_log_probabilities(data, chunk, lm)[0])
                show_progress(len(results) / len(chunks))
            return results

        logq = map_over_ranks(compute, range(len(data)))
        labels = np.array(data.sequence_labels)
        labels[:, :2] = np.concatenate(logq)
        data.sequence_labels = labels

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Build a batch of B examples with two rows each, one per response, [B, 2, U].

        U is the length of the longest row. `sequence_labels` contain the reference
        log-probabilities. In decoder-only models, each row starts with the prompt.
        """
        return build_pair_batch(rows)

    def predict(
        self, lm: LanguageModel, examples: Sequence[Any]
    ) -> list[tuple[list[float], list[int]]]:
        """Compute the log-probability in nats and the token count of every response.

        Returns a pair of lists per example: the log-probabilities of its two responses, and their
        token counts.
        """
        sums, counts = compute_all_log_probabilities(self.encode_pairs(examples, lm)[0], lm)
        return list(zip(sums.tolist(), counts.tolist(), strict=True))


class PreferenceOptimization(ReferenceObjective, PreferencePairs):
    """Direct preference optimization (DPO) and its variants IPO, SLiC, SimPO and ORPO.

    L = - log sigmoid(beta h) + w L_SFT, where h = log (p(y+) / q(y+)) - log (p(y-) / q(y-))

    y+ is the chosen response and y- the rejected one. p is the model, and q the reference, which is
    the model at the start of the run. log q is computed once, before the first step, so that
    training keeps only one model in memory. L_SFT is the cross-entropy per token of y+. Its weight
    w is `sft_weight`, 0 by default as in the paper. Even while h increases, the probabilities of
    both responses can decrease. Setting `sft_weight` to 0.2 prevents this.

        prompt    who wrote it ?
        chosen    Ada did . </s>      log p = -7.1    log q = -7.9
        rejected  go away . </s>      log p = -9.6    log q = -8.8    h = 1.6

    `loss_type` selects the first term of the loss. "simpo" and "orpo" use the reference only for
    the metrics, and their log p is the mean over the tokens of a response:

        sigmoid  - (1 - e) log sigmoid(beta h) - e log sigmoid(-beta h), e = label_smoothing
        hinge    max(0, 1 - beta h)
        ipo      (h - 1 / (2 beta))^2
        simpo    as sigmoid, with beta h = beta (log p(y+) - log p(y-)) - gamma
        orpo     - beta log sigmoid(log odds(y+) - log odds(y-)), odds = p / (1 - p)

    The log also contains `pair_accuracy`, the fraction of pairs with h > 0; `margin`, the mean of
    h; and `chosen` and `rejected`, the means of log (p / q) of both responses in nats.

    Source: Rafailov et al. 2023 (DPO), equation 7; Mitchell 2023 for e; Zhao et al. 2023 (SLiC) for
    hinge; Azar et al. 2023 (IPO), equation 17, where beta is called tau; Meng et al. 2024 (SimPO),
    equation 6; Hong et al. 2024 (ORPO), equations 6 and 7, where beta is called lambda; Pang et al.
    2024, equation 1, for L_SFT. trl differs in two points: in IPO, it uses mean log-probabilities
    per token, and in ORPO, its L_SFT includes the prompt.
    """

    kind: Literal["preference"] = "preference"
    loss_type: LossType = Field(
        "sigmoid", description="sigmoid (DPO), ipo or hinge; or, without a reference, simpo or orpo"
    )
    beta: float | None = Field(
        None,
        gt=0,
        description="how strongly the reference restrains the model; default: 0.1, simpo 2",
    )
    gamma: float = Field(0.5, ge=0, description="target margin of simpo")
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="assumed fraction of pairs with swapped labels"
    )
    sft_weight: float | None = Field(
        None,
        ge=0,
        description="weight of the SFT loss of the chosen response; default: 0, for orpo 1",
    )

    _validation: tuple[list[str], EncodedExamples] | None = PrivateAttr(None)
    """The places (file and line) of the validation pairs, and the encoded pairs."""

    @model_validator(mode="after")
    def _check_label_smoothing(self) -> Self:
        """Raise ValueError if label smoothing is set for a loss type that does not support it."""
        if self.label_smoothing and self.loss_type not in ("sigmoid", "simpo"):
            raise ValueError(f'label_smoothing is not for loss_type = "{self.loss_type}"')
        return self

    def infer_keys(self, spec: Spec, examples: Sequence[Preference]) -> Self:
        """Return the objective with the defaults of `beta` and `sft_weight` for its loss type."""
        beta = {"simpo": 2.0}.get(self.loss_type, 0.1) if self.beta is None else self.beta
        weight = self.sft_weight
        if weight is None:
            weight = 1.0 if self.loss_type == "orpo" else 0.0
        return self.replace(beta=beta, sft_weight=weight)

    def encode_pairs(
        self, examples: Sequence[Preference], lm: LanguageModel
    ) -> tuple[Mapping[str, Ragged], Truncations]:
        """Encode the chosen and the rejected response of every pair as token ids.

        Returns:
            The token ids of both responses of every pair, by field of `RowBatch`; and the
            truncation counts of every pair (see `EncodedExamples`).
        """
        rows, truncations = encode_responses(lm, self.list_pairs(examples))
        return stack_pairs(rows), merge_truncations(truncations)

    def build_labels(self, examples: Sequence[Preference], logq: np.ndarray) -> np.ndarray:
        """Return `logq` [N, 2], the reference log-probabilities of both responses, as labels."""
        return logq

    def remember_encoded(self, examples: Sequence[Preference], encoded: EncodedExamples) -> None:
        """Store the validation examples, whose reference log-probabilities the metrics need."""
        kept = itertools.compress(examples, has_target(encoded.truncations))
        self._validation = [one.where for one in kept], encoded

    def loss_denominators(self, batch: Batch) -> dict[str, int]:
        """Return the divisor of each loss term, by name.

        The divisor of the SFT loss is the number of tokens in the chosen responses. The divisor of
        all other terms is the number of pairs.
        """
        pairs = dict.fromkeys(("preference", *_METRICS), batch.num_rows)
        return {**pairs, "sft": int(_count_response_tokens(batch)[:, 0].sum())}

    def term_weights(self) -> Mapping[str, float]:
        """Return the weights of the loss terms in addition to the preference loss, by name.

        Only the SFT loss has a weight. Terms that are only logged have the weight 0.
        """
        return {"sft": self.sft_weight or 0.0, **dict.fromkeys(_METRICS, 0.0)}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Compute the preference loss, the SFT loss and the logged metrics.

        Returns the sum of each over the batch.
        """
        assert batch.sequence_labels is not None
        sums, counts, terms = compute_log_probabilities(model, batch)
        ratios = (sums - batch.sequence_labels).detach()
        margin = ratios[:, 0] - ratios[:, 1]
        losses = compute_preference_losses(self, sums, batch.sequence_labels, counts)
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
        predictions: list[tuple[list[float], list[int]]],
        examples: Sequence[Preference],
        lm: LanguageModel,
    ) -> Metrics:
        """Return the ranking accuracy, and the perplexity of the chosen responses.

        The ranking accuracy is the fraction of pairs in which the chosen response has the higher
        mean log-probability per token. If the reference log-probabilities are known, as during a
        run, the first metric is the DPO accuracy: the fraction of pairs with h > 0. Pairs in which
        truncation removed a whole response are left out.
        """
        pairs = [(one, answer) for one, answer in zip(examples, predictions) if all(answer[1])]
        examples, predictions = [one for one, _ in pairs], [answer for _, answer in pairs]
        sums, counts = (np.array([answer[i] for answer in predictions], float) for i in range(2))
        sums, counts = sums.reshape(-1, 2), counts.reshape(-1, 2)
        perplexity = compute_perplexity(-sums[:, 0].sum(), counts[:, 0].sum())
        means = sums / np.maximum(counts, 1)
        values: dict[str, float] = {}
        notes = english("note.ranking_accuracy"), english("note.perplexity_of_chosen")
        wheres, encoded = self._validation or ([], None)
        references = (
            {} if encoded is None else dict(zip(wheres, np.asarray(encoded.sequence_labels)))
        )
        if all(one.where in references for one in examples):
            gains = sums - np.stack([references[one.where] for one in examples])
            values["accuracy"] = float((gains[:, 0] > gains[:, 1]).mean())
            notes = (english("note.preference_accuracy"), *notes)
        values["ranking_accuracy"] = float((means[:, 0] > means[:, 1]).mean())
        values["perplexity"] = perplexity
        rows = [
            {**self.to_texts(one), "log_probabilities": list(both)}
            for one, (both, _) in zip(examples, predictions)
        ]
        return Metrics(values, notes=notes).with_examples(rows)


def compute_preference_losses(
    objective: PreferenceOptimization, logps: Tensor, ref_logps: Tensor, num_tokens: Tensor
) -> Tensor:
    """Return the loss of every preference pair, [B], without the SFT loss.

    Args:
        objective: the loss type and its parameters, with defaults filled in (`infer_keys`).
        logps: the log-probabilities of both responses under the model, [B, 2].
        ref_logps: the log-probabilities of both responses under the reference model, [B, 2].
        num_tokens: the number of tokens of both responses, [B, 2].
    """
    beta, kind = objective.beta, objective.loss_type
    assert beta is not None
    ratios = logps - ref_logps
    means = logps / num_tokens.clamp(min=1)
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


def compute_log_probabilities(
    model: LanguageModule, batch: TensorBatch
) -> tuple[Tensor, Tensor, LossTerms]:
    """Compute the log-probability and the token count of both responses of B pairs.

    The logits are computed in chunks, and again in the backward pass, to save memory.

    Returns:
        The log-probabilities in nats [B, 2]; the token counts [B, 2]; and the auxiliary loss of the
        layers, which is an empty dict if there is none.
    """
    inputs = unstack_pairs(batch.inputs)
    ids = inputs.get("decoder_input_ids", inputs["input_ids"])
    hidden, terms = forward_hidden(model, inputs, gather_positions=batch.label_positions)
    nats = token_cross_entropy(model.logits, hidden, batch.targets, model.spec.vocab_size)
    rows, zeros = batch.label_positions // ids.shape[1], nats.new_zeros(len(ids))
    sums, counts = (zeros.index_add(0, rows, one) for one in (-nats, torch.ones_like(nats)))
    return sums.view(-1, 2), counts.view(-1, 2), terms


@torch.no_grad()
def compute_all_log_probabilities(
    sequences: Mapping[str, Ragged], lm: LanguageModel
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the log-probability and the token count of both responses of N pairs, [N, 2] each.

    `sequences` contains the token ids of the pairs, by field of `RowBatch` (see `stack_pairs`).
    """
    encoded = EncodedExamples(sequences, pad_id=lm.text_tokenizer.pad_id)
    check_example_ids(encoded, lm.spec)
    lm.module.eval()
    return compute_pair_log_probabilities(encoded, np.arange(len(encoded)), lm)


@torch.no_grad()
def compute_pair_log_probabilities(
    encoded: EncodedExamples, indices: np.ndarray, lm: LanguageModel
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the log-probability and the token count of both responses of encoded pairs.

    `indices` [n] selects the pairs. Returns two arrays [n, 2].
    """
    sums, counts = np.zeros((len(indices), 2)), np.zeros((len(indices), 2), dtype=np.int64)
    for places, rows in batch_by_length(encoded, indices):
        tensors = to_device(build_pair_batch(rows), lm.module.device)
        logp, num_tokens, _ = compute_log_probabilities(lm.module, tensors)
        sums[places], counts[places] = logp.double().cpu(), num_tokens.cpu()
    return sums, counts


def _count_response_tokens(batch: Batch) -> np.ndarray:
    """Count the tokens (labels) of both responses of B pairs. Returns int64 [B, 2]."""
    assert batch.labels is not None
    return (batch.labels != IGNORE_INDEX).sum(axis=2)
