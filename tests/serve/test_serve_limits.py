"""Malformed, excessive and cross-site requests each have their status and break nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from generating_models import letters
from serving import ENDLESS, check_error, running, wait_until
from small_models import SPECS

from trivium.errors import TriviumError
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.serve import create_app
from trivium.serve.api_error import ApiError
from trivium.serve.chat_schemas import ChatMessage, ChatRequest
from trivium.serve.endpoints import ENDPOINTS, ScoreRequest, score
from trivium.serve.limits import Limits
from trivium.serve.metrics import ServerMetrics
from trivium.serve.models import ServedModel, parse_model_arguments
from trivium.serve.schemas import CompletionRequest, StreamOptions
from trivium.serve.server import get_allowed_hosts, listen

NONSENSE: list[Any] = [
    None,
    [],
    7,
    {},
    {"model": None},
    {"model": ["decoder"]},
    {"model": "x" * 100_000},
    {"model": "../../etc/passwd"},
    {"model": "\ud800"},
]
WRONG: list[dict[str, Any]] = [
    {"prompt": []},
    {"prompt": [[]]},
    {"prompt": [[5], "a"]},
    {"prompt": [-1]},
    {"prompt": [2**70]},
    {"prompt": [1.5]},
    {"prompt": [5, "a"] * 100_000},
    {"prompt": True},
    {"prompt": "\ud83d"},
    {"prompt": ["a"] * 1000},
    {"prompt": "cloudy " * 10_000},
    {"max_tokens": -1},
    {"max_tokens": "5"},
    {"max_tokens": True},
    {"temperature": -1},
    {"temperature": float("nan")},
    {"temperature": float("inf")},
    {"top_p": 0},
    {"top_p": 1.5},
    {"top_k": 0},
    {"min_p": 2},
    {"n": 0},
    {"n": 10**9},
    {"logprobs": 21},
    {"stop": ""},
    {"stop": [""]},
    {"stop": ["a"] * 17},
    {"seed": 2**70},
    {"repetition_penalty": 1e-300},
    {"frequency_penalty": float("-inf")},
    {"logit_bias": {"x": 1}},
    {"logit_bias": {"5": 1000}},
    {"logit_bias": {"999999": 1}},
    {"suffix": "b"},
    {"stream": "yes"},
    {"unknown": 1},
    {"\ud800" * 500: 1},
]
ODD: list[dict[str, Any]] = [
    {"prompt": ""},
    {"prompt": "\x00\x01\uffff"},
    {"seed": 2**63 - 1, "n": 3},
    {"seed": -(2**63), "service_tier": "auto"},
    {"temperature": 100.0},
    {"temperature": 5e-324, "top_p": 5e-324, "min_p": 5e-324},
    {"temperature": 1e-5, "repetition_penalty": 100.0, "logit_bias": {"5": 100}},
    {"temperature": 1e-5, "repetition_penalty": 0.01, "logit_bias": {"5": -100}},
    {"stop": [], "logit_bias": {}},
    {"user": "x", "metadata": {"a": "b"}, "store": False},
    {"max_tokens": None, "stop": None, "n": None, "stream": None, "seed": None, "suffix": None},
]
JSON = {"Content-Type": "application/json"}


def test_wrong_bodies_are_refused_and_odd_ones_answered(served):
    url = f"{served.url}/v1/completions"
    body = {"model": "decoder", "prompt": "a", "max_tokens": 2}
    with httpx.Client(timeout=60) as client:
        for path in ENDPOINTS:
            for nonsense in NONSENSE:
                content = json.dumps(nonsense)
                check_error(client.post(served.url + path, content=content, headers=JSON), 400, 404)
        for change in WRONG:
            content = json.dumps({**body, **change})
            error = check_error(client.post(url, content=content, headers=JSON), 400)
            assert error["type"] == "invalid_request_error", change
        for change in ODD:
            answer = client.post(url, json={**body, **change})
            assert answer.status_code == 200, (change, answer.text)
        for content in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"NaN"):
            check_error(client.post(url, content=content, headers=JSON), 400)


def test_errors_name_the_field_what_was_given_and_what_is_allowed(served):
    completion = {"model": "decoder", "prompt": "a"}
    chat = {"model": "decoder", "messages": [{"role": "user"}]}
    image = {"role": "user", "content": [{"type": "image_url"}]}
    for path, body, message in (
        ("completions", {"prompt": "a"}, "model is missing; "),
        ("completions", {**completion, "max_tokens": "5"}, 'max_tokens is "5", but must be a'),
        (
            "completions",
            {**completion, "top_p": 1.5},
            "top_p is 1.5, but must be a number less than",
        ),
        ("completions", {**completion, "prompt": {}}, "prompt is {}, but must be a text or a list"),
        ("completions", {**completion, "suffix": "b"}, "this tokenizer has no tokens to fill in"),
        ("completions", {**completion, "colour": 1}, "there is no field colour; "),
        (
            "completions",
            {**completion, "max_token": 1},
            "there is no field max_token; did you mean max_tokens? /docs",
        ),
        (
            "completions",
            {"model": "decoder", "input": "a"},
            "prompt is missing; there is no field input, did you mean prompt? /docs",
        ),
        ("completions", [7], "the body must be a JSON object; "),
        ("chat/completions", chat, "messages[0].content is missing, but a message of the role"),
        ("chat/completions", {**chat, "messages": [image]}, "messages[0].content[0].type is "),
    ):
        error = check_error(served.post(path, body), 400)
        assert error["message"].startswith(message)
    assert error["param"] == "messages"


def test_content_types_other_than_json_are_refused(served):
    """Also forms and plain text, which pages of other sites may send without asking."""
    content = json.dumps({"model": "decoder", "prompt": "a"})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        headers = {"Content-Type": kind}
        answer = httpx.post(f"{served.url}/v1/completions", content=content, headers=headers)
        assert "'Content-Type: application/json'" in check_error(answer, 415)["message"]


def test_paths_and_methods_that_do_not_exist(served):
    check_error(served.post("complete", {}), 404)
    for path in ("/v1", "/nothing", "/v1/models/nothing/at/all"):
        check_error(served.get(path), 404)
    for method, path in [
        ("GET", "/v1/completions"),
        ("DELETE", "/v1/tag"),
        ("PUT", "/v1/models"),
        ("POST", "/healthz"),
    ]:
        answer = httpx.request(method, f"{served.url}{path}")
        check_error(answer, 405)
        assert answer.headers["Allow"]


def test_large_bodies_are_refused_before_they_are_read(paths):
    with running({"plain": paths["plain"]}, limits=Limits(max_body=1000)) as server:
        url = f"{server.url}/v1/completions"
        error = check_error(httpx.post(url, content=b"x" * 1001, headers=JSON), 413)
        assert error["code"] == "request_too_large"
        chunks = (b"x" * 100 for _ in range(50))
        check_error(httpx.post(url, content=chunks, headers=JSON), 413)
        exact = json.dumps({"model": "plain", "prompt": "a", "max_tokens": 1}).encode()
        exact += b" " * (1000 - len(exact))
        for content in (exact, (exact[n : n + 100] for n in range(0, 1000, 100))):
            assert httpx.post(url, content=content, headers=JSON, timeout=60).status_code == 200
        check_error(httpx.post(url, content=iter([exact, b" "]), headers=JSON), 413)
        with socket.create_connection(server.address) as raw:
            raw.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                b"Content-Length: 99999999999\r\n\r\n"
            )
            raw.settimeout(10)
            assert b" 413 " in raw.recv(4096)
        assert server.get("/healthz").status_code == 200


def test_the_chunks_of_a_body_are_summed(paths):
    app, sent = create_app({"plain": paths["plain"]}, limits=Limits(max_body=1000)), []
    chunks = iter([b" " * 400] * 100)
    headers = {b"host": b"127.0.0.1", b"content-type": b"application/json"}
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b""}
    scope |= {"http_version": "1.1", "scheme": "http", "client": ("127.0.0.1", 7)}

    async def receive():
        return {"type": "http.request", "body": next(chunks), "more_body": True}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope | {"headers": [*headers.items()]}, receive, send))
    assert sent[0]["status"] == 413
    assert len(list(chunks)) == 97


def test_other_hosts_and_other_sites_are_refused(paths):
    """Without a key, pages that a browser shows must not reach the server."""
    hosts = get_allowed_hosts("127.0.0.1", None)
    body = {"model": "plain", "prompt": "a", "max_tokens": 1}
    with running({"plain": paths["plain"]}, hosts=hosts, proxies="127.0.0.1") as server:
        for header in ("evil.example", "", "[", "127.0.0.1.evil.example"):
            # A page whose name leads to this machine sets what it likes, but no Host.
            forwarded = {"Host": header, "X-Forwarded-Host": "localhost"}
            answer = server.get("/v1/models", headers=forwarded)
            assert check_error(answer, 403)["code"] == "wrong_host"
        for header in ("LOCALHOST:99", "[::1]:8000", "127.0.0.1"):
            assert server.get("/v1/models", headers={"Host": header}).status_code == 200
        host = server.url.removeprefix("http://")
        for headers in (
            {"Origin": server.url, "Sec-Fetch-Site": "same-origin"},
            {"Origin": server.url},
            {"Origin": f"HTTPS://{host}"},
            {"Sec-Fetch-Site": "none"},
            # A proxy may set another Host; no page can set this header.
            {"Origin": "https://example.org", "Sec-Fetch-Site": "same-origin"},
        ):
            assert server.post("completions", body, headers=headers).status_code == 200
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": f"{server.url}.evil.example"},
            {"Origin": f"{server.url}0"},
            {"Origin": f"http://evil.example/{host}"},
            {"Origin": "http://127.0.0.1"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": server.url, "Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"},
        ):
            answer = server.post("completions", body, headers=headers)
            assert check_error(answer, 403)["code"] == "cross_site"
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert server.get("/", headers=link).status_code == 200
    assert get_allowed_hosts("0.0.0.0", "key") is None
    with pytest.raises(TriviumError, match="needs an API key"):
        get_allowed_hosts("0.0.0.0", None)


def test_named_origins_may_call_and_similar_ones_may_not(paths):
    """Also without a key, and with the Host that a proxy passes on."""
    origins = ["https://example.org", "https://other.example:8443"]
    body = {"model": "plain", "prompt": "a", "max_tokens": 1}
    options = {"hosts": get_allowed_hosts("127.0.0.1", None), "origins": origins, "key": "k"}
    with running({"plain": paths["plain"]}, **options) as server:
        key = {"Authorization": "Bearer k"}
        for origin in origins:
            asked = {"Access-Control-Request-Method": "POST", "Origin": origin}
            asked["Access-Control-Request-Headers"] = "authorization, x-stainless-lang"
            answer = httpx.options(f"{server.url}/v1/completions", headers=asked)
            assert answer.status_code == 200
            assert answer.headers["Access-Control-Allow-Origin"] == origin
            headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site", "Host": "example.org:99"}
            answer = server.post("completions", body, headers=headers | key)
            assert answer.status_code == 200
            assert answer.headers["Access-Control-Allow-Origin"] == origin
            answer = server.post("completions", body, headers=headers)
            check_error(answer, 401)
            assert answer.headers["Access-Control-Allow-Origin"] == origin
        for origin in (
            "https://example.org.evil.com",
            "https://evil-example.org",
            "https://a.example.org",
            "http://example.org",
            "https://example.org:8443",
            "https://other.example",
            "null",
        ):
            for site in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
                answer = server.post("completions", body, headers={"Origin": origin} | site | key)
                assert check_error(answer, 403)["code"] == "cross_site"
                assert "Access-Control-Allow-Origin" not in answer.headers
        for host in ("example.org.evil.com", "evil.com"):
            answer = server.get("/v1/models", headers={"Host": host} | key)
            assert check_error(answer, 403)["code"] == "wrong_host"
    for wrong in ("*", "example.org", "https://example.org/", "https://a@b", "file://x", "null"):
        with pytest.raises(TriviumError, match="is not an origin"):
            create_app({"plain": paths["plain"]}, origins=[wrong])


def test_forwarded_headers_count_from_named_proxies_only(paths, caplog):
    caplog.set_level(logging.INFO, "trivium")
    forwarded = {
        "X-Forwarded-For": "192.0.2.7",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "example.org:8443",
        "Origin": "https://example.org:8443",
    }
    for proxies, client, base in (
        ("127.0.0.1", "192.0.2.7", "https://example.org:8443/lm/v1"),
        ("10.0.0.0/8,127.0.0.0/8", "192.0.2.7", "https://example.org:8443/lm/v1"),
        ("192.0.2.0/24", "127.0.0.1", None),
        ("", "127.0.0.1", None),
    ):
        options = {"proxies": proxies, "root_path": "/lm"}
        with running({"plain": paths["plain"]}, **options) as server:
            for path in ("/lm/embeddings", "/embeddings"):
                caplog.clear()
                answer = server.get(path, headers=forwarded)
                wait_until(lambda: bool(caplog.records))
                assert caplog.records[0].client == client
                if base is None:
                    assert check_error(answer, 403)["code"] == "cross_site"
                else:
                    assert check_error(answer, 404)["message"].endswith(f"base URL is {base}.")
            assert server.get("/lm/healthz").status_code == server.get("/healthz").status_code
            assert server.get("/openapi.json").json()["servers"] == [{"url": "/lm"}]
            check_error(httpx.post(f"{server.url}/lm/v1/completions", content="{}"), 415)
    with pytest.raises(TriviumError, match="give proxies as addresses"):
        create_app({"plain": paths["plain"]}, proxies="*")


def test_scopes_other_than_http_are_refused(paths):
    """A key must not be passed by another protocol."""
    sent = []

    async def send(message):
        sent.append(message)

    app = create_app({"plain": paths["plain"]}, key="k", playground=False)
    scope = {"type": "websocket", "path": "/v1/models", "headers": [], "client": ("::1", 7)}
    asyncio.run(app(scope, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_a_full_queue_gives_429_and_counts_every_text(paths, slow_steps):
    """The queue holds texts, not requests."""
    limits = Limits(slots=1, max_queue=3, max_tokens=10**6, slot_length=1013)
    body = {"model": "decoder", "prompt": "a", "max_tokens": 10**6, **ENDLESS}
    with running({"decoder": paths["decoder"]}, limits=limits) as server:
        with httpx.stream(
            "POST",
            f"{server.url}/v1/completions",
            json={**body, "n": 2, "stream": True},
            timeout=60,
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            assert server.metric("trivium_running", model="decoder") == 1
            assert server.metric("trivium_waiting", model="decoder") == 1
            answer = server.post("completions", {**body, "n": 3})
            assert check_error(answer, 429)["code"] == "queue_full"
            with pytest.raises(httpx.ReadTimeout):  # As many as fit are admitted, and wait.
                httpx.post(stream.url, json={**body, "n": 2}, timeout=0.5)
            wait_until(lambda: server.metric("trivium_waiting", model="decoder") == 1)
            assert answer.headers["Retry-After"] == "1"
            check_error(server.post("embeddings", {"model": "decoder", "input": ["a"] * 3}), 429)
            check_error(server.post("completions", {**body, "n": 5}), 400)
        wait_until(lambda: server.load_of("decoder") == 0)
        assert server.post("completions", {**body, "max_tokens": 1}).status_code == 200


def test_the_time_limit_gives_504_and_ends_streams_with_an_error(paths):
    limits = Limits(slots=2, max_tokens=10**6, timeout=0.3)
    body = {"model": "decoder", "prompt": "a", "max_tokens": 10**6, **ENDLESS}
    with running({"decoder": paths["decoder"]}, limits=limits, preload=True) as server:
        error = check_error(server.post("completions", {**body, "n": 20}), 504)
        assert error["code"] == "timeout"
        lines = server.post("completions", {**body, "n": 20, "stream": True}).text.split("\n\n")
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "timeout"
        assert lines[-1] == ""  # [DONE] would say that the answer is whole
        wait_until(lambda: server.load_of("decoder") == 0)  # the work has stopped, too


def test_answers_on_kept_connections_do_not_wait_for_acknowledgements(served):
    with httpx.Client() as client:
        assert client.get(f"{served.url}/healthz").status_code == 200
        connections = list(served.server.server_state.connections)
        assert connections
        for connection in connections:
            accepted = connection.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_arguments_of_the_command_line(tmp_path):
    assert parse_model_arguments(["runs/a", "b=runs/a", "./c=d/e"]) == {
        "a": "runs/a",
        "b": "runs/a",
        "e": "./c=d/e",
    }
    for wrong in (["a", "b/a"], ["=a"], ["a="]):
        with pytest.raises(TriviumError):
            parse_model_arguments(wrong)
    with pytest.raises(TriviumError, match="max_queue is 0"):
        Limits(max_queue=0)
    with listen("127.0.0.1", 0) as taken, pytest.raises(TriviumError, match="is not available"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_the_outline_of_a_model_that_is_unloaded_meanwhile(paths, monkeypatch):
    model = ServedModel("plain", str(paths["plain"]), Limits(), ServerMetrics())
    monkeypatch.setattr(ServedModel, "is_loaded", True)  # as it was a moment before
    assert model.load_outline() is not None


def test_scores_of_positions_without_an_end_have_the_limit_of_prompts():
    spec, limits = SPECS["alibi"].replace(vocab_size=300), Limits(slot_length=7)
    model: Any = SimpleNamespace(lm=LanguageModel(spec, build(spec), letters()), limits=limits)
    request = ScoreRequest(model="alibi", text="the quick brown fox jumps over the lazy dog")
    with pytest.raises(ApiError, match="tokens, but at most 7 are allowed"):
        asyncio.run(score(model, request))


NOT_SUPPORTED = {
    "functions": [{"name": "f"}],
    "reasoning_effort": "low",
    "verbosity": "low",
    "modalities": ["audio"],
    "audio": {"voice": "x"},
    "prediction": {"type": "content"},
    "web_search_options": {"user_location": None},
}


@pytest.mark.parametrize("field", NOT_SUPPORTED)
def test_a_feature_that_is_not_supported_is_named(served, field):
    body = {"model": "decoder", "messages": [{"role": "user", "content": "a"}]}
    answer = served.post("chat/completions", body | {field: NOT_SUPPORTED[field]})
    error = check_error(answer, 400)
    assert error["message"].startswith(field)
    assert "not supported" in error["message"]
    assert error["param"] == field


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "function", "name": "f", "content": "4"},
        {"role": "assistant", "content": "a", "function_call": CALL["function"]},
    ],
)
def test_messages_of_functions_are_refused_by_the_name_of_the_feature(served, message):
    body = {"model": "decoder", "messages": [{"role": "user", "content": "a"}, message]}
    error = check_error(served.post("chat/completions", body), 400)
    assert error["message"].endswith(
        ": functions are not supported: use tools, which replace them."
    )
    assert error["param"] == "messages"


def test_the_page_on_serving_lists_fields_without_effect():
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text("utf-8")
    accepted = page.partition("**Options without effect")[2].partition("Nothing is stored.")[0]
    fields = {
        name
        for schema in (ChatRequest, CompletionRequest, ChatMessage, StreamOptions)
        for name, field in schema.model_fields.items()
        if (field.description or "").startswith("Accepted")
    }
    assert len(fields) > 5
    assert {name for name in fields if f"`{name}`" not in accepted} == set()


def test_an_empty_list_of_messages_is_called_empty(served):
    answer = served.post("chat/completions", {"model": "decoder", "messages": []})
    assert "messages is empty" in check_error(answer, 400)["message"]


@pytest.mark.parametrize(
    ("path", "request_body"),
    [
        ("completions", {"prompt": "a"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_max_tokens_above_the_limit_is_clamped(models, path, request_body, field):
    if path == "completions" and field == "max_completion_tokens":
        pytest.skip("only chat has this name")
    with running(models, limits=Limits(max_tokens=3)) as server:
        body = {"model": "decoder", **request_body, field: 10**30, **ENDLESS}
        answer = server.post(path, body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 3


def test_null_content_of_an_assistant_in_a_history(served):
    null = {"role": "assistant", "content": None, "tool_calls": [], "refusal": None}
    user = {"role": "user", "content": "a"}
    body = {"model": "decoder", "max_tokens": 2, "temperature": 0}
    texts = [
        served.post("chat/completions", {**body, "messages": [user, turn, user]}).json()
        for turn in (null, {"role": "assistant", "content": ""})
    ]
    first, second = (text["choices"][0]["message"]["content"] for text in texts)
    assert first == second
    wrong = {**body, "messages": [{"role": "user", "content": None}]}
    error = check_error(served.post("chat/completions", wrong), 400)
    assert "messages[0].content is null" in error["message"]
