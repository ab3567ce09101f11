"""Sampling against the logits processors of `transformers`, distributions and options."""

from __future__ import annotations

import dataclasses
import random
from typing import get_type_hints

import numpy as np
import pytest
import torch
from transformers import generation

from trivium.errors import TriviumError
from trivium.inference import sampling
from trivium.inference.logits_processors import DecodingState, process_logits
from trivium.inference.sampling_params import (
    BeamSearchOptions,
    BeamSearchParams,
    DecodingOptions,
    DecodingParams,
    SamplingOptions,
    SamplingParams,
)
from trivium.inference.text_model import GenerationRules

pytestmark = pytest.mark.usefixtures("double_precision")

ROWS, VOCAB = 7, 1301


def random_logits(scale: float | torch.Tensor = 3.0) -> torch.Tensor:
    return scale * torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(3))


def test_truncation_equals_transformers():
    ids = torch.zeros(ROWS, 1, dtype=torch.int64)
    rows_differ = torch.logspace(-1, 2, ROWS)[:, None]
    # With a flat distribution top-p needs more than 256 tokens, also beside rows with a peak.
    for scale in (0.3, 3.0, 20.0, rows_differ):
        logits = random_logits(scale)
        for k in (1, 11, VOCAB, 5000):
            expected = generation.TopKLogitsWarper(min(k, VOCAB))(ids, logits)
            assert torch.equal(sampling.keep_top_k(logits, k), expected)
        for p in (1e-6, 0.31, 0.9, 0.999):
            expected = generation.TopPLogitsWarper(p)(ids, logits)
            assert torch.equal(sampling.keep_top_p(logits, p), expected)
        for share in (0.0, 0.02, 0.5, 1.0):
            expected = generation.MinPLogitsWarper(share)(ids, logits)
            assert torch.equal(sampling.keep_min_p(logits, share), expected)
    params = SamplingParams(temperature=0.7, top_k=211, top_p=0.9, min_p=0.01)
    processors = generation.LogitsProcessorList(
        [
            generation.TemperatureLogitsWarper(0.7),
            generation.TopKLogitsWarper(211),
            generation.TopPLogitsWarper(0.9),
            generation.MinPLogitsWarper(0.01),
        ]
    )
    torch.testing.assert_close(sampling.filter_logits(logits, params), processors(ids, logits))


def test_processors_equal_those_of_transformers():
    ids = torch.randint(0, 11, (ROWS, 23), generator=torch.Generator().manual_seed(5))
    rows, prompt, source, stops = ids.tolist(), 5, [3, 1, 4, 1, 5, 9, 2, 6], frozenset({5, 7})
    rules = GenerationRules(VOCAB, stops, encoder_no_repeat_ngram=2, banned_ids=frozenset({13}))
    opening = GenerationRules(VOCAB, stops, begin_banned_ids=frozenset({17, 19}))
    plain, begin = GenerationRules(VOCAB, stops), 23
    for params, ruled, start, processor in (
        (
            {"repetition_penalty": 1.9},
            plain,
            prompt,
            generation.RepetitionPenaltyLogitsProcessor(1.9),
        ),
        (
            {"repetition_penalty": 0.7},
            plain,
            prompt,
            generation.RepetitionPenaltyLogitsProcessor(0.7),
        ),
        *(
            ({"no_repeat_ngram": n}, plain, prompt, generation.NoRepeatNGramLogitsProcessor(n))
            for n in (1, 2, 3, 29)
        ),
        (
            {"min_new_tokens": 19},
            plain,
            prompt,
            generation.MinNewTokensLengthLogitsProcessor(prompt, 19, [5, 7]),
        ),
        (
            {"min_new_tokens": 18},
            plain,
            prompt,
            generation.MinNewTokensLengthLogitsProcessor(prompt, 18, [5, 7]),
        ),
        (
            {},
            rules,
            prompt,
            generation.LogitsProcessorList(
                [
                    generation.EncoderNoRepeatNGramLogitsProcessor(2, torch.tensor([source])),
                    generation.SuppressTokensLogitsProcessor([13]),
                ]
            ),
        ),
        ({}, opening, begin, generation.SuppressTokensAtBeginLogitsProcessor([17, 19], begin)),
        ({}, opening, prompt, generation.SuppressTokensAtBeginLogitsProcessor([17, 19], prompt)),
    ):
        logits = random_logits().double()
        states = [
            DecodingState(SamplingParams(**params), row[:start], source, row[start:], 99)
            for row in rows
        ]
        expected = processor(ids, logits.clone())
        process_logits(logits, states, ruled)
        torch.testing.assert_close(logits, expected, rtol=1e-12, atol=0)


