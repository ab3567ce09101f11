"""Metrics for Prometheus, one registry per server."""

from __future__ import annotations

from collections.abc import Callable
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
        times: dict[str, Any] = {**common, "buckets": _SECONDS}
        self.requests = Counter("requests", "Answers sent.", ["route", "model", "status"], **common)
        self.request_seconds = Histogram(
            "request_seconds",
            "From a request to the last byte of its answer.",
            ["route", "model"],
            **times,
        )
        self.tokens = Counter("tokens", "Prompt and generated tokens.", ["model", "kind"], **common)
        self.first_token = Histogram(
            "time_to_first_token_seconds", "From the queue to the first token.", ["model"], **times
        )
        self.per_token = Histogram(
            "time_per_token_seconds",
            "Mean over the tokens after the first, per text.",
            ["model"],
            **times,
        )
        self.loads = Counter("model_loads", "Models loaded.", ["model", "result"], **common)
        self.engine_restarts = Counter(
            "engine_restarts", "New engines after failed steps or batches.", ["model"], **common
        )
        self._running = Gauge("running", "Texts in a slot or in a batch.", ["model"], **common)
        self._waiting = Gauge("waiting", "Texts in the queue.", ["model"], **common)

    def watch(self, model: str, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Read the load of a model whenever /metrics is read."""
        self._running.labels(model).set_function(running)
        self._waiting.labels(model).set_function(waiting)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
