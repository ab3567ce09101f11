"""The engine: texts equal those of `transformers` and of a model without a cache."""

from __future__ import annotations

import random

import pytest
import torch
from generating_models import (
    HF_MODELS,
    POSITIONS,
    PROMPTS,
    hf_generate,
    hf_pair,
    letters,
    run,
    text_model,
    until,
)
from small_models import BOTH, DECODERS, VOCABULARY, random_ids, small_model

from trivium.errors import SpecError, TriviumError
from trivium.inference import engine as engine_module
from trivium.inference.engine import Engine
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling import sample_tokens
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.score import ScoreItem, score_continuations
from trivium.inference.speculative import DraftModel, PromptLookup
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.presets import presets

pytestmark = pytest.mark.usefixtures("double_precision")

LENGTHS = (5, 1, 13, 12, 2, 7, 11)
STOP, NEW = 7, 9
SEQUENCES = {"lstm": {"d_hidden": 13}, "gru": {"d_hidden": 13}, "ngram": {"order": 5}}
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=NEW)
SAMPLED = SamplingParams(temperature=1.3, top_k=17, top_p=0.9, max_new_tokens=NEW, seed=3)


def made(name: str):
    """A model in evaluation mode whose texts vary."""
    if name not in SEQUENCES:
        return small_model(name, seed=3)
    changes = {"vocab_size": VOCABULARY, "d_model": 11, **SEQUENCES[name]}
    module = build(presets[f"{name}-tiny"].replace(**changes), seed=5)
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(4.0)
    return module.eval()


def prompts_of(module) -> list[list[int]]:
    limit = getattr(module.spec, "source_vocab_size", None) or VOCABULARY
    ids = random_ids(len(LENGTHS), max(LENGTHS), seed=7) % limit
    return [row[:length] for row, length in zip(ids.tolist(), LENGTHS)]


@torch.inference_mode()
def uncached(lm, prompt: list[int], params: SamplingParams) -> list[int]:
    """The text of one prompt, everything computed anew for each token."""
    module, numbers, output = lm.module, random.Random(params.seed), []
    start = list(lm.generation_rules.decoder_start)
    while len(output) < params.max_new_tokens:
        inputs = {"input_ids": torch.tensor([prompt if start else [*prompt, *output]])}
        if start:
            inputs["decoder_input_ids"] = torch.tensor([[*start, *output]])
        logits = module.logits(module(**inputs)[:, -1]).float()
        token_id = int(sample_tokens(logits, [params], [numbers.random()]))
        if token_id == STOP:
            break
        output.append(token_id)
    return output


@pytest.mark.parametrize("name", [*DECODERS, *SEQUENCES])
def test_every_family_equals_a_model_without_a_cache(name):
    lm = text_model(made(name), stop_ids=frozenset({STOP}))
    prompts = prompts_of(lm.module)
    for params, slots in ((GREEDY, 7), (SAMPLED, 2)):
        expected = [
            uncached(lm, prompt, params.replace(seed=(params.seed or 0) + i))
            for i, prompt in enumerate(prompts)
        ]
        texts = run(lm, prompts, params, slots=slots, slot_length=37)
        assert [text.output_ids for text in texts] == expected, (name, slots)


def test_greedy_equals_transformers():
    for name in HF_MODELS:
        hf, module = hf_pair(name)
        start = text_model(module).generation_rules.decoder_start
        for penalty in (1.0, 1.7):
            params = SamplingParams(temperature=0.0, max_new_tokens=23, repetition_penalty=penalty)
            config = {"max_new_tokens": 23, "do_sample": False, "repetition_penalty": penalty}
            out, skipped = hf_generate(hf, PROMPTS, start, **config)
            expected = out.sequences[:, skipped:].tolist()
            assert len({tuple(ids) for ids in expected}) == len(PROMPTS), name
            texts = run(text_model(module), PROMPTS, params)
            assert [text.output_ids for text in texts] == expected, name
            assert {text.finish_reason for text in texts} == {"length"}
        ends = frozenset(expected[0][5:6] + expected[2][9:10])
        ended = run(text_model(module, stop_ids=ends), PROMPTS, params)
        assert [text.output_ids for text in ended] == [until(ids, ends) for ids in expected]
        assert "stop" in {text.finish_reason for text in ended}


