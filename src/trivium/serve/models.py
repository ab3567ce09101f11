"""The served models. Each model is loaded at its first request; loads run one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from trivium.errors import CheckpointError, TriviumError, did_you_mean
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.serve.api_error import ApiError
from trivium.serve.limits import Limits
from trivium.serve.metrics import ServerMetrics
from trivium.serve.model_thread import ModelThread
from trivium.text.literals import SpecialTokens

_POLL_SECONDS = 0.02
_LOG = logging.getLogger(__name__)


def parse_model_arguments(arguments: Iterable[str]) -> dict[str, str]:
    """Parse command-line arguments of the form `path` or `id=path`.

    Returns a dict of model id -> path.

    The default id is the name of the folder.

    Raises:
        TriviumError: two models have the same id, or an id or path is empty.
    """
    paths: dict[str, str] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or "/" in name:  # A path may have an equals sign of its own.
            name, path = Path(argument).resolve().name, argument
        if not name or not path:
            raise TriviumError(f"{argument!r} is not a model: write a folder, or name=folder.")
        if name in paths:
            raise TriviumError(
                f"two models are called {name!r}: {paths[name]} and {path}. Write name=folder to "
                "rename one."
            )
        paths[name] = path
    return paths


class ServedModel:
    """A model of the server. After it is loaded, a `ModelThread` runs it.

    Args:
        name: the id of the model.
        path: the model folder; None if the model was passed as an object.
        limits: the limits of the server.
        metrics: the metrics of the server.
    """

    def __init__(self, name: str, path: str | None, limits: Limits, metrics: ServerMetrics) -> None:
        self.name, self.path, self.created = name, path, int(time.time())
        self.limits, self.metrics = limits, metrics
        self.num_users, self.last_used = 0, 0.0
        self.special_tokens: SpecialTokens | None = None
        self._thread: ModelThread | None = None
        self._unloading = False
        self._outline: LanguageModel | None = None
        metrics.set_load_gauges(
            name,
            lambda: self._thread.num_running if self._thread else 0,
            lambda: self._thread.num_waiting if self._thread else 0,
        )

    @property
    def is_loaded(self) -> bool:
        """Whether the model is in memory and is not being unloaded."""
        return self._thread is not None and not self._unloading

    @property
    def is_busy(self) -> bool:
        """Whether at least one request is using the model."""
        return self.num_users > 0 or self.thread.is_busy

    @contextlib.contextmanager
    def keep_loaded(self) -> Iterator[None]:
        """Return a context manager that prevents unloading of the model during the `with` block.

        A stream that has started also prevents unloading, without this context manager.
        """
        self.num_users, self.last_used = self.num_users + 1, time.monotonic()
        try:
            yield
        finally:
            self.num_users -= 1

    @property
    def thread(self) -> ModelThread:
        """The thread that runs the model. The model must be loaded."""
        assert self._thread is not None
        return self._thread

    @property
    def lm(self) -> LanguageModel:
        """The loaded model. Only the model's thread may run its module."""
        return self.thread.lm.reading(self.special_tokens)

    def with_special_tokens(self, special_tokens: SpecialTokens | None) -> ServedModel:
        """Return a shallow copy of this served model with another setting for special tokens.

        The setting determines whether strings such as [SEP] in a text are special tokens or
        ordinary text. None uses the default of each endpoint.
        """
        other = copy.copy(self)
        other.special_tokens = special_tokens
        return other

    def load_outline(self) -> LanguageModel | None:
        """Return the language model for access to its metadata.

        If the model has not been loaded, the result has no weights. If the model folder is corrupt,
        the result is None.
        """
        if (thread := self._thread) is not None:  # read once: another thread may unload it
            return thread.lm
        if self._outline is None:
            assert self.path is not None
            with contextlib.suppress(TriviumError, OSError):
                self._outline = load(self.path, device="meta")
        return self._outline

    def start(self, lm: LanguageModel) -> None:
        """Start the thread that runs the model `lm`."""
        self._thread = ModelThread(self.name, lm, limits=self.limits, metrics=self.metrics)

    async def unload(self) -> None:
        """Wait until no request uses the model, then free its memory.

        Requests that arrive in the meantime wait, and then load the model again.
        """
        await asyncio.sleep(_POLL_SECONDS)  # Requests that waited for the model use it first.
        self._unloading = True
        while self.is_busy:
            await asyncio.sleep(_POLL_SECONDS)
        self.thread.stop()  # returns at once, because the thread is idle
        self._thread, self._unloading = None, False
        await asyncio.sleep(0)  # The event loop still refers to the thread's last callback.
        await asyncio.to_thread(gc.collect)


