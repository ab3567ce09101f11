"""Structured output of the models that the server tests use: JSON schemas, regular expressions."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import torch
from serving import byte_tokenizer, decoder, mamba, plain, transformer, translator, with_text

from trivium.errors import TriviumError
from trivium.inference.constraint import Constraint
from trivium.inference.engine import Engine
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.speculative import PromptLookup
from trivium.model_loading import load
from trivium.spec import LMHead
from trivium.text import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": -5, "maximum": 99},
        "kind": {"enum": ["x", "y/", "é"]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["n", "kind", "flags"],
    "additionalProperties": False,
}


def check_object(text: str) -> None:
    value = json.loads(text)
    assert list(value) == ["n", "kind", "flags"]
    assert -5 <= value["n"] <= 99
    assert value["kind"] in ("x", "y/", "é")
    assert len(value["flags"]) <= 3
    assert {*map(type, value["flags"])} <= {bool}
    assert text == json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize("make", [decoder, mamba, translator])
def test_texts_of_a_batch_follow_the_schema(make):
    lm = make()
    for temperature in (0.0, 1.0, 5.0):
        options = {"json_schema": SCHEMA, "max_new_tokens": 60, "temperature": temperature}
        prompts = ["a", "The weather was", "today"]
        texts = lm.generate(prompts, seed=3, **options)
        for text in texts:
            check_object(text)
        alone = [lm.generate(one, seed=3 + i, **options) for i, one in enumerate(prompts)]
        assert alone == texts
        assert "".join(lm.stream(prompts[0], seed=3, **options)) == texts[0]


def test_regular_expressions_match_the_whole_text():
    lm = decoder()
    for pattern in (r"[0-9]{4}/[0-9]{2}", r"(ab|cd)+e\.", r"[今天]{3}", "a\nb|c\td", r'"\\'):
        for seed in range(4):
            text = lm.generate("x", regex=pattern, seed=seed, max_new_tokens=60)
            assert re.fullmatch(pattern, text), (pattern, text)


def test_grammars_and_any_json():
    lm = decoder()
    text = lm.generate("x", grammar='start: "hi " name\nname: "Ada" | "Bob"\n', seed=0)
    assert text in ("hi Ada", "hi Bob")
    json.loads(lm.generate("x", json_schema={"maxLength": 3, "type": "string"}, seed=0))


def test_drafts_do_not_change_constrained_texts():
    lm = decoder()
    for seed in range(4):
        options = {"regex": "(abc|abd){6}", "seed": seed, "max_new_tokens": 40}
        assert lm.generate("abcabd", draft=PromptLookup(), **options) == lm.generate(
            "abcabd", **options
        )


def test_texts_with_and_without_constraints_share_an_engine():
    lm = decoder()
    engine = Engine(lm, slots=2)
    prompt = lm.tokenizer.encode("The weather", add_special_tokens=False).ids
    params = [
        SamplingParams(json_schema=SCHEMA, seed=1, max_new_tokens=60),
        SamplingParams(seed=2, max_new_tokens=20),
        SamplingParams(regex="[a-c]{9}", seed=3),
        SamplingParams(choices=["today", "rainy"], seed=4),
        SamplingParams(json_schema=SCHEMA, seed=5, max_new_tokens=3),
    ]
    requests = [engine.add(GenerationRequest(prompt, one)) for one in params]
    for _ in engine.run():
        pass
    first, free, letters, chosen, cut = requests
    check_object(first.text)
    assert re.fullmatch("[a-c]{9}", letters.text)
    assert chosen.text in ("today", "rainy")
    assert free.text == lm.generate("The weather", seed=2, max_new_tokens=20)
    assert [one.finish_reason for one in (first, letters, chosen, cut)] == [
        *("stop", "stop", "stop"),
        "length",
    ]
    assert len(cut.output_ids) == 3
    assert cut.text.startswith("{")


def test_other_rules_yield_to_a_constraint():
    lm = decoder()
    options = {"regex": "aaaaaaaaaa", "no_repeat_ngram": 1, "min_new_tokens": 50}
    assert lm.generate("x", seed=0, **options) == "a" * 10
    assert lm.generate("x", regex="a+", seed=0, max_new_tokens=7, min_new_tokens=7)[:3] == "aaa"


def test_an_answer_may_begin_with_the_space_of_its_prompt():
    lm = decoder()
    params = SamplingParams(regex="[ab]{3}", logit_bias={lm.tokenizer.token_to_id("Ġ"): 100.0})
    request = GenerationRequest([5], params, answers=True)
    lm.run_requests([request], slots=1)
    assert re.fullmatch("[ab]{3}", request.text)
    assert len(request.output_ids) >= 2
    assert lm.tokenizer.decode(request.output_ids).startswith(" ")


def test_a_model_without_an_end_of_text():
    tokenizer = Tokenizer.train(
        "byte-bpe", texts=["a b c"], vocab_size=257, special_tokens=[], progress=False
    )
    lm = with_text(
        transformer(tokenizer.vocab_size, "decoder", (LMHead(tied=True),), 61), tokenizer
    )
    assert lm.generation_rules.stop_ids == frozenset()
    assert lm.generate("x", regex="abc|abd", seed=0) in ("abc", "abd")
    assert lm.generate("x", regex="ab*", seed=0, max_new_tokens=5) == "abbbb"


WRONG = [
    ({"regex": "a("}, "regex cannot be used: invalid regex .* unclosed group"),
    ({"json_schema": {"type": "strin"}}, "json_schema cannot be used: Invalid type: strin."),
    ({"json_schema": {"not": {}}}, "json_schema cannot be used: Unimplemented keys"),
    ({"json_schema": {"enum": []}}, "json_schema cannot be used: Unsatisfiable"),
    ({"json_schema": "{}"}, "json_schema is '{}', but must be a dict."),
    ({"regex": 5}, "regex is 5, but must be a string."),
    ({"grammar": "start: name"}, "grammar cannot be used: unknown name"),
    ({"regex": "a", "choices": ["b"]}, "choices and regex are set, but a text can follow only one"),
    ({"regex": "a", "num_beams": 2}, "regex is not an option of beam search"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_constraints_are_refused(options, message):
    with pytest.raises(TriviumError, match=message):
        plain().generate("a", **options)


def test_a_tokenizer_that_adds_spaces_is_refused():
    tokenizer = Tokenizer.train("wordpiece", texts=["a b c"] * 9, vocab_size=120, progress=False)
    lm = with_text(
        transformer(tokenizer.vocab_size, "decoder", (LMHead(tied=True),), 61), tokenizer
    )
    with pytest.raises(TriviumError, match="wordpiece tokenizer adds spaces between tokens"):
        lm.generate("a", regex="b")
    assert lm.generate("a", choices=["b"]).strip() == "b"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_tokenizers_with_space_symbols(kind):
    texts = ["the cat sat on the mat", '{"a": 1, "b": [true, false]} x y 0 2 3'] * 9
    tokenizer = Tokenizer.train(kind, texts=texts, vocab_size=120, progress=False)
    lm = with_text(
        transformer(tokenizer.vocab_size, "decoder", (LMHead(tied=True),), 61), tokenizer
    )
    schema = {"type": "array", "items": {"enum": [True, False, 1, 2]}, "maxItems": 4}
    for seed in range(4):
        assert isinstance(json.loads(lm.generate("the cat", json_schema=schema, seed=seed)), list)


def test_a_constraint_that_llguidance_gives_up_ends_the_text_with_an_error(monkeypatch):
    lm = decoder()
    monkeypatch.setattr(Constraint, "error", "the grammar is too complex")
    with pytest.raises(TriviumError, match="cannot be constrained: the grammar is too complex"):
        lm.generate("a", regex="[ab]+", max_new_tokens=5)
    with pytest.raises(TriviumError, match="cannot be constrained"):
        list(lm.stream("a", regex="[ab]+", max_new_tokens=5))


def test_masks_have_the_size_of_the_vocabulary():
    tokenizer = byte_tokenizer()
    constraint = Constraint(tokenizer, frozenset({0}), 'start: "ab"')
    mask = constraint.allowed_tokens(tokenizer.vocab_size)
    assert mask is not None
    assert (mask.dtype, mask.shape) == (torch.bool, (tokenizer.vocab_size,))
    assert {tokenizer.token_bytes[i] for i in mask.nonzero()[:, 0].tolist()} <= {b"a", b"ab"}
    assert not constraint.is_complete


def test_the_command_line(tmp_path):
    path = decoder().save(tmp_path / "lm")
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA), encoding="utf-8")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trivium", "generate", str(path), "x", "--json", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    check_object(json.loads(run("--json-schema", str(file), "--seed", "1").stdout)["text"])
    assert re.fullmatch("[ab]{5}", json.loads(run("--regex", "[ab]{5}").stdout)["text"])
    file.write_text("[]", encoding="utf-8")
    failed = run("--json-schema", str(file))
    assert failed.returncode == 1
    assert "is not a JSON object" in failed.stderr
    assert load(path)
