"""The models that are served: found by name, loaded when first asked for, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import Any, TypeVar

from trivium.errors import CheckpointError, TriviumError, did_you_mean
from trivium.inference.saved import SPEC, TOKENIZER, read_spec
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel, load
from trivium.models import build
from trivium.serve.errors import ApiError
from trivium.serve.limits import Limits
from trivium.serve.metrics import Metrics
from trivium.serve.worker import Call, Job, Order, Piece, Worker
from trivium.text import Tokenizer

Answer = TypeVar("Answer")

_FAMILIES = {
    "encoder-only": "an encoder",
    "decoder-only": "a decoder",
    "encoder-decoder": "an encoder with a decoder",
}
# What of `LanguageModel.verbs` each road of the server needs.
ROADS = {
    "completions": "generate",
    "chat/completions": "chat",
    "embeddings": "embed",
    "fill-mask": "fill_mask",
    "classify": "classify",
    "tag": "tag",
    "answer": "answer",
    "translate": "translate",
    "score": "score",
}


def named_paths(given: Iterable[str]) -> dict[str, str]:
    """Name -> path of models given as `path` or `name=path`; without a name, that of the folder.

    Raises:
        TriviumError: two models of one name, or an empty name or path.
    """
    found: dict[str, str] = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals or "/" in name:  # A path may have an equals sign of its own.
            name, path = Path(each).resolve().name, each
        if not name or not path:
            raise TriviumError(f"{each!r} names no model: write a folder, or name=folder.")
        if name in found:
            raise TriviumError(
                f"two models are called {name!r}: {found[name]} and {path}. Write name=folder to "
                "give one of them another name."
            )
        found[name] = path
    return found


class Served:
    """One model: what it is called, what it can do, and its worker once it is loaded."""

    def __init__(self, name: str, path: str, limits: Limits, metrics: Metrics) -> None:
        self.name, self.path, self.created = name, path, int(time.time())
        self.lm: LanguageModel | None = None
        self.worker: Worker | None = None
        self._limits, self._metrics = limits, metrics
        self._alive: set[Job] = set()
        self._peeked: LanguageModel | None = None
        self._looked = False
        metrics.watch(name, lambda: self.running, lambda: self.waiting)

    @property
    def loaded(self) -> bool:
        """Whether it is in memory."""
        return self.worker is not None

    @property
    def running(self) -> int:
        """Texts and questions at work."""
        return self.worker.running if self.worker else 0

    @property
    def waiting(self) -> int:
        """Texts and questions that wait for their turn."""
        return max(0, len(self._alive) - self.running)

    @property
    def described(self) -> LanguageModel | None:
        """The model, or one without weights until it is loaded; None: its folder does not say."""
        if self.lm is not None:
            return self.lm
        if not self._looked:
            self._looked = True
            with contextlib.suppress(TriviumError, OSError):
                self._peeked = _peek(Path(self.path))
        return self._peeked

    @property
    def verbs(self) -> tuple[str, ...] | None:
        """What it can do, with "chat" where it has a template; None: unknown until it is loaded."""
        lm = self.described
        return None if lm is None else _verbs(lm)

    @property
    def mask(self) -> str | None:
        """How a text marks what is to be filled, where that is known."""
        lm = self.described
        return None if lm is None or lm.tokenizer is None else _mask(lm.tokenizer)

    def attach(self, lm: LanguageModel, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to serve a model that was loaded."""
        writes = "generate" in lm.verbs and lm.tokenizer is not None
        self.worker = Worker(
            self.name,
            lm,
            rows=self._limits.rows if writes else 0,
            loop=loop,
            metrics=self._metrics,
        )
        self.lm = lm

    def require(self, road: str) -> LanguageModel:
        """The model, where it can do what a road needs. Raises ApiError (400) where it cannot."""
        assert self.lm is not None
        if self.lm.tokenizer is None:
            raise ApiError(400, f"the model {self.name!r} came without a tokenizer.", param="model")
        can = _verbs(self.lm)
        if ROADS.get(road, "tokenize") in (*can, "tokenize"):
            return self.lm
        roads = [*(name for name, verb in ROADS.items() if verb in can), "tokenize"]
        why = "it has no chat template" if road.startswith("chat") and "generate" in can else ""
        raise ApiError(
            400,
            f"the model {self.name!r} is {_FAMILIES[self.lm.spec.family]} and cannot do {road}"
            f"{': ' + why if why else ''}; it can do {', '.join(roads)}.",
            param="model",
            code="model_cannot",
        )

    def count_read(self, tokens: int) -> None:
        """Note tokens that were read and not written on; the worker counts the others."""
        self._metrics.tokens.labels(self.name, "prompt").inc(tokens)

    def admit(self, count: int) -> None:
        """Refuse what is too much. Raises ApiError: 400 for one request, 429 for those before."""
        if count > self._limits.max_texts:
            raise ApiError(
                400,
                f"{count} texts are too many for one request: {self._limits.max_texts} at most.",
            )
        if len(self._alive) >= self._limits.rows + self._limits.max_queue:
            raise ApiError(
                429,
                f"the model {self.name!r} has {self.waiting} texts waiting, and no more than "
                f"{self._limits.max_queue} may: ask again later.",
                code="queue_full",
                headers={"Retry-After": "1"},
            )

    async def ask(
        self,
        function: Callable[[LanguageModel, Sequence[Any]], Sequence[Answer]],
        items: Sequence[Any],
        *,
        key: Hashable | None = None,
    ) -> list[Answer]:
        """What a function says about items, in the model's thread.

        Calls with an equal key may be answered together. Raises what the function raises.
        """
        assert self.worker is not None
        self.admit(len(items))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call = Call(function=function, items=items, key=key)

        def tell(what: Any) -> None:
            if answer.done():
                return
            if isinstance(what, Exception):
                answer.set_exception(what)
            else:
                answer.set_result(what)

        call.tell, call.done = tell, lambda: self._alive.discard(call)
        self._submit(call)
        try:
            return await answer
        finally:
            self._give_up(call)

    async def write(self, orders: Sequence[Order]) -> AsyncGenerator[tuple[int, Piece]]:
        """The pieces of texts as they come, each with the number of its order.

        The first piece of each says that it was accepted. Closing the iterator gives up what is
        not written. Raises what is wrong with an order.
        """
        assert self.worker is not None
        self.admit(len(orders))
        pieces: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        for number, order in enumerate(orders):
            _connect(order, number, pieces, self._alive)
            self._submit(order)
        left = len(orders)
        try:
            while left:
                for number, piece in (await _arrived(pieces)).items():
                    left -= piece.finish is not None
                    yield number, piece
        finally:
            for order in orders:
                self._give_up(order)

    def _submit(self, job: Job) -> None:
        assert self.worker is not None
        self._alive.add(job)
        self.worker.submit(job)

    def _give_up(self, job: Job) -> None:
        if job in self._alive and self.worker is not None:
            self.worker.cancel(job)


