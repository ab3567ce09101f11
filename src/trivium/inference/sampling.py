"""From logits to the next token: small functions over logits [B, V] that compose.

What is ruled out becomes minus infinity. V is the vocabulary, B the number of texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.errors import TriviumError

_BLOCK = 64  # Columns of which the largest is found first.
_COLDEST = 1e-5  # Below it logits divided by the temperature leave the range of float32.
_FEW = 256  # Tokens among which a nucleus is looked for first.


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Temperature 0 is greedy: always the most probable token.

    Args:
        temperature: logits are divided by it; below 1 is safer, above 1 more surprising.
        top_k: only the k most probable tokens.
        top_p: only the fewest tokens whose probabilities add up to p.
        min_p: only tokens at least this share as probable as the most probable one.
        repetition_penalty: above 1, tokens that the text already has become less probable.
        presence_penalty: taken from the logits of tokens that were written, once.
        frequency_penalty: taken from them as often as they were written.
        logit_bias: pairs of an id and what is added to its logit.

    Raises:
        TriviumError: a number outside its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0 <= self.temperature < math.inf, "0 or more")
        _check("top_k", self.top_k, self.top_k is None or self.top_k >= 1, "1 or more")
        _check("top_p", self.top_p, self.top_p is None or 0.0 < self.top_p <= 1.0, "in (0, 1]")
        _check("min_p", self.min_p, self.min_p is None or 0.0 <= self.min_p <= 1.0, "in [0, 1]")
        penalty = self.repetition_penalty
        _check("repetition_penalty", penalty, 0.0 < penalty < math.inf, "more than 0")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(name, value, math.isfinite(value), "a finite number")
        for index, bias in self.logit_bias:
            _check(f"the logit_bias of {index}", bias, not math.isnan(bias), "a number")

    @property
    def greedy(self) -> bool:
        """No chance involved: at 0, and where what is next best would be next to impossible."""
        return self.temperature < _COLDEST

    @property
    def looks_back(self) -> bool:
        """Whether it matters what the text already has."""
        written = self.presence_penalty or self.frequency_penalty
        return bool(written) or self.repetition_penalty != 1.0

    def prefer(self, logits: Tensor, history: History | None) -> Tensor:
        """Penalties and biases of one text: [V] -> [V]."""
        if history is not None:
            logits = penalize_repetition(logits, history.seen, self.repetition_penalty)
            logits = logits - self.presence_penalty * (history.written > 0)
            logits = logits - self.frequency_penalty * history.written
        if self.logit_bias:
            ids, biases = zip(*self.logit_bias)
            places = torch.tensor(ids, device=logits.device)
            logits = logits.index_add(0, places, torch.tensor(biases).to(logits))
        return logits

    def choose(self, logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """The next ids, int64 [B], from logits [B, V] that are penalised already.

        There is a generator for each row, so that a row never depends on its neighbours.
        """
        if self.greedy:
            return most_probable(logits)
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


def most_probable(logits: Tensor) -> Tensor:
    """The ids of the largest: [B, V] -> int64 [B].

    On a CPU by NumPy, which takes a ninth of the time of PyTorch's `argmax`.
    """
    if logits.device.type != "cpu" or logits.dtype != torch.float32:
        return logits.argmax(-1)
    return torch.from_numpy(logits.detach().numpy().argmax(-1))


class History:
    """What a text has: `seen`, bool [V], in all of it; `written`, float [V], how often since.

    Args:
        prompt: its ids so far.
        vocab_size: V; ids from here on are not counted.
    """

    def __init__(self, prompt: Sequence[int], vocab_size: int, device: torch.device) -> None:
        self.seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.seen[[index for index in prompt if index < vocab_size]] = True
        self.written = torch.zeros(vocab_size, device=device)

    def add(self, index: int) -> None:
        """One more id was written."""
        self.seen[index] = True
        self.written[index] += 1.0


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Only the k largest logits of a row, and those equal to the k-th: [B, V] -> [B, V]."""
    smallest = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Only the fewest most probable tokens that together reach p, at least one.

    Source: Holtzman et al. 2020, equation 2 (nucleus sampling).
    """
    if logits.device.type == "cpu" and logits.shape[1] > 4 * _FEW:
        best = logits.topk(_FEW).values
        shares = (best - logits.logsumexp(-1, keepdim=True)).exp()
        before = shares.cumsum(-1) - shares
        if bool((before[:, -1] >= p).all()):  # mostly so, and sorting everything takes longer
            least = best.masked_fill(before >= p, torch.inf).amin(-1, keepdim=True)
            return logits.masked_fill(logits < least, -torch.inf)
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

    Shape: logits [..., V], seen bool [..., V] -> [..., V].
    """
    if penalty == 1.0:
        return logits
    less = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen, less, logits)


def force(logits: Tensor, index: int) -> Tensor:
    """Nothing but one id, with log-probability 0: [B, V] -> [B, V]."""
    forced = torch.full_like(logits, -torch.inf)
    forced[:, index] = 0.0
    return forced


def forbid_repetition(logits: Tensor, ids: Tensor, size: int, left: Tensor) -> Tensor:
    """Rule out, in place, what would complete `size` ids in a row that a text already has.

    Source: Paulus et al. 2017, section 2.5 (there three); as in `transformers` prompts count.

    Shape: logits [B, V], ids int64 [B, T] the texts so far, left [B, 1] padding before each.
    """
    if ids.shape[1] < size:
        return logits
    found = ids.unfold(1, size, 1)  # [B, T - size + 1, size]
    last = ids[:, ids.shape[1] - size + 1 :]
    again = (found[..., :-1] == last[:, None]).all(-1)
    again &= torch.arange(found.shape[1], device=ids.device) >= left
    again &= found[..., -1] < logits.shape[1]
    row, place = again.nonzero(as_tuple=True)
    logits[row, found[row, place, -1]] = -torch.inf
    return logits


def largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest of each row, largest first, and where they are: [B, V] -> twice [B, count].

    They lie in the blocks with the largest maxima: on a CPU that is found 4 times faster.
    """
    blocks = scores.shape[1] // _BLOCK
    if scores.device.type != "cpu" or blocks < 2 * count:
        return scores.topk(count)
    whole = blocks * _BLOCK
    parts = scores[:, :whole].unflatten(1, (blocks, _BLOCK))
    block = parts.amax(-1).topk(count).indices[..., None]  # [B, count, 1]
    among = torch.arange(_BLOCK, device=scores.device)
    places = torch.cat(
        ((block * _BLOCK + among).flatten(1), _columns(scores, whole, scores.shape[1])), 1
    )
    best, kept = scores.gather(1, places).topk(count)
    return best, places.gather(1, kept)


def sample(logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """One id for each row by its probability: [B, V] -> int64 [B].

    The first of waiting times that are exponential with the probabilities as rates. It is how
    `torch.multinomial` draws, which makes a GPU wait to check its input.
    """
    times = torch.empty_like(logits)
    for row, generator in zip(times, generators, strict=True):
        row.exponential_(generator=generator)
    return (logits.softmax(-1) / times).argmax(-1)


def _columns(scores: Tensor, start: int, stop: int) -> Tensor:
    """The places of some columns, for every row: int64 [B, stop - start]."""
    return torch.arange(start, stop, device=scores.device).expand(len(scores), -1)


def _check(name: str, value: object, allowed: bool, what: str) -> None:
    if not allowed:
        raise TriviumError(f"{name} is {value}, but must be {what}.")
