"""What is malformed, too large or nonsense gets an answer in the one shape, and nothing breaks."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest
from serving import running

from trivium.serve import Limits, allowed_hosts

ROADS = {
    "completions": {"prompt": "a", "max_tokens": 2},
    "chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "embeddings": {"input": "a"},
    "score": {"text": "a"},
    "tokenize": {"text": "a"},
    "detokenize": {"ids": [5]},
}
NONSENSE: list[Any] = [
    None,
    [],
    "decoder",
    7,
    {},
    {"model": None},
    {"model": ["decoder"]},
    {"model": ""},
    {"model": "x" * 100_000},
    {"model": "../../etc/passwd"},
    {"model": "\ud800"},
]
CHANGES: list[dict[str, Any]] = [
    {"prompt": []},
    {"prompt": [[]]},
    {"prompt": [[5], "a"]},
    {"prompt": [5, "a"]},
    {"prompt": [-1]},
    {"prompt": [2**31 - 1]},
    {"prompt": [2**70]},
    {"prompt": [1.5]},
    {"prompt": [-5] * 200_000},
    {"prompt": [5, "a"] * 100_000},
    {"prompt": True},
    {"prompt": None},
    {"prompt": "\ud83d"},
    {"prompt": ["a"] * 1000},
    {"prompt": "cloudy " * 10_000},
    {"max_tokens": -1},
    {"max_tokens": 10**30},
    {"max_tokens": "5"},
    {"max_tokens": 1.5},
    {"max_tokens": True},
    {"temperature": -1},
    {"temperature": float("nan")},
    {"temperature": float("inf")},
    {"temperature": "hot"},
    {"top_p": 0},
    {"top_p": 1.5},
    {"top_k": 0},
    {"min_p": 2},
    {"n": 0},
    {"n": 10**9},
    {"best_of": 2},
    {"logprobs": 21},
    {"logprobs": -1},
    {"stop": ""},
    {"stop": [""]},
    {"stop": ["a"] * 17},
    {"stop": [7]},
    {"seed": 2**70},
    {"seed": "x"},
    {"repetition_penalty": 0},
    {"repetition_penalty": 1e-300},
    {"presence_penalty": 3},
    {"frequency_penalty": float("-inf")},
    {"logit_bias": {"x": 1}},
    {"logit_bias": {"-1": 1}},
    {"logit_bias": {"5": 1000}},
    {"logit_bias": {"999999": 1}},
    {"logit_bias": [5]},
    {"suffix": "b"},
    {"stream": "yes"},
    {"stream_options": {"include_usage": True}},
    {"stream": True, "max_tokens": 0},
    {"unknown": 1},
    {"\ud800" * 500: 1},
    {"stop": "\ud800"},
]
FINE: list[dict[str, Any]] = [
    {"prompt": ""},
    {"prompt": [""]},
    {"prompt": "\x00\x01\uffff"},
    {"seed": -(2**63)},
    {"seed": 2**63 - 1, "n": 3},
    {"temperature": 100.0},
    {"temperature": 1e-30},
    {"temperature": 5e-324, "top_p": 5e-324, "min_p": 5e-324},
    {"temperature": 1e-5, "repetition_penalty": 100.0, "logit_bias": {"5": 100}},
    {"temperature": 1e-5, "repetition_penalty": 0.01, "logit_bias": {"5": -100}},
    {"stop": []},
    {"logit_bias": {}},
    {"user": "x", "metadata": {"a": "b"}, "store": False},
    {"max_tokens": None, "stop": None, "n": None, "stream": None, "seed": None, "suffix": None},
]


def check_error(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    """That an answer is an error in the one shape; the error."""
    assert answer.status_code in statuses, answer.text[:300]
    body = answer.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert len(error["message"]) < 2000
    return error


@pytest.mark.parametrize("road", ROADS)
def test_nonsense_is_refused(served, road):
    for body in NONSENSE:
        content = json.dumps(body)
        answer = httpx.post(
            f"{served.url}/v1/{road}", content=content, headers={"Content-Type": "application/json"}
        )
        check_error(answer, 400, 404)
    assert served.post(road, {"model": "decoder", **ROADS[road]}).status_code == 200


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(change)[:40])
def test_wrong_fields_are_refused(served, change):
    body = {"model": "decoder", "prompt": "a", "max_tokens": 2, **change}
    answer = httpx.post(
        f"{served.url}/v1/completions",
        content=json.dumps(body),
        headers={"Content-Type": "application/json"},
    )
    error = check_error(answer, 400)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("change", FINE, ids=lambda change: str(change)[:40])
def test_what_is_odd_but_allowed_works(served, change):
    body = {"model": "decoder", "prompt": "a", "max_tokens": 2, **change}
    answer = served.post("completions", body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"model": "decoder", "prompt": "a"',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"NaN",
        b'{"model": "decoder", "prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "open", "no UTF-8", "cut", "deep lists", "deep objects", "NaN", "digits"],
)
def test_malformed_bodies_are_refused(served, content):
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{served.url}/v1/completions", content=content, headers=headers)
    check_error(answer, 400)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_other_kinds_of_content_are_refused(served, kind):
    """Also those that a page of another site may send without asking."""
    body = json.dumps({"model": "decoder", "prompt": "a"})
    answer = httpx.post(
        f"{served.url}/v1/completions", content=body, headers={"Content-Type": kind}
    )
    check_error(answer, 400)


def test_roads_and_methods_that_do_not_exist(served):
    check_error(served.post("complete", {}), 404)
    check_error(served.get("/v1"), 404)
    check_error(served.get("/nothing"), 404)
    check_error(served.get("/v1/models/nothing/at/all"), 404)
    for method, path in [
        ("GET", "/v1/completions"),
        ("DELETE", "/v1/tag"),
        ("PUT", "/v1/models"),
        ("POST", "/v1/models/decoder"),
        ("POST", "/healthz"),
    ]:
        answer = httpx.request(method, f"{served.url}{path}")
        check_error(answer, 405)
        assert answer.headers["Allow"]


def test_large_bodies_are_refused_before_they_are_read(paths):
    with running({"long": paths["long"]}, limits=Limits(max_body=1000)) as found:
        url = f"{found.url}/v1/completions"
        headers = {"Content-Type": "application/json"}
        error = check_error(httpx.post(url, content=b"x" * 1001, headers=headers), 413)
        assert error["code"] == "request_too_large"

        def pieces():
            for _ in range(50):
                yield b"x" * 100

        check_error(httpx.post(url, content=pieces(), headers=headers), 413)
        # A body that is announced but never sent is refused at once, too.
        with socket.create_connection(found.server.servers[0].sockets[0].getsockname()) as raw:
            raw.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n"
            )
            raw.settimeout(10)
            assert b" 413 " in raw.recv(4096)
        assert found.get("/healthz").status_code == 200


def test_who_calls_the_server_by_another_name_is_turned_away(paths):
    hosts = allowed_hosts("127.0.0.1", None)
    with running({"long": paths["long"]}, hosts=hosts) as found:
        assert found.get("/v1/models").status_code == 200
        answer = found.get("/v1/models", headers={"Host": "evil.example"})
        assert check_error(answer, 403)["code"] == "wrong_host"
        assert found.get("/v1/models", headers={"Host": "LOCALHOST:99"}).status_code == 200


def test_half_a_request_keeps_nobody_waiting(served):
    address = served.server.servers[0].sockets[0].getsockname()
    with socket.create_connection(address) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n{")
        body = {"model": "long", "prompt": "a", "max_tokens": 3}
        assert served.post("completions", body).status_code == 200
