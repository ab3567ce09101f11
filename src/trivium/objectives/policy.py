"""Policy gradient: a model learns from rewards of its own samples."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, SerializeAsAny, model_validator
from torch import Tensor, nn

from trivium.adapt.lora import adapted_layers, disable_adapter
from trivium.data.batch import IGNORE_INDEX, Batch, Floats, Ints, length_mask
from trivium.data.encoded import EncodedExamples
from trivium.data.records import Record
from trivium.data.row_order import derived_seed
from trivium.data.schema import Fields, Schema, Slot
from trivium.errors import DataError, RecipeError
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.text_model import GenerationRules
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule, build
from trivium.models.base_model import Spec
from trivium.models.heads.tokens import TaggerHead
from trivium.nn.loss import token_cross_entropy
from trivium.objectives.advantages import (
    clipped_loss,
    clipped_value_loss,
    generalized_advantages,
    group_normalized,
    have_equal_rewards,
    leave_one_out,
    whitened,
)
from trivium.objectives.conversations import PROMPTS, SYSTEM, are_texts, conversation, read_prompt
from trivium.objectives.labelled import column_key
from trivium.objectives.preference import Alignment
from trivium.objectives.responses import Prompt, Response, drawn, prompt_ids
from trivium.objectives.task_metrics import Metrics
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, read, to_device
from trivium.rewards import RewardFunction, reward_names
from trivium.rewards.exact_match import ExactMatch

PROMPT = Fields("prompt input?", *PROMPTS, ("messages", "conversations"))
# Tokens that pass through a model together where no gradient is wanted.
_TOKENS = 8192
# The head of values, which reads every token.
_VALUE = "tagger"
# The fields of `RolloutBatch` that are arrays of drawn tokens.
_TOKEN_ARRAYS = ("advantages", "reference_logps", "values", "returns")


MapOverRanks = Callable[[Callable[[Sequence[Any]], list[Any]], Sequence[Any]], list[Any]]
"""(function, items) -> function(items), of which each process of a run has computed a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch(Batch):
    """The samples of a step with labels at the responses, and what the loss needs of them.

    Args:
        indices: the position of each row in the step, int64 [B].
        metrics: what is shown of each response (`_metric_names`), float32 [B, F].
        advantages, reference_logps, values, returns: of each drawn token, float32 [B, T]: A, log q,
            what the head of values expects, and the return that the head learns.
    """

    indices: Ints
    metrics: NDArray[Any]
    advantages: NDArray[Any]
    reference_logps: NDArray[Any]
    values: NDArray[Any]
    returns: NDArray[Any]


