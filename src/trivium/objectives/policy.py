"""Policy gradient methods (RLOO, GRPO, PPO): a model learns from the rewards of its own samples.

Shape letters: B responses (rows), T tokens per row, M sampled tokens in all rows together, V
vocabulary size. p is the probability under the model (policy), and q under the reference model.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, SerializeAsAny, model_validator
from torch import Tensor, nn

from trivium.adapt.lora import adapted_layers, disable_adapter
from trivium.data.batch import IGNORE_INDEX, Batch, Floats, Ints, make_length_mask
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
    clipped_policy_loss,
    clipped_value_loss,
    compute_gae,
    compute_grpo_advantages,
    compute_rloo_advantages,
    mask_equal_rewards,
    whiten,
)
from trivium.objectives.conversations import PROMPTS, SYSTEM, are_texts, join_messages, read_prompt
from trivium.objectives.labelled import MapOverRanks, column_key
from trivium.objectives.preference import Alignment
from trivium.objectives.responses import Prompt, Response, encode_prompt, sample_responses
from trivium.objectives.task_metrics import Metrics
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, forward_hidden, to_device
from trivium.rewards import RewardFunction, build_reward_names
from trivium.rewards.exact_match import ExactMatch

PROMPT = Fields("prompt input?", *PROMPTS, ("messages", "conversations"))
# The maximum number of tokens per forward pass without gradients.
_TOKENS = 8192
# The kind of the value head: it maps the hidden state of every position to a number.
_VALUE = "tagger"
# The fields of `RolloutBatch` with one number per sampled token.
_TOKEN_ARRAYS = ("advantages", "reference_logps", "values", "returns")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch(Batch):
    """A batch of the responses sampled in a step, with their advantages and metrics.

    The labels are the tokens of the responses.

    Args:
        indices: the index of each row in the step, int64 [B].
        metrics: F metrics of each response (reward, length, ...), float32 [B, F].
        advantages: the advantage of each sampled token, float32 [B, T].
        reference_logps: the log-probability of each sampled token under the reference model,
            float32 [B, T].
        values: the prediction of the value head for each sampled token, float32 [B, T].
        returns: the target of the value head for each sampled token, float32 [B, T].
    """

    indices: Ints
    metrics: NDArray[Any]
    advantages: NDArray[Any]
    reference_logps: NDArray[Any]
    values: NDArray[Any]
    returns: NDArray[Any]


class PolicyGradient(Alignment):
    """Reinforcement learning on the model's own samples with RLOO, GRPO or PPO.

    In every step, the policy p (the model) samples `num_generations` responses y to each prompt,
    and a reward is computed for each response. The loss over the B responses of the step is

        L = - (1 / B) sum over y of A(y) log p(y)

    A(y) is the advantage of a response: its reward minus a baseline. log p(y) is the sum of the
    log-probabilities of all sampled tokens, including the end-of-text token. They are computed at
    the sampling `temperature`. Here is an example with the reward "exact" and RLOO:

        prompt    2 + 2 =
        responses 4 </s>    5 </s>    4 </s>    four
        reward    1         0         1         0
        A         2/3      -2/3       2/3      -2/3

    The reward of a response is the weighted sum of `rewards`. `algorithm` selects how advantages
    are computed:

    - "rloo": the baseline is the mean reward of the other responses to the same prompt. The policy
      gradient is unbiased.
    - "grpo": the baseline is the mean reward of all responses to the same prompt, and the
      difference is divided by the standard deviation of these rewards. This gives more weight to
      prompts whose responses have similar rewards.
    - "ppo": the baseline is the prediction of a value head for each token. Each token has its own
      advantage, computed by GAE with `gamma` and `gae_lambda` and whitened over the step. L is a
      mean over tokens. The value head is trained together with the policy, with a clipped squared
      error and the weight `value_weight`. It is not saved with the model.

    `beta` is the weight of a KL penalty, which keeps p close to the reference q. The reference is
    the model at the start of the run. `kl` selects where the penalty is applied:

    - "reward": beta log (p(y) / q(y)) is subtracted from the reward of y. The expected gradient is
      that of the penalty beta KL(p || q).
    - "k3": beta times the sum of q / p - log (q / p) - 1 over the sampled tokens is added to the
      loss.

    `num_iterations` is the number of weight updates from the samples of one step. If it is larger
    than 1, the loss is the clipped surrogate of PPO: A log p of a token is replaced with
    min(r A, clamp(r, 1 - clip, 1 + clip) A). The ratio r is the current probability of the token,
    divided by its probability before the first update. The logged loss is that of the last update.

    The log contains these metrics in addition to the loss:

        reward, reward_KIND   the weighted sum of the rewards, and each reward
        kl                    log (p / q) of a response in nats
        entropy               the mean of - log p over the sampled tokens in nats
        frac_reward_zero_std  the fraction of prompts whose responses all have the same reward
        length                tokens per response
        terminated            the fraction of responses that end with an end-of-text token
        distinct_2            the number of distinct bigrams divided by the number of all bigrams,
                              in one response per prompt
        clipped               the fraction of tokens whose ratio was clipped in the last update
        value                 the loss of the value head

    Source: Williams 1992 (REINFORCE); Ahmadian et al. 2024 (RLOO), equation 6, for "rloo"; Shao et
    al. 2024 (GRPO), equations 3 and 4, for "grpo" and "k3". GRPO also divides the loss of each
    response by its length. We leave this out, as in Liu et al. 2025 (Dr. GRPO). Schulman et al.
    2017 (PPO), equations 7 and 9, for `clip` and the value head; Schulman et al. 2016 for GAE.
    """

    rolls_out: ClassVar[bool] = True
    kind: Literal["policy"] = "policy"
    generates: ClassVar[bool] = True
    supported_family: ClassVar[str | None] = "decoder-only"
    fields: ClassVar[Sequence[Slot]] = (PROMPT, SYSTEM)
    num_iterations: int = Field(1, gt=0, description="weight updates from the samples of a step")
    num_generations: int = Field(8, gt=0, description="responses sampled per prompt")
    max_new_tokens: int = Field(64, gt=0, description="maximum tokens per response")
    prompt_field: str | None = column_key("column of the prompt, text or messages", PROMPT)
    rewards: tuple[SerializeAsAny[RewardFunction], ...] = Field(
        (ExactMatch.from_tree({}),),
        min_length=1,
        description="reward functions, added up by weight",
    )
    algorithm: Literal["rloo", "grpo", "ppo"] = Field(
        "rloo", description="how advantages are computed: rloo, grpo, or ppo (value head and GAE)"
    )
    beta: float = Field(0.05, ge=0, description="weight of the KL penalty")
    kl: Literal["reward", "k3"] = Field(
        "reward", description="where the KL penalty is applied: in the reward, or in the loss as k3"
    )
    temperature: float = Field(
        1.0, ge=0.01, le=100, description="sampling temperature, also of the log-probabilities"
    )
    clip: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="clip range of probability ratios, and of changes of a value (ppo)",
    )
    gamma: float = Field(1.0, ge=0, le=1, description="discount factor per token (ppo)")
    gae_lambda: float = Field(
        1.0, ge=0, le=1, description="lambda of generalized advantage estimation (ppo)"
    )
    value_weight: float = Field(0.1, ge=0, description="weight of the value loss (ppo)")

    _prompts: list[Prompt] = PrivateAttr(default_factory=list)
    """All encoded prompts, for training and for validation."""
    _reference: Any = PrivateAttr(None)
    """A frozen copy of the model. None if no reference is needed, or if the reference is the model
    with its adapter disabled."""
    _rules: GenerationRules | None = PrivateAttr(None)
    """The token ids that the model may generate."""
    _old_logps: Any = PrivateAttr(None)
    """Log-probabilities of the sampled tokens before the first update of a step, [B * T].

    They are NaN until the first update has computed them.
    """

    @model_validator(mode="after")
    def _check_num_generations(self) -> Self:
        """Raise ValueError if RLOO or GRPO samples only one response per prompt."""
        if self.num_generations == 1 and self.algorithm != "ppo":
            raise ValueError(
                'num_generations = 1 needs algorithm = "ppo": there are no other responses '
                "to compare with"
            )
        return self

    def check_rows(self, packing: str, separate_documents: bool, *, is_mixed: bool) -> None:
        """Raise RecipeError if the objective does not support the data options of the recipe.

        For example, PPO cannot be combined with other sources of a mixture (`[[mix]]`).
        """
        super().check_rows(packing, separate_documents, is_mixed=is_mixed)
        if is_mixed and self.algorithm == "ppo":
            raise RecipeError(
                'objective.algorithm = "ppo" adds a value head, which other sources of [[mix]] do '
                'not have: set "rloo" or "grpo", or leave [[mix]] out.'
            )

    def build(self, spec: Spec, *, seed: int, device: torch.device) -> nn.Module:
        """Build the model. With PPO, it includes a value head."""
        if self.algorithm != "ppo":
            return super().build(spec, seed=seed, device=device)
        heads = (*spec.heads, TaggerHead(num_labels=1))
        return build(spec.replace(heads=heads), seed=seed, device=device)

    def initial_values(self, module: LanguageModule) -> dict[str, Tensor]:
        """Return the weights of the value head, so that it initially predicts 0.

        If the initial predictions were random, the whitened advantages would be noise until some
        response gets a reward.
        """
        prefix = f"heads.{_VALUE}."
        shapes = {name: one.shape for name, one in module.state_dict().items()}
        return {name: torch.zeros(one) for name, one in shapes.items() if name.startswith(prefix)}

    def models_to_save(self, module: nn.Module) -> dict[str, LanguageModule]:
        """Return the model to save, under the key "": `module` without its value head.

        The saved model shares its weights with `module`.
        """
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
        """The columns of a record: the prompt and the columns that the reward functions read."""
        columns = [getattr(reward, "column", None) for reward in self.rewards if not reward.files]
        also = None if any(reward.files for reward in self.rewards) else [*filter(None, columns)]
        return dataclasses.replace(super().record_schema, also=also)

    def read_example(self, record: Record) -> Prompt:
        """Read the prompt of a record. Responses at the end of a conversation are removed.

        Raises DataError if no message remains, or if a column that a reward function needs is
        missing.
        """
        prompt = read_prompt(record)
        if not are_texts(record, prompt):
            prompt = join_messages(record, prompt)
        while isinstance(prompt, tuple) and prompt and prompt[-1]["role"] == "assistant":
            prompt = prompt[:-1]
        if not prompt:
            raise DataError(
                f"{record.locate(record.columns['prompt'])} has no message to respond to."
            )
        for reward in self.rewards:
            reward.check_record(record)
        return Prompt(prompt, dict(record), record.where)

    def encode(self, examples: Sequence[Prompt], lm: LanguageModel) -> EncodedExamples:
        """Encode N prompts as token ids, load the reward functions and set the reference model.

        The `sequence_labels`, int64 [N], are the indices of the prompts in `_prompts`.

        The first call copies the model as the frozen reference model. No copy is made if `beta` is
        0. No copy is made for a model with an adapter either: the reference is then the model with
        its adapter disabled.
        """
        if self.beta and self._reference is None and not adapted_layers(lm.module):
            self._reference = copy.deepcopy(lm.module).requires_grad_(False).eval()
        self._rules = lm.generation_rules
        for reward in self.rewards:
            reward.open()
        ids, first = [encode_prompt(lm, prompt) for prompt in examples], len(self._prompts)
        self._prompts += examples
        indices = np.arange(first, len(self._prompts))
        pad_id = lm.text_tokenizer.pad_id
        return EncodedExamples({"input_ids": ids}, sequence_labels=indices, pad_id=pad_id)

    @property
    def reference(self) -> LanguageModule | None:
        """The frozen reference model that `encode` has copied, if there is one."""
        return self._reference

    def rollout(
        self,
        lm: LanguageModel,
        model: LanguageModule,
        batches: Sequence[Batch],
        seed: int,
        map_over_ranks: MapOverRanks,
    ) -> RolloutBatch:
        """Sample responses to the prompts of a step, and compute their rewards and advantages.

        The result depends only on the weights, the prompts and the seed. It has one row per
        response. The labels are the tokens of the response:

            input_ids  prompt prompt   response response
            labels     -100   response response </s>

        Args:
            lm: the model that generates the responses.
            model: the trained module. It contains the module of `lm` and, with PPO, the value head.
            batches: the prompts of the step, the same in all processes.
            seed: the seed of the step.
            map_over_ranks: distributes the computation over the processes. All processes get all
                results.
        """
        indices = np.concatenate([batch.sequence_labels for batch in batches])  # type: ignore
        prompts = [
            (self._prompts[index], derived_seed(seed, place)) for place, index in enumerate(indices)
        ]
        responses: list[Response] = map_over_ranks(
            lambda items: sample_responses(
                lm, items, self._sampling_params, self.rewards, num_generations=self.num_generations
            ),
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
        mask = make_length_mask(ends[:, 0] - 1, ids.shape[1] - 1)
        batch = Batch(ids[:, :-1], attention_mask=mask, labels=labels)
        metrics = self._compute_rollout_metrics(responses, self.num_generations)
        arrays = self._compute_token_arrays(lm, model, batch, metrics["reward"], map_over_ranks)
        arrays["metrics"] = np.column_stack([*metrics.values()])
        if self.num_iterations > 1:
            dtype = torch.promote_types(model.dtype, torch.float32)
            self._old_logps = torch.full((labels.size,), torch.nan, dtype=dtype)
        single: dict[str, Any] = {name: array.astype(np.float32) for name, array in arrays.items()}
        return RolloutBatch(**batch.arrays(), indices=np.arange(len(rows)), **single)

    def loss_denominators(self, batch: Batch) -> dict[str, int]:
        """Return the divisor of each loss term, by name.

        For terms that are averaged over tokens, the divisor is the number of sampled tokens. For
        all other terms, it is the number of responses.
        """
        per_token = {"entropy", "clipped"}
        if self.algorithm == "ppo":
            per_token |= {"policy", "value", "k3"}
        return {
            name: batch.num_labels if name in per_token else batch.num_rows
            for name in self._term_names
        }

    def term_weights(self) -> Mapping[str, float]:
        """Return the weights of the loss terms, by name.

        Terms that are only logged have the weight 0.
        """
        learned = {"policy": 1.0, "k3": self.beta, "value": self.value_weight}
        return {**dict.fromkeys(self._term_names, 0.0), **learned}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Compute the loss terms and the logged metrics. Returns the sum of each over the batch.

        The terms are the policy loss, the value loss of PPO and the KL penalty "k3". The class
        docstring lists the metrics.
        """
        logp, value, terms = self._compute_logps(model, batch)
        positions, width = batch.label_positions, batch.inputs["input_ids"].shape[1]
        advantage, reference, value_before, returns = (
            batch.extras[name].flatten()[positions] for name in _TOKEN_ARRAYS
        )
        indices = batch.extras["indices"][positions // width] * width + positions % width
        old_logp = self._get_old_logps(logp.detach(), indices)
        losses, clipped = clipped_policy_loss(logp - old_logp, advantage, self.clip)
        terms["policy"], terms["entropy"] = losses.sum(), -old_logp.sum()
        metrics = batch.extras["metrics"].T
        terms |= {name: one.sum() for name, one in zip(self._metric_names, metrics, strict=True)}
        if self.algorithm == "ppo":
            terms["value"] = clipped_value_loss(value, value_before, returns, self.clip).sum()
        if self.num_iterations > 1:
            terms["clipped"] = clipped.float().sum()
        if self.beta:
            terms["kl"] = (old_logp - reference).sum()
            if self.kl == "k3":
                ratio = reference - logp
                terms["k3"] = (ratio.exp() - ratio - 1).sum()
        return terms

    def predict(self, lm: LanguageModel, examples: Sequence[Prompt]) -> list[Response]:
        """Sample one response to each prompt with the sampling parameters of training.

        The random seed is a hash of the prompt. The response to a prompt therefore does not depend
        on the other prompts.
        """
        prompts = [(one, zlib.crc32(one.group_key.encode())) for one in examples]
        return sample_responses(lm, prompts, self._sampling_params, self.rewards)

    def compute_metrics(
        self, predictions: list[Response], examples: Sequence[Prompt], lm: LanguageModel
    ) -> Metrics:
        """Return the mean rewards and the means of the other metrics over the sampled responses."""
        metrics = self._compute_rollout_metrics(predictions, 1)
        values = {
            name: float(one.mean())
            for name, one in metrics.items()
            if name != "frac_reward_zero_std"
        }
        rows = [
            {"prompt": one.group_key, "response": answer.text, "reward": float(reward)}
            for one, answer, reward in zip(examples, predictions, metrics["reward"])
        ]
        return Metrics(values).with_examples(rows)

    @property
    def has_reference(self) -> bool:
        """Whether the loss needs log-probabilities of the reference model."""
        return self.beta > 0

    @property
    def files(self) -> tuple[str, ...]:
        """The user's Python files that compute rewards. They must not change before a resume."""
        return tuple(file for reward in self.rewards for file in reward.files)

    @property
    def _metric_names(self) -> tuple[str, ...]:
        """The names of the metrics that are computed from the sampled responses alone.

        "reward" and "length" are two of them. They need no forward pass.
        """
        rewards = (f"reward_{name}" for name in build_reward_names(self.rewards))
        same = ("frac_reward_zero_std",) if self.num_generations > 1 else ()
        return ("reward", *rewards, "length", "terminated", "distinct_2", *same)

    @property
    def _term_names(self) -> tuple[str, ...]:
        """The names of all loss terms, including those that are only logged."""
        divergence = ("kl", "k3")[: 1 + (self.kl == "k3")] if self.beta else ()
        value = ("value",) if self.algorithm == "ppo" else ()
        bound = ("clipped",) if self.num_iterations > 1 else ()
        return ("policy", *value, *divergence, "entropy", *bound, *self._metric_names)

    @property
    def _sampling_params(self) -> SamplingParams:
        """The sampling parameters for responses (maximum length and temperature)."""
        return SamplingParams(max_new_tokens=self.max_new_tokens, temperature=self.temperature)

    def _compute_rollout_metrics(
        self, responses: Sequence[Response], num_generations: int
    ) -> dict[str, Floats]:
        """Compute metrics of B responses, such as the reward and the length.

        Returns one array, float64 [B], for each metric name. `num_generations` consecutive
        responses belong to the same prompt.
        """
        scores = np.array([one.scores for one in responses])
        reward = scores @ np.array([one.weight for one in self.rewards])
        firsts = responses[::num_generations]
        pairs = [pair for one in firsts for pair in itertools.pairwise(one.ids)]
        values = [
            reward,
            *scores.T,
            np.array([float(len(one.ids)) for one in responses]),
            np.array([float(one.ended) for one in responses]),
            np.full(len(responses), len(set(pairs)) / max(1, len(pairs))),
        ]
        if num_generations > 1:
            values.append(mask_equal_rewards(reward, num_generations).astype(float))
        return dict(zip(self._metric_names, values))

    def _compute_token_arrays(
        self,
        lm: LanguageModel,
        model: LanguageModule,
        batch: Batch,
        reward: Floats,
        map_over_ranks: MapOverRanks,
    ) -> dict[str, Floats]:
        """Compute the advantage, reference log-probability, value and return of sampled tokens.

        Returns an array [B, T] for each of these fields of `RolloutBatch`. Positions without a
        sampled token are 0.

        Args:
            lm: the language model. If there is no frozen copy, the reference is this model with its
                adapter disabled.
            model: the trained module, including the value head if there is one.
            batch: the prompts with their responses. The labels are the tokens of the responses.
            reward: the reward of each response, float64 [B].
            map_over_ranks: distributes the forward passes over the processes.
        """
        assert batch.labels is not None
        real = batch.labels != IGNORE_INDEX
        rewards, reference, values = (np.zeros(real.shape) for _ in range(3))
        rewards[np.arange(len(real)), real.shape[1] - 1 - real[:, ::-1].argmax(axis=1)] = reward
        with_value = self.algorithm == "ppo"
        if self.beta or with_value:
            logp, values[real] = self._compute_rollout_logps(model, batch, map_over_ranks)
            if self.beta:
                base = lm.module
                if self._reference is not None:
                    base = self._reference
                with disable_adapter(base):
                    reference[real], _ = self._compute_rollout_logps(base, batch, map_over_ranks)
                if self.kl == "reward":
                    rewards[real] -= self.beta * (logp - reference[real])
        if with_value:
            advantages = compute_gae(rewards, values, self.gamma, self.gae_lambda)
            advantages = np.where(real, advantages, 0.0)
            differ = real & ~mask_equal_rewards(reward, len(reward))[:, None]
            returns, advantages = advantages + values, whiten(advantages, differ)
        else:
            returns, totals = values, rewards.sum(axis=1)
            if self.algorithm == "rloo":
                each = compute_rloo_advantages(totals, self.num_generations)
            else:
                equal = mask_equal_rewards(reward, self.num_generations)
                each = np.where(equal, 0.0, compute_grpo_advantages(totals, self.num_generations))
            advantages = np.where(real, each[:, None], 0.0)
        return dict(zip(_TOKEN_ARRAYS, (advantages, reference, values, returns), strict=True))

    def _get_old_logps(self, logp: Tensor, positions: Tensor) -> Tensor:
        """Return the log-probabilities of sampled tokens before the first update of the step, [M].

        In the first update, these are `logp` [M], which is then stored for the later updates of the
        step. `positions` [M] are the indices of the tokens in the flattened rollout.
        """
        if self.num_iterations == 1:
            return logp
        self._old_logps = self._old_logps.to(logp.device)
        old_logps = self._old_logps[positions]
        self._old_logps[positions] = old_logps = torch.where(old_logps.isnan(), logp, old_logps)
        return old_logps

    @torch.no_grad()
    def _compute_rollout_logps(
        self, model: LanguageModule, batch: Batch, map_over_ranks: MapOverRanks
    ) -> Floats:
        """Compute the log-probability and the value of every sampled token, without gradients.

        Returns float64 [2, M]: the log-probabilities, then the values. `map_over_ranks` distributes
        the forward passes over the processes.
        """
        size = max(1, _TOKENS // batch.input_ids.shape[1])

        def compute_logps(rows: Sequence[int]) -> list[Floats]:
            """Return the log-probabilities and values of the sampled tokens in consecutive rows.

            The rows are processed in micro-batches to limit memory. The list has one array [2, M]
            per micro-batch, where M is the number of its sampled tokens.
            """
            parts = (batch.slice_rows(s, min(s + size, rows[-1] + 1)) for s in rows[::size])
            each = (self._compute_logps(model, to_device(part, model.device)) for part in parts)
            return [torch.stack((logp, value)).cpu().double().numpy() for logp, value, _ in each]

        return np.concatenate(map_over_ranks(compute_logps, range(batch.num_rows)), axis=1)

    def _compute_logps(
        self, model: LanguageModule, batch: TensorBatch
    ) -> tuple[Tensor, Tensor, LossTerms]:
        """Compute the log-probability and the value of every labelled token.

        The log-probabilities are those used for sampling: at the sampling temperature and without
        banned tokens.

        Returns:
            The log-probabilities [M]; the values [M], which are 0 if the model has no value head;
            and the auxiliary loss of the layers, which is an empty dict if there is none.
        """
        rules = self._rules
        assert rules is not None
        hidden, terms = forward_hidden(model, batch.inputs, gather_positions=batch.label_positions)
        banned = torch.tensor(sorted(rules.banned_ids), dtype=torch.int64, device=hidden.device)

        def compute_logits(hidden: Tensor) -> Tensor:
            """Return the logits [M, V] for sampling, given hidden states [M, d_model]."""
            logits = model.logits(hidden)[:, : rules.vocab_size] / self.temperature
            return logits.index_fill(1, banned, -torch.inf)

        logp = -token_cross_entropy(compute_logits, hidden, batch.targets, model.spec.vocab_size)
        if _VALUE not in model.heads:
            return logp, torch.zeros_like(logp), terms
        return logp, model.logits(hidden, head=_VALUE)[:, 0].to(logp.dtype), terms
