"""Models are loaded again while they are served: no request is lost, and none mixes weights."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch
from serving import ENDLESS, check_error, decoder, running, wait_until
from test_serve_adapters import make_adapter

from trivium.language_model import LanguageModel
from trivium.model_loading import load

PROMPT = {"prompt": "The weather", "temperature": 0, **ENDLESS}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def folder(tmp_path):
    return decoder().save(tmp_path / "decoder")


def other_decoder(seed: int) -> LanguageModel:
    lm = decoder()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in lm.module.parameters():
            weight.add_(torch.empty_like(weight).normal_(0.0, 0.3, generator=generator))
    return lm


def generate(lm: LanguageModel, length: int) -> str:
    bias = {int(token): value for token, value in ENDLESS["logit_bias"].items()}
    options = {"max_new_tokens": length, "temperature": 0, "logit_bias": bias}
    return lm.generate(PROMPT["prompt"], **options).removeprefix(PROMPT["prompt"])


def ask(server, length: int, model: str = "decoder") -> str:
    answer = server.post("completions", {"model": model, **PROMPT, "max_tokens": length})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def reload(server, name: str = "decoder", **options) -> httpx.Response:
    return httpx.post(
        f"{server.url}/v1/models/{name}/reload", headers=JSON | options.get("headers", {})
    )


def test_running_requests_finish_with_the_earlier_weights(folder, slow_steps):
    old, new = load(folder, device="cpu"), other_decoder(5)
    expected_old, expected_new = generate(old, 150), generate(new, 7)
    assert expected_new != generate(old, 7)
    before = [thread.name for thread in threading.enumerate()].count("model decoder")
    with running({"decoder": str(folder)}) as server:
        started = threading.Event()

        def stream() -> str:
            body = {"model": "decoder", **PROMPT, "max_tokens": 150, "stream": True}
            parts = []
            with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as got:
                for line in got.iter_lines():
                    started.set()
                    if line.startswith("data: {"):
                        parts += [one["text"] for one in json.loads(line[6:])["choices"]]
            return "".join(parts)

        with ThreadPoolExecutor(2) as pool:
            running_stream = pool.submit(stream)
            assert started.wait(30)
            new.save(folder, overwrite=True)
            card = reload(server)
            assert card.status_code == 200, card.text
            assert (card.json()["id"], card.json()["loaded"]) == ("decoder", True)
            assert ask(server, 7) == expected_new
            assert not running_stream.done()
            assert running_stream.result() == expected_old
        wait_until(lambda: not server.registry._retiring)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("model decoder") == before + 1
        assert server.metric("trivium_model_loads_total", model="decoder", result="loaded") == 2


def test_a_broken_folder_leaves_the_earlier_weights_in_use(folder):
    expected = generate(load(folder, device="cpu"), 7)
    with running({"decoder": str(folder)}) as server:
        assert ask(server, 7) == expected
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        error = check_error(reload(server), 503)
        assert "cannot be loaded again, and its earlier weights stay in use" in error["message"]
        assert str(folder) not in error["message"]
        assert ask(server, 7) == expected
        assert server.get("/healthz").json()["status"] == "ok"
        decoder().save(folder, overwrite=True)
        assert reload(server).status_code == 200
        assert ask(server, 7) == expected


def test_requests_during_reloads_are_all_answered(folder):
    texts = {generate(load(folder, device="cpu"), 5)}
    new = other_decoder(7)
    texts.add(generate(new, 5))
    with running({"decoder": str(folder)}) as server, ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda _: ask(server, 5), range(60))
        new.save(folder, overwrite=True)
        assert [reload(server).status_code for _ in range(3)] == [200] * 3
        assert {*answers} <= texts


def test_a_base_is_reloaded_with_its_adapters(folder, tmp_path):
    adapter = make_adapter(decoder(), tmp_path / "one", 3, folder)
    with running({"decoder": str(folder)}, adapters={"one": ("decoder", adapter)}) as server:
        assert ask(server, 7, "one") == generate(
            load(folder, device="cpu").with_adapter(adapter, name="one"), 7
        )
        new = other_decoder(5)
        new.save(folder, overwrite=True)
        assert reload(server).status_code == 200
        assert ask(server, 7, "one") == generate(new.with_adapter(adapter, name="one"), 7)
        make_adapter(decoder(), tmp_path / "two", 4, folder)
        for file in (tmp_path / "two").iterdir():
            file.replace(tmp_path / "one" / file.name)
        assert reload(server, "one").json()["parent"] == "decoder"
        assert ask(server, 7, "one") == generate(new.with_adapter(adapter, name="one"), 7)
        wait_until(lambda: not server.registry._retiring)


def test_reloading_needs_the_key_and_a_served_folder(folder):
    with running({"decoder": str(folder), "object": decoder()}, key="secret") as server:
        check_error(reload(server), 401)
        headers = {"Authorization": "Bearer secret"}
        assert reload(server, headers=headers).status_code == 200  # was not loaded before
        error = check_error(reload(server, "missing", headers=headers), 404)
        assert "there is no model 'missing'" in error["message"]
        error = check_error(reload(server, "object", headers=headers), 400)
        assert "no folder" in error["message"]
