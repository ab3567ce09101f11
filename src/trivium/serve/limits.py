"""How much one request, one model and the whole server may take."""

from __future__ import annotations

from dataclasses import dataclass

from trivium.errors import TriviumError


@dataclass(frozen=True)
class Limits:
    """What is refused rather than tried; every number must be more than 0.

    Args:
        rows: texts that a model writes at the same time.
        max_queue: texts and questions that wait for a model; beyond that 429.
        max_tokens: tokens to write that a request may ask for; beyond that 400.
        max_prompt: tokens of a prompt, where the model's positions do not end before; beyond 400.
        max_texts: texts of one request, prompts times `n`; beyond that 400.
        max_body: bytes of a request; beyond that 413.
        timeout: seconds from a request to the end of its answer; beyond that 504.
        grace: seconds that what runs may take to end when the server stops.

    Raises:
        TriviumError: a number that is not above 0.
    """

    rows: int = 16
    max_queue: int = 256
    max_tokens: int = 1024
    max_prompt: int = 16384
    max_texts: int = 128
    max_body: int = 2**20
    timeout: float = 120.0
    grace: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise TriviumError(f"{name.replace('_', '-')} is {value}, but must be above 0.")
