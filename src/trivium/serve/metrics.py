"""Prometheus metrics of a server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

# Bucket limits in seconds, from one token of a tiny model to a request that nearly times out.
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class ServerMetrics:
    """The Prometheus metrics of one server: counters, gauges and latency histograms."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        common: dict[str, Any] = {"namespace": "trivium", "registry": self.registry}
        counter, gauge = partial(Counter, **common), partial(Gauge, **common)
        seconds = partial(Histogram, **common, buckets=_SECONDS)
        self.requests = counter("requests", "Responses sent.", ["route", "model", "status"])
        spent = "Seconds from the start of a request to the last byte of its response."
        self.request_seconds = seconds("request_seconds", spent, ["route", "model"])
        self.tokens = counter("tokens", "Prompt and generated tokens.", ["model", "kind"])
        until = "Seconds from joining the queue to the first token."
        self.first_token = seconds("time_to_first_token_seconds", until, ["model"])
        mean = "Seconds per token, as the mean over the tokens of a text after the first one."
        self.per_token = seconds("time_per_token_seconds", mean, ["model"])
        self.loads = counter("model_loads", "Attempts to load a model.", ["model", "result"])
        restarts = "Restarts of the engine after a failed step or batch."
        self.engine_restarts = counter("engine_restarts", restarts, ["model"])
        self._running = gauge("running", "Texts in a slot or batch.", ["model"])
        self._waiting = gauge("waiting", "Texts in the queue.", ["model"])

    def set_load_gauges(
        self, model: str, running: Callable[[], int], waiting: Callable[[], int]
    ) -> None:
        """Register functions that measure the load of a model.

        They are called when /metrics is requested.

        Args:
            model: the id of the model.
            running: returns the number of texts in a slot or batch.
            waiting: returns the number of texts in the queue.
        """
        self._running.labels(model).set_function(running)
        self._waiting.labels(model).set_function(waiting)

    def format_text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)
