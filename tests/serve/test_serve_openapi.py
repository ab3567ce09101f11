"""The OpenAPI document: its examples run, and what is made from it breaks nothing."""

from __future__ import annotations

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks as openapi_checks
from serving import KINDS, running

from trivium.serve.models import ROADS


@pytest.fixture(scope="module")
def document(served):
    return served.get("/openapi.json").json()


def operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_every_example_runs(served, document):
    seen = {}
    for path, method, operation in operations(document):
        if "requestBody" not in operation:
            continue
        example = operation["requestBody"]["content"]["application/json"]["example"]
        answer = httpx.request(method, f"{served.url}{path}", json=example, timeout=60)
        assert answer.status_code == 200, (path, answer.text)
        seen[path] = example["model"]
    assert len(seen) == 11
    assert seen["/v1/translate"] == "translator"
    assert seen["/v1/tag"] == "tagger"
    assert seen["/v1/chat/completions"] == "decoder"


def test_a_road_that_no_model_takes_has_no_example(paths):
    with running({"tagger": paths["tagger"]}) as found:
        document = found.get("/openapi.json").json()
        with_example = {
            path
            for path, _, operation in operations(document)
            if "example"
            in operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        }
        assert with_example == {"/v1/tag", "/v1/embeddings", "/v1/tokenize", "/v1/detokenize"}
        page = found.get("/docs").text
        assert "No model that is served can do this." in page


def test_the_document_is_whole(document):
    assert "422" not in str([each["responses"].keys() for *_, each in operations(document)])
    for *_, operation in operations(document):
        assert operation["summary"]
    assert set(document["paths"]) >= {"/healthz", "/metrics", "/v1/models", "/v1/completions"}


def test_pages_need_nothing_from_elsewhere(served):
    for path in ("/", "/docs"):
        answer = served.get(path)
        assert answer.status_code == 200
        assert "http://" not in answer.text
        assert "https://" not in answer.text
    front = served.get("/").text
    for name in KINDS:
        assert f"<code>{name}</code>" in front
    docs = served.get("/docs").text
    assert docs.count("<button>") == 14


def test_a_name_that_is_html_stays_text(paths):
    with running({"<img src=x>": paths["tagger"]}) as found:
        for path in ("/", "/docs"):
            page = found.get(path).text
            assert "<img" not in page
            assert "&lt;img src=x&gt;" in page


CHECKS = [
    schemathesis.checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("path", [f"/v1/{road}" for road in [*ROADS, "tokenize", "detokenize"]])
def test_what_is_made_from_the_document_breaks_nothing(served, described, path, mode):
    """Both what fits and what does not; the latter is refused, in the one shape."""

    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=described[path]["POST"].as_strategy(generation_mode=mode))
    def check(case):
        answer = case.call(timeout=60)
        assert answer.status_code < 500, answer.text
        case.validate_response(answer, checks=CHECKS)
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    check()


@pytest.fixture(scope="module")
def described(served):
    return schemathesis.openapi.from_url(f"{served.url}/openapi.json")
