"""What is asked of a model that writes, and what it has written so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from trivium.inference.choices import Choices
from trivium.inference.sampling import History, Sampling

Finish = Literal["stop", "length", "cancelled"]


class TokenScore(NamedTuple):
    """How probable a token was to the model, in nats, before anything was ruled out.

    `top` are the most probable ids there and their log-probabilities, most probable first.
    """

    id: int
    log_probability: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A text to be written.

    Args:
        prompt: ids that a decoder continues, or that an encoder reads.
        max_new_tokens: tokens to add at most; where positions end, fewer.
        sampling: how a token is chosen.
        seed: the same seed gives the same text, whatever runs beside it.
        top_scores: None: no log-probabilities; k: of every token and of the k most probable ones.
        choices: the only texts that may be written; None: any.
    """

    prompt: Sequence[int]
    max_new_tokens: int = 64
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    top_scores: int | None = None
    choices: Choices | None = None


class Written:
    """What has been written for a request so far.

    Attributes:
        ids: the tokens; one that ends the text is not among them.
        scores: how probable each was, if asked for.
        finish: None while it goes on; "stop" at an end of text, "length" where tokens or
            positions ended, "cancelled".
    """

    def __init__(
        self, request: Request, limit: int, history: History | None, device: torch.device
    ) -> None:
        self.request, self.limit, self.history = request, limit, history
        self.ids: list[int] = []
        self.scores: list[TokenScore] = []
        self.finish: Finish | None = None
        self.generator = torch.Generator(device).manual_seed(request.seed)

    @property
    def all_ids(self) -> list[int]:
        """The prompt and what was written."""
        return [*self.request.prompt, *self.ids]

    @property
    def at_last(self) -> bool:
        """Whether no token comes after the next."""
        return len(self.ids) + 1 >= self.limit
