"""Metrics for Prometheus, one registry per server."""

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

# Seconds: from one token of a tiny model to a request that reaches its time limit.
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class ServerMetrics:
    """Counters and times of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        common: dict[str, Any] = {"namespace": "trivium", "registry": self.registry}
        counter, gauge = partial(Counter, **common), partial(Gauge, **common)
        seconds = partial(Histogram, **common, buckets=_SECONDS)
        self.requests = counter("requests", "Answers sent.", ["route", "model", "status"])
        spent = "From a request to the last byte of its answer."
        self.request_seconds = seconds("request_seconds", spent, ["route", "model"])
        self.tokens = counter("tokens", "Prompt and generated tokens.", ["model", "kind"])
        until = "From the queue to the first token."
        self.first_token = seconds("time_to_first_token_seconds", until, ["model"])
        mean = "Mean over the tokens after the first, per text."
        self.per_token = seconds("time_per_token_seconds", mean, ["model"])
        self.loads = counter("model_loads", "Models loaded.", ["model", "result"])
        restarts = "New engines after failed steps or batches."
        self.engine_restarts = counter("engine_restarts", restarts, ["model"])
        self._running = gauge("running", "Texts in a slot or in a batch.", ["model"])
        self._waiting = gauge("waiting", "Texts in the queue.", ["model"])

    def watch(self, model: str, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Read the load of a model whenever /metrics is read."""
        self._running.labels(model).set_function(running)
        self._waiting.labels(model).set_function(waiting)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
