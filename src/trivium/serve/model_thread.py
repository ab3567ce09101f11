"""The thread that runs a model: decode steps of the engine and, between them, batched calls.

The event loop passes jobs to the thread through a queue and may cancel them. The thread sends
events for all jobs back to the event loop once per step, with `call_soon_threadsafe`.
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
from trivium.serve.api_error import ApiError, to_api_error
from trivium.serve.limits import Limits
from trivium.serve.metrics import ServerMetrics

# The maximum number of calls in a batch.
_MAX_CALLS = 16
_MIN_SIZE = 512  # Requests with fewer tokens are treated as equally short.

_LOG = logging.getLogger(__name__)

Function = Callable[..., Sequence[Any]]


class TextDelta(NamedTuple):
    """The text that was generated for a request since the request's last delta.

    Args:
        text: the new text.
        logprobs: the log-probabilities of the new tokens, if they were requested.
        finish_reason: the reason why the text ended; None before the end.
        num_tokens: the number of tokens generated for the request so far.
    """

    text: str
    logprobs: Sequence[TokenLogprob]
    finish_reason: FinishReason | None
    num_tokens: int


@dataclass(eq=False, kw_only=True)
class _Job:
    """A unit of work in the queue: a text to generate, or one item of a function call.

    Each job can be cancelled separately.
    """

    cancelled: bool = False


@dataclass(eq=False, kw_only=True)
class _Call(_Job):
    """A function call for one item. Calls with the same `batch_key` can run in one batch.

    Args:
        function: the function to call.
        options: the keyword arguments of the function.
        item: the item.
        size: the number of tokens of the whole request that contains the item.
    """

    function: Function
    options: dict[str, Any]
    item: Any
    size: int

    @property
    def batch_key(self) -> Hashable:
        """The function and its options, which are the same for all calls of a batch."""
        return self.function, tuple(sorted(self.options.items()))


@dataclass(eq=False, kw_only=True)
class _Generation(_Job):
    """A text that the engine generates.

    Args:
        request: the request to the engine.
        stream: whether new text is sent after every step.
        num_characters: the number of characters sent to the event loop so far.
        num_logprobs: the number of log-probabilities sent to the event loop so far.
        created: the time of creation in seconds.
        first_token: the time of the first generated token in seconds, or None before it.
    """

    request: GenerationRequest
    stream: bool
    num_characters: int = 0
    num_logprobs: int = 0
    created: float = field(default_factory=time.perf_counter)
    first_token: float | None = None


_Events = asyncio.Queue[tuple[_Job, Any]]
"""The queue of events for the jobs of one request."""


class _CancelledCallError(Exception):
    """Raised before a forward pass to end a batch in which all calls have been cancelled."""


class ModelThread:
    """A thread that owns a model and its engine. No other thread runs the model.

    There are two kinds of jobs: texts to generate, which the engine batches, and calls of a
    function (such as classification or embedding) for one item each. If a decode step fails, all
    texts of the model end with an error, including texts that wait for a slot. The next text gets a
    new engine.

    Long requests do not block short ones. Before every forward pass of a batch of calls, the engine
    decodes one token of each active text, and calls of less than half the size run first.

    Args:
        name: the id of the model, for metrics and messages.
        lm: the model. Its module must not be run by other threads; its tokenizers may be shared.
        limits: the limits of the server.
        metrics: the metrics of the server.
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
        lm.module.register_forward_pre_hook(self._before_forward)
        self._thread = threading.Thread(target=self._run_loop, name=f"model {name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running. If not, new jobs are rejected."""
        return not self._ended

    @property
    def num_running(self) -> int:
        """The number of texts that are being generated and of items in running batches."""
        return (self._engine.num_active if self._engine else 0) + sum(map(len, self._batches))

    @property
    def is_busy(self) -> bool:
        """Whether any job is unfinished."""
        return bool(self._open)

    @property
    def num_waiting(self) -> int:
        """The number of texts and items that wait in the queue."""
        return max(0, len(self._open) - self.num_running)

    def stop(self) -> None:
        """Cancel all jobs and end the thread.

        Blocks for up to 5 seconds until the thread has ended, so the event loop should call this
        method only if the thread is idle.
        """
        self._stopped = True
        for job in list(self._open):
            job.cancelled = True
        self._inbox.put(None)
        self._thread.join(timeout=5.0)

    def _check_queue(self, num_jobs: int) -> None:
        """Raise ApiError if `num_jobs` new jobs do not fit into the queue.

        The status is 429 if the queue is full, and 503 if the thread has ended.
        """
        if not self.is_alive:
            raise self._make_stopped_error()
        if len(self._open) + num_jobs > self._limits.slots + self._limits.max_queue:
            raise ApiError(
                429,
                f"the model {self.name!r} has {self.num_waiting} texts waiting, and the queue "
                f"holds {self._limits.max_queue}: send the request again later.",
                code="queue_full",
                headers={"Retry-After": "1"},
            )

    async def call(
        self, function: Function, items: Sequence[Any], num_tokens: int, **options: Any
    ) -> list[Any]:
        """Run `function(lm, items, **options)` in the model's thread. Returns one result per item.

        Items of several requests can run in one batch if the function and the options are equal and
        the requests have a similar number of tokens. Cancelling the awaiting task ends the work
        before its next forward pass. Raises any error of the function, and ApiError if the queue is
        full.

        Args:
            function: receives the model, a list of items and the options.
            items: the items.
            num_tokens: the number of tokens of all items.
            options: passed to the function, except `special_tokens`, which is applied to the model
                with `TextModel.reading`.
        """
        size = max(num_tokens, _MIN_SIZE)
        jobs = [_Call(function=function, options=options, item=item, size=size) for item in items]
        async with contextlib.aclosing(self._submit_jobs(jobs)) as results:
            by_index = {index: result async for index, result in results}
        return [by_index[index] for index in range(len(jobs))]

    def generate(
        self, requests: Sequence[GenerationRequest], *, stream: bool
    ) -> AsyncGenerator[tuple[int, TextDelta]]:
        """Generate texts. Yields the index of a request and the new text of this request.

        If `stream` is False, there is only one delta per request, with the complete text. Closing
        the generator cancels unfinished texts. Raises the errors of `Engine.add`, and ApiError if
        the queue is full.
        """
        return self._submit_jobs([_Generation(request=each, stream=stream) for each in requests])

    async def _submit_jobs(self, jobs: Sequence[_Job]) -> AsyncGenerator[tuple[int, Any]]:
        """Submit jobs to the thread.

        Yields the index of a job and its next event, until all jobs end.

        When the generator is closed, unfinished jobs are cancelled.
        """
        self._check_queue(len(jobs))
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
                unfinished -= _is_final_event(event)
                yield indices[job], event
        finally:
            for job in self._open.keys() & indices.keys():
                del self._open[job]
                job.cancelled = True
                self._inbox.put(job)

    def _deliver_events(self, outbox: Sequence[tuple[_Job, Any]]) -> None:
        """Put events into the queues of their jobs. Events of cancelled jobs are dropped.

        `outbox` contains pairs of a job and its event. Runs in the event loop.
        """
        for job, event in outbox:
            if (events := self._open.get(job)) is not None:
                events.put_nowait((job, event))
                if _is_final_event(event):
                    del self._open[job]

    def _fail_open_jobs(self) -> None:
        """End all open jobs with an error, because the model's thread has stopped."""
        self._deliver_events([(job, self._make_stopped_error()) for job in self._open])

    def _make_stopped_error(self) -> ApiError:
        """Return the error (503) for requests after the thread has ended."""
        message = f"the model {self.name!r} has stopped: restart the server."
        return ApiError(503, message, code="model_stopped")

    # The methods above, except `stop`, run in the event loop. The methods below run in the thread.

    def _run_loop(self) -> None:
        """Process jobs until the thread is stopped. This is the main function of the thread."""
        try:
            while not self._stopped:
                self._run_iteration()
        finally:  # A job that was admitted before the next line is ended by the line after it.
            self._ended = True
            self._run_in_loop(self._fail_open_jobs)

    def _run_iteration(self) -> None:
        """Receive jobs, run one batch of calls and one decode step, and deliver the events."""
        try:
            self._receive_jobs()
            self._run_batch()
            self._decode_step()
        except BaseException as error:  # including SystemExit, which must not end the thread
            self._fail_generations(error)
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            self._run_in_loop(self._deliver_events, outbox)

    def _run_in_loop(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function in the event loop, unless the event loop has been closed."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop may have been closed.
                self._loop.call_soon_threadsafe(function, *args)

    def _fail_generations(self, error: BaseException) -> None:
        """End all generated texts with an error and discard the engine, because it may be broken.

        The next text gets a new engine.
        """
        self._metrics.engine_restarts.labels(self.name).inc()
        _LOG.error("%s failed, and starts with a new engine", self.name, exc_info=error)
        for job in self._generations.values():
            self._outbox.append((job, to_api_error(error)))
        self._generations.clear()
        self._engine = None

    def _receive_jobs(self) -> None:
        """Receive new jobs from the queue. If the thread is idle, wait for a job.

        A job that is received a second time has been cancelled.
        """
        idle = not (self._calls or self._generations or self._batches)
        with contextlib.suppress(queue.Empty):
            while not self._stopped:
                job = self._inbox.get(block=idle)
                idle = False
                if isinstance(job, _Call):  # `_run_batch` skips cancelled calls
                    self._calls.append(job)
                elif isinstance(job, _Generation):
                    (self._cancel_generation if job.cancelled else self._add_to_engine)(job)

    def _add_to_engine(self, job: _Generation) -> None:
        """Add a text to the engine. If the engine rejects the text, end its job with the error."""
        try:
            if self._engine is None:
                slots, length = self._limits.slots, self._limits.slot_length
                self._engine = self.lm.engine(slots=slots, slot_length=length)
            self._engine.add(job.request)
        except Exception as error:  # must not affect other requests
            self._fail_job(job, error)
            return
        self._generations[job.request] = job

    def _cancel_generation(self, job: _Generation) -> None:
        """Remove an unfinished text from the engine, because its job has been cancelled."""
        if self._engine is not None and self._generations.pop(job.request, None):
            self._engine.cancel(job.request)
            self._record_metrics(job, time.perf_counter())

    def _decode_step(self) -> None:
        """Run one decode step of the engine and collect the new text of every job."""
        if not self._generations:
            return
        assert self._engine is not None
        self._batches.append([])  # An empty batch: its forward passes are not interrupted.
        try:
            self._engine.step()
        finally:
            self._batches.pop()
        now = time.perf_counter()
        for job in list(self._generations.values()):
            self._emit_delta(job, now)

    def _emit_delta(self, job: _Generation, now: float) -> None:
        """Add the new text of a job to the outbox, and end the job if its text is complete.

        `now` is the time in seconds.
        """
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
            self._record_metrics(job, now)

    def _record_metrics(self, job: _Generation, now: float) -> None:
        """Record the token counts and the speed of a finished or cancelled text in the metrics.

        `now` is the time in seconds.
        """
        generated = len(job.request.output_ids)
        self._metrics.tokens.labels(self.name, "prompt").inc(len(job.request.prompt_ids))
        self._metrics.tokens.labels(self.name, "generated").inc(generated)
        if job.first_token is not None and generated > 1:
            seconds = (now - job.first_token) / (generated - 1)
            self._metrics.per_token.labels(self.name).observe(seconds)

    def _run_batch(self) -> None:
        """Run the oldest call, batched with other calls of the same key and a similar size.

        If another batch is interrupted for this one, only calls of at most half its size run.
        """
        most = self._batches[-1][0].size / 2 if self._batches else math.inf
        self._calls = [call for call in self._calls if not call.cancelled]
        first = next((call for call in self._calls if call.size <= most), None)
        if first is None:
            return
        alike = [
            call
            for call in self._calls
            if call.batch_key == first.batch_key
            and first.size / 2 <= call.size <= min(most, 2 * first.size)
        ]
        batch = alike[:_MAX_CALLS]
        self._calls = [call for call in self._calls if call not in batch]
        self._batches.append(batch)
        try:
            self._run_calls(batch)
        except BaseException as error:
            self._outbox += [(call, to_api_error(error)) for call in batch]
            raise
        finally:
            self._batches.pop()

    def _run_calls(self, batch: Sequence[_Call]) -> None:
        """Run a batch of calls with the same key. If the batch fails, run each call separately."""
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
                self._fail_job(first, error)
                return
            for call in batch:  # One invalid item must not make the other calls fail.
                self._run_calls([call])

    def _before_forward(self, module: Any, inputs: Any) -> None:
        """Interrupt a running batch before each of its forward passes, to run shorter work first.

        Registered as a forward pre-hook of the model. Raises _CancelledCallError if all calls of
        the batch have been cancelled.
        """
        if not self._batches or not (batch := self._batches[-1]):
            return
        if all(call.cancelled for call in batch):
            raise _CancelledCallError
        self._run_iteration()

    def _fail_job(self, job: _Job, error: Exception) -> None:
        """End a job with an error. Unexpected errors are also logged."""
        if not isinstance(error, TriviumError | ApiError):  # Not a mistake of the client.
            _LOG.error("a request to %s failed", self.name, exc_info=error)
        self._outbox.append((job, to_api_error(error)))


def _is_final_event(event: Any) -> bool:
    """Return whether an event is the last event of its job.

    Only deltas of unfinished texts are followed by further events.
    """
    return not isinstance(event, TextDelta) or event.finish_reason is not None