@pytest.mark.parametrize("name", ["gpt2", "mistral", "alibi", "t5", "bart"])
def test_drafts_change_no_text(name):
    lm = text_model(made(name), stop_ids=frozenset({STOP}))
    prompts = prompts_of(lm.module)
    drafts = [PromptLookup(num_tokens=5), PromptLookup(num_tokens=1, ngram=1)]
    if name not in BOTH:
        drafts += [DraftModel(small_model("llama", seed=1)), DraftModel(lm.module, 3)]
    for params in (GREEDY.replace(max_new_tokens=17), SAMPLED.replace(max_new_tokens=17)):
        plain = run(lm, prompts, params, slots=3, slot_length=37)
        for draft in drafts:
            texts = run(lm, prompts, params, slots=3, slot_length=37, draft=draft)
            expected = [text.output_ids for text in plain]
            assert [text.output_ids for text in texts] == expected, (name, draft)


def test_a_model_that_drafts_for_itself_needs_few_steps():
    lm = text_model(made("gpt2"))
    engine = Engine(lm, slots=1, slot_length=37, draft=DraftModel(lm.module, num_tokens=4))
    request = engine.add(GenerationRequest([3, 5], GREEDY.replace(max_new_tokens=21)))
    steps = 0
    while engine.busy:
        engine.step()
        steps += 1
    assert len(request.output_ids) == 21
    assert steps == 5  # a token at prefill, then five per step


def test_requests_are_added_and_cancelled_between_steps():
    lm = text_model(made("gpt2"), stop_ids=frozenset({STOP}))
    prompts = prompts_of(lm.module)
    engine = Engine(lm, slots=3, slot_length=37)
    first = [engine.add(GenerationRequest(p, GREEDY)) for p in prompts[:2]]
    for _ in range(3):
        engine.step()
    later = [engine.add(GenerationRequest(p, SAMPLED.replace(seed=2))) for p in prompts[2:6]]
    assert (engine.num_active, engine.waiting) == (2, 4)
    engine.step()
    cancelled, waiting = first[0], later[3]
    before = list(cancelled.output_ids)
    engine.cancel(cancelled)
    engine.cancel(waiting)
    assert cancelled.finish_reason == waiting.finish_reason == "cancelled"
    finished = list(engine.run())
    assert {*map(id, finished)} == {*map(id, [first[1], *later[:3]])}
    assert cancelled.output_ids == before
    assert waiting.output_ids == []
    assert first[1].output_ids == uncached(lm, prompts[1], GREEDY)
    for prompt, request in zip(prompts[2:5], later):
        assert request.output_ids == uncached(lm, prompt, SAMPLED.replace(seed=2))
    assert not engine.busy


def test_longer_sources_give_a_decode_step_few_shapes():
    lm = text_model(made("t5"), stop_ids=frozenset({STOP}))
    engine, shapes = Engine(lm, slots=1, slot_length=NEW + 1), set()
    for length in (3, *range(1, 91, 11)):
        prompt = [5 + length % 7] * length
        request = engine.add(GenerationRequest(prompt, GREEDY))
        list(engine.run())
        assert request.output_ids == uncached(lm, prompt, GREEDY)
        shapes.add(engine._cache.source_mask.shape[1])
    assert shapes == {3, 64, 128}


def counting(extend, rows: list[int]):
    """Note the rows of each decode step."""

    def counted(module, cache, ids, **options):
        rows.append(len(ids))
        return extend(module, cache, ids, **options)

    return counted


@pytest.mark.parametrize("name", ["gpt2", "t5", "lstm"])
def test_a_text_that_remains_moves_to_the_lowest_slot(name, monkeypatch):
    lm = text_model(made(name), stop_ids=frozenset({STOP}))
    prompts = prompts_of(lm.module)
    expected = run(lm, prompts, SAMPLED, slots=1, slot_length=37)
    for draft in (None, PromptLookup()) if name == "gpt2" else (None,):
        engine = Engine(lm, slots=7, slot_length=37, draft=draft)
        lengths = [NEW if i in (2, 6) else 2 for i in range(7)]
        requests = [
            engine.add(GenerationRequest(prompt, SAMPLED.replace(max_new_tokens=n, seed=3 + i)))
            for i, (prompt, n) in enumerate(zip(prompts, lengths))
        ]
        rows = []
        engine._extend_texts._extend = counting(engine._extend_texts._extend, rows)
        list(engine.run())
        for one, other, n in zip(requests, expected, lengths):
            assert one.output_ids == other.output_ids[:n]
        assert rows[-1] <= 2


def test_many_prompts_are_read_in_several_steps(monkeypatch):
    monkeypatch.setattr(engine_module, "_PREFILL_TOKENS", 14)
    lm = text_model(made("llama"), stop_ids=frozenset({STOP}))
    prompts = prompts_of(lm.module)
    engine = Engine(lm, slots=7, slot_length=37)
    requests = [engine.add(GenerationRequest(p, GREEDY)) for p in prompts]
    engine.step()
    assert engine.num_active == 2
    list(engine.run())
    assert [one.output_ids for one in requests] == [uncached(lm, p, GREEDY) for p in prompts]


