"""The official client, unmodified, against a server: what it gets is what the model gives."""

from __future__ import annotations

import base64

import numpy as np
import openai
import pytest
import torch
from double import FLOAT32
from serving import ENDLESS, running

PROMPTS = ["The weather was", "今天", "but today it's rainy. " * 3]


@pytest.mark.parametrize("name", ["decoder", "plain", "mamba", "translator"])
def test_completions_equal_those_of_the_model(name, client, models):
    prompts = PROMPTS[:2] if name == "plain" else PROMPTS
    for prompt in prompts:
        answer = client.completions.create(model=name, prompt=prompt, max_tokens=23, temperature=0)
        (choice,), usage = answer.choices, answer.usage
        assert choice.text == models[name].generate(prompt, max_new_tokens=23, temperature=0.0)
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert choice.finish_reason == ("length" if usage.completion_tokens == 23 else "stop")
        assert answer.object == "text_completion"


def test_prompts_as_ids_and_lists(client, models):
    tokenizer = models["decoder"].tokenizer
    ids = [list(tokenizer.encode(prompt, add_special_tokens=False).ids) for prompt in PROMPTS[:2]]
    options = {"model": "decoder", "max_tokens": 7, "temperature": 0}
    texts = client.completions.create(prompt=PROMPTS[:2], **options)
    expected = [choice.text for choice in texts.choices]
    assert texts.usage.prompt_tokens == sum(map(len, ids))
    assert len({*expected}) == 2
    answer = client.completions.create(prompt=ids, **options)
    assert [choice.text for choice in answer.choices] == expected
    assert client.completions.create(prompt=ids[1], **options).choices[0].text == expected[1]


def test_n_texts_have_consecutive_seeds(client, models):
    options = {"model": "decoder", "prompt": PROMPTS[0], "max_tokens": 13, "temperature": 0.9}
    texts = [choice.text for choice in client.completions.create(n=3, seed=5, **options).choices]
    assert texts == [
        models["decoder"].generate(PROMPTS[0], max_new_tokens=13, temperature=0.9, seed=5 + i)
        for i in range(3)
    ]
    assert len({*texts}) == 3
    assert client.completions.create(seed=6, **options).choices[0].text == texts[1]


def test_every_sampling_option_reaches_the_engine(client):
    options = {"model": "decoder", "prompt": PROMPTS[0], "max_tokens": 17}
    ask = client.completions.create
    greedy = ask(temperature=0, **options).choices[0].text
    for changed in (
        {"temperature": 0, "extra_body": {"repetition_penalty": 9.0}},
        {"temperature": 0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"temperature": 1.3, "seed": 1},
        {"temperature": 0, "stop": greedy[2:4]},
    ):
        assert ask(**changed, **options).choices[0].text != greedy, changed
    for restriction in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6}):
        answer = ask(temperature=1.3, extra_body=restriction, **options)
        assert answer.choices[0].text == greedy
    with pytest.raises(openai.BadRequestError, match="logit_bias has id 300"):
        ask(logit_bias={"300": 1.0}, **options)


