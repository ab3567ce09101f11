"""Loading, concurrency, cancellation, and what happens when a step or a thread fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from serving import ENDLESS, byte_tokenizer, lively, running, wait_until, with_text

from trivium.errors import TriviumError
from trivium.model_loading import load
from trivium.presets import presets
from trivium.serve import create_app
from trivium.serve.limits import Limits
from trivium.serve.replies import EventStream
from trivium.serve.server import listen, run_server

PATIENT = Limits(slots=2, max_tokens=10**6, slot_length=1013)
LONG_TEXT = {"model": "decoder", "prompt": "a", "max_tokens": 10**6, **ENDLESS}


def test_concurrent_requests_equal_sequential_ones(served, models):
    """Texts, and calls that share batches, are independent of what else is asked."""
    prompts = [f"The weather {'was ' * n}" for n in range(13)]
    requests = [
        ("completions", {"model": model, "prompt": prompt, "max_tokens": 11, "seed": n})
        for model in ("decoder", "mamba")
        for n, prompt in enumerate(prompts)
    ] + [("classify", {"model": "classifier", "text": prompt}) for prompt in prompts]

    def ask(request):
        answer = served.post(*request).json()
        if request[0] == "completions":
            return answer["choices"][0]["text"]
        return answer["data"][0]["label"]

    with ThreadPoolExecutor(39) as pool:
        together = list(pool.map(ask, requests))
    assert together == [ask(request) for request in requests]
    assert together[3] == models["decoder"].generate(
        prompts[3], max_new_tokens=11, temperature=1.0, seed=3
    )


def test_one_wrong_item_fails_alone_in_a_shared_batch(paths):
    with running({"encoder": paths["encoder"]}, preload=True) as server:
        lm = server.registry.get_model("encoder").lm
        entered, release = threading.Event(), threading.Event()
        fill_mask = lm.fill_mask

        def slow(text, top_k):
            entered.set()
            assert release.wait(30)
            return fill_mask(text, top_k)

        lm.fill_mask = slow
        texts = ["The [MASK].", "A [MASK].", "no mask", "It [MASK]."]
        with ThreadPoolExecutor(4) as pool:
            answers = pool.map(
                lambda text: server.post("fill-mask", {"model": "encoder", "text": text}), texts
            )
            assert entered.wait(30)
            wait_until(lambda: server.load_of("encoder") == 4)
            release.set()
            assert [answer.status_code for answer in answers] == [200, 200, 400, 200]


def test_calls_with_other_options_share_no_batch(paths):
    with running({"encoder": paths["encoder"]}, preload=True) as server:
        lm = server.registry.get_model("encoder").lm
        entered, release = threading.Event(), threading.Event()
        fill_mask = lm.fill_mask

        def slow(text, top_k):
            entered.set()
            assert release.wait(30)
            return fill_mask(text, top_k)

        def ask(top_k):
            body = {"model": "encoder", "text": "The [MASK].", "top_k": top_k}
            return len(server.post("fill-mask", body).json()["data"][0]["masks"][0])

        lm.fill_mask = slow
        counts = [2, 3, 2, 4, 3]
        with ThreadPoolExecutor(5) as pool:
            answers = pool.map(ask, counts)
            assert entered.wait(30)
            wait_until(lambda: server.load_of("encoder") == 5)
            release.set()
            assert list(answers) == counts


def test_models_load_when_first_needed_one_at_a_time(paths):
    """Meanwhile the server answers other requests."""
    loading, most, release = 0, 0, threading.Event()

    def slow(path):
        nonlocal loading, most
        loading += 1
        most = max(most, loading)
        assert release.wait(60)
        lm = load(path, device="cpu")
        loading -= 1
        return lm

    names = ("plain", "decoder")
    with (
        running({name: paths[name] for name in names}, load=slow) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        listed = server.get("/v1/models").json()["data"]
        assert [each["loaded"] for each in listed] == [False, False]
        assert "/v1/chat/completions" in listed[1]["endpoints"]  # known before it is loaded
        bodies = [{"model": name, "prompt": "a", "max_tokens": 1} for name in names * 2]
        answers = pool.map(lambda body: server.post("completions", body), bodies)
        wait_until(lambda: loading == 1)
        assert server.get("/healthz").json()["loaded"] == []
        assert server.get("/v1/models").status_code == 200
        release.set()
        assert [answer.status_code for answer in answers] == [200] * 4
        assert most == 1
        assert server.get("/healthz").json()["loaded"] == ["plain", "decoder"]
        assert server.metric("trivium_model_loads_total", result="loaded") == 2


def test_the_least_recently_used_model_leaves_for_another_one(paths, slow_steps):
    """Once its requests have ended; its memory is freed."""
    names = ("plain", "decoder", "encoder")
    limits = Limits(max_loaded=2, max_tokens=10**6, slot_length=1013, slots=2)
    modules: list[weakref.ref] = []

    def load_and_watch(path):
        lm = load(path, device="cpu")
        modules.append(weakref.ref(lm.module))
        return lm

    def use(name):
        body = {"model": name, "text": "a"} if name == "encoder" else {"model": name, "prompt": "a"}
        path = "tokenize" if name == "encoder" else "completions"
        assert server.post(path, body).status_code == 200
        return server.get("/healthz").json()["loaded"]

    served = {name: paths[name] for name in names}
    with (
        running(served, load=load_and_watch, limits=limits, preload=True) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        assert server.get("/healthz").json()["loaded"] == ["plain", "decoder"]
        assert use("decoder") == use("plain") == ["plain", "decoder"]
        assert use("encoder") == ["plain", "encoder"]
        assert use("decoder") == ["decoder", "encoder"]
        assert use("encoder") == ["decoder", "encoder"]
        body = {**LONG_TEXT, "max_tokens": 300, "stream": True}
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=60) as answer:
            events = answer.iter_lines()
            next(events)
            assert use("plain") == ["plain", "decoder"]  # the one that is busy stays
            encoder = pool.submit(use, "encoder")
            assert [event for event in events if event][-1] == "data: [DONE]"
        assert "encoder" in encoder.result(60)
        with ThreadPoolExecutor(6) as many:  # each waits for the other to leave
            assert list(many.map(use, names * 4))
        assert len(modules) > 6  # at least the third was loaded again
        wait_until(lambda: sum(module() is not None for module in modules) <= 2)


def test_short_requests_do_not_wait_for_the_end_of_long_ones(paths):
    """They run, and texts are generated, between the forward passes of a long request."""
    passes, release = [], threading.Event()
    with (
        running({"decoder": paths["decoder"]}, preload=True) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        forward = (lm := server.registry.get_model("decoder").lm).module.forward

        def slow(ids, **kwargs):
            passes.append(tuple(ids.shape))
            if ids.shape[1] > 100:
                assert release.wait(30)
            return forward(ids, **kwargs)

        lm.module.forward = slow
        body = {"model": "decoder", "text": ["cloudy " * 166] * 6}
        long = pool.submit(server.post, "score", body)
        wait_until(lambda: bool(passes))
        short = pool.submit(server.post, "score", {"model": "decoder", "text": "a b"})
        text = pool.submit(
            server.post, "completions", {**LONG_TEXT, "max_tokens": 3, "prompt": "a"}
        )
        wait_until(lambda: server.load_of("decoder") == 8)
        release.set()
        assert short.result(30).status_code == text.result(30).status_code == 200
        assert long.result(30).status_code == 200
        lm.module.forward = forward
        last_long = max(number for number, shape in enumerate(passes) if shape[1] > 100)
        shorter = [number for number, shape in enumerate(passes) if shape[1] < 100]
        assert len(shorter) == 4
        assert max(shorter) < last_long
        busy, alone = long.result().json()["data"][0], server.post("score", body).json()["data"][0]
        assert busy["log_probability"] == pytest.approx(alone["log_probability"], rel=1e-5)


def test_a_model_that_cannot_be_loaded_is_tried_again(paths, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(paths["plain"], folder)
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:1000])
    loads, requests, release = 0, 0, threading.Event()

    def slow(path):
        nonlocal loads
        loads += 1
        assert release.wait(30)
        return load(path, device="cpu")

    with running({"broken": str(folder)}, load=slow) as server, ThreadPoolExecutor(3) as pool:
        get_loaded = server.registry.get_loaded

        async def counted(name):
            nonlocal requests
            requests += 1
            return await get_loaded(name)

        server.registry.get_loaded = counted
        body = {"model": "broken", "prompt": "a", "max_tokens": 1}
        waiting = [pool.submit(server.post, "completions", body) for _ in range(3)]
        wait_until(lambda: requests == 3)
        release.set()
        for answer in waiting:
            assert answer.result(30).status_code == 503
            error = answer.result().json()["error"]
            assert error["code"] == "model_not_loaded"
            assert str(tmp_path) not in error["message"]
        assert loads == 1  # All that waited share one attempt.
        weights.write_bytes(good)
        assert server.post("completions", body).status_code == 200


def test_preloading_a_broken_model_is_one_error(paths, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(paths["plain"], folder)
    (folder / "model.safetensors").write_bytes(b"")
    app = create_app({"broken": str(folder)}, preload=True, playground=False)
    with (
        listen("127.0.0.1", 0) as listening,
        pytest.raises(TriviumError, match="the model 'broken' cannot be loaded"),
    ):
        run_server(app, listening, ready=lambda: None)


def test_a_client_that_leaves_frees_its_slots(paths, slow_steps):
    with running({"decoder": paths["decoder"]}, limits=PATIENT, preload=True) as server:
        for stream in (False, True):
            body = json.dumps({**LONG_TEXT, "stream": stream}).encode()
            head = (
                "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            ).encode()
            clients = [socket.create_connection(server.address) for _ in range(5)]
            for number, client in enumerate(clients):
                client.sendall(head + body)
                if stream and number < 2:
                    client.recv(1)  # The streams in the two slots have begun.
            wait_until(lambda: server.metric("trivium_waiting", model="decoder") == 3)
            assert server.metric("trivium_running", model="decoder") == 2
            for client in clients[2:]:
                client.close()
            wait_until(lambda: server.metric("trivium_waiting", model="decoder") == 0)
            for client in clients[:2]:
                client.close()
            wait_until(lambda: server.load_of("decoder") == 0)
        answer = server.post("completions", {**LONG_TEXT, "max_tokens": 3})
        assert answer.status_code == 200
        closed = {"route": "/v1/completions", "status": "499"}
        # Streams that had not begun are counted, too.
        wait_until(lambda: server.metric("trivium_requests_total", **closed) == 5 + 3)


def test_a_client_that_leaves_fails_no_other_request(paths, tmp_path):
    """Not that of an encoder-decoder either, whose cache remembers sources."""
    t5 = with_text(
        lively(presets["t5-tiny"].replace(vocab_size=300)),
        byte_tokenizer(),
        decoder_start_token_id=0,
    )
    served = {"decoder": paths["decoder"], "t5": str(t5.save(tmp_path / "t5"))}
    body = {"prompt": "The weather was", "stream": True, "max_tokens": 700, **ENDLESS}
    with running(served, limits=PATIENT, preload=True) as server, httpx.Client(timeout=60) as http:
        url = f"{server.url}/v1/completions"
        for model in served:
            ask = {**body, "model": model}
            with http.stream("POST", url, json=ask) as staying:
                lines = staying.iter_lines()
                first = next(lines)
                with http.stream("POST", url, json=ask) as leaving:
                    next(leaving.iter_lines())
                rest = [first, *lines]
            assert not [line for line in rest if "error" in line]
            assert '"finish_reason":"length"' in "".join(rest).replace(" ", "")
        wait_until(lambda: not any(map(server.load_of, served)))
        assert server.metric("trivium_engine_restarts_total") == 0


def test_a_stream_whose_client_leaves_before_its_first_line_is_closed():
    closed = False

    async def generate():
        nonlocal closed
        try:
            for number in range(3):
                yield {"number": number}
        finally:
            closed = True

    async def send(message):
        raise ConnectionResetError

    async def stream():
        events = generate()
        response = EventStream(await anext(events), events, deadline=math.inf)
        with pytest.raises(ConnectionResetError):
            await response.stream_response(send)
        assert closed

    asyncio.run(stream())


def test_a_call_that_times_out_stops_before_its_next_forward_pass(paths):
    limits = Limits(timeout=0.5)
    with running({"translator": paths["translator"]}, limits=limits, preload=True) as server:
        lm, passes = server.registry.get_model("translator").lm, 0
        forward = lm.module.forward

        def slow(*args, **kwargs):
            nonlocal passes
            passes += 1
            time.sleep(0.1)
            return forward(*args, **kwargs)

        lm.module.forward = slow
        body = {"model": "translator", "text": "The weather", "max_tokens": 50}
        assert server.post("translate", body).status_code == 504
        wait_until(lambda: server.load_of("translator") == 0)
        assert passes < 10
        lm.module.forward = forward
        assert server.post("translate", {**body, "max_tokens": 2}).status_code == 200


def test_a_failed_step_ends_its_texts_and_not_the_server(paths, caplog):
    with running({"plain": paths["plain"]}, preload=True) as server:
        body = {"model": "plain", "prompt": "a", "max_tokens": 3}
        for number, error in enumerate((RuntimeError("no memory left"), SystemExit()), 1):
            assert server.post("completions", body).status_code == 200

            def fail(error=error):
                raise error

            server.registry.get_model("plain").thread._engine.step = fail
            answer = server.post("completions", body)
            assert answer.status_code == 500
            assert "no memory" not in answer.text
            assert server.post("completions", body).status_code == 200
            assert server.metric("trivium_engine_restarts_total", model="plain") == number
        assert server.get("/healthz").status_code == 200
    assert "no memory left" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_call_waits_for_a_thread_that_failed(paths):
    with (
        running({"encoder": paths["encoder"]}, preload=True) as server,
        ThreadPoolExecutor(3) as pool,
    ):
        model = server.registry.get_model("encoder")
        entered, release = threading.Event(), threading.Event()
        fill_mask = model.lm.fill_mask

        def fail(text, top_k):
            entered.set()
            assert release.wait(30)
            raise SystemExit

        def run_calls():
            """Two calls in a batch that fails, and one that waits for the next batch."""
            entered.clear()
            release.clear()
            masked = {"model": "encoder", "text": ["The [MASK].", "A [MASK]."]}
            first = pool.submit(server.post, "fill-mask", masked)
            assert entered.wait(30)
            second = pool.submit(server.post, "embeddings", {"model": "encoder", "input": "a"})
            wait_until(lambda: server.load_of("encoder") == 3)
            release.set()
            return first.result(10).status_code, second.result(10).status_code

        model.lm.fill_mask = fail
        assert run_calls() == (500, 200)
        assert server.get("/healthz").status_code == 200

        def end(error):
            raise error

        model.thread._fail_generations = end
        assert run_calls() == (503, 503)
        health = server.get("/healthz")
        assert (health.status_code, health.json()["failed"]) == (503, ["encoder"])
        model.lm.fill_mask = fill_mask
        answer = server.post("fill-mask", {"model": "encoder", "text": "The [MASK]."})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_stopped")


def test_log_and_metrics(paths, caplog):
    caplog.set_level(logging.INFO, "trivium")
    with running({"decoder": paths["decoder"]}) as server:
        body = {**LONG_TEXT, "prompt": "The weather", "max_tokens": 3}
        answer = server.post("completions", body, headers={"X-Request-ID": "mine-7"})
        assert answer.headers["X-Request-ID"] == "mine-7"
        answer = server.post("nothing%0Aelse", {}, headers={"X-Request-ID": "a b"})
        own_id = answer.headers["X-Request-ID"]
        assert len(own_id) == 32
        server.post("completions", {**body, "max_tokens": -1})
        server.post("tag", {"model": "decoder", "text": "a"})
        server.get("/healthz")
        labels = {"model": "decoder"}
        read = len(server.registry.get_model("decoder").lm.tokenizer.encode("The weather").ids)
        assert server.metric("trivium_tokens_total", kind="prompt", **labels) == read
        assert server.metric("trivium_tokens_total", kind="generated", **labels) == 3
        assert server.metric("trivium_time_to_first_token_seconds_count", **labels) == 1
        assert server.metric("trivium_time_per_token_seconds_count", **labels) == 1
        for route, status, model, count in (
            ("completions", "200", "decoder", 1),
            ("completions", "400", "", 1),
            ("tag", "400", "decoder", 1),
        ):
            series = {"route": f"/v1/{route}", "status": status, "model": model}
            assert server.metric("trivium_requests_total", **series) == count
    first, asked, unknown, *_ = caplog.records
    assert "decoder loaded in" in first.getMessage()
    assert (asked.client, asked.model, asked.prompt_tokens) == ("127.0.0.1", "decoder", read)
    assert asked.getMessage().startswith("127.0.0.1 mine-7 POST /v1/completions 200 ")
    assert asked.getMessage().endswith(f"decoder {read}+3 tokens")
    assert f"{own_id} POST /v1/nothing?else 404" in unknown.getMessage()


def test_the_time_of_a_request_ends_with_the_last_byte_that_is_sent(paths):
    body = json.dumps({"model": "plain", "text": "a b " * 75_000}).encode()  # an answer of 10 MB
    head = (
        "POST /v1/tokenize HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    with (
        running({"plain": paths["plain"]}, preload=True) as server,
        socket.create_connection(server.address) as client,
    ):
        client.sendall(head + body)
        answer = client.recv(1000)
        time.sleep(0.2)
        requests = {"route": "/v1/tokenize", "status": "200"}
        assert server.metric("trivium_requests_total", **requests) == 0
        while not answer.endswith(b"}"):
            answer = client.recv(2**20)
        wait_until(lambda: server.metric("trivium_requests_total", **requests) == 1)


@pytest.mark.slow
def test_a_stopped_server_waits_for_its_grace_alone(paths):
    limits = Limits(grace=1, timeout=20, max_tokens=10**6)
    body = {"model": "decoder", "prompt": "a", "max_tokens": 10**6, "stream": True, **ENDLESS}
    with running({"decoder": paths["decoder"]}, limits=limits, preload=True) as server:
        module = server.registry.get_model("decoder").lm.module
        module.register_forward_pre_hook(lambda *_: time.sleep(0.2))
        url, lines = f"{server.url}/v1/completions", []
        with (
            contextlib.suppress(httpx.TransportError),
            httpx.stream("POST", url, json=body, timeout=60) as answer,
        ):
            for line in answer.iter_lines():
                lines.append(line)
                server.server.should_exit = True
    assert lines
    assert not any("[DONE]" in line or "timeout" in line for line in lines)


def refuses_connections(url):
    try:
        httpx.get(f"{url}/healthz", timeout=60)
    except httpx.ConnectError:
        return True
    except httpx.TransportError:  # accepted, and closed with the socket
        return False
    return False


def test_a_stopped_server_finishes_what_runs(paths):
    command = [sys.executable, "-m", "trivium", "serve", f"decoder={paths['decoder']}"]
    program = subprocess.Popen(
        [*command, "--port", "0", "--no-playground", "--grace", "100"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert program.stderr.readline() == "starting ...\n"
        line = program.stderr.readline()
        assert " serves decoder" in line, line
        url, body = line.split()[0], {**LONG_TEXT, "max_tokens": 1000, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            events = answer.iter_lines()
            next(events)
            program.send_signal(signal.SIGTERM)
            wait_until(lambda: refuses_connections(url))
            assert [event for event in events if event][-1] == "data: [DONE]"
        assert program.wait(60) == 0
    finally:
        program.kill()
        program.communicate()
