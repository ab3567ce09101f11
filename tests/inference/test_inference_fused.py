"""Query, key and value in one matmul, gate and up in one: the same texts, weights and folders."""

from __future__ import annotations

import pytest
import torch
from generating_models import PROMPTS, run, text_model
from small_models import GENERATING, VOCABULARY, small_model

from trivium.inference.decode_step import fuse_projections
from trivium.inference.sampling_params import SamplingParams
from trivium.language_model import LanguageModel
from trivium.model_loading import load

pytestmark = pytest.mark.usefixtures("double_precision")

PARAMS = SamplingParams(temperature=0.0, max_new_tokens=9)


@pytest.mark.parametrize("name", GENERATING)
def test_fused_projections_give_the_same_texts(name):
    lm = text_model(small_model(name, seed=3))
    prompts = [[token % VOCABULARY for token in prompt] for prompt in PROMPTS]
    expected = run(lm, prompts, PARAMS, slots=3, slot_length=29)
    texts = run(lm, prompts, PARAMS, slots=3, slot_length=29, fused=True)
    assert [one.output_ids for one in texts] == [one.output_ids for one in expected]


def num_products(module) -> int:
    """The number of linear layers that a decode step of two texts calls."""
    calls = []
    hooks = [
        part.register_forward_hook(lambda *_: calls.append(1))
        for part in module.modules()
        if hasattr(part, "weight") and part.weight is not None and part.weight.ndim == 2
    ]
    with torch.inference_mode():
        module(torch.tensor([[3], [5]]), cache=module.new_cache(2, 7))
    for hook in hooks:
        hook.remove()
    return len(calls)


def test_the_weights_keep_names_values_and_memory(tmp_path):
    module = small_model("llama", seed=3)
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    fused = fuse_projections(module)
    assert num_products(module) - num_products(fused) == 3 * module.spec.decoder.num_layers
    after = module.state_dict()
    assert list(after) == list(before)
    for name, weight in after.items():
        assert torch.equal(weight, before[name])
    storages = {each.untyped_storage().data_ptr() for each in after.values()}
    owned = {
        each.weight.untyped_storage().data_ptr()
        for each in fused.modules()
        if hasattr(each, "sizes")
    }
    assert owned <= storages
    # Changes of a weight reach both, and a folder holds what it held.
    with torch.no_grad():
        module.decoder.layers[0].mixer.key.weight.mul_(2.0)
    ids = torch.tensor([[3, 5, 7]])
    with torch.inference_mode():
        torch.testing.assert_close(fused(ids), module(ids))
    LanguageModel(module.spec, module).save(tmp_path / "model")
    for name, weight in load(tmp_path / "model").module.state_dict().items():
        assert torch.equal(weight, after[name])
