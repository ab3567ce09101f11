"""Models with FlexAttention compute the hidden states and gradients of models without it."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from small_models import ALL_SPECS, BOTH, inputs_for, random_ids, random_model

from trivium import spec
from trivium.models import build
from trivium.models.electra import build_with_generator
from trivium.nn.attend import attend
from trivium.nn.flex import flex_attend
from trivium.presets import presets

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]
LENGTH = 11


def flex_layers(stack):
    """The attention layers without sinks whose scores come from queries, keys and a bias only."""
    scored = (spec.Disentangled, spec.TransformerXLPositions, spec.XLNetPositions)
    mixers = [each for each in stack.attentions if not each.sinks]
    return [each for each in mixers if not isinstance(each.positions, scored)]


FAMILIES = [
    name
    for name, each in ALL_SPECS.items()
    if isinstance(each, spec.TransformerSpec) and any(map(flex_layers, each.stacks))
]


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    """Let PyTorch run its reference implementation backward, which it refuses on a CPU."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    monkeypatch.setattr("trivium.nn.mixers.attention.MIN_HEAD_DIM", 1)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def batches(name, model):
    """Inputs with and without padding, and packed documents if the model supports them."""
    ids = random_ids(3, LENGTH)
    yield inputs_for(name, ids), torch.ones(3, LENGTH, dtype=torch.bool)
    real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [4], [7]])
    yield inputs_for(name, ids, real=real), real
    if name not in BOTH and model.spec.supports_packing:
        documents = torch.arange(LENGTH).expand(3, -1) // 4 + 1
        yield {"input_ids": ids, "document_ids": documents}, torch.ones_like(real)


def hidden_and_gradients(model, inputs, real):
    """The hidden states of real tokens, and the gradients of all weights."""
    model.zero_grad()
    hidden = model(**inputs)[real]
    (hidden * torch.linspace(-1.0, 1.0, hidden.numel()).view_as(hidden)).sum().backward()
    return hidden.detach(), {
        name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_computes_the_same_with_flex_attention(name, monkeypatch):
    described = ALL_SPECS[name].with_dropout(0.0)
    model, flex = (random_model(described).double() for _ in range(2))
    flex.use_flex_attention()
    num_attentions = sum(len(flex_layers(stack)) for stack in described.stacks)
    calls = Mock(wraps=flex_attend)
    monkeypatch.setitem(attend.__globals__, "flex_attend", calls)
    for inputs, real in batches(name, model):
        expected = hidden_and_gradients(model, inputs, real)
        assert not calls.call_count
        torch.testing.assert_close(hidden_and_gradients(flex, inputs, real), expected)
        assert calls.call_count == num_attentions
        calls.reset_mock()


@pytest.mark.parametrize("name", ["t5", "llama", "alibi", "gemma2", "mistral", "sliding"])
def test_compiled_blocks_are_not_compiled_again_for_the_mask_of_another_batch(name):
    described = ALL_SPECS[name].with_dropout(0.0)
    model, flex = (random_model(described).double() for _ in range(2))
    flex.use_flex_attention()
    flex.compile_blocks(backend="aot_eager", fullgraph=True)
    hidden_and_gradients(flex, *[*batches(name, model)][-1])
    with torch._dynamo.config.patch(error_on_recompile=True):
        *_, (inputs, real) = batches(name, model)
        for key, each in inputs.items():
            inputs[key] = each.roll(1, 1)
        actual = hidden_and_gradients(flex, inputs, real)
    torch.testing.assert_close(actual, hidden_and_gradients(model, inputs, real))


def test_a_cache_keeps_the_kernels_of_decoding():
    model = random_model(ALL_SPECS["llama"])
    model.use_flex_attention()
    ids = random_ids(2, LENGTH)
    with torch.no_grad():
        expected, cache = model(ids), model.new_cache(2, LENGTH)
        parts = [model(each, cache=cache) for each in ids.split([5, 6], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), expected)


def test_layers_that_cannot_use_flex_attention_are_named(monkeypatch):
    monkeypatch.undo()
    model = build(presets["gpt2-tiny"].replace(vocab_size=64).with_dropout(0.0))
    assert model.use_flex_attention() == ""
    both = build_with_generator(presets["electra-tiny"].replace(vocab_size=64).with_dropout(0.0))
    assert both.use_flex_attention() == ""
    assert all(block.mixer.uses_flex for block in both.blocks)
    model = build(presets["gpt2-tiny"].replace(vocab_size=64).with_dropout(0.1))
    assert model.use_flex_attention().startswith("FlexAttention computes 0 of 2 layers:")
    model = build(presets["deberta-tiny"].replace(vocab_size=64).with_dropout(0.0))
    assert model.use_flex_attention().startswith("FlexAttention computes 0 of 2 layers:")
    model = build(ALL_SPECS["gpt-oss"])
    assert model.use_flex_attention().startswith("FlexAttention computes 0 of 3 layers:")
    model = build(ALL_SPECS["llama"])  # heads of 10 dimensions
    assert model.use_flex_attention().startswith("FlexAttention computes 0 of 2 layers:")
