"""How a server lives: loading, clients that go away, time limits, its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from serving import ENDLESS, Running, running

from trivium.language_model import load
from trivium.serve import Limits

HUGE = Limits(rows=2, max_tokens=10**6)
ENDLESS_TEXT = {"model": "long", "prompt": "a", "max_tokens": 10**6, **ENDLESS}


def busy(found: Running) -> float:
    return found.metric("trivium_running", model="long") + found.metric(
        "trivium_waiting", model="long"
    )


def test_models_are_loaded_when_first_asked_for_and_one_at_a_time(paths):
    going_on, most, go = 0, 0, threading.Event()

    def slow(path):
        nonlocal going_on, most
        going_on += 1
        most = max(most, going_on)
        assert go.wait(60)
        found = load(path, packed=True)
        going_on -= 1
        return found

    with (
        running({name: paths[name] for name in ("long", "decoder")}, load=slow) as found,
        ThreadPoolExecutor(4) as pool,
    ):
        assert found.get("/healthz").json()["loaded"] == []
        listed = found.get("/v1/models").json()["data"]
        assert [each["loaded"] for each in listed] == [False, False]
        assert "chat" in listed[1]["verbs"]  # known before it is loaded

        bodies = [{"model": name, "prompt": "a", "max_tokens": 1} for name in found.names * 2]
        answers = pool.map(lambda body: found.post("completions", body), bodies)
        found.until(lambda: going_on == 1)
        assert found.get("/healthz").json()["loaded"] == []  # it does not wait for what is loaded
        go.set()
        assert [answer.status_code for answer in answers] == [200] * 4
        assert most == 1
        assert found.get("/healthz").json()["loaded"] == ["long", "decoder"]
        assert found.metric("trivium_model_loads_total", result="loaded") == 2


def test_a_model_that_cannot_be_loaded_is_told_and_tried_again(paths, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(paths["long"], folder)
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:1000])
    with running({"broken": str(folder)}) as found:
        body = {"model": "broken", "prompt": "a", "max_tokens": 1}
        answer = found.post("completions", body)
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert error["code"] == "model_not_loaded"
        assert str(tmp_path) not in error["message"]
        weights.write_bytes(good)
        assert found.post("completions", body).status_code == 200


def test_preloading_loads_before_the_first_request(paths):
    with running({"long": paths["long"]}, preload=True) as found:
        assert found.get("/healthz").json()["loaded"] == ["long"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_place(paths, stream):
    with running({"long": paths["long"]}, limits=HUGE, preload=True) as found:
        body = json.dumps({**ENDLESS_TEXT, "stream": stream}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        address = found.server.servers[0].sockets[0].getsockname()
        for _ in range(3):
            clients = [socket.create_connection(address) for _ in range(5)]
            for client in clients:
                client.sendall(head + body)
            found.until(lambda: busy(found) == 5)
            assert found.metric("trivium_running", model="long") == 2
            for client in clients:
                client.close()
            found.until(lambda: busy(found) == 0)
        answer = found.post("completions", {"model": "long", "prompt": "a", "max_tokens": 3})
        assert answer.status_code == 200
        gone = found.metric("trivium_requests_total", route="/v1/completions", status="499")
        assert gone == (0 if stream else 15)


def test_time_that_is_up_gives_504_and_ends_streams_with_an_error(paths):
    limits = Limits(rows=2, max_tokens=10**6, timeout=2.0)
    with running({"long": paths["long"]}, limits=limits, preload=True) as found:
        answer = found.post("completions", ENDLESS_TEXT)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "timeout"
        with openai.OpenAI(base_url=f"{found.url}/v1", api_key="none", max_retries=0) as client:
            stream = client.completions.create(
                model="long", prompt="a", max_tokens=10**6, stream=True, extra_body=ENDLESS
            )
            with pytest.raises(openai.APIError, match="no whole answer within the 2 seconds"):
                list(stream)
        found.until(lambda: busy(found) == 0)


def test_a_step_that_fails_ends_its_texts_and_not_the_server(paths, capfd):
    with running({"long": paths["long"]}, preload=True) as found:
        served = found.gate.models.find("long")
        engine = served.worker._engine

        def fail():
            raise RuntimeError("no memory left")

        engine.step = fail
        body = {"model": "long", "prompt": "a", "max_tokens": 3}
        answer = found.post("completions", body)
        assert answer.status_code == 500
        assert "no memory" not in answer.text
        assert found.post("completions", body).status_code == 200
    assert "no memory left" in capfd.readouterr().err


def test_lines_of_the_log(paths):
    lines = []
    with running({"long": paths["long"]}, say=lines.append) as found:
        found.post("completions", {**ENDLESS_TEXT, "prompt": "The weather", "max_tokens": 3})
        found.post("nothing%0Aelse", {})
        found.get("/healthz")
    assert "long loaded in" in lines[0]
    assert "POST /v1/completions 200" in lines[1]
    assert lines[1].endswith("long 5+3 tokens")
    assert "POST /v1/nothing?else 404" in lines[2]
    assert len(lines) == 3


def test_metrics_are_those_of_one_server(paths):
    with running({"long": paths["long"]}) as first, running({"long": paths["long"]}) as second:
        first.post("completions", {**ENDLESS_TEXT, "prompt": "The weather", "max_tokens": 3})
        labels = {"model": "long"}
        assert first.metric("trivium_tokens_total", kind="prompt", **labels) == 5
        assert first.metric("trivium_tokens_total", kind="generated", **labels) == 3
        assert first.metric("trivium_time_to_first_token_seconds_count", **labels) == 1
        assert first.metric("trivium_time_per_token_seconds_count", **labels) == 1
        route = {"route": "/v1/completions", "status": "200"}
        assert first.metric("trivium_requests_total", **route) == 1
        assert second.metric("trivium_requests_total", **route) == 0


def start(paths: dict[str, str], *options: str) -> tuple[subprocess.Popen, str]:
    """`trivium serve` as a program, and its address."""
    command = [sys.executable, "-m", "trivium", "serve", f"long={paths['long']}", "--port", "0"]
    program = subprocess.Popen(
        [*command, "--no-playground", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert program.stderr is not None
    line = program.stderr.readline()
    assert " serves long" in line, line
    return program, line.split()[0]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_stopped_finishes_what_runs(paths, number):
    program, url = start(paths, "--grace", "100")
    try:
        texts = []
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            options = {"model": "long", "prompt": "a", "temperature": 0, "extra_body": ENDLESS}
            stream = iter(client.completions.create(stream=True, max_tokens=200, **options))
            texts.append(next(stream).choices[0].text)
            program.send_signal(number)
            time.sleep(0.2)
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{url}/healthz")
            parts = list(stream)
            texts += [part.choices[0].text for part in parts]
            assert parts[-1].choices[0].finish_reason == "length"
        assert len("".join(texts)) > 100
        assert program.wait(60) == 0
    finally:
        program.kill()
        program.communicate()


@pytest.mark.slow
def test_what_takes_too_long_does_not_keep_a_server_from_ending(paths):
    program, url = start(paths, "--grace", "1", "--max-tokens", "1000000")
    try:
        with httpx.stream(
            "POST", f"{url}/v1/completions", json={**ENDLESS_TEXT, "stream": True}, timeout=30
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            program.send_signal(signal.SIGTERM)
            assert program.wait(60) == 0
    finally:
        program.kill()
        program.communicate()