def test_the_context_length_ends_a_text():
    lm = text_model(hf_pair("gpt2")[1])
    params = SamplingParams(temperature=0.0, max_new_tokens=500)
    prompt = [3] * (POSITIONS - 4)
    (text,) = run(lm, [prompt], params)
    assert len(text.output_ids) == 5
    assert text.finish_reason == "length"
    (short,) = run(lm, [[3] * 9], params, slot_length=13)
    assert len(short.output_ids) == 5
    endless = text_model(made("llama"))  # rotary positions have no end of their own
    assert Engine(endless, slots=1).slot_length == 2048
    assert Engine(endless, slots=1, slot_length=3001).slot_length == 3001


def test_log_probabilities_are_those_of_the_model():
    module = hf_pair("gpt2")[1]
    params = SAMPLED.replace(top_logprobs=3, logit_bias={1: -100.0}, seed=1)
    free = run(text_model(module), [PROMPTS[0]], params)[0].output_ids
    (text,) = run(text_model(module, stop_ids=frozenset({free[-1]})), [PROMPTS[0]], params)
    assert text.output_ids == until(free, free[-1:])
    ids = [*PROMPTS[0], *text.output_ids]
    with torch.inference_mode():
        expected = module.logits(module(torch.tensor([ids])))[0].float().log_softmax(-1)
    assert len(text.logprobs) == len(text.output_ids) > 3
    for place, token in enumerate(text.logprobs, len(PROMPTS[0]) - 1):
        assert token.id == ids[place + 1]
        assert token.logprob == pytest.approx(float(expected[place, token.id]), abs=1e-9)
        values, best = expected[place].topk(3)
        assert [each.id for each in token.top] == best.tolist()
        assert [each.logprob for each in token.top] == pytest.approx(values.tolist(), abs=1e-9)
    assert "".join(token.text for token in text.logprobs) == text.text


def test_log_probabilities_are_those_of_scores():
    """Rows of padding and forbidden ids count in the sum over the vocabulary in both."""
    lm = text_model(hf_pair("gpt2")[1], vocab_size=71, banned_ids=frozenset({3, 5}))
    params = GREEDY.replace(top_logprobs=0, logit_bias={7: -3.0}, no_repeat_ngram=1)
    for prompt, text in zip(PROMPTS, run(lm, PROMPTS, params)):
        item = ScoreItem(prompt, [text.output_ids])
        (score,) = score_continuations(lm, [item])[0]
        recorded = [token.logprob for token in text.logprobs]
        assert recorded == pytest.approx(score.log_probabilities, rel=1e-9)


def test_a_full_slot_takes_no_draft_beyond_its_end():
    lm = text_model(made("llama"))
    prompt = [5, 7, 5, 7, 5]
    for length in (6, 7, 13):
        (plain,) = run(lm, [prompt], GREEDY.replace(max_new_tokens=99), slot_length=length)
        assert len(plain.output_ids) == length - len(prompt) + 1
        for draft in (PromptLookup(num_tokens=5), DraftModel(lm.module, 5)):
            params = GREEDY.replace(max_new_tokens=99)
            (text,) = run(lm, [prompt], params, slot_length=length, draft=draft)
            assert text.output_ids == plain.output_ids


def test_bans_forced_ends_and_padded_vocabularies():
    module = hf_pair("bart")[1]
    free = run(text_model(module), PROMPTS, GREEDY)
    banned = frozenset(free[0].output_ids[1:4])
    texts = run(text_model(module, banned_ids=banned, forced_end=2), PROMPTS, GREEDY)
    assert not banned & {i for text in texts for i in text.output_ids}
    assert all(len(text.output_ids) == NEW and text.output_ids[-1] == 2 for text in texts)
    few = run(text_model(module, vocab_size=17), PROMPTS, SAMPLED)
    assert max(i for text in few for i in text.output_ids) < 17


def test_only_choices_are_generated():
    lm = text_model(hf_pair("gpt2")[1], letters(), stop_ids=frozenset({STOP}), vocab_size=101)
    letter = [t for t in letters().tokens[:101] if len(t) == 1 and t.isalpha()][:5]
    choices = [letter[0] + letter[1], letter[0] + letter[1] + letter[2], letter[3] + letter[4]]
    texts = run(lm, PROMPTS * 4, SAMPLED.replace(choices=choices, temperature=5.0))
    assert {text.text for text in texts} == {*choices}
    assert {text.finish_reason for text in texts} == {"stop"}
    with pytest.raises(TriviumError, match="beginning of another"):
        run(text_model(lm.module), PROMPTS, SAMPLED.replace(choices=choices[:2]))


