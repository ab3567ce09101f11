"""The official client, unmodified, against a server."""

from __future__ import annotations

import base64
import math

import numpy as np
import openai
import pytest
import torch
from serving import ENDLESS, running

from trivium.serve import Limits

PROMPTS = ["The weather was", "今天", "but today it's rainy. " * 7]


@pytest.mark.parametrize("name", ["decoder", "long"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_completions_are_those_of_the_model(client, models, name, prompt):
    found = client.completions.create(model=name, prompt=prompt, max_tokens=23, temperature=0)
    (choice,) = found.choices
    wanted = models[name].generate(prompt, max_new_tokens=23, temperature=0.0)
    assert choice.text == wanted
    assert found.object == "text_completion"
    assert found.usage.prompt_tokens == len(models[name].tokenizer.encode(prompt).ids)
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert choice.finish_reason == ("length" if found.usage.completion_tokens == 23 else "stop")


def test_an_encoder_decoder_completes_with_its_answer(client, models):
    text = "The weather"
    found = client.completions.create(model="translator", prompt=text, max_tokens=11, temperature=0)
    wanted = models["translator"].generate(text, max_new_tokens=11, temperature=0.0)
    assert found.choices[0].text == wanted


def test_ids_and_lists_of_prompts(client, models):
    ids = [list(models["long"].tokenizer.encode(prompt).ids) for prompt in PROMPTS[:2]]
    options = {"model": "long", "max_tokens": 7, "temperature": 0}
    texts = client.completions.create(prompt=PROMPTS[:2], **options)
    assert [choice.index for choice in texts.choices] == [0, 1]
    assert texts.usage.prompt_tokens == sum(map(len, ids))
    wanted = [choice.text for choice in texts.choices]
    assert len({*wanted}) == 2
    found = client.completions.create(prompt=ids, **options)
    assert [choice.text for choice in found.choices] == wanted
    (one,) = client.completions.create(prompt=ids[1], **options).choices
    assert one.text == wanted[1]


def test_n_seeds_and_what_is_drawn(client, models):
    options = {"model": "long", "prompt": PROMPTS[0], "max_tokens": 13, "temperature": 0.9}
    first = client.completions.create(n=3, seed=5, **options)
    again = client.completions.create(n=3, seed=5, **options)
    texts = [choice.text for choice in first.choices]
    assert [choice.text for choice in again.choices] == texts
    assert len({*texts}) == 3
    wanted = [
        models["long"].generate(PROMPTS[0], max_new_tokens=13, temperature=0.9, seed=5 + i)
        for i in range(3)
    ]
    assert texts == wanted
    other = client.completions.create(seed=6, **options)
    assert other.choices[0].text == texts[1]
    assert first.usage.completion_tokens == 39


def test_every_way_of_choosing_tokens_is_passed_on(client, models):
    options = {"model": "long", "prompt": PROMPTS[0], "max_tokens": 17}
    plain = client.completions.create(temperature=0, **options).choices[0].text
    changed = [
        {"temperature": 0, "extra_body": {"repetition_penalty": 5.0}},
        {"temperature": 0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"temperature": 0, "logit_bias": {"300": 1.0}},
        {"temperature": 1.3, "seed": 1},
    ]
    assert client.completions.create(**changed[0], **options).choices[0].text != plain
    assert client.completions.create(**changed[1], **options).choices[0].text != plain
    with pytest.raises(openai.BadRequestError, match="logit_bias names id 300"):
        client.completions.create(**changed[2], **options)
    assert client.completions.create(**changed[3], **options).choices[0].text != plain
    for few in ({"top_k": 1}, {"min_p": 1.0}):
        found = client.completions.create(temperature=1.3, extra_body=few, **options)
        assert found.choices[0].text == plain
    assert client.completions.create(top_p=1e-6, **options).choices[0].text == plain
    banned = models["long"].tokenizer.encode(plain).ids[0]
    found = client.completions.create(temperature=0, logit_bias={str(banned): -100}, **options)
    assert found.choices[0].text != plain


def test_stop_strings_end_a_text_and_are_not_part_of_it(client):
    options = {"model": "long", "prompt": PROMPTS[0], "max_tokens": 40, "temperature": 0}
    plain = client.completions.create(extra_body=ENDLESS, **options).choices[0].text
    stop = plain[3:5]
    (found,) = client.completions.create(stop=stop, extra_body=ENDLESS, **options).choices
    assert found.text == plain[: plain.index(stop)]
    assert found.finish_reason == "stop"
    pieces = client.completions.create(stop=[stop], stream=True, extra_body=ENDLESS, **options)
    assert "".join(piece.choices[0].text for piece in pieces) == found.text


def test_log_probabilities_of_what_is_written(client, models):
    lm, prompt = models["long"], PROMPTS[0]
    found = client.completions.create(
        model="long", prompt=prompt, max_tokens=5, temperature=0, logprobs=3
    )
    told = found.choices[0].logprobs
    ids = list(lm.tokenizer.encode(prompt).ids)
    for value, top in zip(told.token_logprobs, told.top_logprobs, strict=True):
        shares = lm.logits([ids])[0, -1, : lm.tokenizer.vocab_size].log_softmax(-1)
        best = shares.topk(3)
        assert value == pytest.approx(float(best.values[0]), abs=1e-4)
        assert max(top.values()) == value
        assert sorted(top.values()) == pytest.approx(
            sorted(best.values.tolist())[-len(top) :], abs=1e-4
        )
        ids.append(int(best.indices[0]))
    assert len(told.tokens) == len(told.text_offset) == 5


def test_echo_scores_the_prompt(client, models):
    lm, prompt = models["decoder"], PROMPTS[0]
    options = {"model": "decoder", "prompt": prompt, "echo": True, "temperature": 0}
    found = client.completions.create(max_tokens=0, logprobs=1, **options)
    (choice,) = found.choices
    assert choice.text == prompt
    assert "".join(choice.logprobs.tokens) == prompt
    assert choice.logprobs.token_logprobs[0] is None
    ids = list(lm.tokenizer.encode(prompt).ids)
    shares = lm.logits([ids])[0, :-1].log_softmax(-1)
    wanted = shares.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(wanted.tolist(), abs=1e-4)
    assert found.usage.completion_tokens == 0
    longer = client.completions.create(max_tokens=3, logprobs=1, **options).choices[0]
    assert longer.text == prompt + lm.generate(prompt, max_new_tokens=3, temperature=0.0)
    size = len(ids)
    assert longer.logprobs.token_logprobs[1:size] == choice.logprobs.token_logprobs[1:]
    assert len(longer.logprobs.tokens) == size + 3
    plain = client.completions.create(max_tokens=3, **options).choices[0]
    assert (plain.text, plain.logprobs) == (longer.text, None)
    pieces = client.completions.create(max_tokens=3, stream=True, logprobs=1, **options)
    parts = [piece.choices[0] for piece in pieces]
    assert "".join(part.text for part in parts) == longer.text
    assert [t for part in parts for t in part.logprobs.tokens] == longer.logprobs.tokens
    offsets = [place for part in parts for place in part.logprobs.text_offset]
    assert offsets == longer.logprobs.text_offset


def test_streams_give_the_same_text_in_pieces(client):
    options = {"model": "long", "prompt": PROMPTS, "max_tokens": 19, "temperature": 0}
    whole = client.completions.create(n=2, **options)
    pieces = list(
        client.completions.create(
            n=2, stream=True, stream_options={"include_usage": True}, **options
        )
    )
    *parts, last = pieces
    assert last.choices == []
    assert last.usage == whole.usage
    texts = [""] * 6
    ends = {}
    for part in parts:
        assert part.usage is None
        (choice,) = part.choices
        texts[choice.index] += choice.text
        if choice.finish_reason:
            ends[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert [ends[i] for i in range(6)] == [choice.finish_reason for choice in whole.choices]
    assert len(parts) > 30  # pieces, not one lump
    assert len({piece.id for piece in pieces}) == 1


def test_chat_goes_on_as_the_template_says(client, models):
    lm = models["decoder"]
    messages = [
        {"role": "developer", "content": "Be short."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "How is "}, {"type": "text", "text": "it?"}],
        },
    ]
    prompt = "Be short.\n\nUser: How is it?\nAssistant:"
    wanted = lm.generate(prompt, max_new_tokens=9, temperature=0.0)
    options = {"model": "decoder", "messages": messages, "temperature": 0}
    found = client.chat.completions.create(max_tokens=9, **options)
    assert found.choices[0].message.content == wanted
    assert found.choices[0].message.role == "assistant"
    assert found.usage.prompt_tokens == len(lm.tokenizer.encode(prompt).ids)
    pieces = list(
        client.chat.completions.create(
            max_completion_tokens=9, stream=True, stream_options={"include_usage": True}, **options
        )
    )
    assert pieces[0].choices[0].delta.role == "assistant"
    said = [piece.choices[0].delta.content or "" for piece in pieces if piece.choices]
    assert "".join(said) == wanted
    assert pieces[-2].choices[0].finish_reason == found.choices[0].finish_reason
    assert pieces[-1].usage == found.usage
    two = client.chat.completions.create(max_tokens=4, n=2, **options)
    assert two.choices[0].message.content == two.choices[1].message.content


def test_log_probabilities_of_what_is_said(client):
    found = client.chat.completions.create(
        model="decoder",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=3,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    told = found.choices[0].logprobs.content
    assert len(told) == found.usage.completion_tokens
    for token in told:
        assert token.logprob == max(top.logprob for top in token.top_logprobs)
        assert len(token.top_logprobs) == 2
        assert bytes(token.bytes).decode() == token.token


def test_embeddings_are_those_of_the_model(client, models):
    texts = ["The weather was cloudy.", "a"]
    for name in ("encoder", "long"):
        wanted = models[name].embed(texts).numpy()
        for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            found = client.embeddings.create(model=name, input=texts, **form)
            vectors = [
                np.frombuffer(base64.b64decode(each.embedding), "<f4")
                if isinstance(each.embedding, str)
                else np.array(each.embedding)
                for each in found.data
            ]
            assert np.abs(np.stack(vectors) - wanted).max() < 1e-5
        one = client.embeddings.create(model=name, input=texts[0])
        assert np.abs(np.array(one.data[0].embedding) - wanted[0]).max() < 1e-5
    ids = list(models["encoder"].tokenizer.encode(texts[0]).ids)
    found = client.embeddings.create(model="encoder", input=ids)
    assert found.usage.prompt_tokens == len(ids)
    wanted = models["encoder"].embed(texts[0]).numpy()
    assert np.abs(np.array(found.data[0].embedding) - wanted).max() < 1e-5
    options = {"pooling": "first", "normalize": False}
    found = client.embeddings.create(model="encoder", input=texts[0], extra_body=options)
    wanted = models["encoder"].embed(texts[0], **options).numpy()
    assert np.abs(np.array(found.data[0].embedding) - wanted).max() < 1e-5


def test_embedding_texts_that_are_too_long(client):
    text = "cloudy " * 200
    with pytest.raises(openai.BadRequestError, match=r"reads at most 61: shorten it"):
        client.embeddings.create(model="encoder", input=text)
    found = client.embeddings.create(model="encoder", input=text, extra_body={"truncate": True})
    assert found.usage.prompt_tokens == 61
    assert math.isclose(np.linalg.norm(found.data[0].embedding), 1.0, rel_tol=1e-4)


def test_models_are_listed_with_what_they_can(client):
    listed = client.models.list()
    names = [model.id for model in listed]
    assert names[0] == "decoder"
    assert len(names) == 7
    one = client.models.retrieve("translator")
    assert "translate" in one.verbs
    with pytest.raises(openai.NotFoundError, match="there is no model 'decodr' here"):
        client.models.retrieve("decodr")


def test_what_is_wrong_is_told_in_their_errors(client):
    ask = client.completions.create
    with pytest.raises(openai.NotFoundError, match='Did you mean "decoder"') as found:
        ask(model="decodr", prompt="a")
    assert (found.value.code, found.value.param) == ("model_not_found", "model")
    assert found.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="at most 1024 are read") as found:
        ask(model="decoder", prompt="cloudy " * 2000)
    assert found.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="this server writes 1024 at most"):
        ask(model="decoder", prompt="a", max_tokens=1025)
    with pytest.raises(openai.BadRequestError, match="is an encoder and cannot do completions"):
        ask(model="encoder", prompt="a")
    with pytest.raises(openai.BadRequestError, match="it has no chat template"):
        client.chat.completions.create(model="long", messages=[{"role": "user", "content": "a"}])
    with pytest.raises(openai.BadRequestError, match="best_of"):
        ask(model="decoder", prompt="a", best_of=3)
    with pytest.raises(openai.BadRequestError, match="colour"):
        ask(model="decoder", prompt="a", extra_body={"colour": "red"})
    with pytest.raises(openai.BadRequestError, match="are 130 texts"):
        ask(model="decoder", prompt=["a"] * 65, n=2)
    with pytest.raises(openai.BadRequestError, match="the prompt has id 300"):
        ask(model="long", prompt=[5, 300])
    with pytest.raises(openai.BadRequestError, match="at most 1024"):
        ask(model="decoder", prompt="cloudy " * 2000, stream=True)


