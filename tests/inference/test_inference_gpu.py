"""Scores and texts on a GPU are those on a CPU."""

from __future__ import annotations

import pytest
from generating_models import run, text_model
from small_models import DECODERS, GENERATING, small_model

from trivium.inference.sampling_params import SamplingParams
from trivium.inference.score import ScoreItem, score_continuations
from trivium.inference.speculative import DraftModel

pytestmark = pytest.mark.gpu

# Several continuations share the keys and values of their context.
ITEM = ScoreItem([7, 11, 13, 17, 19], [[23], [29, 30, 5], [6, 7]])


def totals(name: str, device: str) -> list[float]:
    scores = score_continuations(text_model(small_model(name).to(device)), [ITEM])
    return [score.total for score in scores[0]]


@pytest.mark.parametrize("name", DECODERS)
def test_continuations_that_share_a_cache_are_scored(name):
    assert totals(name, "cuda") == pytest.approx(totals(name, "cpu"), rel=1e-3)


def test_a_draft_model_takes_tokens_back_on_its_device():
    """Its guesses are often wrong, and the text is that without drafts."""
    lm = text_model(small_model("llama").cuda())
    params = SamplingParams(temperature=0.0, max_new_tokens=19)
    plain = run(lm, [[7, 11, 13], [17, 19]], params)
    draft = DraftModel(small_model("llama", seed=5).cuda(), num_tokens=3)
    drafted = run(lm, [[7, 11, 13], [17, 19]], params, draft=draft)
    assert [each.output_ids for each in drafted] == [each.output_ids for each in plain]


@pytest.mark.parametrize("name", GENERATING)
def test_a_step_captured_in_a_cuda_graph_gives_the_same_texts(name):
    module = small_model(name, seed=3).cuda()
    if not module.has_fixed_shapes:
        pytest.skip("experts")
    lm, params = text_model(module), SamplingParams(temperature=0.0, max_new_tokens=19)
    prompts = [[7, 11, 13], [17, 19], [5], [23, 29, 31, 2, 3]]
    expected = run(lm, prompts, params, slots=2, slot_length=32, cuda_graph=False)
    for fused in (False, True):
        texts = run(lm, prompts, params, slots=2, slot_length=32, fused=fused)
        assert [one.output_ids for one in texts] == [one.output_ids for one in expected]


def test_a_compiled_step_is_captured():
    lm = text_model(small_model("llama", seed=3).cuda())
    params = SamplingParams(temperature=0.0, max_new_tokens=19)
    prompts = [[7, 11, 13], [17, 19]]
    options = {"slots": 2, "slot_length": 32}
    expected = run(lm, prompts, params, cuda_graph=False, **options)
    for cuda_graph in (False, True):
        texts = run(lm, prompts, params, compile=True, cuda_graph=cuda_graph, **options)
        assert [one.output_ids for one in texts] == [one.output_ids for one in expected]


def test_a_model_with_experts_says_that_its_steps_are_not_captured():
    lm = text_model(small_model("grouped-experts").cuda())
    with pytest.warns(UserWarning, match="cannot be compiled or captured"):
        run(lm, [[7, 11]], SamplingParams(max_new_tokens=3))
