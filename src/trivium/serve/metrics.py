"""Metrics for Prometheus, one registry per server."""

from __future__ import annotations

from collections.abc import Callable

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
        self.requests = self._counter("requests", "Answers sent.", "route", "status")
        self.request_seconds = self._histogram(
            "request_seconds", "From a request to the end of its answer.", "route"
        )
        self.tokens = self._counter("tokens", "Prompt and generated tokens.", "model", "kind")
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "From a request to its first token.", "model"
        )
        self.per_token = self._histogram(
            "time_per_token_seconds", "Mean over the tokens after the first, per text.", "model"
        )
        self.loads = self._counter("model_loads", "Models loaded.", "model", "result")
        self.restarts = self._counter("scheduler_restarts", "Failed decode steps.", "model")
        self._running = self._gauge("running", "Texts in a slot or in a batch.")
        self._waiting = self._gauge("waiting", "Texts in the queue.")

    def watch(self, model: str, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Read the load of a model whenever /metrics is read."""
        self._running.labels(model).set_function(running)
        self._waiting.labels(model).set_function(waiting)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"trivium_{name}", description, labels, registry=self.registry)

    def _gauge(self, name: str, description: str) -> Gauge:
        return Gauge(f"trivium_{name}", description, ("model",), registry=self.registry)

    def _histogram(self, name: str, description: str, *labels: str) -> Histogram:
        return Histogram(
            f"trivium_{name}", description, labels, buckets=_SECONDS, registry=self.registry
        )