def test_a_text_ends_where_the_positions_end(client):
    ids = [7] * 1020
    found = client.completions.create(
        model="decoder", prompt=ids, max_tokens=50, temperature=0, extra_body=ENDLESS
    )
    assert found.choices[0].finish_reason == "length"
    assert found.usage.completion_tokens == 5  # the last is never read, and needs no position


def test_keys(paths):
    with running({"long": paths["long"]}, key="secret") as found:

        def ask(key: str):
            with openai.OpenAI(base_url=f"{found.url}/v1", api_key=key, max_retries=0) as client:
                return client.completions.create(model="long", prompt="a", max_tokens=1)

        assert ask("secret").choices
        for wrong in ("secre", "secrets", "Secret", "ключ"):
            if wrong.isascii():
                with pytest.raises(openai.AuthenticationError, match="the API key is wrong"):
                    ask(wrong)
        assert found.get("/healthz").status_code == 200
        for path in ("/metrics", "/openapi.json", "/docs", "/", "/v1/models"):
            answer = found.get(path)
            assert answer.status_code == 401, path
            assert answer.json()["error"]["code"] == "invalid_api_key"
        headers = {"Authorization": b"Bearer \xd0\xba\xd0\xbb"}
        assert found.get("/v1/models", headers=headers).status_code == 401
        # A browser asks its user for a name and a password.
        assert found.get("/docs", auth=("anyone", "secret")).status_code == 200
        assert "Basic" in found.get("/docs").headers["WWW-Authenticate"]


def test_too_many_at_once_are_told_to_come_back(paths):
    limits = Limits(rows=1, max_queue=1, max_tokens=10**6)
    with (
        running({"long": paths["long"]}, limits=limits) as found,
        openai.OpenAI(base_url=f"{found.url}/v1", api_key="none", max_retries=0) as client,
    ):
        options = {"model": "long", "prompt": "a", "max_tokens": 10**6, "extra_body": ENDLESS}
        streams = [client.completions.create(stream=True, **options) for _ in range(2)]
        next(iter(streams[0]))
        with pytest.raises(openai.RateLimitError, match="may: ask again later") as told:
            client.completions.create(**options)
        assert told.value.response.headers["Retry-After"] == "1"
        assert told.value.code == "queue_full"
        with pytest.raises(openai.RateLimitError):
            client.embeddings.create(model="long", input="a")
        assert found.metric("trivium_running", model="long") == 1
        assert found.metric("trivium_waiting", model="long") == 1
        for stream in streams:
            stream.close()
        found.until(lambda: found.metric("trivium_running", model="long") == 0)
        assert client.completions.create(model="long", prompt="a", max_tokens=1).choices
