"""Names of special tokens in the texts of requests and of Python methods: text or special."""

from __future__ import annotations

import pytest

from trivium.serve.endpoints import ENDPOINTS

# The name of a special token of each model, and a request in which a text has it.
REQUESTS = {
    "completions": ("decoder", "<|endoftext|>", {"prompt": "a {} b", "max_tokens": 1}),
    "chat/completions": (
        "decoder",
        "<|endoftext|>",
        {"messages": [{"role": "user", "content": "a {} b"}], "max_tokens": 1},
    ),
    "score": ("decoder", "<|endoftext|>", {"text": "a {} b"}),
    "embeddings": ("encoder", "[SEP]", {"input": "a {} b"}),
    "fill-mask": ("encoder", "[SEP]", {"text": "a {} [MASK] b"}),
    "classify": ("classifier", "[SEP]", {"text": "a {} b", "pair": "b"}),
    "rerank": ("reranker", "[SEP]", {"query": "a {} b", "documents": ["b {}"]}),
    "tag": ("tagger", "[SEP]", {"text": "a {} b"}),
    "answer": ("reader", "[SEP]", {"question": "a {} b", "context": "b {}"}),
    "translate": ("translator", "[SEP]", {"text": "a {} b", "max_tokens": 1}),
    "tokenize": ("encoder", "[SEP]", {"text": "a {} b"}),
}
SPECIAL_BY_DEFAULT = ("completions", "tokenize")


def filled(value, name):
    if isinstance(value, str):
        return value.replace("{}", name)
    if isinstance(value, dict):
        return {key: filled(one, name) for key, one in value.items()}
    return [filled(one, name) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("endpoint", REQUESTS)
def test_a_request_says_what_names_of_special_tokens_are(served, models, endpoint):
    model, name, body = REQUESTS[endpoint]
    tokenizer = models[model].source_tokenizer
    assert name in tokenizer.special_tokens
    request, counts = {"model": model, **filled(body, name)}, {}
    for way in (None, "text", "special"):
        reply = served.post(endpoint, {**request, "special_tokens": way})
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        counts[way] = (
            answer["data"][0]["count"]
            if endpoint == "tokenize"
            else answer["usage"]["prompt_tokens"]
        )
    assert counts["special"] < counts["text"]
    assert counts[None] == counts["special" if endpoint in SPECIAL_BY_DEFAULT else "text"]
    assert served.post(endpoint, {**request, "special_tokens": "other"}).status_code == 400


def test_every_endpoint_that_reads_text_is_tried():
    assert {f"/v1/{name}" for name in (*REQUESTS, "detokenize")} == {*ENDPOINTS}


CALLS = {
    "generate": ("decoder", lambda lm, text: lm.generate(text, max_new_tokens=1)),
    "score": ("decoder", lambda lm, text: lm.score(text)),
    "embed": ("encoder", lambda lm, text: lm.embed(text)),
    "embed_tokens": ("encoder", lambda lm, text: lm.embed_tokens([text])),
    "fill_mask": ("encoder", lambda lm, text: lm.fill_mask(f"{text} [MASK]")),
    "classify": ("classifier", lambda lm, text: lm.classify(text, "b")),
    "rerank": ("reranker", lambda lm, text: lm.rerank(text, ["b"])),
    "tag": ("tagger", lambda lm, text: lm.tag([text.split()])),
    "answer": ("reader", lambda lm, text: lm.answer(text, f"b {text}")),
    "translate": ("translator", lambda lm, text: lm.translate(text, max_new_tokens=1)),
}


@pytest.mark.parametrize("method", CALLS)
def test_what_models_read(models, method, monkeypatch):
    name, call = CALLS[method]
    lm = models[name]
    specials = lm.source_tokenizer.special_tokens
    token = next(one for one in ("[SEP]", "</s>", "<|endoftext|>") if one in specials)
    index, seen = specials[token], []
    for function in ("forward", "encode"):
        read = getattr(type(lm.module), function)

        def watched(self, *ids, read=read, **inputs):
            for each in (*ids, inputs.get("input_ids")):
                if each is not None:
                    seen.append(each.tolist())
            return read(self, *ids, **inputs)

        monkeypatch.setattr(type(lm.module), function, watched)

    def count(lm):
        seen.clear()
        call(lm, f"a {token} b")
        return str(seen).count(f" {index},")

    special, text = count(lm.reading("special")), count(lm.reading("text"))
    assert special > text
    assert count(lm) == (special if method == "generate" else text)
    trained = {**lm.settings.config, "trained_special_tokens": "special"}
    monkeypatch.setattr(
        lm, "settings", lm.settings.__class__(**{**vars(lm.settings), "config": trained})
    )
    assert count(lm) == special
