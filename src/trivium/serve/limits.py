"""How much one request, one model and the whole server may take."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from trivium.errors import TriviumError


@dataclass(frozen=True)
class Limits:
    """What is refused rather than tried; the command line has an option for every field.

    Raises:
        TriviumError: a number that is not above 0.
    """

    slots: int = field(default=16, metadata={"description": "texts a model generates at a time"})
    max_length: int = field(
        default=2048, metadata={"description": "positions of a slot: prompt and generated tokens"}
    )
    max_queue: int = field(
        default=256, metadata={"description": "texts that wait for a model; beyond that 429"}
    )
    max_tokens: int = field(
        default=1024, metadata={"description": "tokens that a request may generate; beyond 400"}
    )
    max_prompt: int = field(
        default=16384, metadata={"description": "tokens of a prompt or text; beyond that 400"}
    )
    max_texts: int = field(
        default=128, metadata={"description": "texts of one request, prompts times n; beyond 400"}
    )
    max_body: int = field(
        default=2**20, metadata={"description": "bytes of a request; beyond that 413"}
    )
    timeout: float = field(
        default=120.0, metadata={"description": "seconds for one request; beyond that 504"}
    )
    grace: float = field(
        default=30.0, metadata={"description": "seconds to finish requests when the server stops"}
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            if not (value := getattr(self, each.name)) > 0:
                option = each.name.replace("_", "-")
                raise TriviumError(f"--{option} is {value}, but must be above 0.")
