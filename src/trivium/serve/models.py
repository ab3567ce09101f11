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
from trivium.interop.peft_reader import is_adapter_folder, read_adapter_config
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.remote_model import find_model
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


def parse_adapter_arguments(
    arguments: Iterable[str], models: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Parse the values of `--adapter`, each of the form `id=folder` or `folder`.

    Returns a dict of adapter id -> (base model id, folder). If several models are served, the path
    in the adapter's configuration identifies the base model.

    Args:
        arguments: the values of `--adapter`.
        models: the served models, id -> path.

    Raises:
        TriviumError: a folder is not an adapter, an id is taken, or the base model is not served.
    """
    adapters: dict[str, tuple[str, str]] = {}
    for name, argument in parse_model_arguments(arguments).items():
        path = str(find_model(argument))
        if name in models:
            raise TriviumError(
                f"a model and an adapter are called {name!r}. Write --adapter name=folder to "
                "rename one."
            )
        if not is_adapter_folder(Path(path)):
            raise TriviumError(f"{path} is no adapter: it has no adapter_config.json.")
        base = read_adapter_config(Path(path)).base_model_name_or_path
        found = list(models)
        if len(models) > 1:
            named = Path(base or "").resolve()
            found = [n for n, own in models.items() if own == base or Path(own).resolve() == named]
        if len(found) != 1:
            raise TriviumError(
                f"the adapter {name!r} is for {base or 'an unknown base'}, and the server has "
                f"{', '.join(models)}: serve its base, or one model only."
            )
        adapters[name] = (found[0], path)
    return adapters


class ServedModel:
    """A model of the server. After it is loaded, a `ModelThread` runs it.

    Args:
        name: the id of the model.
        path: the model folder; None if the model was passed as an object.
        limits: the limits of the server.
        metrics: the metrics of the server.
        parent: the base model if `path` is the folder of an adapter. Both share their weights, and
            each has its own thread, so that their requests are not in one batch.
    """

    def __init__(
        self,
        name: str,
        path: str | None,
        limits: Limits,
        metrics: ServerMetrics,
        parent: ServedModel | None = None,
    ) -> None:
        self.name, self.path, self.created = name, path, int(time.time())
        self.parent = parent
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
        """Return the language model for access to its metadata, without loading weights.

        The weights are missing unless the model has already been loaded. Returns None if the model
        folder is corrupt.
        """
        if (thread := self._thread) is not None:  # read once: another thread may unload it
            return thread.lm
        return self._read_outline()

    def _read_outline(self) -> LanguageModel | None:
        """Return the language model without its weights; None if the folder is corrupt."""
        if self._outline is None:
            assert self.path is not None
            with contextlib.suppress(TriviumError, OSError):
                if self.parent is None:
                    self._outline = load(self.path, device="meta")
                elif self.parent.path is None:
                    self._outline = self.parent.lm.with_adapter(self.path, name=self.name)
                elif (base := self.parent._read_outline()) is not None:
                    self._outline = base.with_adapter(self.path, name=self.name)
        return self._outline

    def start(self, lm: LanguageModel) -> None:
        """Start the thread that runs the model `lm`."""
        self._thread = ModelThread(self.name, lm, limits=self.limits, metrics=self.metrics)

    async def retire(self) -> None:
        """Wait until no request uses the model, then stop its thread for good.

        A retired model is not in the registry any more, so it gets no new requests.
        """
        thread = self.thread
        while self.num_users > 0 or thread.is_busy:
            await asyncio.sleep(_POLL_SECONDS)
        thread.stop()  # returns at once, because the thread is idle
        self._thread = None
        await asyncio.sleep(0)  # The event loop still refers to the thread's last callback.
        await asyncio.to_thread(gc.collect)

    async def unload(self, adapters: Iterable[ServedModel] = ()) -> None:
        """Wait until no request uses the model, then free its memory.

        Requests that arrive in the meantime wait, and then load the model again. `adapters` are the
        adapters that share the weights of this model. They are unloaded, too.
        """
        await asyncio.sleep(_POLL_SECONDS)  # Requests that waited for the model use it first.
        self._unloading = True
        while self.is_busy:
            await asyncio.sleep(_POLL_SECONDS)
        for adapter in adapters:  # from now on, they cannot be loaded: this model is not
            if adapter.is_loaded:
                await adapter.unload()
        self.thread.stop()  # returns at once, because the thread is idle
        self._thread, self._unloading = None, False
        await asyncio.sleep(0)  # The event loop still refers to the thread's last callback.
        await asyncio.to_thread(gc.collect)


class ModelRegistry:
    """The served models by id.

    Args:
        models: model id -> model folder or loaded model.
        adapters: adapter id -> (id of its base, folder of the adapter).
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
        adapters: Mapping[str, tuple[str, str]] | None = None,
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
        for name, (base, folder) in (adapters or {}).items():
            parent = self._models[base]
            self._models[name] = ServedModel(name, folder, self.limits, self.metrics, parent)
        self._load_model = load
        self._load_lock = asyncio.Lock()
        self._loads: dict[str, asyncio.Task[ApiError | None]] = {}
        self._retiring: dict[ServedModel, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    @property
    def names(self) -> list[str]:
        """The ids of the models and adapters, in command-line order."""
        return list(self._models)

    @property
    def _evictable(self) -> list[ServedModel]:
        """The loaded models that may be unloaded. Models without a folder always stay in memory.

        Adapters are not included, because they are unloaded with their base.
        """
        bases = (model for model in self if model.parent is None)
        return [model for model in bases if model.is_loaded and model.path is not None]

    def _find_adapters(self, model: ServedModel) -> list[ServedModel]:
        """Return the adapters of a model."""
        return [each for each in self if each.parent is model]

    def _make_unload_key(self, model: ServedModel) -> tuple[bool, float]:
        """Return the sort key for unloading: idle models first, then the least recently used ones.

        The key is a pair: whether the model or one of its adapters is busy, and the time of last
        use.
        """
        users = [model, *(each for each in self._find_adapters(model) if each.is_loaded)]
        return any(each.is_busy for each in users), max(each.last_used for each in users)

    def get_model(self, name: str) -> ServedModel:
        """Return the served model with the given id. It may not be loaded yet.

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
        """Return the served model with the given id. Loads the model if necessary.

        The model is loaded only once for simultaneous requests. If loading fails, all of them raise
        the error.

        Raises ApiError: 404 for an unknown id, 503 if the model cannot be loaded.
        """
        while not (model := self.get_model(name)).is_loaded:  # may be replaced meanwhile
            if name not in self._loads:
                self._loads[name] = asyncio.create_task(self._load(model))
            # If one client disconnects, the others still need the model.
            error = await asyncio.shield(self._loads[name])
            if error is not None:
                raise error
        return model

    async def reload(self, name: str) -> ServedModel:
        """Load a model again from its folder, for new requests. Returns the new served model.

        Running requests finish with the earlier weights, which stay in memory until then. If the
        model cannot be loaded, the earlier weights stay in use. The adapters of a reloaded base are
        loaded again when they are used.

        Raises ApiError: 404 for an unknown id, 400 for a model without a folder, 503 if the model
        cannot be loaded.
        """
        model = self.get_model(name)
        if model.path is None:
            raise ApiError(400, f"the model {name!r} has no folder to load it from again.")
        start = time.perf_counter()
        try:
            if model.parent is not None:
                new = self._replace(self.get_model(name), await self._read_adapter(model))
            else:
                async with self._load_lock:
                    if not model.is_loaded:
                        await self._make_room()
                    lm = await asyncio.to_thread(self._load_model, model.path)
                    new = self._replace(self.get_model(name), lm)
        except (TriviumError, OSError) as error:
            message = self._record_failure(name, error)
            kept = ", and its earlier weights stay in use" if model.is_loaded else ""
            raise ApiError(
                503,
                f"the model {name!r} cannot be loaded again{kept}: {message}",
                code="model_not_loaded",
            ) from None
        self._record_load(new, "loaded again", start)
        return new

    def _replace(self, old: ServedModel, lm: LanguageModel) -> ServedModel:
        """Serve `lm` in place of a model from now on, and retire the model and its adapters."""
        new = ServedModel(old.name, old.path, self.limits, self.metrics, old.parent)
        new.start(lm)
        self._models[old.name] = new
        for adapter in self._find_adapters(old):
            name, path = adapter.name, adapter.path
            self._models[name] = ServedModel(name, path, self.limits, self.metrics, new)
            self._retire(adapter)
        self._retire(old)
        return new

    def _retire(self, model: ServedModel) -> None:
        """Stop the thread of a model that is no longer served, once no request uses the model."""
        if model.is_loaded:
            self._retiring[model] = task = asyncio.create_task(model.retire())
            task.add_done_callback(lambda _: self._retiring.pop(model))

    def _record_load(self, model: ServedModel, what: str, start: float) -> None:
        """Count and log a successful load that began at `start`, in seconds."""
        self.metrics.loads.labels(model.name, "loaded").inc()
        seconds = time.perf_counter() - start
        _LOG.info("%s %s in %.1f s from %s", model.name, what, seconds, model.path)

    def _record_failure(self, name: str, error: Exception) -> str:
        """Count and log a failed load. Returns the message for clients, without the folder."""
        self.metrics.loads.labels(name, "failed").inc()
        _LOG.error("%s cannot be loaded: %s", name, error)
        message = str(error)
        if isinstance(error, CheckpointError):  # The message starts with the folder.
            message = message.partition(": ")[2] or message
        return message

    async def _load(self, model: ServedModel) -> ApiError | None:
        """Load a model and start its thread. Returns None, or the error if loading fails.

        If `max_loaded` models are already in memory, one is unloaded first: the least recently used
        idle model, or the least recently used model if all are busy. For an adapter, its base is
        loaded if necessary.
        """
        start = time.perf_counter()
        assert model.path is not None
        try:
            if model.parent is not None:
                model.start(await self._read_adapter(model))
            else:
                async with self._load_lock:
                    if self._models[model.name] is not model:  # loaded again meanwhile
                        return None
                    await self._make_room()
                    start = time.perf_counter()
                    model.start(await asyncio.to_thread(self._load_model, model.path))
        except ApiError as error:  # of the base of an adapter
            return error
        except (TriviumError, OSError) as error:
            message = self._record_failure(model.name, error)
            return ApiError(
                503,
                f"the model {model.name!r} cannot be loaded now: {message}",
                code="model_not_loaded",
            )
        finally:  # before the waiting requests continue, which may have to load it again
            del self._loads[model.name]
        if self._models[model.name] is not model:  # an adapter whose base was loaded again
            self._retire(model)
            return None
        self._record_load(model, "loaded", start)
        return None

    async def _make_room(self) -> None:
        """Unload models until fewer than `max_loaded` are in memory."""
        most = self.limits.max_loaded
        while most is not None and len(self._evictable) >= most:
            model = min(self._evictable, key=self._make_unload_key)
            await model.unload(self._find_adapters(model))

    async def _read_adapter(self, adapter: ServedModel) -> LanguageModel:
        """Return the base of an adapter with the adapter. Loads the base if necessary.

        Raises ApiError if the base cannot be loaded.
        """
        assert adapter.parent is not None
        parent = await self.get_loaded(adapter.parent.name)
        with parent.keep_loaded():
            base, path = parent.thread.lm, str(adapter.path)
            return await asyncio.to_thread(base.with_adapter, path, name=adapter.name)

    def close(self) -> None:
        """Cancel the jobs of all models and stop their threads."""
        for model in (*self, *self._retiring):
            if model.is_loaded:
                model.thread.stop()
