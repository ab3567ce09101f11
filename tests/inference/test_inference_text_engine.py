"""Texts from the engine: pieces, stop strings, choices, scores, refusals."""

from __future__ import annotations

import pytest
import torch

from trivium import LanguageModel
from trivium.errors import SpecError, TriviumError
from trivium.inference import Sampling
from trivium.inference.drafts import PromptLookup
from trivium.inference.stream import added_texts
from trivium.models import build
from trivium.presets import presets
from trivium.text import Tokenizer

TEXT = [
    "The weather was cloudy yesterday, but today it is rainy and cold.",
    "A cat sat on the mat while the other cats slept in the sun.",
    "今天天气很好。我们去公园。🙂",
] * 5
GREEDY = Sampling(0.0)


@pytest.fixture(scope="module")
def lm():
    tokenizer = Tokenizer.train("byte-bpe", texts=TEXT, vocab_size=307, progress=False)
    spec = presets["gpt2-tiny"].replace(vocab_size=tokenizer.vocab_size)
    module = build(spec, seed=3)
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(3.0)
    return LanguageModel(spec, module, tokenizer)


def run(engine) -> None:
    while engine.busy:
        engine.step()


def test_pieces_join_to_the_text_of_generate(lm):
    prompts = [f"{word} is" for word in ("rain", "the cat", "sun", "天")]
    expected = lm.generate(prompts, max_new_tokens=23, temperature=1.0, seed=5)
    engine = lm.engine(rows=2)
    texts = [engine.add(prompt, max_new_tokens=23, seed=5 + i) for i, prompt in enumerate(prompts)]
    pieces = [""] * len(texts)
    while engine.busy:
        changed = engine.step()
        for i, text in enumerate(texts):
            piece = text.take()
            assert not piece or text in changed
            pieces[i] += piece
    assert pieces == expected == [text.text for text in texts]
    assert [text.finish for text in texts] == ["length"] * 4
    assert all(len(text.ids) == 23 for text in texts)
    streamed = lm.stream(prompts[2], max_new_tokens=23, temperature=1.0, seed=7)
    assert "".join(streamed) == expected[2]


def test_a_stop_string_ends_a_text_and_nothing_of_it_is_shown(lm):
    free = lm.generate("The", max_new_tokens=40, temperature=0.0)
    place = len(free) // 2
    stop = free[place : place + 4]
    cut = free[: free.find(stop)]
    engine = lm.engine()
    text = engine.add("The", max_new_tokens=40, sampling=GREEDY, stop=["never", stop])
    shown = ""
    while engine.busy:
        engine.step()
        shown += text.take()
        assert cut.startswith(shown)
    assert (shown, text.text, text.finish) == (cut, cut, "stop")
    assert len(text.ids) < 40
    assert lm.generate("The", max_new_tokens=40, temperature=0.0, stop=[stop]) == cut
    guessed = lm.generate(
        "The", max_new_tokens=40, temperature=0.0, stop=[stop], draft=PromptLookup()
    )
    assert guessed == cut


def test_what_only_looked_like_a_stop_string_is_shown_at_the_end(lm):
    free = lm.generate("The", max_new_tokens=12, temperature=0.0)
    engine = lm.engine()
    text = engine.add("The", max_new_tokens=12, sampling=GREEDY, stop=[free[-2:] + "#"])
    run(engine)
    assert (text.text, text.finish) == (free, "length")


def test_choices(lm):
    engine = lm.engine(rows=3)
    options = ["rainy", "cloudy", "cold and rainy"]
    texts = [
        engine.add("It is ", sampling=Sampling(5.0), seed=seed, choices=options)
        for seed in range(30)
    ]
    run(engine)
    assert {text.text for text in texts} == set(options)
    assert {text.finish for text in texts} == {"stop"}


@pytest.mark.parametrize("kind", ["byte-bpe", "unigram", "wordpiece"])
def test_the_texts_of_tokens_join_to_the_text(kind):
    tokenizer = Tokenizer.train(kind, texts=TEXT, vocab_size=307, progress=False)
    text = "The weather is rainy, but a cat sat on the mat."
    if kind == "wordpiece":  # its decoder puts no space back that it cannot know of
        text = "the cat sat on the mat while it is cold"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert len(ids) > 8
    assert "".join(added_texts(tokenizer, list(zip([None, *ids], ids)))) == text


def test_scores_have_the_texts_of_tokens(lm):
    engine = lm.engine()
    text = engine.add("The cat", max_new_tokens=7, sampling=GREEDY, top_logprobs=3)
    run(engine)
    assert [token.id for token in text.tokens] == text.ids
    for token in text.tokens:
        assert token.text == lm.tokenizer.decode([token.id], skip_special_tokens=False)
        assert token.top[0] == (token.text, token.log_probability)
        assert len(token.top) == 3
    plain = engine.add("The cat", max_new_tokens=7, sampling=GREEDY)
    run(engine)
    assert plain.tokens == []


def test_prompts_as_ids_and_cut_ones(lm):
    ids = lm.tokenizer.encode("The weather was cloudy").ids
    engine = lm.engine()
    texts = [
        engine.add("The weather was cloudy", max_new_tokens=9, sampling=GREEDY),
        engine.add(ids, max_new_tokens=9, sampling=GREEDY),
        engine.add([*[3] * 50, *ids], max_new_tokens=9, sampling=GREEDY, truncate=len(ids)),
    ]
    run(engine)
    assert {text.text for text in texts} == {texts[0].text}
    assert {text.prompt_tokens for text in texts} == {len(ids)}


def test_cancelled_texts_keep_what_they_have(lm):
    engine = lm.engine(rows=1)
    first, second = (engine.add("The", max_new_tokens=50, sampling=GREEDY) for _ in range(2))
    for _ in range(5):
        engine.step()
    engine.cancel(first)
    engine.cancel(first)
    assert (first.finish, len(first.ids), engine.running) == ("cancelled", 5, 0)
    run(engine)
    assert second.text.startswith(first.text)
    assert len(second.ids) == 50


def test_refusals(lm):
    engine = lm.engine()
    with pytest.raises(SpecError, match=r"1025 tokens.*end at 1024"):
        engine.add([3] * 1025)
    with pytest.raises(SpecError, match="id 9999, but ids end at"):
        engine.add([9999])
    with pytest.raises(TriviumError, match="empty stop string"):
        engine.add("The", stop=["a", ""])
    with pytest.raises(TriviumError, match="truncate is 0"):
        engine.add("The", truncate=0)
    with pytest.raises(TriviumError, match="top_logprobs is -1"):
        engine.add("The", top_logprobs=-1)
    assert not engine.busy
