"""Limits on the resources used by one request, by one model and by the whole server."""

from __future__ import annotations

from dataclasses import dataclass

from trivium.config import option
from trivium.inference.sampling_params import check_options


@dataclass(frozen=True)
class Limits:
    """The limits of a server. `trivium serve` has an option for every field.

    A request that exceeds a limit is rejected, unless the field says otherwise.

    Raises:
        TriviumError: a value is not greater than 0.
    """

    slots: int = option(16, "number of texts that a model generates at the same time", gt=0)
    slot_length: int = option(2048, "tokens per slot: the prompt and the generated tokens", gt=0)
    max_queue: int = option(256, "texts waiting for a model; more are refused with HTTP 429", gt=0)
    max_tokens: int = option(
        1024, "generated tokens per text; requests for more tokens get this number", gt=0
    )
    max_prompt: int = option(
        16384, "tokens per text or prompt, if they fit into a slot; more: HTTP 400", gt=0
    )
    max_texts: int = option(128, "texts per request, prompts times n; more: HTTP 400", gt=0)
    max_body: int = option(2**20, "bytes per request body; more: HTTP 413", gt=0)
    max_loaded: int | None = option(
        None, "models in memory; loading another one unloads the least recently used", gt=0
    )
    timeout: float = option(120.0, "seconds per request; after that: HTTP 504", gt=0)
    grace: float = option(30.0, "seconds to finish requests when the server stops", gt=0)

    def __post_init__(self) -> None:
        check_options(self)
