"""LoRA: the formula, what is trained, merging; packed and 8-bit models."""

from __future__ import annotations

import copy

import pytest
import torch
from double import FLOAT32, double_precision
from small_models import ALL_SPECS, SPECS, inputs_for, random_ids, small_model
from torch.nn import functional as F

from trivium import spec
from trivium.adapt import LoRA, add_lora, merged_state, pack
from trivium.adapt.lora import LoRALinear, make_lora_layer
from trivium.errors import SpecError
from trivium.models import build

EVERY = LoRA(rank=3, alpha=7.0, targets=("all-linear",), trained=())


def adapted(name):
    """A small model with an adapter whose matrices are random."""
    model = small_model(name)
    add_lora(model, EVERY)
    for path, weight in model.named_parameters():
        if "lora_" in path:
            torch.nn.init.normal_(weight, std=0.3)
    return model


def outputs(model, name):
    with torch.no_grad():
        return model.logits(model(**inputs_for(name, random_ids(2, 11))))


def test_a_layer_is_the_formula_and_starts_as_its_base():
    base, x = torch.nn.Linear(7, 5), torch.randn(3, 7)
    layer = make_lora_layer(base, LoRA(rank=2, alpha=3.0), torch.Generator().manual_seed(0))
    assert torch.equal(layer(x), base(x))
    torch.nn.init.normal_(layer.lora_b)
    expected = base(x) + 3.0 / 2 * x @ layer.lora_a.T @ layer.lora_b.T
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(F.linear(x, layer.merged_weight(), base.bias), expected)


def test_dropout_is_of_the_update_alone_and_of_training_alone():
    base, x = torch.nn.Linear(7, 5), torch.randn(3, 7)
    lora = LoRA(rank=2, alpha=3.0, dropout=0.5)
    layer = make_lora_layer(base, lora, torch.Generator().manual_seed(0))
    assert torch.equal(layer(x), base(x))  # B is 0
    torch.nn.init.normal_(layer.lora_b)
    torch.manual_seed(1)
    actual = layer(x)
    torch.manual_seed(1)
    expected = base(x) + 3.0 / 2 * F.dropout(x, 0.5) @ layer.lora_a.T @ layer.lora_b.T
    torch.testing.assert_close(actual, expected)
    expected = base(x) + 3.0 / 2 * x @ layer.lora_a.T @ layer.lora_b.T
    torch.testing.assert_close(layer.eval()(x), expected)


@pytest.mark.parametrize("name", ["bert", "albert", "modernbert", "gpt2", "llama", "t5", "bart"])
@double_precision()
def test_the_base_stays_and_the_merged_model_computes_the_same(name):
    ids = random_ids(2, 11)
    model = adapted(name)
    before = {key: weight.clone() for key, weight in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    hidden = model(**inputs_for(name, ids))
    model.lm_loss(hidden.flatten(0, 1), ids.flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    for key, weight in model.state_dict().items():
        assert torch.equal(weight, before[key]) is not (".lora_" in key), key
    merged_weight = small_model(name)
    merged_weight.load_state_dict(merged_state(model))
    expected = outputs(model, name)
    torch.testing.assert_close(outputs(merged_weight, name), expected, rtol=1e-9, atol=1e-9)


def test_targets_and_what_is_trained_beside_them():
    model = build(SPECS["bart"].replace(heads=(*SPECS["bart"].heads, spec.NSPHead())), seed=0)
    targets = ("decoder.*.cross_attention.query", "layers.1.feed_forward")
    counts = add_lora(model, LoRA(rank=2, targets=targets, trained=("task-heads", "norm")))
    names = [name for name, layer in model.named_modules() if isinstance(layer, LoRALinear)]
    expected = [f"decoder.layers.{i}.cross_attention.query" for i in range(3)]
    for stack in ("encoder", "decoder"):
        expected += [f"{stack}.layers.1.feed_forward.{matrix}" for matrix in ("up", "down")]
    assert sorted(names) == sorted(expected)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert {"heads.nsp.classifier.weight", "encoder.embedding.norm.bias"} <= trained
    assert "heads.lm.bias" not in trained
    assert counts.trained == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert counts.frozen == sum(p.numel() for p in model.parameters() if not p.requires_grad)


def test_what_cannot_be_adapted_leaves_the_model_unchanged():
    for name, lora, message in (
        ("llama", LoRA(targets=("querry",)), 'Did you mean "query"'),
        ("llama", LoRA(trained=("pooler",)), 'no module or parameter "pooler"'),
        ("lstm", LoRA(), 'no linear layer "query"'),
    ):
        model = small_model(name)
        with pytest.raises(SpecError, match=message):
            add_lora(model, lora)
        assert model.state_dict().keys() == small_model(name).state_dict().keys()
        assert all(weight.requires_grad for weight in model.parameters())
    with pytest.raises(SpecError, match="already"):
        add_lora(adapted("llama"), EVERY)
    with pytest.raises(SpecError, match="rank"):
        LoRA(rank=0)


@pytest.mark.parametrize("name", ALL_SPECS)
def test_packed_and_8_bit_models_compute_about_the_same(name):
    inputs, targets = inputs_for(name, random_ids(2, 7)), random_ids(2, 7).flatten()
    with torch.no_grad():
        model = small_model(name)
        expected = model.logits(model(**inputs))
        nats = model.lm_loss(model(**inputs).flatten(0, 1), targets)
        for quantize, tolerance in ((None, FLOAT32), ("int8", 0.1)):
            packed = pack(small_model(name), quantize)
            actual = packed.logits(packed(**inputs))
            error = (actual - expected).abs().max() / expected.abs().max()
            assert error < tolerance, (name, quantize)
            loss = packed.lm_loss(packed(**inputs).flatten(0, 1), targets)
            assert loss.item() == pytest.approx(nats.item(), rel=tolerance)


def test_a_packed_model_is_not_packed_again():
    with pytest.raises(SpecError, match="packed or quantised already"):
        pack(pack(small_model("llama")))


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_an_adapter_on_packed_weights_computes_the_same(name):
    """In float32, which oneDNN has kernels for; the reference is the model with the adapter."""
    model, inputs = adapted(name), inputs_for(name, random_ids(2, 11))
    expected = model.logits(model(**inputs))
    for quantize, tolerance in ((None, FLOAT32), ("int8", 0.1)):
        packed = pack(copy.deepcopy(model), quantize)
        error = (packed.logits(packed(**inputs)) - expected).abs().max() / expected.abs().max()
        assert error < tolerance, quantize
        with pytest.raises(SpecError, match="without pack and quantize"):
            merged_state(packed)
