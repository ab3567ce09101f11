"""Generation of many texts at once: requests take and free the slots of one cache."""

from __future__ import annotations

from trivium.inference.request import GenerationRequest
from trivium.inference.speculative import DraftModel, PromptLookup
from trivium.inference.text_model import TextModel


class Engine:
    """Continuous batching (Yu et al. 2022, Orca) over fixed slots.

    A request gives the same text alone and in company. One thread at a time may use an engine.

    Args:
        lm: a `LanguageModel` that generates.
        slots: texts that are generated at the same time; further requests wait.
        max_length: positions of a slot, prompt and generated tokens together; None: those of the
            model, at most 2,048.
        compile: compile the decode step with `torch.compile`, for all slots at static shapes.
        draft: source of draft tokens (speculative decoding); it changes the time, not the text.
    """

    def __init__(
        self,
        lm: TextModel,
        *,
        slots: int = 8,
        max_length: int | None = None,
        compile: bool = False,
        draft: PromptLookup | DraftModel | None = None,
    ) -> None:
        self.lm, self.slots, self.max_length = lm, slots, max_length

    @property
    def active(self) -> int:
        """Requests that hold a slot."""
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        raise NotImplementedError

    def add(self, request: GenerationRequest) -> GenerationRequest:
        """Queue a request.

        Raises:
            SpecError: a prompt that is empty or longer than a slot, or an id that does not exist.
        """
        raise NotImplementedError

    def cancel(self, request: GenerationRequest) -> None:
        """End a request with finish_reason "cancelled"; its slot is free at once."""
        raise NotImplementedError

    def step(self) -> list[GenerationRequest]:
        """Give waiting requests free slots, generate a token for each: the requests that finished.

        Each request's `on_text` is called with its new text.
        """
        raise NotImplementedError