def test_stop_strings_end_a_text_and_are_not_shown():
    lm = text_model(hf_pair("gpt2")[1])
    params = SamplingParams(temperature=1.5, max_new_tokens=40, seed=1)
    (whole,) = run(lm, [PROMPTS[2]], params)
    for start in (0, 3, 11):
        stop = whole.text[start : start + 3]
        engine = Engine(lm, slots=1, draft=PromptLookup())
        request = GenerationRequest(PROMPTS[2], params.replace(stop=["not there", stop]))
        pieces = [*engine.stream(engine.add(request))]
        assert all(pieces)
        assert request.text == "".join(pieces) == whole.text[: whole.text.index(stop)]
        assert request.finish_reason == "stop"
        assert len(request.output_ids) < len(whole.output_ids)
    # What only began like a stop string is shown at the end.
    (held,) = run(lm, [PROMPTS[2]], params.replace(stop=[whole.text[-2:] + "more"]))
    assert held.text == whole.text


def test_what_cannot_be_done_is_refused():
    lm, both = text_model(made("gpt2")), text_model(made("bart"))
    engine = Engine(lm, slots=2, slot_length=29)
    for prompt, what in (([], "no tokens"), ([3] * 30, "holds 29"), ([VOCABULARY], "has id")):
        with pytest.raises(SpecError, match=what):
            engine.add(GenerationRequest(prompt))
    with pytest.raises(SpecError, match="at most"):
        Engine(both).add(GenerationRequest([3] * 99))
    with pytest.raises(SpecError, match="logit_bias"):
        engine.add(GenerationRequest([3], SamplingParams(logit_bias={VOCABULARY: 1.0})))
    with pytest.raises(TriviumError, match="slots"):
        Engine(lm, slots=0)
    for options, what in (
        ({"draft": PromptLookup()}, "rolled back by 0 tokens"),
        ({"compile": True}, "needs a Transformer"),
    ):
        with pytest.raises(SpecError, match=what):
            Engine(text_model(made("lstm")), **options)
    with pytest.raises(SpecError, match="depend on the tokens"):
        Engine(text_model(small_model("Experts")), compile=True)
    with pytest.raises(SpecError, match="must be a decoder"):
        DraftModel(both.module)
    with pytest.raises(SpecError, match="must roll back 4 tokens"):
        Engine(lm, draft=DraftModel(made("lstm")))
    with pytest.raises(TriviumError, match="compiled"):
        Engine(lm, compile=True, draft=PromptLookup())
    with pytest.raises(TriviumError, match="num_tokens"):
        PromptLookup(num_tokens=0)


@pytest.mark.parametrize("name", [*DECODERS, *SEQUENCES])
def test_a_text_that_ends_early_frees_its_slot_and_disturbs_no_other(name):
    lm = text_model(made(name), stop_ids=frozenset({STOP}))
    prompts = prompts_of(lm.module)
    engine = Engine(lm, slots=2, slot_length=37)
    ended, other, later = (GenerationRequest(p, GREEDY) for p in prompts[:3])
    engine.add(ended)
    engine.add(other)
    engine.step()
    if not ended.finished:
        engine.cancel(ended)
        assert ended.finish_reason == "cancelled"
    assert engine.num_active <= 1
    engine.add(later)
    assert {*map(id, engine.run())} <= {id(other), id(later), id(ended)}
    for request, prompt in ((other, prompts[1]), (later, prompts[2])):
        assert request.output_ids == uncached(lm, prompt, GREEDY)
    assert not engine.busy


def test_a_request_that_was_not_added_has_no_stream():
    lm = text_model(made("gpt2"))
    engine, (prompt, *_) = Engine(lm, slots=1, slot_length=37), prompts_of(lm.module)
    request, busy = GenerationRequest(prompt, GREEDY), GenerationRequest(prompt, GREEDY)
    engine.add(busy)
    with pytest.raises(TriviumError, match="not added to this engine"):
        engine.stream(request)
    assert "".join(engine.stream(busy)) == busy.text
    assert "".join(engine.stream(busy)) == busy.text  # one that has finished is there


@pytest.mark.parametrize(
    "name", ["gpt2-tiny", "t5-tiny", "bart-tiny", "bahdanau-tiny", "lstm-tiny"]
)
def test_an_interruption_is_not_another_error(name, monkeypatch):
    """Neither while a list is generated, nor when a stream is closed."""
    described = presets[name].replace(vocab_size=letters().vocab_size)
    settings = Settings(config={"decoder_start_token_id": 0})
    lm = LanguageModel(described, build(described, seed=0), letters(), settings)
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "temperature": 0.0}
    stream = lm.stream("the quick", **options)
    next(stream)
    stream.close()
    step, steps = Engine.step, 0

    def interrupted(engine):
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return step(engine)

    monkeypatch.setattr(Engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lm.generate(["the quick", "brown"], **options)