class PolicyGradient(Alignment):
    """L = - sum of A(y) log p(y) / texts, y drawn from p; A is the reward of y less a baseline.

    A step draws `num_generations` responses to each of its prompts, with the current weights. log p
    is the sum over all drawn tokens, including the token that ends a text, with the `temperature`
    of the draw.

        prompt    2 + 2 =
        responses 4 </s>    5 </s>    4 </s>    four
        reward    1         0         1         0
        A         2/3      -2/3       2/3      -2/3

    The reward is the sum of `rewards` by their weights. `algorithm` "rloo" takes the mean reward of
    the other responses to the prompt, with which the gradient is exact on average. "grpo"
    divides the difference to the mean of all of them by their deviation (GRPO), which favours
    prompts whose responses differ little. "ppo" (PPO) is what a head of the model expects after
    every token: A is that of a token by GAE, whitened over the step, and the loss a mean over
    tokens. The head learns along by its squared error, and is not saved with the model.

    `beta` holds the model to its reference, the model as it is when the run begins. With
    `kl` = "reward" the reward loses beta log (p(y) / q(y)), whose gradient is that of the
    divergence of p from q. With "k3" the loss gains beta (q / p - log (q / p) - 1) of every token.

    `num_iterations` is the number of updates of the weights from the samples of a step. If there
    are several, log p(y) becomes a sum over tokens of min(r A, clamp(r, 1 - clip, 1 + clip) A). r
    is the current probability of a token divided by its probability before the first update. The
    logged loss is that of the last update.

    Metrics that are logged besides the loss:

        reward, reward_KIND   the weighted sum of the rewards, and each reward
        kl                    log (p / q) of a text in nats
        entropy               the mean of - log p of a drawn token in nats
        frac_reward_zero_std  the fraction of groups with equal rewards, which teach nothing
        length                tokens per response
        terminated            the fraction of responses that the model ended
        distinct_2            different pairs of adjacent tokens divided by all pairs, in one
                              response per prompt
        clipped               the fraction of tokens without a gradient in the last update
        value                 the loss of the value head

    Source: Williams 1992; Ahmadian et al. 2024 (RLOO), equation 6, for "rloo"; Shao et al. 2024
    (GRPO), equations 3 and 4, for "grpo" and "k3", where texts are also divided by their own
    lengths, which Liu et al. 2025 (Dr. GRPO) leave out as we do; Schulman et al. 2017 (PPO),
    equations 7 and 9, for `clip` and the value, and 2016 for A.
    """

    rolls_out: ClassVar[bool] = True
    kind: Literal["policy"] = "policy"
    generates: ClassVar[bool] = True
    supported_family: ClassVar[str | None] = "decoder-only"
    fields: ClassVar[Sequence[Slot]] = (PROMPT, SYSTEM)
    num_iterations: int = Field(
        1, gt=0, description="updates of the weights from the samples of a step"
    )
    num_generations: int = Field(8, gt=0, description="responses to a prompt")
    max_new_tokens: int = Field(64, gt=0, description="tokens of a response at most")
    prompt_field: str | None = column_key("column of the prompt, text or messages", PROMPT)
    rewards: tuple[SerializeAsAny[RewardFunction], ...] = Field(
        (ExactMatch.from_tree({}),), min_length=1, description="what responses are worth"
    )
    algorithm: Literal["rloo", "grpo", "ppo"] = Field(
        "rloo",
        description="mean of the other responses, as GRPO divided by the deviation, or as PPO",
    )
    beta: float = Field(0.05, ge=0, description="how strongly the reference holds the model")
    kl: Literal["reward", "k3"] = Field(
        "reward", description="where the divergence counts: in the reward, or in the loss as k3"
    )
    temperature: float = Field(
        1.0, ge=0.01, le=100, description="of the samples and their log-probabilities"
    )
    clip: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="bound of the change of a token's probability, as a share, and of a value",
    )
    gamma: float = Field(1.0, ge=0, le=1, description="discount of rewards a token later")
    gae_lambda: float = Field(
        1.0, ge=0, le=1, description="how far rewards count, and from where on the value does"
    )
    value_weight: float = Field(0.1, ge=0, description="weight of the loss of the value")

    _prompts: list[Prompt] = PrivateAttr(default_factory=list)
    """The prompts of training and of validation that are encoded, by their number."""
    _reference: Any = PrivateAttr(None)
    """A frozen copy of the model; None: the model without its adapter."""
    _rules: GenerationRules | None = PrivateAttr(None)
    _before: Any = PrivateAttr(None)
    """Log p of the drawn tokens before a step's first update, [B * T], which computes it."""

    @model_validator(mode="after")
    def _others_in_a_group(self) -> Self:
        if self.num_generations == 1 and self.algorithm != "ppo":
            raise ValueError(
                'num_generations = 1 needs algorithm = "ppo": there are no other responses'
            )
        return self

    def check_rows(self, packing: str, separate_documents: bool, *, is_mixed: bool) -> None:
        """See `Objective.check_rows`. A value is trained where its source is the only one."""
        super().check_rows(packing, separate_documents, is_mixed=is_mixed)
        if is_mixed and self.algorithm == "ppo":
            raise RecipeError(
                'objective.algorithm = "ppo" has a head that other sources of [[mix]] have not: '
                'set "group", or leave [[mix]] out.'
            )

    def build(self, spec: Spec, *, seed: int, device: torch.device) -> nn.Module:
        """The model, where there is a value with a head of one number, which is 0 at first.

        Random values would be all that is whitened where no response has a reward yet.
        """
        if self.algorithm != "ppo":
            return super().build(spec, seed=seed, device=device)
        heads = (*spec.heads, TaggerHead(num_labels=1))
        module = build(spec.replace(heads=heads), seed=seed, device=device)
        for weight in module.heads[_VALUE].parameters():
            nn.init.zeros_(weight)
        return module

    def models(self, module: nn.Module) -> dict[str, LanguageModule]:
        """Return the model without the value. The model shares its weights with the module."""
        assert isinstance(module, LanguageModule)
        if _VALUE not in module.heads:
            return {"": module}
        heads = tuple(head for head in module.spec.heads if head.kind != _VALUE)
        model = build(module.spec.replace(heads=heads), device="meta")
        for name, part in module.named_children():
            if name != "heads":
                setattr(model, name, part)
        model.heads.update({kind: module.heads[kind] for kind in model.heads})
        return {"": model}

    @property
    def record_schema(self) -> Schema:
        """Return the fields of the prompt, and the columns that rewards read."""
        columns = [getattr(reward, "column", None) for reward in self.rewards if not reward.files]
        also = None if any(reward.files for reward in self.rewards) else [*filter(None, columns)]
        return dataclasses.replace(super().record_schema, also=also)

    def example(self, record: Record) -> Prompt:
        """Return the prompt of a record; if messages, without responses at their end."""
        prompt = read_prompt(record)
        if not are_texts(record, prompt):
            prompt = conversation(record, prompt)
        while isinstance(prompt, tuple) and prompt and prompt[-1]["role"] == "assistant":
            prompt = prompt[:-1]
        if not prompt:
            raise DataError(
                f"{record.name(record.columns['prompt'])} has no message to respond to."
            )
        for reward in self.rewards:
            reward.check(record)
        return Prompt(prompt, dict(record), record.where)

    def encode(self, examples: Sequence[Prompt], lm: LanguageModel) -> EncodedExamples:
        """The prompts; `sequence_labels` [N] are their numbers. The reference is made here."""
        if self.beta and self._reference is None and not adapted_layers(lm.module):
            self._reference = copy.deepcopy(lm.module).requires_grad_(False).eval()
        self._rules = lm.generation_rules
        for reward in self.rewards:
            reward.open()
        ids, first = [prompt_ids(lm, one) for one in examples], len(self._prompts)
        self._prompts += examples
        numbers = np.arange(first, len(self._prompts))
        pad_id = lm.text_tokenizer.pad_id
        return EncodedExamples({"input_ids": ids}, sequence_labels=numbers, pad_id=pad_id)

    def rollout(
        self,
        lm: LanguageModel,
        model: LanguageModule,
        batches: Sequence[Batch],
        seed: int,
        map_over_ranks: MapOverRanks,
    ) -> RolloutBatch:
        """Draw `group` responses to every prompt: a pure function of (weights, prompts, seed).

        Returns rows with labels at the responses:

            input_ids  prompt prompt   response response
            labels     -100   response response </s>

        `model` is the module that is trained; the module of `lm` is a part of it. All processes
        have the same prompts and get the same samples, whose computation `map_over_ranks`
        divides.
        """
        numbers = np.concatenate([batch.sequence_labels for batch in batches])  # type: ignore
        prompts = [
            (self._prompts[number], derived_seed(seed, place))
            for place, number in enumerate(numbers)
        ]
        responses: list[Response] = map_over_ranks(
            lambda some: drawn(lm, some, self._sampling, self.rewards, group=self.num_generations),
            prompts,
        )
        rows = [[*one.prompt_ids, *one.ids] for one in responses]
        starts, ends = (
            np.array([len(each) for each in several])[:, None]
            for several in ((one.prompt_ids for one in responses), rows)
        )
        ids = np.full((len(rows), int(ends.max())), lm.text_tokenizer.pad_id or 0)
        for row, values in zip(ids, rows):
            row[: len(values)] = values
        column = np.arange(ids.shape[1])
        labels = np.where((column >= starts) & (column < ends), ids, IGNORE_INDEX)[:, 1:]
        mask = length_mask(ends[:, 0] - 1, ids.shape[1] - 1)
        batch = Batch(ids[:, :-1], attention_mask=mask, labels=labels)
        metrics = self._rollout_metrics(responses, self.num_generations)
        arrays = self._token_arrays(lm, model, batch, metrics["reward"], map_over_ranks)
        arrays["metrics"] = np.column_stack([*metrics.values()])
        if self.num_iterations > 1:
            dtype = torch.promote_types(model.dtype, torch.float32)
            self._before = torch.full((labels.size,), torch.nan).to(model.device, dtype)
        single: dict[str, Any] = {name: array.astype(np.float32) for name, array in arrays.items()}
        return RolloutBatch(**batch.arrays(), indices=np.arange(len(rows)), **single)

    def label_counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of texts, or of tokens for terms that are means over tokens."""
        of_tokens = {"entropy", "clipped"}
        if self.algorithm == "ppo":
            of_tokens |= {"policy", "value", "k3"}
        return {
            name: batch.num_labels if name in of_tokens else batch.num_rows for name in self._terms
        }

    def term_weights(self) -> Mapping[str, float]:
        """Return the weights of the terms that are learned, and 0 for those that are only shown."""
        learned = {"policy": 1.0, "k3": self.beta, "value": self.value_weight}
        return {**dict.fromkeys(self._terms, 0.0), **learned}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return the clipped loss, and metrics as they were when the samples were drawn."""
        logp, value, terms = self._of_tokens(model, batch)
        positions, width = batch.label_positions, batch.inputs["input_ids"].shape[1]
        advantage, reference, value_before, returns = (
            batch.extras[name].flatten()[positions] for name in _TOKEN_ARRAYS
        )
        indices = batch.extras["indices"][positions // width] * width + positions % width
        before = self._of_first_update(logp.detach(), indices)
        losses, clipped = clipped_loss(logp - before, advantage, self.clip)
        terms["policy"], terms["entropy"] = losses.sum(), -before.sum()
        metrics = batch.extras["metrics"].T
        terms |= {name: one.sum() for name, one in zip(self._metric_names, metrics, strict=True)}
        if self.algorithm == "ppo":
            terms["value"] = clipped_value_loss(value, value_before, returns, self.clip).sum()
        if self.num_iterations > 1:
            terms["clipped"] = clipped.float().sum()
        if self.beta:
            terms["kl"] = (before - reference).sum()
            if self.kl == "k3":
                ratio = reference - logp
                terms["k3"] = (ratio.exp() - ratio - 1).sum()
        return terms

    def predict(self, lm: LanguageModel, examples: Sequence[Prompt]) -> list[Response]:
        """A response to every prompt, drawn as in training, with the same numbers every time."""
        prompts = [(one, zlib.crc32(one.group.encode())) for one in examples]
        return drawn(lm, prompts, self._sampling, self.rewards)

    def compute_metrics(
        self, answers: list[Response], examples: Sequence[Prompt], lm: LanguageModel
    ) -> Metrics:
        """Return the means of the rewards, and of the other terms that are shown in training."""
        metrics = self._rollout_metrics(answers, 1)
        shown = {
            name: float(one.mean())
            for name, one in metrics.items()
            if name != "frac_reward_zero_std"
        }
        rows = [
            {"prompt": one.group, "response": answer.text, "reward": float(reward)}
            for one, answer, reward in zip(examples, answers, metrics["reward"])
        ]
        return Metrics(shown).with_examples(rows)

    @property
    def has_reference(self) -> bool:
        """Whether log-probabilities of the model as it was before the run are needed."""
        return self.beta > 0

    @property
    def files(self) -> tuple[str, ...]:
        """The user's code that the rewards run: a run is resumed with the same code only."""
        return tuple(file for reward in self.rewards for file in reward.files)

    @property
    def _metric_names(self) -> tuple[str, ...]:
        """The names of the metrics of a response that do not need the model."""
        rewards = (f"reward_{name}" for name in reward_names(self.rewards))
        same = ("frac_reward_zero_std",) if self.num_generations > 1 else ()
        return ("reward", *rewards, "length", "terminated", "distinct_2", *same)

    @property
    def _terms(self) -> tuple[str, ...]:
        divergence = ("kl", "k3")[: 1 + (self.kl == "k3")] if self.beta else ()
        value = ("value",) if self.algorithm == "ppo" else ()
        bound = ("clipped",) if self.num_iterations > 1 else ()
        return ("policy", *value, *divergence, "entropy", *bound, *self._metric_names)

    @property
    def _sampling(self) -> SamplingParams:
        return SamplingParams(max_new_tokens=self.max_new_tokens, temperature=self.temperature)

    def _rollout_metrics(self, responses: Sequence[Response], group: int) -> dict[str, Floats]:
        """Return the metrics of responses by name, [B] each; a prompt has `group` responses."""
        scores = np.array([one.scores for one in responses])
        reward = scores @ np.array([one.weight for one in self.rewards])
        pairs = [pair for one in responses[::group] for pair in itertools.pairwise(one.ids)]
        values = [
            reward,
            *scores.T,
            np.array([float(len(one.ids)) for one in responses]),
            np.array([float(one.ended) for one in responses]),
            np.full(len(responses), len(set(pairs)) / max(1, len(pairs))),
        ]
        if group > 1:
            values.append(have_equal_rewards(reward, group).astype(float))
        return dict(zip(self._metric_names, values))

    def _token_arrays(
        self,
        lm: LanguageModel,
        model: LanguageModule,
        batch: Batch,
        reward: Floats,
        map_over_ranks: MapOverRanks,
    ) -> dict[str, Floats]:
        """Return the arrays [B, T] of `RolloutBatch`, by field."""
        assert batch.labels is not None
        real = batch.labels != IGNORE_INDEX
        rewards, reference, values = (np.zeros(real.shape) for _ in range(3))
        rewards[np.arange(len(real)), real.shape[1] - 1 - real[:, ::-1].argmax(axis=1)] = reward
        with_value = self.algorithm == "ppo"
        if self.beta or with_value:
            logp, values[real] = self._measured(model, batch, map_over_ranks)
            if self.beta:
                base = lm.module
                if self._reference is not None:
                    base = self._reference.to(model.device)
                with disable_adapter(base):
                    reference[real], _ = self._measured(base, batch, map_over_ranks)
                if self.kl == "reward":
                    rewards[real] -= self.beta * (logp - reference[real])
        if with_value:
            advantages = generalized_advantages(rewards, values, self.gamma, self.gae_lambda)
            advantages = np.where(real, advantages, 0.0)
            differ = real & ~have_equal_rewards(reward, len(reward))[:, None]
            returns, advantages = advantages + values, whitened(advantages, differ)
        else:
            returns, totals = values, rewards.sum(axis=1)
            if self.algorithm == "rloo":
                each = leave_one_out(totals, self.num_generations)
            else:
                equal = have_equal_rewards(reward, self.num_generations)
                each = np.where(equal, 0.0, group_normalized(totals, self.num_generations))
            advantages = np.where(real, each[:, None], 0.0)
        return dict(zip(_TOKEN_ARRAYS, (advantages, reference, values, returns), strict=True))

    def _of_first_update(self, logp: Tensor, indices: Tensor) -> Tensor:
        """Return log p of drawn tokens [M] as computed by the first update from these samples."""
        if self.num_iterations == 1:
            return logp
        before = self._before[indices]
        self._before[indices] = before = torch.where(before.isnan(), logp, before)
        return before

    @torch.no_grad()
    def _measured(
        self, model: LanguageModule, batch: Batch, map_over_ranks: MapOverRanks
    ) -> Floats:
        """Return log p and values of the labelled tokens, [2, M]."""
        size = max(1, _TOKENS // batch.input_ids.shape[1])

        def of_rows(rows: Sequence[int]) -> list[Floats]:
            parts = (batch.rows(s, min(s + size, rows[-1] + 1)) for s in rows[::size])
            each = (self._of_tokens(model, to_device(part, model.device)) for part in parts)
            return [torch.stack((logp, value)).cpu().double().numpy() for logp, value, _ in each]

        return np.concatenate(map_over_ranks(of_rows, range(batch.num_rows)), axis=1)

    def _of_tokens(
        self, model: LanguageModule, batch: TensorBatch
    ) -> tuple[Tensor, Tensor, LossTerms]:
        """Log p of the labelled tokens as they are drawn, their values, [M]; what layers add.

        Without a head for values these are 0.
        """
        rules = self._rules
        assert rules is not None
        hidden, terms = read(model, batch.inputs, gather_positions=batch.label_positions)
        banned = torch.tensor(sorted(rules.banned_ids), dtype=torch.int64, device=hidden.device)

        def logits(rows: Tensor) -> Tensor:  # [M, D] -> [M, V] of the ids that are drawn from
            drawn = model.logits(rows)[:, : rules.vocab_size] / self.temperature
            return drawn.index_fill(1, banned, -torch.inf)

        logp = -token_cross_entropy(logits, hidden, batch.targets, model.spec.vocab_size)
        if _VALUE not in model.heads:
            return logp, torch.zeros_like(logp), terms
        return logp, model.logits(hidden, head=_VALUE)[:, 0].to(logp.dtype), terms
