"""The roads that OpenAI has no name for: what the server says is what the model says."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from trivium.inference.beam import Beams
from trivium.inference.continuations import encode_item, score_continuations

TEXTS = ["The weather was cloudy yesterday.", "Ada wrote notes"]


def data(answer) -> list[dict]:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["object"] == "list"
    assert [each["index"] for each in body["data"]] == list(range(len(body["data"])))
    return body["data"]


def near(value):
    return pytest.approx(value, abs=1e-5)


def test_fill_mask(served, models):
    text = "The [MASK] was [MASK] yesterday."
    asked = {"model": "encoder", "text": [text, "a [MASK]"], "top_k": 3}
    first, second = data(served.post("fill-mask", asked))
    wanted = models["encoder"].fill_mask(text, top_k=3)
    assert len(first["masks"]) == 2
    for mask, fills in zip(first["masks"], wanted, strict=True):
        assert [fill["token"] for fill in mask] == [fill.token for fill in fills]
        assert [fill["score"] for fill in mask] == near([fill.score for fill in fills])
    assert len(second["masks"]) == 1
    answer = served.post("fill-mask", {"model": "encoder", "text": "no mask"})
    assert answer.status_code == 400
    assert "there is no [MASK] in the text" in answer.json()["error"]["message"]


def test_classify(served, models):
    found = data(served.post("classify", {"model": "classifier", "text": TEXTS}))
    for each, wanted in zip(found, models["classifier"].classify(TEXTS), strict=True):
        assert each["label"] == wanted.label
        assert each["scores"] == near(wanted.scores)
    (one,) = data(served.post("classify", {"model": "classifier", "text": "a", "pair": "b"}))
    assert one["score"] == near(models["classifier"].classify("a", "b").score)
    answer = served.post("classify", {"model": "classifier", "text": TEXTS, "pair": "b"})
    assert "2 texts have 1 second texts" in answer.json()["error"]["message"]


def test_classify_cuts_only_what_it_may(served, models):
    long = "cloudy " * 100
    answer = served.post("classify", {"model": "classifier", "text": long})
    assert answer.status_code == 400
    assert "reads at most 61: shorten it, or ask for truncate" in answer.json()["error"]["message"]
    asked = {"model": "classifier", "text": long, "pair": "rainy " * 100, "truncate": True}
    (found,) = data(served.post("classify", asked))
    with pytest.warns(UserWarning, match="longer than the 61 tokens"):
        wanted = models["classifier"].classify(long, "rainy " * 100)
    assert found["scores"] == near(wanted.scores)


def test_tag(served, models):
    words = ["Ada", "Lovelace", "wrote", "."]
    found = data(served.post("tag", {"model": "tagger", "text": [" ".join(words), words]}))
    wanted = [dataclasses.asdict(word) for word in models["tagger"].tag([words])[0]]
    for each in found:
        assert [word["tag"] for word in each["words"]] == [word["tag"] for word in wanted]
        assert [word["score"] for word in each["words"]] == near([w["score"] for w in wanted])
    assert served.post("tag", {"model": "tagger", "text": " "}).status_code == 400
    assert served.post("tag", {"model": "tagger", "text": [["a", ""]]}).status_code == 400


def test_answer(served, models):
    context = "Ada Lovelace wrote notes on the engine. " * 9
    asked = {"model": "reader", "question": "Who?", "context": context, "top_k": 2}
    (found,) = data(served.post("answer", asked))
    wanted = models["reader"].answer("Who?", context, top_k=2)
    assert [span["text"] for span in found["answers"]] == [span.text for span in wanted]
    assert [span["score"] for span in found["answers"]] == near([span.score for span in wanted])
    answer = served.post("answer", {**asked, "question": "Who wrote it? " * 20})
    assert answer.status_code == 400
    assert "reads at most 15 of one" in answer.json()["error"]["message"]


def test_translate(served, models):
    asked = {"model": "translator", "text": ["The weather", "a"], "max_tokens": 13}
    lm = models["translator"]
    for changes in ({}, {"num_beams": 1}, {"num_beams": 3, "length_penalty": 0.0}):
        found = data(served.post("translate", {**asked, **changes}))
        beams = dataclasses.replace(lm.usual_beams(), **changes)
        assert isinstance(beams, Beams)
        wanted = lm.translate(asked["text"], beams=beams, max_new_tokens=13)
        assert [each["text"] for each in found] == wanted
    assert served.post("translate", {"model": "translator", "text": "a"}).status_code == 200
    answer = served.post("translate", {**asked, "max_tokens": 5000})
    assert answer.status_code == 400


def test_score(served, models):
    for name in ("decoder", "encoder"):
        found = data(served.post("score", {"model": name, "text": TEXTS}))
        for each, text in zip(found, TEXTS, strict=True):
            assert each["log_probability"] == near(models[name].score(text))
            told = [token["log_probability"] for token in each["tokens"]]
            assert sum(value or 0.0 for value in told) == near(each["log_probability"])
    for name in ("decoder", "translator"):
        lm = models[name]
        asked = {"model": name, "text": [" cloudy", " rainy"], "given": "The weather"}
        found = data(served.post("score", asked))
        for each, text in zip(found, asked["text"], strict=True):
            item = encode_item(lm.tokenizer, "The weather", [text], apart=name == "translator")
            ((wanted,),) = score_continuations(
                lm.module,
                [item],
                tokenizer=lm.tokenizer,
                decoder_start=lm.decoder_start(lm.tokenizer),
            )
            assert each["log_probability"] == near(wanted.log_probability)
            assert each["greedy"] == wanted.greedy
    answer = served.post("score", {"model": "translator", "text": "a"})
    assert answer.status_code == 400


def test_tokenize_and_back(served, models):
    text = "The weather, 今天"
    (found,) = data(served.post("tokenize", {"model": "encoder", "text": text}))
    wanted = models["encoder"].tokenizer.encode(text)
    assert found["ids"] == list(wanted.ids)
    assert found["tokens"] == list(wanted.tokens)
    assert found["count"] == len(wanted.ids)
    asked = {"model": "long", "text": text, "add_special_tokens": False}
    (found,) = data(served.post("tokenize", asked))
    back = served.post("detokenize", {"model": "long", "ids": found["ids"]})
    assert back.json()["text"] == text
    answer = served.post("detokenize", {"model": "long", "ids": [300]})
    assert "there is id 300, but ids end at 300" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("road", "body"),
    [
        ("fill-mask", {"text": "a"}),
        ("classify", {"text": "a"}),
        ("tag", {"text": "a"}),
        ("answer", {"question": "a", "context": "b"}),
        ("translate", {"text": "a"}),
        ("score", {"text": "a", "given": "b"}),
        ("embeddings", {"input": "a"}),
    ],
)
def test_a_model_that_cannot_says_what_it_can(served, road, body):
    name = {"embeddings": "translator", "score": "tagger"}.get(road, "decoder")
    answer = served.post(road, {"model": name, **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert f"cannot do {road}" in error["message"]
    assert "it can do" in error["message"]
    assert error["code"] == "model_cannot"


def test_questions_asked_at_once_get_their_own_answers(served, models):
    texts = [f"{word} {n}" for n in range(23) for word in ("cloudy", "rainy", "wrote")]
    wanted = [found.scores for found in models["classifier"].classify(texts)]

    def ask(text: str) -> dict:
        (found,) = data(served.post("classify", {"model": "classifier", "text": text}))
        return found["scores"]

    with ThreadPoolExecutor(23) as pool:
        for found, scores in zip(pool.map(ask, texts), wanted, strict=True):
            assert found == near(scores)


def test_one_that_is_wrong_spoils_no_other(served):
    def ask(text: str) -> int:
        return served.post("fill-mask", {"model": "encoder", "text": text}).status_code

    texts = ["a [MASK]", "none here"] * 13
    with ThreadPoolExecutor(13) as pool:
        assert list(pool.map(ask, texts)) == [200, 400] * 13
