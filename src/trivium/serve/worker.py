"""The one thread that may touch a model: it writes many texts at once and answers questions.

An event loop gives it orders and calls by a queue and cancels them; what comes of them is put into
the loop with `call_soon_threadsafe`, once a step for all texts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trivium.errors import TriviumError
from trivium.inference.sampling import Sampling
from trivium.inference.text_engine import Text, TextEngine, TokenScore
from trivium.language_model import LanguageModel
from trivium.serve.metrics import Metrics

# Items that go through a model together; between two such lots texts are written on.
_TOGETHER = 16


class Piece(NamedTuple):
    """What a text has gained: `new_tokens` so far; `finish` is None until it ends.

    The first piece of a text says only that it was accepted and how long its prompt is.
    """

    text: str
    tokens: Sequence[TokenScore]
    finish: str | None
    prompt_tokens: int
    new_tokens: int


def _nothing(*what: Any) -> None:
    """Nobody wants to know."""


@dataclass(eq=False, kw_only=True)
class Job:
    """Something asked of a worker.

    Args:
        tell: called in the loop with what comes of it: a `Piece`, an answer, or an exception.
        done: called in the loop when it needs no more room, perhaps more than once.
    """

    tell: Callable[[Any], None] = _nothing
    done: Callable[[], None] = _nothing
    cancelled: bool = field(default=False, init=False)
    asked_at: float = field(default_factory=time.perf_counter, init=False)


@dataclass(eq=False, kw_only=True)
class Order(Job):
    """A text to write. Without `streamed` only its last piece is told, with all of the text."""

    prompt: str | Sequence[int]
    max_new_tokens: int
    sampling: Sampling
    seed: int = 0
    stop: Sequence[str] = ()
    top_logprobs: int | None = None
    streamed: bool = False


@dataclass(eq=False, kw_only=True)
class Call(Job):
    """A question on some items: `function` answers those of all calls with an equal `key`.

    A key of None shares with no other. Items are answered a lot at a time, so that a long list
    keeps nobody waiting for all of it.
    """

    function: Callable[[LanguageModel, Sequence[Any]], Sequence[Any]]
    items: Sequence[Any]
    key: Hashable | None = None
    answers: list[Any] = field(default_factory=list, init=False)

    def next_items(self, most: int) -> Sequence[Any]:
        """The next items that have no answer."""
        start = len(self.answers)
        return self.items[start : start + most]


@dataclass(eq=False)
class _Writing:
    """A text at work: what of it was told, and when its first token came."""

    order: Order
    text: Text
    told_tokens: int = 0
    first_at: float | None = None


class Worker:
    """The thread of one model, which owns its engine.

    Args:
        name: of the model, for metrics.
        lm: touched by no other thread from here on.
        rows: texts that are written at the same time; 0 for a model that writes none.
        loop: where answers go.
    """

    def __init__(
        self,
        name: str,
        lm: LanguageModel,
        *,
        rows: int,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
    ) -> None:
        self.name, self.lm, self._rows = name, lm, rows
        self._loop, self._metrics = loop, metrics
        self._engine: TextEngine | None = lm.engine(rows=rows) if rows else None
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._calls: deque[Call] = deque()
        self._writing: dict[int, _Writing] = {}
        self._news: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._asking = self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"model {name}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Texts and questions at work."""
        return (self._engine.running if self._engine else 0) + self._asking

    def submit(self, job: Job) -> None:
        """Take a job; what comes of it is told in the loop."""
        self._inbox.put(job)

    def cancel(self, job: Job) -> None:
        """Give a job up: nothing more is told but that it is done."""
        job.cancelled = True
        self._inbox.put(job)

    def stop(self, timeout: float = 5.0) -> None:
        """Give everything up and end the thread."""
        self._stopped = True
        self._inbox.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._receive()
                if self._calls:
                    self._answer()
                if self._engine is not None and self._engine.busy:
                    self._step(self._engine)
            except Exception as error:  # Whatever it was, those who come next must be served.
                self._begin_anew(error)
            self._publish()

    def _begin_anew(self, error: Exception) -> None:
        """Give up the texts at work: what broke one step may break the next."""
        for writing in self._writing.values():
            self._fail(writing.order, error)
        self._writing.clear()
        self._engine = self.lm.engine(rows=self._rows) if self._rows else None

    def _receive(self) -> None:
        """Take what has come; with nothing to do, wait for it."""
        idle = not self._calls and not self._writing
        with contextlib.suppress(queue.Empty):
            while not self._stopped:
                job = self._inbox.get(block=idle)
                idle = False
                if job is not None:
                    self._take(job)

    def _take(self, job: Job) -> None:
        if job.cancelled:
            self._drop(job)
        elif isinstance(job, Call):
            self._calls.append(job)
        elif isinstance(job, Order):
            self._begin(job)

    def _drop(self, job: Job) -> None:
        """A job that is given up: before it was taken, while it runs, or after its end."""
        if isinstance(job, Call):
            with contextlib.suppress(ValueError):
                self._calls.remove(job)
        for key, writing in list(self._writing.items()):
            if writing.order is job and self._engine is not None:
                self._engine.cancel(writing.text)
                del self._writing[key]
                self._count(writing, time.perf_counter())
        self._finish(job)

    def _begin(self, order: Order) -> None:
        assert self._engine is not None
        try:
            text = self._engine.add(
                order.prompt,
                max_new_tokens=order.max_new_tokens,
                sampling=order.sampling,
                seed=order.seed,
                stop=order.stop,
                top_logprobs=order.top_logprobs,
            )
        except Exception as error:  # An order that cannot be taken must not end the others.
            self._fail(order, error)
            return
        self._writing[id(text)] = _Writing(order, text)
        self._tell(order, Piece("", (), None, text.prompt_tokens, 0))

    def _step(self, engine: TextEngine) -> None:
        changed = engine.step()
        now = time.perf_counter()
        for text in changed:
            writing = self._writing.get(id(text))
            if writing is not None:
                self._advance(writing, now)

    def _advance(self, writing: _Writing, now: float) -> None:
        order, text = writing.order, writing.text
        if writing.first_at is None and text.ids:
            writing.first_at = now
            self._metrics.first_token.labels(self.name).observe(now - order.asked_at)
        if text.finish is None and not order.streamed:
            return
        tokens = text.tokens[writing.told_tokens :] if order.top_logprobs is not None else []
        writing.told_tokens += len(tokens)
        new = text.take()
        if new or tokens or text.finish is not None:
            told = Piece(new, tokens, text.finish, text.prompt_tokens, len(text.ids))
            self._tell(order, told)
        if text.finish is not None:
            del self._writing[id(text)]
            self._count(writing, now)
            self._finish(order)

    def _count(self, writing: _Writing, now: float) -> None:
        written = len(writing.text.ids)
        self._metrics.tokens.labels(self.name, "prompt").inc(writing.text.prompt_tokens)
        self._metrics.tokens.labels(self.name, "generated").inc(written)
        if writing.first_at is not None and written > 1:
            each = (now - writing.first_at) / (written - 1)
            self._metrics.each_token.labels(self.name).observe(each)

    def _answer(self) -> None:
        """Answer some items of the oldest question, and with them those of others like it."""
        first, room = self._calls[0], _TOGETHER
        group: list[tuple[Call, Sequence[Any]]] = []
        for call in self._calls:
            alike = call is first or (call.key is not None and call.key == first.key)
            if alike and room:
                group.append((call, call.next_items(room)))
                room -= len(group[-1][1])
        for call, _ in group:
            self._calls.remove(call)
        self._asking = True
        try:
            self._answer_group(group)
        finally:
            self._asking = False

    def _answer_group(self, group: list[tuple[Call, Sequence[Any]]]) -> None:
        try:
            items = [item for _, part in group for item in part]
            found = iter(group[0][0].function(self.lm, items))
        except Exception as error:  # One that is wrong must not spoil the others.
            if len(group) > 1:
                for each in group:
                    self._answer_group([each])
                return
            self._fail(group[0][0], error)
            return
        for call, part in group:
            call.answers += itertools.islice(found, len(part))
            if len(call.answers) < len(call.items):
                self._calls.append(call)  # behind the others, whose turn it is now
            else:
                self._tell(call, call.answers)
                self._finish(call)

    def _fail(self, job: Job, error: Exception) -> None:
        if not isinstance(error, TriviumError):  # No mistake of the client's: somebody must see it.
            traceback.print_exception(error, file=sys.stderr)
        self._tell(job, error)
        self._finish(job)

    def _tell(self, job: Job, what: Any) -> None:
        self._news.append((job.tell, (what,)))

    def _finish(self, job: Job) -> None:
        self._news.append((job.done, ()))

    def _publish(self) -> None:
        """Put what is new into the loop, all at once."""
        if not self._news:
            return
        news, self._news = self._news, []
        with contextlib.suppress(RuntimeError):  # A loop that has ended needs no news.
            self._loop.call_soon_threadsafe(_call_all, news)


def _call_all(news: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    for function, arguments in news:
        function(*arguments)
