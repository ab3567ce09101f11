"""A server of every kind of model, for the tests that change nothing about it."""

from __future__ import annotations

import time

import openai
import pytest
from serving import running, save_all

from trivium.inference.engine import Engine
from trivium.model_loading import load


@pytest.fixture(scope="session")
def paths(tmp_path_factory):
    return save_all(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def models(paths):
    """The same models, used without a server."""
    return {name: load(path, device="cpu") for name, path in paths.items()}


@pytest.fixture(scope="session")
def served(paths):
    with running(paths) as server:
        yield server


@pytest.fixture(scope="session")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def slow_steps(monkeypatch):
    """Every token takes 10 ms at least, so that a long text is not finished on a fast machine."""
    step = Engine.step

    def slow(self):
        time.sleep(0.01)
        return step(self)

    monkeypatch.setattr(Engine, "step", slow)
