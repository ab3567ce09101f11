"""What Prometheus is told; every app counts for itself."""

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

# Seconds: from a token of a tiny model to a request that runs into its time limit.
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Metrics:
    """Counters and times of one server, in a registry of its own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.requests = Counter(
            "trivium_requests", "Answers given.", ("route", "status"), registry=registry
        )
        self.request_seconds = Histogram(
            "trivium_request_seconds",
            "From a request to the end of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.tokens = Counter(
            "trivium_tokens", "Tokens read and written.", ("model", "kind"), registry=registry
        )
        self.first_token = Histogram(
            "trivium_time_to_first_token_seconds",
            "From a request to the first token of a text, waiting included.",
            ("model",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.each_token = Histogram(
            "trivium_time_per_token_seconds",
            "Of the tokens after the first, the mean of each text.",
            ("model",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.loads = Counter(
            "trivium_model_loads", "Models loaded.", ("model", "result"), registry=registry
        )
        self._running = Gauge(
            "trivium_running", "Texts and questions at work.", ("model",), registry=registry
        )
        self._waiting = Gauge(
            "trivium_waiting", "Texts and questions that wait.", ("model",), registry=registry
        )

    def watch(self, model: str, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Ask for the load of a model whenever somebody looks."""
        self._running.labels(model).set_function(running)
        self._waiting.labels(model).set_function(waiting)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)
