"""Beam search against `transformers`, and its independence of batches."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from generating_models import (
    HF_MODELS,
    POSITIONS,
    PROMPTS,
    hf_generate,
    hf_pair,
    run,
    text_model,
    until,
)
from small_models import DECODERS, random_ids, small_model

from trivium.errors import SpecError, TriviumError
from trivium.inference.beam import Beam, Hypothesis, _Search, beam_search
from trivium.inference.sampling_params import BeamSearchParams, SamplingParams

pytestmark = pytest.mark.usefixtures("double_precision")

NEW = 9
# Every number of beams, penalty and way to stop, and every way to stop with every penalty.
GRID = [
    BeamSearchParams(1),
    BeamSearchParams(2, 0.0, early_stopping=True, num_return=2),
    BeamSearchParams(2, 0.6, early_stopping="never", num_return=1),
    BeamSearchParams(4, 0.0, early_stopping=False, num_return=4),
    BeamSearchParams(4, 0.6, early_stopping=True, num_return=3),
    BeamSearchParams(4, 1.0, early_stopping="never", num_return=4),
    BeamSearchParams(4, 2.0, early_stopping=False, num_return=4),
    BeamSearchParams(4, -1.0, early_stopping="never", num_return=4),
    BeamSearchParams(5, 2.0, early_stopping=True, num_return=5),
    BeamSearchParams(5, 0.6, early_stopping=False, num_return=2),
    BeamSearchParams(5, 0.0, early_stopping="never", num_return=5),
]


@functools.cache
def stop_ids_of(name: str) -> tuple[int, int]:
    """Two ids that several texts have after their first: texts of many lengths end there."""
    lm = text_model(hf_pair(name)[1])
    results = beam_search(lm, PROMPTS, BeamSearchParams(4, num_return=4), max_new_tokens=NEW)
    texts = [{*text.ids[1:]} for text in itertools.chain(*results)]
    ids = sorted({*itertools.chain(*texts)}, key=lambda i: (sum(i in t for t in texts), i))
    return ids[-3], ids[-2]


def hf_beams(name, params, stop_ids=(), max_new_tokens=NEW, start=(), **config):
    hf, _ = hf_pair(name)
    out, skipped = hf_generate(
        hf,
        PROMPTS,
        start,
        do_sample=False,
        num_beams=params.num_beams,
        num_return_sequences=params.num_return,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        no_repeat_ngram_size=params.no_repeat_ngram or None,
        min_new_tokens=params.min_new_tokens or None,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(stop_ids) or None,
        **config,
    )
    texts = [tuple(until(row, stop_ids)) for row in out.sequences[:, skipped:].tolist()]
    scores = out.sequences_scores.tolist() if params.num_beams > 1 else [None] * len(texts)
    results = [Hypothesis(ids, score) for ids, score in zip(texts, scores, strict=True)]
    return [results[i : i + params.num_return] for i in range(0, len(results), params.num_return)]


def assert_same(results, expected, what=None) -> None:
    assert [[text.ids for text in texts] for texts in results] == [
        [text.ids for text in texts] for texts in expected
    ], what
    # Marian has its sinusoids in float32.
    for ours, hf in zip(itertools.chain(*results), itertools.chain(*expected)):
        assert hf.score is None or ours.score == pytest.approx(hf.score, rel=1e-6), what


def test_hypotheses_and_scores_equal_transformers():
    for name in HF_MODELS:
        module, ends, lengths = hf_pair(name)[1], stop_ids_of(name), set()
        for number, params in enumerate(GRID):
            stops = (ends[:1], ends, ())[number % 3 if number > 3 else 0]
            lm = text_model(module, stop_ids=frozenset(stops))
            results = beam_search(lm, PROMPTS, params, max_new_tokens=NEW)
            start = lm.generation_rules.decoder_start
            assert_same(results, hf_beams(name, params, stops, start=start), (name, params))
            lengths |= {len(text.ids) for texts in results for text in texts}
        assert NEW in lengths
        assert len(lengths) > 3


@pytest.mark.parametrize("name", ["gpt2", "bart", "t5"])
def test_rules_equal_those_of_transformers(name):
    module, ends = hf_pair(name)[1], stop_ids_of(name)
    base = BeamSearchParams(4, 0.6, num_return=3)
    rules = text_model(module).generation_rules
    start = rules.decoder_start
    for params in (
        base.replace(no_repeat_ngram=2),
        base.replace(no_repeat_ngram=1, num_beams=2, num_return=2),
        base.replace(min_new_tokens=5),
    ):
        lm = text_model(module, stop_ids=frozenset(ends))
        results = beam_search(lm, PROMPTS, params, max_new_tokens=NEW)
        assert_same(results, hf_beams(name, params, ends, start=start), (name, params))
    banned = frozenset(beam_search(lm, PROMPTS, base, max_new_tokens=NEW)[0][0].ids[:2])
    lm = text_model(module, stop_ids=frozenset(ends), banned_ids=banned)
    expected = hf_beams(name, base, ends, start=start, suppress_tokens=sorted(banned))
    assert_same(beam_search(lm, PROMPTS, base, max_new_tokens=NEW), expected, name)
    if start:
        forced = {"forced_start": (5,), "forced_end": ends[0]}
        lm = text_model(module, stop_ids=frozenset(ends), **forced)
        forced = {"forced_bos_token_id": 5, "forced_eos_token_id": ends[0]}
        expected = hf_beams(name, base, ends, start=start, **forced)
        assert_same(beam_search(lm, PROMPTS, base, max_new_tokens=NEW), expected, name)


@pytest.mark.parametrize("name", DECODERS)
def test_a_batch_equals_one_by_one_in_every_family(name):
    prompts = [row[:length] for row, length in zip(random_ids(5, 13).tolist(), (5, 1, 13, 12, 2))]
    both = (
        BeamSearchParams(3, num_return=3, no_repeat_ngram=2),
        BeamSearchParams(4, 2.0, early_stopping=True),
    )
    lm = text_model(small_model(name, seed=3), stop_ids=frozenset({7, 11}))
    params = both[DECODERS.index(name) % 2]
    alone = [beam_search(lm, [p], params, max_new_tokens=NEW)[0] for p in prompts]
    for tokens in (100, 32768):
        results = beam_search(lm, prompts, params, max_new_tokens=NEW, batch_tokens=tokens)
        assert_same(results, alone, (params, tokens))


def test_one_beam_is_greedy():
    bart, ends = hf_pair("bart")[1], frozenset(stop_ids_of("bart"))
    for lm in (
        text_model(hf_pair("gpt2")[1], stop_ids=frozenset(stop_ids_of("gpt2"))),
        text_model(bart, stop_ids=ends),
        text_model(bart, forced_start=(5,), forced_end=2),  # as mBART's language
    ):
        greedy = run(lm, PROMPTS, SamplingParams(temperature=0.0, max_new_tokens=NEW))
        for stopping in (True, False, "never"):
            params = BeamSearchParams(1, early_stopping=stopping)
            results = beam_search(lm, PROMPTS, params, max_new_tokens=NEW)
            assert [list(texts[0].ids) for texts in results] == [one.output_ids for one in greedy]


def test_many_beams_are_an_exhaustive_search():
    lm = text_model(hf_pair("gpt2")[1], vocab_size=7)
    (results,) = beam_search(lm, [[3, 5]], BeamSearchParams(7, 0.0, num_return=7), max_new_tokens=2)
    scores = {}
    for ids in itertools.product(range(7), repeat=2):
        with torch.inference_mode():
            logits = lm.module.logits(lm.module(torch.tensor([[3, 5, *ids]])))[0]
        log_p = logits.double().log_softmax(-1)
        scores[ids] = float(log_p[1, ids[0]] + log_p[2, ids[1]])
    best = sorted(scores, key=lambda ids: -scores[ids])[:7]
    assert [text.ids for text in results] == best
    assert [text.score for text in results] == pytest.approx(
        [scores[ids] for ids in best], abs=1e-9
    )


def test_the_context_length_ends_each_text():
    lm = text_model(hf_pair("gpt2")[1])
    prompts = [[3] * (POSITIONS - 2), [5] * (POSITIONS - 5), [7, 9]]
    params = BeamSearchParams(3)
    results = beam_search(lm, prompts, params, max_new_tokens=11)
    assert [len(texts[0].ids) for texts in results] == [3, 6, 11]
    alone = [beam_search(lm, [prompt], params, max_new_tokens=11)[0] for prompt in prompts]
    assert_same(results, alone)


def test_under_a_negative_length_penalty_longer_texts_are_worse():
    """The best that a beam can reach is its score at its present length: -1 * 3 here."""
    lm = text_model(hf_pair("gpt2")[1])
    for worst, final in ((-4.0, False), (-2.5, True)):
        params = BeamSearchParams(2, -1.0, early_stopping="never")
        search = _Search([5], 9, params, lm.generation_rules, [Beam((3, 4, 5), -1.0)] * 2)
        search.finished = [Hypothesis((3,), -2.0), Hypothesis((4,), worst)]
        assert search.is_final is final


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_every_prompt_may_have_a_limit_of_its_own(name):
    params, limits = BeamSearchParams(3), [5, 1, 9, 2]
    lm = text_model(hf_pair(name)[1])
    results = beam_search(lm, PROMPTS, params, max_new_tokens=limits)
    assert [len(texts[0].ids) for texts in results] == limits
    for prompt, limit, texts in zip(PROMPTS, limits, results):
        assert_same([texts], beam_search(lm, [prompt], params, max_new_tokens=limit), name)


def test_only_long_texts_need_a_cache_for_the_limit(monkeypatch):
    module, ends, made = hf_pair("t5")[1], stop_ids_of("t5"), []
    new_cache = module.new_cache
    monkeypatch.setattr(module, "new_cache", lambda *args: made.append(args) or new_cache(*args))
    for stops in (ends[:1], ends, ()):
        lm, start = text_model(module, stop_ids=frozenset(stops)), len(made)
        params = BeamSearchParams(3, early_stopping="never", num_return=2)
        results = beam_search(lm, PROMPTS, params, max_new_tokens=47)
        expected = hf_beams("t5", params, stops, 47, start=lm.generation_rules.decoder_start)
        assert_same(results, expected, stops)
        lengths = [length for _, length in made[start:]]
        long = [texts for texts in results if any(len(text.ids) == 47 for text in texts)]
        assert lengths[0] < 47
        assert (47 in lengths) == bool(long)
    assert long


def test_progress_and_refusals():
    lm, calls = text_model(hf_pair("gpt2")[1]), []
    beam_search(
        lm,
        PROMPTS,
        BeamSearchParams(2),
        max_new_tokens=3,
        batch_tokens=30,
        progress=lambda *counts: calls.append(counts),
    )
    assert calls[-1] == (4, 4)
    assert len(calls) > 1
    assert beam_search(lm, [], BeamSearchParams(), max_new_tokens=3) == []
    with pytest.raises(SpecError, match="no tokens"):
        beam_search(lm, [[]], BeamSearchParams(), max_new_tokens=3)
    with pytest.raises(TriviumError, match="max_new_tokens"):
        beam_search(lm, PROMPTS, BeamSearchParams(), max_new_tokens=0)
    with pytest.raises(TriviumError, match="num_beams is 102"):
        beam_search(lm, PROMPTS, BeamSearchParams(102), max_new_tokens=3)