def _connect(
    order: Order, number: int, pieces: asyncio.Queue[tuple[int, Any]], alive: set[Job]
) -> None:
    """Let what comes of an order go into a queue, with its number."""
    order.tell = lambda what: pieces.put_nowait((number, what))
    order.done = lambda: alive.discard(order)


async def _arrived(pieces: asyncio.Queue[tuple[int, Any]]) -> dict[int, Piece]:
    """What has come, waiting for something; pieces of one text are joined.

    Where the loop has too much to do, more comes at once, and less is to be done for it.
    """
    found: dict[int, Piece] = {}
    arrived = [await pieces.get()]
    while not pieces.empty():
        arrived.append(pieces.get_nowait())
    for number, piece in arrived:
        if isinstance(piece, Exception):
            raise piece
        before = found.get(number)
        if before is not None:
            text, tokens = before.text + piece.text, [*before.tokens, *piece.tokens]
            piece = piece._replace(text=text, tokens=tokens)
        found[number] = piece
    return found


class Models:
    """All that are served, by name.

    Args:
        paths: name -> folder, or a name on the Hugging Face hub.
        load: makes a model of its folder.
    """

    def __init__(
        self,
        paths: Mapping[str, str],
        *,
        limits: Limits,
        metrics: Metrics,
        load: Callable[[str], LanguageModel] = load,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._served = {name: Served(name, path, limits, metrics) for name, path in paths.items()}
        self._limits, self._metrics, self._load_model, self._say = limits, metrics, load, say
        self.loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()
        self._loading: dict[str, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    @property
    def names(self) -> tuple[str, ...]:
        """What they are called, in the order they were given."""
        return tuple(self._served)

    def find(self, name: str) -> Served:
        """A model by its name. Raises ApiError (404) where there is none."""
        if name in self._served:
            return self._served[name]
        raise ApiError(
            404,
            f"there is no model {name[:100]!r} here; there is {', '.join(self._served)}."
            f"{did_you_mean(name[:100], self._served)}",
            param="model",
            code="model_not_found",
        )

    async def ready(self, name: str) -> Served:
        """A model by its name, loaded first where it is not; others wait for their turn.

        Raises ApiError: 404 where there is none, 503 where it cannot be loaded.
        """
        served = self.find(name)
        if not served.loaded:
            task = self._loading.get(name)
            if task is None:
                task = self._loading[name] = asyncio.create_task(self._load(served))
                task.add_done_callback(lambda task: self._end_loading(name, task))
            # Who goes away while it is loaded must not spoil that for others.
            await asyncio.shield(task)
        return served

    def _end_loading(self, name: str, task: asyncio.Task[None]) -> None:
        self._loading.pop(name, None)
        if not task.cancelled():
            task.exception()  # Looked at, so that nobody complains where all have gone away.

    async def _load(self, served: Served) -> None:
        async with self._turn:
            start = time.perf_counter()
            try:
                lm = await asyncio.to_thread(self._load_model, served.path)
                served.attach(lm, asyncio.get_running_loop())
            except (TriviumError, OSError) as error:
                self._metrics.loads.labels(served.name, "failed").inc()
                self._say(f"{served.name} cannot be loaded: {error}")
                raise ApiError(
                    503,
                    f"the model {served.name!r} cannot be loaded now: {_without_path(error)}",
                    code="model_not_loaded",
                ) from None
            self._metrics.loads.labels(served.name, "loaded").inc()
            seconds = time.perf_counter() - start
            self._say(f"{served.name} loaded in {seconds:.1f} s from {served.path}")

    def close(self) -> None:
        """End all workers; what they still do is given up."""
        for served in self:
            if served.worker is not None:
                served.worker.stop()


def _without_path(error: Exception) -> str:
    """What is wrong, without the folder that `CheckpointError` names first."""
    message = str(error)
    return message.partition(": ")[2] or message if isinstance(error, CheckpointError) else message


def _verbs(lm: LanguageModel) -> tuple[str, ...]:
    chats = "generate" in lm.verbs and bool(lm.settings.chat_template)
    return (*lm.verbs, "chat") if chats else lm.verbs


def _mask(tokenizer: Tokenizer) -> str | None:
    sentinels = tokenizer.sentinel_ids
    return tokenizer.roles.get("mask") or (tokenizer.tokens[sentinels[0]] if sentinels else None)


def _peek(folder: Path) -> LanguageModel | None:
    """The model of a folder of ours, without its weights."""
    if not (folder / SPEC).is_file() or not (folder / TOKENIZER).is_file():
        return None
    spec = read_spec(folder)
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    return LanguageModel(spec, build(spec, device="meta"), tokenizer, Settings.read(folder))
