"""How much one request, one model and the whole server may take."""

from __future__ import annotations

from dataclasses import dataclass

from trivium.config import option
from trivium.inference.sampling_params import check_options


@dataclass(frozen=True)
class Limits:
    """What is refused rather than tried; the command line has an option for every field.

    Raises:
        TriviumError: a number that is not above 0.
    """

    slots: int = option(16, "texts a model generates at a time", gt=0)
    slot_length: int = option(2048, "tokens of a slot: prompt and generated ones together", gt=0)
    max_queue: int = option(256, "texts that wait for a model; above it: HTTP 429", gt=0)
    max_tokens: int = option(
        1024, "tokens that are generated per text; a request for more gets as many", gt=0
    )
    max_prompt: int = option(
        16384, "tokens of a text or prompt, where a slot holds as many; above it: HTTP 400", gt=0
    )
    max_texts: int = option(128, "texts of one request, prompts times n; above it: HTTP 400", gt=0)
    max_body: int = option(2**20, "bytes of a request; above it: HTTP 413", gt=0)
    max_loaded: int | None = option(
        None, "models in memory; for another one the least recently used leaves", gt=0
    )
    timeout: float = option(120.0, "seconds for one request; above it: HTTP 504", gt=0)
    grace: float = option(30.0, "seconds to finish requests when the server stops", gt=0)

    def __post_init__(self) -> None:
        check_options(self)
