"""The endpoints of the table: each gives what the model gives, and none exists beside them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import Any

import httpx
import pytest
from double import FLOAT32
from run_settings import quiet, settings
from serving import KINDS, running

from trivium.inference.tag import find_words, merge_entities
from trivium.model_loading import load
from trivium.serve.endpoints import ENDPOINTS
from trivium.workflows.training import finetune

TEXT = "The weather was cloudy yesterday."


def test_fill_mask(served, models):
    lm = models["encoder"]
    texts = ["The [MASK] was cloudy.", "The <mask> was [MASK]."]
    answer = served.post("fill-mask", {"model": "encoder", "text": texts, "top_k": 3}).json()
    one, two = (each["masks"] for each in answer["data"])
    assert one == [[dataclasses.asdict(fill) for fill in lm.fill_mask(texts[0], top_k=3)]]
    expected = lm.fill_mask(texts[1], top_k=3)
    assert two == [[dataclasses.asdict(fill) for fill in mask] for mask in expected]
    assert answer["usage"]["prompt_tokens"] > 0
    error = served.post("fill-mask", {"model": "encoder", "text": "no mask"})
    assert error.status_code == 400
    assert "there is no [MASK]" in error.json()["error"]["message"]


@pytest.mark.filterwarnings("ignore:1 of 1 texts are longer")  # in the log of the server
def test_classify(served, models):
    lm = models["classifier"]
    body = {"model": "classifier", "text": [TEXT, "today"], "pair": ["cloudy", "it's rainy"]}
    data = served.post("classify", body).json()["data"]
    expected = lm.classify(list(zip(body["text"], body["pair"])))
    for each, classification in zip(data, expected, strict=True):
        assert each["label"] == classification.label
        assert each["scores"] == pytest.approx(classification.scores, abs=FLOAT32)
    assert served.post("classify", {**body, "pair": ["a"]}).status_code == 400
    empty = served.post("classify", {"model": "classifier", "text": [TEXT, " "]}).json()
    assert empty["error"]["message"].startswith("a text is empty")
    long = {"model": "classifier", "text": f"{TEXT} " * 30}
    refused = served.post("classify", long)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    cut = served.post("classify", {**long, "truncate": True})
    assert (cut.status_code, cut.json()["usage"]["prompt_tokens"]) == (200, 61)


def test_the_number_of_a_reward_model(tmp_path):
    texts = ["a rose is red", "a rose is green"]
    data = tmp_path / "pairs.jsonl"
    rows = [{"prompt": str(n), "chosen": texts[0], "rejected": texts[1]} for n in range(9)]
    data.write_text("\n".join(map(json.dumps, rows)))
    changes = settings(steps=1, batch_examples=4, batch_tokens=None, eval_tokens=None)
    keys = {"data": data, "out": tmp_path / "run", "changes": changes, "console": quiet()}
    run = finetune("reward", model="bert-tiny", **keys)
    expected = [one.score for one in load(run.path).classify(texts)]
    assert expected[0] != expected[1]
    with running({"reward": str(run.path)}) as server:
        data = server.post("classify", {"model": "reward", "text": texts}).json()["data"]
        pair = server.post("classify", {"model": "reward", "text": "a", "pair": "b"})
    assert [one["score"] for one in data] == pytest.approx(expected, rel=FLOAT32)
    assert all((one["label"], one["scores"]) == ("", {}) for one in data)
    assert (pair.status_code, "single texts" in pair.text) == (400, True)


def test_rerank(served, models):
    """The format of Cohere, Jina and vLLM."""
    documents = ["the weather", TEXT, "Ada Lovelace lived in London."]
    body = {
        "model": "reranker",
        "query": "Where?",
        "documents": [*documents[:2], {"text": documents[2]}],
    }
    answer = served.post("rerank", body).json()
    expected = models["reranker"].rerank("Where?", documents)
    assert [one["index"] for one in answer["results"]] == [one.index for one in expected]
    for found, one in zip(answer["results"], expected, strict=True):
        assert found["relevance_score"] == pytest.approx(one.score, abs=FLOAT32)
        assert found["document"] == {"text": one.document}
    assert answer["usage"]["prompt_tokens"] > 0
    best = served.post("rerank", {**body, "top_n": 1, "return_documents": False}).json()
    assert [one.keys() for one in best["results"]] == [{"index", "relevance_score"}]
    for wrong in ({"documents": []}, {"query": " "}, {"documents": ["a", {"texts": "b"}]}):
        assert served.post("rerank", {**body, **wrong}).status_code == 400
    other = served.post("rerank", {**body, "model": "classifier"})
    assert other.json()["error"]["code"] == "model_cannot"


def test_tag(served, models):
    words = [word.text for word in find_words(TEXT)]
    body = {"model": "tagger", "text": [TEXT, words]}
    first, second = served.post("tag", body).json()["data"]
    assert all(TEXT[each["start"] : each["end"]] == each["word"] for each in first["words"])
    entities = merge_entities(models["tagger"].tag(TEXT), TEXT)
    wanted = [dataclasses.asdict(entity) for entity in entities]
    scores = [pytest.approx(one.pop("score"), rel=FLOAT32) for one in wanted]
    assert [one.pop("score") for one in first["entities"]] == scores
    assert first["entities"] == wanted
    expected = [dataclasses.asdict(word) for word in models["tagger"].tag(TEXT)]
    for found in (first["words"], second["words"]):
        assert [each["word"] for each in found] == words
        assert [each["tag"] for each in found] == [each["tag"] for each in expected]
    for wrong in ("", " ", [["a", ""]], [[]]):
        assert served.post("tag", {"model": "tagger", "text": wrong}).status_code == 400


def test_answer(served, models):
    question, context = "Where?", "Ada Lovelace lived in London, and the weather was cloudy."
    body = {"model": "reader", "question": question, "context": context, "top_k": 3}
    (found,) = served.post("answer", body).json()["data"]
    expected = models["reader"].answer(question, context, top_k=3)
    assert found["answers"] == [
        pytest.approx(dataclasses.asdict(span), abs=FLOAT32) for span in expected
    ]
    long = served.post("answer", {**body, "question": "Where? " * 30}).json()["error"]
    assert long["param"] == "question"


def test_translate_reads_with_the_source_tokenizer(served, models):
    lm = models["translator"]
    texts = [TEXT, "today"]
    data = served.post("translate", {"model": "translator", "text": texts, "max_tokens": 7}).json()
    assert [each["text"] for each in data["data"]] == lm.translate(texts, max_new_tokens=7)
    read = sum(map(len, lm.source_tokenizer.encode_ids_batch(texts)))
    assert data["usage"]["prompt_tokens"] == read
    assert 0 < data["usage"]["completion_tokens"] <= 2 * 3 * 7  # half characters grow to U+FFFD
    body = {"model": "translator", "text": TEXT, "num_beams": 1, "length_penalty": 0.5}
    expected = lm.translate([TEXT], max_new_tokens=9, num_beams=1, length_penalty=0.5)
    found = served.post("translate", {**body, "max_tokens": 9}).json()["data"][0]["text"]
    assert [found] == expected


@pytest.mark.filterwarnings("ignore:a text ends at its limit")
@pytest.mark.parametrize("max_tokens", [None, 5, 10**6])
def test_translate_has_the_limits_of_the_command(served, models, max_tokens):
    texts = [TEXT, "today"]
    body = {"model": "translator", "text": texts, "max_tokens": max_tokens}
    data = served.post("translate", body).json()["data"]
    most = max_tokens and min(max_tokens, 1024)
    assert [each["text"] for each in data] == models["translator"].translate(
        texts, max_new_tokens=most
    )


@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_scores_equal_those_of_the_model(name, served, models):
    found = served.post("score", {"model": name, "text": [TEXT, "today"]}).json()["data"]
    for each, text in zip(found, (TEXT, "today"), strict=True):
        assert each["log_probability"] == pytest.approx(models[name].score(text), abs=FLOAT32)
        values = [token["log_probability"] or 0.0 for token in each["tokens"]]
        assert sum(values) == pytest.approx(each["log_probability"], abs=FLOAT32)


def test_score(served, models):
    """Context and text are one string: a space is a part of the text, or there is none."""
    texts = [" was cloudy.", "was cloudy."]
    body = {"model": "decoder", "text": texts, "context": "The weather"}
    found, joined = served.post("score", body).json()["data"]
    lm = models["decoder"]
    same = lm.score("was cloudy.", context="The weather")
    assert joined["log_probability"] == pytest.approx(same, abs=FLOAT32)
    assert joined["tokens"] != found["tokens"]
    context, whole = lm.tokenizer.encode_ids_batch(["The weather", "The weather was cloudy."])
    logprobs = lm.logits([whole])[0, len(context) - 1 : -1].log_softmax(-1)
    expected = sum(float(row[index]) for row, index in zip(logprobs, whole[len(context) :]))
    assert found["log_probability"] == pytest.approx(expected, abs=FLOAT32)
    assert served.post("score", {"model": "translator", "text": "a"}).status_code == 400
    long = served.post("score", {**body, "context": "The weather " * 999}).json()["data"][0]
    assert long["num_cut"] > 0
    answer = served.post("score", {"model": "translator", "text": "it", "context": "The weather"})
    assert answer.json()["data"][0]["num_tokens"] > 0


def test_tokenize_and_back(served, models):
    tokenizer = models["decoder"].tokenizer
    body = {"model": "decoder", "text": [TEXT, "今天"]}
    found = served.post("tokenize", body).json()["data"]
    assert [each["ids"] for each in found] == [
        list(e.ids) for e in tokenizer.encode_batch([TEXT, "今天"])
    ]
    assert all(each["count"] == len(each["tokens"]) == len(each["offsets"]) for each in found)
    back = served.post("detokenize", {"model": "decoder", "ids": found[1]["ids"]}).json()
    assert back["text"] == "今天"
    assert served.post("detokenize", {"model": "decoder", "ids": [300]}).status_code == 400
    lm = models["translator"]  # with a tokenizer of sources, which is meant unless said otherwise
    for tokenizer, source in ((lm.source_tokenizer, {}), (lm.tokenizer, {"source": False})):
        body = {"model": "translator", **source}
        (found,) = served.post("tokenize", {**body, "text": TEXT}).json()["data"]
        assert found["ids"] == list(tokenizer.encode(TEXT).ids)
        back = served.post("detokenize", {**body, "ids": found["ids"]}).json()["text"]
        assert back == tokenizer.decode(found["ids"])


@pytest.mark.filterwarnings("ignore:a text ends at its limit")
def test_every_example_of_the_document_runs(served):
    document = served.get("/openapi.json").json()
    paths = {path for path, methods in document["paths"].items() if "post" in methods}
    assert paths == {*ENDPOINTS, "/v1/models/{name}/reload"}
    for path in ENDPOINTS:
        operation = document["paths"][path]["post"]
        assert "422" not in operation["responses"]
        (example,) = operation["requestBody"]["content"]["application/json"]["examples"].values()
        answer = httpx.post(f"{served.url}{path}", json=example["value"], timeout=60)
        assert answer.status_code == 200, (path, answer.text)


@pytest.mark.parametrize("name", KINDS)
def test_a_model_answers_its_own_endpoints_alone(name, served, models):
    """Others refuse it by name, before their functions run."""
    card = served.get(f"/v1/models/{name}").json()
    for path, endpoint in ENDPOINTS.items():
        if path in card["endpoints"]:
            continue
        answer = served.post(path[4:], {"model": name, **endpoint.example})
        assert answer.status_code == 400, (name, path)
        assert answer.json()["error"]["code"] == "model_cannot"


def served_models(server) -> dict[str, Any]:
    return {each["id"]: each for each in server.get("/v1/models").json()["data"]}


def test_hugging_face_folders_are_served(models, tmp_path):
    folder = models["plain"].save_hf(tmp_path / "hf")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    with running({"hf": str(folder), "damaged": str(damaged)}) as server:
        hf, unknown = served_models(server).values()
        assert (hf["loaded"], "/v1/completions" in hf["endpoints"]) == (False, True)
        assert unknown["endpoints"] is None
        shutil.copytree(folder, damaged, dirs_exist_ok=True)  # mended while the server runs
        assert "/v1/completions" in served_models(server)["damaged"]["endpoints"]
        body = {"model": "hf", "prompt": TEXT, "max_tokens": 5, "temperature": 0}
        text = server.post("completions", body).json()["choices"][0]["text"]
        assert text == models["plain"].generate(TEXT, max_new_tokens=5, temperature=0.0)


def test_pages_need_no_network(served, paths, models):
    for path in ("/", "/docs"):
        answer = served.get(path)
        assert answer.status_code == 200
        assert "http://" not in answer.text
        assert "https://" not in answer.text
    with running({"<img src=x>": paths["tagger"]}) as server:
        document = server.get("/openapi.json").json()
        with_example = {
            path
            for path in ENDPOINTS
            if "examples"
            in document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        }
        able = {path for path, each in ENDPOINTS.items() if each.accepts(models["tagger"])}
        assert with_example == able


def test_translate_refuses_languages_that_the_model_lacks(served):
    for param in ("source_language", "target_language"):
        body = {"model": "translator", "text": TEXT, param: "fra_Latn"}
        reply = served.post("translate", body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        assert '"fra_Latn" is no language of this model' in reply.json()["error"]["message"]
