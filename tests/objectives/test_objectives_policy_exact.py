"""Policy gradient against all texts there are: what is exact, and how far off what is not.

Vocabulary of five, texts of at most three tokens, float64.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from policies import CPU, END, PROMPTS, model
from torch import Tensor

from trivium.data.batch import IGNORE_INDEX
from trivium.objectives import to_device
from trivium.objectives.advantages import (
    compute_gae,
    compute_grpo_advantages,
    compute_rloo_advantages,
)
from trivium.objectives.policy import PolicyGradient, RolloutBatch
from trivium.objectives.responses import sample_responses
from trivium.train.distributed import SINGLE_PROCESS

LENGTH, T = 3, 0.7
# All that can be drawn: texts that end, or are cut.
TEXTS = [
    text
    for length in range(1, LENGTH + 1)
    for text in itertools.product(range(5), repeat=length)
    if END not in text[:-1] and (text[-1] == END or length == LENGTH)
]
REWARDS = np.array([text.count(2) - 0.3 * len(text) for text in TEXTS])


class Enumeration:
    """A model that has left its reference, and what is known of all texts.

    `p` [N] and `k1`, log (p / q) of tokens [N, LENGTH], are numbers; `log_p` [N] has a gradient.
    """

    def __init__(self) -> None:
        self.lm = model(torch.float64)
        with torch.no_grad():  # ends are neither rare nor certain
            self.lm.module.tokens.weight[END] *= -1.17
        self.objective = PolicyGradient(num_generations=2, beta=0.3, temperature=T, kl="k3")
        self.objective.encode(PROMPTS, self.lm)
        torch.manual_seed(1)
        with torch.no_grad():
            for weight in self.lm.module.parameters():
                weight.add_(0.05 * torch.randn_like(weight))
        self.weights = [*self.lm.module.parameters()]
        self.reference, self.k1 = np.zeros((2, len(TEXTS), LENGTH))
        batch = self.batch()
        self.real = batch.labels != IGNORE_INDEX
        now, _ = self.objective._compute_rollout_logps(self.lm.module, batch, SINGLE_PROCESS.map)
        before, _ = self.objective._compute_rollout_logps(
            self.objective._reference, batch, SINGLE_PROCESS.map
        )
        self.reference[self.real], self.k1[self.real] = before, now - before
        self.tensors = to_device(batch, CPU)
        logp, *_ = self.objective._compute_logps(self.lm.module, self.tensors)
        zeros = torch.zeros(len(TEXTS), dtype=torch.float64)
        self.log_p = zeros.index_add(0, self.tensors.label_positions // LENGTH, logp)
        self.p = self.log_p.detach().exp().numpy()

    def batch(self, advantage: float | np.ndarray = 0.0) -> RolloutBatch:
        """The texts after a prompt of one token, with advantages of their tokens."""
        rows = np.full((len(TEXTS), LENGTH + 1), 2)
        labels = np.full((len(TEXTS), LENGTH), IGNORE_INDEX)
        for row, label, text in zip(rows, labels, TEXTS):
            row[1 : len(text) + 1] = label[: len(text)] = text
        return RolloutBatch(
            rows[:, :-1],
            labels=labels,
            indices=np.arange(len(TEXTS)),
            metrics=np.zeros((len(TEXTS), 6)),
            advantages=np.broadcast_to(advantage, labels.shape).astype(float),
            reference_logps=self.reference,
            values=np.zeros(labels.shape),
            returns=np.zeros(labels.shape),
        )

    def gradient(self, value: Tensor) -> Tensor:
        """That of all weights, as one vector."""
        parts = torch.autograd.grad(value, self.weights, retain_graph=True, allow_unused=True)
        zeros = (torch.zeros_like(weight) for weight in self.weights)
        return torch.cat([(z if g is None else g).flatten() for g, z in zip(parts, zeros)])

    def exact(self, rewards: np.ndarray) -> Tensor:
        """The gradient of the expected reward of a text."""
        return self.gradient((self.log_p.exp() * torch.tensor(rewards)).sum())

    def expected(self, advantages: np.ndarray) -> Tensor:
        """The mean of what a text teaches, by the objective; advantages [N] or [N, LENGTH]."""
        weighted = (self.p * advantages.T).T
        batch = self.batch(weighted if weighted.ndim > 1 else weighted[:, None])
        terms = self.objective.loss(self.lm.module, to_device(batch, CPU))
        return self.gradient(-terms["policy"])

    def of_groups(self, advantages: np.ndarray) -> np.ndarray:
        """The mean advantage [N] of a text in all groups of texts, [N, ..., N, G]."""
        size = advantages.shape[-1]
        means = []
        for place in range(size):
            of_place = np.moveaxis(advantages[..., place], place, 0)
            for _ in range(size - 1):
                of_place = of_place @ self.p
            means.append(of_place)
        return np.mean(means, axis=0)


def groups(rewards: np.ndarray, size: int) -> np.ndarray:
    """The rewards of all groups of so many texts, [N, ..., N, size]."""
    return np.stack(np.meshgrid(*[rewards] * size, indexing="ij"), -1)


def difference(one: Tensor, other: Tensor) -> float:
    """How far off a gradient is, as a share of the other."""
    return float((one - other).norm() / other.norm())


def test_gradients_of_samples_are_exact_on_average():
    every = Enumeration()
    assert every.p.sum() == pytest.approx(1, abs=1e-12)
    tensors = every.tensors
    logits = every.lm.module.logits(every.lm.module(tensors.inputs["input_ids"]))[..., :5] / T
    # Log-probabilities are those that tokens are drawn with.
    logp = logits.log_softmax(-1).flatten(0, 1)[tensors.label_positions, tensors.targets]
    assert torch.allclose(logp.sum(), every.log_p.sum(), rtol=1e-9)
    one = PolicyGradient(temperature=T, max_new_tokens=1)
    responses = sample_responses(
        every.lm, [(PROMPTS[0], 3)], one._sampling_params, one.rewards, num_generations=500
    )
    shares = np.bincount([response.ids[0] for response in responses], minlength=5) / 500
    assert shares == pytest.approx(logits[0, 0].softmax(-1).tolist(), abs=0.06)
    # The divergence is what k1 and k3 are on average.
    kl = (every.p * every.k1.sum(1)).sum()
    k3 = np.where(every.real, np.exp(-every.k1) + every.k1 - 1, 0.0)
    assert (every.p * k3.sum(1)).sum() == pytest.approx(kl, rel=1e-9)
    assert kl > 0.01
    terms = every.objective.loss(every.lm.module, to_device(every.batch(), CPU))
    assert float(terms["k3"].detach()) == pytest.approx(k3.sum(), rel=1e-9)
    assert float(terms["kl"]) == pytest.approx(every.k1.sum(), rel=1e-9)
    # The reward less beta times the divergence, with the other response as baseline.
    log_q = torch.tensor(every.reference.sum(1))
    divergence = (every.log_p.exp() * (every.log_p - log_q)).sum()
    exact = every.exact(REWARDS) - 0.3 * every.gradient(divergence)
    pairs = groups(REWARDS - 0.3 * every.k1.sum(1), 2)
    left_out = every.of_groups(compute_rloo_advantages(pairs.ravel(), 2).reshape(pairs.shape))
    assert difference(every.expected(left_out), exact) < 1e-9
    # The same of single tokens with values, whatever these are before a token.
    rewards = -0.3 * every.k1
    rewards[np.arange(len(TEXTS)), every.real.sum(1) - 1] += REWARDS
    numbers = [
        [sum(5**k * one for k, one in enumerate(t[:n])) for n in range(LENGTH)] for t in TEXTS
    ]
    values = np.where(every.real, np.sin(numbers), 0.0)
    advantages = compute_gae(rewards, values, gamma=1.0, gae_lambda=1.0)
    assert difference(every.expected(advantages), exact) < 1e-9
    early = compute_gae(rewards, values, gamma=1.0, gae_lambda=0.5)
    assert difference(every.expected(early), exact) > 0.1


def test_what_is_biased_is_so_by_what_theory_says():
    every = Enumeration()
    exact, baseline = every.exact(REWARDS), (every.p * REWARDS).sum()
    # The mean of the whole group is short by (G - 1) / G.
    pairs = groups(REWARDS, 2)
    mean = every.of_groups(pairs - pairs.mean(-1, keepdims=True))
    assert difference(every.expected(mean), exact / 2) < 1e-9
    # Of two responses the deviation leaves which one is better.
    deviation = every.of_groups(compute_grpo_advantages(pairs.ravel(), 2).reshape(pairs.shape))
    better = np.sign(REWARDS[:, None] - REWARDS) @ every.p / math.sqrt(2)
    assert difference(every.expected(deviation), every.exact(better)) < 0.01
    assert difference(every.expected(deviation), exact) > 0.1
    # Of rewards that are 0 or 1 it is a factor that depends on how often they are 1.
    right = np.array([float(2 in text) for text in TEXTS])
    share, triples = float((every.p * right).sum()), groups(right, 3)
    deviation = every.of_groups(compute_grpo_advantages(triples.ravel(), 3).reshape(triples.shape))
    factor = 0.0
    for others in range(3):  # how many of the other two are right
        chance = math.comb(2, others) * share**others * (1 - share) ** (2 - others)
        for own in (0, 1):
            group = np.array([own, *[1] * others, *[0] * (2 - others)])
            if group.std():
                sign = 1 if own else -1
                factor += chance * sign * (own - group.mean()) / group.std(ddof=1)
    wanted = factor * every.exact(right)
    assert difference(every.expected(deviation), wanted) < 1e-3
    # Divided by its length a text earns a reward per token.
    lengths = every.real.sum(1)
    normalised = (REWARDS - baseline) / lengths
    assert difference(every.expected(normalised), every.exact(normalised)) < 1e-9
    assert difference(every.expected(normalised), exact) > 0.1
    # So it is with log p at another temperature than that of the samples, or without their ends.
    logits = every.lm.module.logits(every.lm.module(every.tensors.inputs["input_ids"]))[..., :5]
    centred = torch.tensor(every.p * (REWARDS - baseline))[every.tensors.label_positions // LENGTH]
    at, targets = every.tensors.label_positions, every.tensors.targets
    hot, drawn_at = (x.log_softmax(-1).flatten(0, 1)[at, targets] for x in (logits, logits / T))
    for logp, biased in ((drawn_at, False), (hot, True), (drawn_at * (targets != END), True)):
        off_by = difference(every.gradient((centred * logp).sum()), exact)
        assert off_by > 0.05 if biased else off_by < 5e-3
    # The gradient of k3 is that of the divergence of q from p, token by token.
    total = torch.zeros((), dtype=torch.float64)
    for row, p in enumerate(every.p.tolist()):
        tensors = to_device(every.batch().slice_rows(row, row + 1), CPU)
        total = total + p * every.objective.loss(every.lm.module, tensors)["k3"]
    ids = every.tensors.inputs["input_ids"]
    logp, logq = (
        (one.logits(one(ids))[..., :5] / T).log_softmax(-1)
        for one in (every.lm.module, every.objective._reference)
    )
    reverse = (logq.exp() * (logq - logp)).sum(-1) * torch.tensor(every.real)
    reverse = every.gradient((torch.tensor(every.p) * reverse.sum(1)).sum())
    assert difference(every.gradient(total), reverse) < 1e-9
    forward = (every.log_p.exp() * (every.log_p - torch.tensor(every.reference.sum(1)))).sum()
    assert difference(reverse, every.gradient(forward)) > 0.1
