"""The models of the server as the playground, whose functions run in threads, uses them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from trivium.errors import TriviumError
from trivium.language_model import LanguageModel, load
from trivium.serve.errors import ApiError
from trivium.serve.models import Models
from trivium.serve.playground.models import ModelCard


class BorrowedModels:
    """What `trivium.serve.playground` asks of a server.

    A model is read by the playground beside the worker that writes with it: passes leave no trace
    in a model, and every text has a cache of its own.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._locks = {name: threading.Lock() for name in models.names}

    def names(self) -> Sequence[str]:
        """The models, in the order they are shown."""
        return self._models.names

    def card(self, name: str) -> ModelCard:
        """What a model can do; where its folder does not say, it is opened to find out.

        Raises TriviumError where it cannot be used.
        """
        served = self._models.find(name)
        described = served.described
        return ModelCard.of(load(served.path, device="cpu") if described is None else described)

    @contextmanager
    def use(self, name: str) -> Iterator[LanguageModel]:
        """The model, for no other visitor until the end of the `with`.

        Raises TriviumError where it cannot be loaded.
        """
        with self._locks[name]:
            yield self._ready(name)

    def _ready(self, name: str) -> LanguageModel:
        served = self._models.find(name)
        if served.lm is None:
            loop = self._models.loop
            assert loop is not None
            try:
                asyncio.run_coroutine_threadsafe(self._models.ready(name), loop).result()
            except ApiError as error:
                raise TriviumError(str(error)) from None
        assert served.lm is not None
        return served.lm