class ModelRegistry:
    """The served models by id.

    Args:
        models: model id -> model folder or loaded model.
        load: loads a model from a folder.
        preload: whether the server loads all models before it accepts requests.
        limits: the limits of the server.

    Attributes:
        stopping: set when the server stops. Open pages of the playground then end their
            connections, so that they do not delay the shutdown.
    """

    def __init__(
        self,
        models: Mapping[str, str | LanguageModel],
        *,
        load: Callable[[str], LanguageModel],
        preload: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.preload, self.limits, self.metrics = preload, limits or Limits(), ServerMetrics()
        self.stopping = asyncio.Event()
        self._models: dict[str, ServedModel] = {}
        for name, model in models.items():
            path = model if isinstance(model, str) else None
            self._models[name] = served = ServedModel(name, path, self.limits, self.metrics)
            if isinstance(model, LanguageModel):
                served.start(model)
        self._load_model = load
        self._load_lock = asyncio.Lock()
        self._loads: dict[str, asyncio.Task[ApiError | None]] = {}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    @property
    def names(self) -> list[str]:
        """The ids of the models, in command-line order."""
        return list(self._models)

    @property
    def _evictable(self) -> list[ServedModel]:
        """The loaded models that may be unloaded. Models without a folder always stay in memory."""
        return [model for model in self if model.is_loaded and model.path is not None]

    def get_model(self, name: str) -> ServedModel:
        """Return the served model with an id. It may not be loaded yet.

        Raises ApiError (404) for an unknown id.
        """
        if name in self._models:
            return self._models[name]
        raise ApiError(
            404,
            f"there is no model {name[:100]!r}; the server has: {', '.join(self._models)}."
            f"{did_you_mean(name[:100], self._models)}",
            param="model",
            code="model_not_found",
        )

    async def get_loaded(self, name: str) -> ServedModel:
        """Return the served model with an id. Loads the model if necessary.

        Simultaneous requests for the same model share one load, and all get its error if it fails.

        Raises ApiError: 404 for an unknown id, 503 if the model cannot be loaded.
        """
        model = self.get_model(name)
        while not model.is_loaded:
            if name not in self._loads:
                self._loads[name] = asyncio.create_task(self._load(model))
            # If one client disconnects, the others still need the model.
            error = await asyncio.shield(self._loads[name])
            if error is not None:
                raise error
        return model

    async def _load(self, model: ServedModel) -> ApiError | None:
        """Load a model and start its thread. Returns None, or the error if loading fails.

        If `max_loaded` models are already in memory, one is unloaded first: the least recently used
        idle model, or the least recently used model if all are busy.
        """
        async with self._load_lock:
            most = self.limits.max_loaded
            while most is not None and len(self._evictable) >= most:
                await min(self._evictable, key=lambda each: (each.is_busy, each.last_used)).unload()
            start = time.perf_counter()
            assert model.path is not None
            try:
                model.start(await asyncio.to_thread(self._load_model, model.path))
            except (TriviumError, OSError) as error:
                self.metrics.loads.labels(model.name, "failed").inc()
                _LOG.error("%s cannot be loaded: %s", model.name, error)
                message = str(error)
                if isinstance(error, CheckpointError):  # The message starts with the folder.
                    message = message.partition(": ")[2] or message
                return ApiError(
                    503,
                    f"the model {model.name!r} cannot be loaded now: {message}",
                    code="model_not_loaded",
                )
            finally:  # before the waiting requests continue, which may have to load it again
                del self._loads[model.name]
            self.metrics.loads.labels(model.name, "loaded").inc()
            seconds = time.perf_counter() - start
            _LOG.info("%s loaded in %.1f s from %s", model.name, seconds, model.path)
            return None

    def close(self) -> None:
        """Cancel the jobs of all models and stop their threads."""
        for model in self:
            if model.is_loaded:
                model.thread.stop()
