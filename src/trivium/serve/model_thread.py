"""The one thread that runs a model: decode steps and, between them, batches of calls.

The event loop hands jobs over by a queue and cancels them; their events come back with
`call_soon_threadsafe`, once per step for all jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trivium.errors import TriviumError
from trivium.inference.engine import Engine
from trivium.inference.request import FinishReason, GenerationRequest, TokenLogprob
from trivium.language_model import LanguageModel
from trivium.serve.api_error import ApiError, as_api_error
from trivium.serve.limits import Limits
from trivium.serve.metrics import ServerMetrics

# Calls of one function that run together; the function may batch them.
_MAX_CALLS = 16
_SHORT = 512  # Tokens of a request below which all are equally short.

_LOG = logging.getLogger(__name__)

Function = Callable[..., Sequence[Any]]


class TextDelta(NamedTuple):
    """New text of a request since its last delta, and its number of tokens in all.

    `finish_reason` is None until its end.
    """

    text: str
    logprobs: Sequence[TokenLogprob]
    finish_reason: FinishReason | None
    num_tokens: int


@dataclass(eq=False, kw_only=True)
class _Job:
    """One text or item: counts 1 in the queue, and is cancelled by itself."""

    cancelled: bool = False


@dataclass(eq=False, kw_only=True)
class _Call(_Job):
    """One item of a function's argument; items of an equal key may share a batch.

    `size` is the number of tokens of its request.
    """

    function: Function
    options: dict[str, Any]
    item: Any
    size: int

    @property
    def key(self) -> Hashable:
        return self.function, tuple(sorted(self.options.items()))


@dataclass(eq=False, kw_only=True)
class _Generation(_Job):
    """A text that the engine generates, and how much of it was delivered."""

    request: GenerationRequest
    stream: bool
    num_characters: int = 0
    num_logprobs: int = 0
    created: float = field(default_factory=time.perf_counter)
    first_token: float | None = None


_Events = asyncio.Queue[tuple[_Job, Any]]
"""The events of the jobs of one request, as they come."""


class _CancelledCallError(Exception):
    """Ends a batch of calls that all were cancelled, before its next forward pass."""


class ModelThread:
    """Owns a model and its engine, which alone this thread runs.

    Jobs are texts to generate, which the engine batches, and calls: one item each of what a
    function computes for classification, embeddings and so on. A failed step ends all texts of the
    model, also those that wait for a slot; the next text gets a new engine.

    Long requests do not keep short ones waiting: before every forward pass of a batch of calls, the
    engine decodes one token of its texts, and calls of less than half the size run.

    Args:
        name: of the model, for metrics.
        lm: no other thread runs its module from here on; its tokenizers may be shared.
        limits: slots and queue.
        metrics: tokens and times.
    """

    def __init__(
        self, name: str, lm: LanguageModel, *, limits: Limits, metrics: ServerMetrics
    ) -> None:
        self.name, self.lm = name, lm
        self._limits, self._metrics = limits, metrics
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._open: dict[_Job, _Events] = {}  # Changed by the event loop only.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: Engine | None = None
        self._calls: list[_Call] = []
        self._batches: list[list[_Call]] = []  # The last runs now; it interrupts those before.
        self._generations: dict[GenerationRequest, _Generation] = {}
        self._outbox: list[tuple[_Job, Any]] = []
        self._stopped = self._ended = False
        lm.module.register_forward_pre_hook(self._before_pass)
        self._thread = threading.Thread(target=self._run, name=f"model {name}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs: without it nothing is admitted."""
        return not self._ended

    @property
    def running(self) -> int:
        """Texts in a slot and items in a batch."""
        return (self._engine.num_active if self._engine else 0) + sum(map(len, self._batches))

    @property
    def busy(self) -> bool:
        """Whether a text or item is not finished."""
        return bool(self._open)

    @property
    def waiting(self) -> int:
        """Texts and items in the queue."""
        return max(0, len(self._open) - self.running)

    def stop(self) -> None:
        """Cancel everything and end the thread; blocks, so not for the event loop."""
        self._stopped = True
        for job in list(self._open):
            job.cancelled = True
        self._inbox.put(None)
        self._thread.join(timeout=5.0)

    def _admit(self, count: int) -> None:
        """Raise ApiError: 429 for a full queue, 503 after the end of the thread."""
        if not self.alive:
            raise self._stopped_error()
        if len(self._open) + count > self._limits.slots + self._limits.max_queue:
            raise ApiError(
                429,
                f"the model {self.name!r} has {self.waiting} texts waiting, and the queue holds "
                f"{self._limits.max_queue}: send the request again later.",
                code="queue_full",
                headers={"Retry-After": "1"},
            )

    async def call(
        self, function: Function, items: Sequence[Any], num_tokens: int, **options: Any
    ) -> list[Any]:
        """`function(lm, items, **options)` in the model's thread, in batches.

        Calls of the same function and options share batches, where their requests have similar
        numbers of tokens. The option `special_tokens` is that of `TextModel.reading`. Cancelling
        the task that waits ends the work before its next forward pass. Raises what the function
        raises, and ApiError for a full queue.
        """
        size = max(num_tokens, _SHORT)
        jobs = [_Call(function=function, options=options, item=item, size=size) for item in items]
        async with contextlib.aclosing(self._submit(jobs)) as results:
            by_index = {index: result async for index, result in results}
        return [by_index[index] for index in range(len(jobs))]

    def generate(
        self, requests: Sequence[GenerationRequest], *, stream: bool
    ) -> AsyncGenerator[tuple[int, TextDelta]]:
        """Deltas as they come, each with the index of its request; without `stream` the last only.

        Closing the generator cancels what is not finished. Raises what `Engine.add` raises, and
        ApiError for a full queue.
        """
        return self._submit([_Generation(request=each, stream=stream) for each in requests])

    async def _submit(self, jobs: Sequence[_Job]) -> AsyncGenerator[tuple[int, Any]]:
        """Events with the index of their job; at the end jobs that go on are cancelled."""
        self._admit(len(jobs))
        self._loop = asyncio.get_running_loop()
        events, indices = _Events(), {job: index for index, job in enumerate(jobs)}
        self._open.update(dict.fromkeys(jobs, events))
        for job in jobs:
            self._inbox.put(job)
        try:
            unfinished = len(jobs)
            while unfinished:
                job, event = await events.get()
                if isinstance(event, Exception):
                    raise event
                unfinished -= _is_last(event)
                yield indices[job], event
        finally:
            for job in self._open.keys() & indices.keys():
                del self._open[job]
                job.cancelled = True
                self._inbox.put(job)

    def _receive_events(self, outbox: Sequence[tuple[_Job, Any]]) -> None:
        """Put events into the queues of their jobs; nobody waits for those of a cancelled one."""
        for job, event in outbox:
            if (events := self._open.get(job)) is not None:
                events.put_nowait((job, event))
                if _is_last(event):
                    del self._open[job]

    def _end_open_jobs(self) -> None:
        self._receive_events([(job, self._stopped_error()) for job in self._open])

    def _stopped_error(self) -> ApiError:
        message = f"the model {self.name!r} has stopped: restart the server."
        return ApiError(503, message, code="model_stopped")

    # The methods above but `stop` run in the event loop, those below in the thread.

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._work()
        finally:  # A job that is admitted before this line is open, and ended by the next.
            self._ended = True
            self._run_in_loop(self._end_open_jobs)

    def _work(self) -> None:
        """Take jobs, run one batch of calls and one decode step, and deliver their events."""
        try:
            self._receive()
            self._run_batch()
            self._decode_step()
        except BaseException as error:  # Also SystemExit: the thread must not end by it.
            self._restart(error)
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            self._run_in_loop(self._receive_events, outbox)

    def _run_in_loop(self, function: Callable[..., None], *args: Any) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop may have been closed.
                self._loop.call_soon_threadsafe(function, *args)

    def _restart(self, error: BaseException) -> None:
        """End all texts; the next gets a new engine: what broke this step may break the next."""
        self._metrics.engine_restarts.labels(self.name).inc()
        _LOG.error("%s failed, and starts with a new engine", self.name, exc_info=error)
        for job in self._generations.values():
            self._outbox.append((job, as_api_error(error)))
        self._generations.clear()
        self._engine = None

    def _receive(self) -> None:
        """Take jobs; with nothing to do, wait for one. A job that comes again is cancelled."""
        idle = not (self._calls or self._generations or self._batches)
        with contextlib.suppress(queue.Empty):
            while not self._stopped:
                job = self._inbox.get(block=idle)
                idle = False
                if isinstance(job, _Call):  # `_run_batch` passes over cancelled ones.
                    self._calls.append(job)
                elif isinstance(job, _Generation):
                    (self._cancel if job.cancelled else self._add)(job)

    def _add(self, job: _Generation) -> None:
        try:
            if self._engine is None:
                slots, length = self._limits.slots, self._limits.slot_length
                self._engine = self.lm.engine(slots=slots, slot_length=length)
            self._engine.add(job.request)
        except Exception as error:  # Other requests must not suffer.
            self._fail(job, error)
            return
        self._generations[job.request] = job

    def _cancel(self, job: _Generation) -> None:
        if self._engine is not None and self._generations.pop(job.request, None):
            self._engine.cancel(job.request)
            self._count(job, time.perf_counter())

    def _decode_step(self) -> None:
        if not self._generations:
            return
        assert self._engine is not None
        self._batches.append([])  # Its forward passes are not interrupted.
        try:
            self._engine.step()
        finally:
            self._batches.pop()
        now = time.perf_counter()
        for job in list(self._generations.values()):
            self._add_delta(job, now)

    def _add_delta(self, job: _Generation, now: float) -> None:
        request = job.request
        if job.first_token is None and request.output_ids:
            job.first_token = now
            self._metrics.first_token.labels(self.name).observe(now - job.created)
        if job.stream or request.finished:
            text = request.text[job.num_characters :]
            logprobs = request.logprobs[job.num_logprobs :]
            if request.finished or text or logprobs:
                job.num_characters += len(text)
                job.num_logprobs += len(logprobs)
                delta = TextDelta(text, logprobs, request.finish_reason, len(request.output_ids))
                self._outbox.append((job, delta))
        if request.finished:
            del self._generations[request]
            self._count(job, now)

    def _count(self, job: _Generation, now: float) -> None:
        generated = len(job.request.output_ids)
        self._metrics.tokens.labels(self.name, "prompt").inc(len(job.request.prompt_ids))
        self._metrics.tokens.labels(self.name, "generated").inc(generated)
        if job.first_token is not None and generated > 1:
            seconds = (now - job.first_token) / (generated - 1)
            self._metrics.per_token.labels(self.name).observe(seconds)

    def _run_batch(self) -> None:
        """Run the oldest call with others of its key and a similar size.

        Within the forward pass of another batch it must be shorter than half of that.
        """
        most = self._batches[-1][0].size / 2 if self._batches else math.inf
        self._calls = [call for call in self._calls if not call.cancelled]
        first = next((call for call in self._calls if call.size <= most), None)
        if first is None:
            return
        alike = [
            call
            for call in self._calls
            if call.key == first.key and first.size / 2 <= call.size <= min(most, 2 * first.size)
        ]
        batch = alike[:_MAX_CALLS]
        self._calls = [call for call in self._calls if call not in batch]
        self._batches.append(batch)
        try:
            self._run_calls(batch)
        except BaseException as error:
            self._outbox += [(call, as_api_error(error)) for call in batch]
            raise
        finally:
            self._batches.pop()

    def _run_calls(self, batch: Sequence[_Call]) -> None:
        first = batch[0]
        try:
            items = [call.item for call in batch]
            options = dict(first.options)
            lm = self.lm.reading(options.pop("special_tokens", None))
            results = first.function(lm, items, **options)
            self._outbox += list(zip(batch, results, strict=True))
        except _CancelledCallError:
            return
        except Exception as error:
            if len(batch) == 1:
                self._fail(first, error)
                return
            for call in batch:  # One wrong item must not spoil the others.
                self._run_calls([call])

    def _before_pass(self, module: Any, inputs: Any) -> None:
        """Before every forward pass: of calls, what is shorter goes first."""
        if not self._batches or not (batch := self._batches[-1]):
            return
        if all(call.cancelled for call in batch):
            raise _CancelledCallError
        self._work()

    def _fail(self, job: _Job, error: Exception) -> None:
        if not isinstance(error, TriviumError | ApiError):  # Not a mistake of the client.
            _LOG.error("a request to %s failed", self.name, exc_info=error)
        self._outbox.append((job, as_api_error(error)))


def _is_last(event: Any) -> bool:
    """Whether a job ends with an event; all but the deltas of a text come alone."""
    return not isinstance(event, TextDelta) or event.finish_reason is not None