def test_penalties_and_biases_by_their_formulas():
    params = SamplingParams(
        presence_penalty=0.3, frequency_penalty=0.7, repetition_penalty=1.3, logit_bias={5: 2.0}
    )
    logits = random_logits()[0].double()
    expected = logits.clone()
    for token_id in (2, 3, 5, 7):
        factor = 1.3 if logits[token_id] < 0 else 1 / 1.3
        expected[token_id] *= factor
    expected[5] += 2.0 - 0.3 - 2 * 0.7
    expected[7] -= 0.3 + 0.7
    prompt = [2, 3, 3, VOCAB + 1]
    state = DecodingState(params, prompt, prompt, [5, 5, 7], 99)
    process_logits(logits[None], [state], GenerationRules(VOCAB))
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=0)


def test_frequencies_are_the_probabilities():
    probabilities = torch.tensor([[0.5, 0.0, 0.3, 0.19, 0.01, 0.0]])
    numbers, draws = random.Random(7), 20_000
    uniforms = [numbers.random() for _ in range(draws)]
    chosen = sampling.sample(probabilities.expand(draws, -1), uniforms)
    frequencies = chosen.bincount(minlength=6) / draws
    torch.testing.assert_close(frequencies, probabilities[0], atol=0.01, rtol=0)
    assert frequencies[[1, 5]].tolist() == [0.0, 0.0]
    extremes = sampling.sample(probabilities.expand(2, -1), [0.0, 1.0 - 2**-53])
    assert extremes.tolist() == [0, 4]


def test_greedy_and_very_low_temperatures_are_the_most_probable_token():
    logits = random_logits()
    best = logits.argmax(-1).tolist()
    for temperature in (0.0, 1e-38, 1e-6, 1e-4):
        params = SamplingParams(temperature=temperature)
        assert sampling.sample_tokens(logits, [params] * ROWS, [0.99] * ROWS).tolist() == best


def test_options_are_the_fields_of_the_parameters():
    for params, options in (
        (DecodingParams, DecodingOptions),
        (SamplingParams, SamplingOptions),
        (BeamSearchParams, BeamSearchOptions),
    ):
        assert get_type_hints(options) == {
            field.name: get_type_hints(params)[field.name] for field in dataclasses.fields(params)
        }
        for field in dataclasses.fields(params):
            assert field.metadata["description"], field.name


def test_parameters_out_of_bounds_are_refused():
    nan, inf = float("nan"), float("inf")
    for wrong in (
        {"max_new_tokens": 0},
        {"temperature": -0.1},
        {"temperature": nan},
        {"temperature": inf},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"presence_penalty": inf},
        {"frequency_penalty": nan},
        {"logit_bias": {3: nan}},
        {"logit_bias": {3: inf}},
        {"logit_bias": {3: -101}},
        {"stop": ["a", ""]},
        {"choices": [""]},
        {"seed": -1},
        {"top_logprobs": -1},
        {"temperature": "hot"},
        {"temperature": None},
        {"top_k": 2.5},
        {"seed": True},
        {"logit_bias": ["a"]},
        {"logit_bias": {"a": 1.0}},
        {"logit_bias": {3: "a"}},
        {"stop": [3]},
        {"choices": 3},
    ):
        with pytest.raises(TriviumError, match=next(iter(wrong))):
            SamplingParams(**wrong)
    for stopping in (1, 0, 1.0, "always", None):
        with pytest.raises(TriviumError, match="early_stopping"):
            BeamSearchParams(early_stopping=stopping)
    for wrong in (
        {"num_beams": 0},
        {"num_return": 5},
        {"no_repeat_ngram": -1},
        {"min_new_tokens": -1},
        {"length_penalty": nan},
        {"early_stopping": "sometimes"},
        {"num_beams": "many"},
    ):
        with pytest.raises(TriviumError, match=next(iter(wrong))):
            BeamSearchParams(**wrong)
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(seed=np.int64(3), temperature=np.float32(0.5)).temperature == 0.5