def test_stop_strings_end_a_text_also_when_streamed(client):
    options = {"model": "decoder", "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 40}
    whole = client.completions.create(extra_body=ENDLESS, **options).choices[0].text
    stop = whole[3:5]
    (choice,) = client.completions.create(stop=stop, extra_body=ENDLESS, **options).choices
    assert (choice.text, choice.finish_reason) == (whole[: whole.index(stop)], "stop")
    chunks = client.completions.create(stop=[stop], stream=True, extra_body=ENDLESS, **options)
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text


def test_logprobs_are_those_of_the_model(client, models):
    lm = models["decoder"]
    answer = client.completions.create(
        model="decoder", prompt=PROMPTS[0], max_tokens=5, temperature=0, logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    ids = list(lm.tokenizer.encode(PROMPTS[0], add_special_tokens=False).ids)
    for value, top in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        best = lm.logits([ids])[0, -1].log_softmax(-1).topk(3)
        assert value == pytest.approx(float(best.values[0]), abs=FLOAT32)
        assert max(top.values()) == value
        ids.append(int(best.indices[0]))
    assert len(logprobs.tokens) == len(logprobs.text_offset) == 5


def test_echo_scores_the_prompt(client, models):
    lm, prompt = models["decoder"], PROMPTS[0]
    options = {"model": "decoder", "prompt": prompt, "echo": True, "temperature": 0}
    answer = client.completions.create(max_tokens=0, logprobs=1, **options)
    (choice,) = answer.choices
    assert choice.text == "".join(choice.logprobs.tokens) == prompt
    assert choice.logprobs.token_logprobs[0] is None
    ids = list(lm.tokenizer.encode(prompt, add_special_tokens=False).ids)
    logprobs = lm.logits([ids])[0, :-1].log_softmax(-1)
    expected = logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(expected, abs=FLOAT32)
    assert answer.usage.completion_tokens == 0
    longer = client.completions.create(max_tokens=3, logprobs=1, **options).choices[0]
    assert longer.text == prompt + lm.generate(prompt, max_new_tokens=3, temperature=0.0)
    chunks = client.completions.create(max_tokens=3, stream=True, logprobs=1, **options)
    parts = [chunk.choices[0] for chunk in chunks]
    assert "".join(part.text for part in parts) == longer.text
    for name in ("tokens", "text_offset", "token_logprobs"):
        streamed = [each for part in parts for each in getattr(part.logprobs, name)]
        assert streamed == getattr(longer.logprobs, name)
    ids_echoed = client.completions.create(**{**options, "prompt": ids}, max_tokens=1)
    assert ids_echoed.choices[0].text.startswith(prompt)
    with pytest.raises(openai.BadRequestError, match="with its encoder"):
        client.completions.create(**{**options, "model": "translator"}, logprobs=1)


def test_streams_have_the_same_text_in_chunks(client):
    options = {"model": "decoder", "prompt": PROMPTS, "max_tokens": 19, "temperature": 0}
    whole = client.completions.create(n=2, **options)
    *chunks, last = client.completions.create(
        n=2, stream=True, stream_options={"include_usage": True}, **options
    )
    assert (last.choices, last.usage) == ([], whole.usage)
    texts, reasons = [""] * 6, [None] * 6
    for chunk in chunks:
        assert chunk.usage is None
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert len(chunks) > 30
    assert len({chunk.id for chunk in chunks}) == 1


def test_chat_follows_the_template(client, models):
    lm = models["decoder"]
    messages = [
        {"role": "developer", "content": "Be short."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "How is "}, {"type": "text", "text": "it?"}],
        },
    ]
    prompt = "system: Be short.\nuser: How is it?\nassistant:"
    expected = lm.generate(prompt, max_new_tokens=9, temperature=0.0).removeprefix(" ")
    options = {"model": "decoder", "messages": messages, "temperature": 0}
    answer = client.chat.completions.create(max_tokens=9, **options)
    assert answer.choices[0].message.content == expected
    assert answer.usage.prompt_tokens == len(lm.tokenizer.encode(prompt).ids)
    chunks = list(
        client.chat.completions.create(
            max_completion_tokens=9, stream=True, stream_options={"include_usage": True}, **options
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    contents = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(contents) == expected
    assert chunks[-2].choices[0].finish_reason == answer.choices[0].finish_reason
    assert chunks[-1].usage == answer.usage
    scored = client.chat.completions.create(max_tokens=3, logprobs=True, top_logprobs=2, **options)
    content = scored.choices[0].logprobs.content
    assert len(content) == scored.usage.completion_tokens
    for token in content:
        assert token.logprob == max(top.logprob for top in token.top_logprobs)
    text = b"".join(bytes(token.bytes) for token in content)  # tokens may be parts of characters
    whole = text.decode("utf-8", "replace")
    assert whole.removeprefix(" ") == scored.choices[0].message.content


def test_fields_that_mean_nothing_here_are_accepted_and_others_refused(client):
    ask = client.chat.completions.create
    options = {"model": "decoder", "max_tokens": 3, "seed": -1}
    messages = [{"role": "user", "content": "a"}]
    neutral = {
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "service_tier": "auto",
        "modalities": ["text"],
        "audio": None,
        "prediction": None,
        "safety_identifier": "x",
        "prompt_cache_key": "x",
        "verbosity": "medium",
    }
    first = ask(messages=messages, **options, **neutral).choices[0].message
    assert first.content == ask(messages=messages, **options).choices[0].message.content
    # An answer comes back as history, with all that the client knows of it.
    history = [*messages, first.model_dump(), {"role": "user", "content": "b"}]
    assert "tool_calls" in history[1]
    assert ask(messages=history, **options).choices
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tools = [{"type": "function", "function": {"name": "f"}}]
    for field, wrong in (
        ("tools", {"tools": tools}),  # which the template does not render
        ("tools", {"tools": [{"type": "function", "function": {"name": "f g"}}]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("modalities", {"modalities": ["text", "audio"]}),
        ("messages", {"messages": [{"role": "user", "content": "a", "tool_calls": [call]}]}),
        ("messages", {"messages": [{"role": "tool", "content": "a"}]}),
        ("messages", {"messages": [{"role": "user", "content": "a", "tool_call_id": "1"}]}),
        ("chat_template_kwargs", {"extra_body": {"chat_template_kwargs": {"tools": []}}}),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            ask(**{"messages": messages, **options, **wrong})
        assert error.value.param == field


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_embeddings_equal_those_of_the_model(name, client, models):
    texts = ["The weather was cloudy.", "a"]
    expected = models[name].embed(texts).numpy()
    for form in ({"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = client.embeddings.create(model=name, input=texts, **form)
        vectors = [
            np.frombuffer(base64.b64decode(each.embedding), "<f4")
            if isinstance(each.embedding, str)
            else np.array(each.embedding)
            for each in answer.data
        ]
        assert np.abs(np.stack(vectors) - expected).max() < 1e-5


def test_embeddings_of_ids_of_other_pooling_and_of_long_texts(client, models):
    texts, encoder = ["The weather was cloudy.", "a"], models["encoder"]
    ids = list(encoder.tokenizer.encode(texts[0]).ids)
    answer = client.embeddings.create(model="encoder", input=ids)
    assert answer.usage.prompt_tokens == len(ids)
    assert np.abs(np.array(answer.data[0].embedding) - encoder.embed(texts[0]).numpy()).max() < 1e-5
    options = {"pooling": "first", "normalize": False}
    answer = client.embeddings.create(model="encoder", input=texts[0], extra_body=options)
    expected = encoder.embed(texts[0], **options).numpy()
    assert np.abs(np.array(answer.data[0].embedding) - expected).max() < 1e-4
    long = "cloudy " * 200
    windows = client.embeddings.create(model="encoder", input=long)
    assert windows.usage.prompt_tokens > 200
    assert np.abs(np.array(windows.data[0].embedding) - encoder.embed(long).numpy()).max() < 1e-5
    answer = client.embeddings.create(model="encoder", input=long, extra_body={"truncate": True})
    assert answer.usage.prompt_tokens == 61
    for wrong in (
        {"input": [encoder.tokenizer.vocab_size]},
        {"input": ""},
        {"input": "a", "dimensions": 7},
    ):
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(model="encoder", **wrong)


def test_errors_are_those_of_openai(client):
    ask = client.completions.create
    with pytest.raises(openai.NotFoundError, match='Did you mean "decoder"') as error:
        ask(model="decodr", prompt="a")
    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    assert error.value.type == "invalid_request_error"
    long = "cloudy " * 2000
    with pytest.raises(openai.BadRequestError, match=r"1013 .* the model's context") as error:
        ask(model="decoder", prompt=long, stream=True)
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "prompt")
    for match, options in (
        ("best_of", {"best_of": 3}),
        ("there is no field colour", {"extra_body": {"colour": "red"}}),
        ("has 130 texts", {"prompt": ["a"] * 65, "n": 2}),
        ("the id 300, but the last is 299", {"prompt": [5, 300]}),
        ("nothing to stream", {"max_tokens": 0, "stream": True}),
        ("set both", {"stream_options": {"include_usage": True}}),
    ):
        with pytest.raises(openai.BadRequestError, match=match):
            ask(**{"model": "decoder", "prompt": "a", **options})
    with pytest.raises(openai.BadRequestError, match="cannot answer /v1/completions; it can"):
        ask(model="encoder", prompt="a")
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(openai.BadRequestError, match="it has no chat template"):
        client.chat.completions.create(model="plain", messages=messages)
    for field, options in (
        ("top_logprobs", {"top_logprobs": 2}),
        ("messages", {"messages": [{"role": "user", "content": long}]}),
    ):
        with pytest.raises(openai.BadRequestError, match=field) as error:
            client.chat.completions.create(**{"model": "decoder", "messages": messages, **options})
        assert error.value.param == field


def test_a_text_ends_where_positions_end(client):
    answer = client.completions.create(
        model="plain", prompt=[7] * 57, max_tokens=50, temperature=0, extra_body=ENDLESS
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5  # the last token needs no position


def test_models_are_listed_with_their_endpoints(client):
    listed = {model.id: model for model in client.models.list()}
    assert len(listed) == 9
    assert "/v1/chat/completions" in listed["decoder"].endpoints
    assert "/v1/chat/completions" not in listed["plain"].endpoints
    lengths = {name: (model.max_length, model.max_prompt) for name, model in listed.items()}
    assert lengths["decoder"] == (1013, 1013)
    assert lengths["plain"] == lengths["translator"] == (61, 61)
    assert lengths["encoder"] == (61, 16384)
    assert "/v1/translate" in client.models.retrieve("translator").endpoints
    with pytest.raises(openai.NotFoundError, match="there is no model 'decodr'"):
        client.models.retrieve("decodr")
    without = client.with_options(base_url=str(client.base_url).removesuffix("v1/"))
    with pytest.raises(openai.NotFoundError, match=r"there is no /embeddings, but /v1/embeddings"):
        without.embeddings.create(model="encoder", input="a")


def test_the_api_key(paths):
    with running({"plain": paths["plain"]}, key="secret") as server:

        def ask(key: str):
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
                return client.completions.create(model="plain", prompt="a", max_tokens=1)

        assert ask("secret").choices
        for wrong in ("secre", "Secret"):
            with pytest.raises(openai.AuthenticationError, match="the API key is wrong"):
                ask(wrong)
        assert server.get("/healthz").status_code == 200
        for path in ("/metrics", "/openapi.json", "/docs", "/", "/v1/models"):
            answer = server.get(path)
            assert answer.status_code == 401, path
            assert answer.json()["error"]["code"] == "invalid_api_key"
        headers = {"Authorization": b"Bearer \xd0\xba\xd0\xbb"}
        assert server.get("/v1/models", headers=headers).status_code == 401
        assert server.get("/docs", auth=("anyone", "secret")).status_code == 200
        assert server.get("/v1/models", headers={"Authorization": "Basic !"}).status_code == 401
        assert "Basic" in server.get("/docs").headers["WWW-Authenticate"]
