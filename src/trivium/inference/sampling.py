"""From logits to the next token: small functions over logits [B, V] that compose.

What is ruled out becomes minus infinity. V is the vocabulary, B the number of texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.errors import TriviumError


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Temperature 0 is greedy: always the most probable token.

    Args:
        temperature: logits are divided by it; below 1 is safer, above 1 more surprising.
        top_k: only the k most probable tokens.
        top_p: only the fewest tokens whose probabilities add up to p.
        min_p: only tokens at least this share as probable as the most probable one.
        repetition_penalty: above 1, tokens that the text already has become less probable.

    Raises:
        TriviumError: a number outside its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0 <= self.temperature < float("inf"), "0 or more")
        _check("top_k", self.top_k, self.top_k is None or self.top_k >= 1, "1 or more")
        _check("top_p", self.top_p, self.top_p is None or 0.0 < self.top_p <= 1.0, "in (0, 1]")
        _check("min_p", self.min_p, self.min_p is None or 0.0 <= self.min_p <= 1.0, "in [0, 1]")
        penalty = self.repetition_penalty
        _check("repetition_penalty", penalty, 0.0 < penalty < float("inf"), "more than 0")

    @property
    def greedy(self) -> bool:
        """No chance involved."""
        return self.temperature == 0.0

    def choose(self, logits: Tensor, seen: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """The next ids, int64 [B].

        Args:
            logits: [B, V].
            seen: bool [B, V], True for the tokens a text already has.
            generators: one for each row, so that a row never depends on its neighbours.
        """
        logits = penalize_repetition(logits.float(), seen, self.repetition_penalty)
        if self.greedy:
            return logits.argmax(-1)
        return sample(self.restrict(logits), generators)

    def restrict(self, logits: Tensor) -> Tensor:
        """Temperature, top-k, top-p and min-p, in this order: [B, V] -> [B, V]."""
        logits = logits / self.temperature
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = keep_top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = keep_min_p(logits, self.min_p)
        return logits


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Only the k largest logits of a row, and those equal to the k-th: [B, V] -> [B, V]."""
    smallest = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Only the fewest most probable tokens that together reach p, at least one.

    Source: Holtzman et al. 2020, equation 2 (nucleus sampling).
    """
    ascending, order = logits.sort(dim=-1)
    below = ascending.softmax(-1).cumsum(-1) <= 1.0 - p
    below[..., -1] = False
    return logits.masked_fill(torch.zeros_like(below).scatter(-1, order, below), -torch.inf)


def keep_min_p(logits: Tensor, share: float) -> Tensor:
    """Only tokens with a probability of at least `share` times the largest (Nguyen et al. 2024)."""
    probabilities = logits.softmax(-1)
    least = share * probabilities.amax(-1, keepdim=True)
    return logits.masked_fill(probabilities < least, -torch.inf)


def penalize_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits of seen tokens are divided by the penalty where positive, else multiplied by it.

    Source: Keskar et al. 2019 (CTRL), section 4.1; their formula makes a negative logit more
    probable, so that, as in `transformers`, the sign decides here.

    Shape: logits [B, V], seen bool [B, V] -> [B, V].
    """
    if penalty == 1.0:
        return logits
    less = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen, less, logits)


def sample(logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """One id for each row by its probability: [B, V] -> int64 [B]."""
    probabilities = logits.softmax(-1)
    drawn = [
        torch.multinomial(row, 1, generator=generator)
        for row, generator in zip(probabilities, generators, strict=True)
    ]
    return torch.cat(drawn)


def _check(name: str, value: object, allowed: bool, what: str) -> None:
    if not allowed:
        raise TriviumError(f"{name} is {value}, but must be {what}.")
