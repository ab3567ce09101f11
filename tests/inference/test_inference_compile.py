"""Compiled decode steps, in float32: the compiler does not trace what makes tests float64."""

from __future__ import annotations

import pytest
from generating_models import PROMPTS, run, text_model
from small_models import VOCABULARY, small_model

from trivium.inference.sampling_params import SamplingParams


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "DynamicScaling"])
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
def test_a_compiled_decode_step_gives_the_same_texts(name):
    params = SamplingParams(temperature=0.0, max_new_tokens=9)
    prompts = [[token % VOCABULARY for token in prompt] for prompt in PROMPTS]
    lm = text_model(small_model(name, seed=3), stop_ids=frozenset({7}))
    expected = run(lm, prompts, params, slots=3, slot_length=29)
    texts = run(lm, prompts, params, slots=3, slot_length=29, compile=True)
    assert [one.output_ids for one in texts] == [one.output_ids for one in expected]
