"""Matrices in the order of a CPU's kernels: the same model, for inference alone."""

from __future__ import annotations

import copy

import pytest
import torch
from small_models import BOTH, CAUSAL, SPECS, VOCABULARY, inputs_for, random_ids, small_model

from trivium import spec
from trivium.adapt import LoRA, add_lora
from trivium.adapt.quantize import pack, quantize
from trivium.errors import SpecError, TriviumError
from trivium.inference.attention_weights import attention_weights
from trivium.inference.generate import generate_ids
from trivium.inference.sampling import Sampling
from trivium.language_model import LanguageModel, load
from trivium.models import build
from trivium.nn.inference_linear import InferenceLinear, PackedLinear


def packed(model):
    model = copy.deepcopy(model)
    assert pack(model) == len(products(model)) > 0
    return model


def products(model):
    return [module for module in model.modules() if isinstance(module, PackedLinear)]


def written(model):
    """Greedy texts of three prompts of different lengths."""
    return list(
        generate_ids(
            model,
            [random_ids(1, length, seed=length)[0].tolist() for length in (3, 9, 5)],
            max_new_tokens=8,
            sampling=Sampling(temperature=0.0),
            decoder_start=(0,) if model.spec.family == "encoder-decoder" else (),
        )
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SPECS)
def test_every_family_says_the_same(name, dtype):
    model = small_model(name).to(dtype)
    quick = packed(model)
    kept = {n for n, m in quick.named_modules() if isinstance(m, torch.nn.Linear)}
    assert not {n for n in kept if ".layers." in n}
    inputs, targets = inputs_for(name, random_ids(2, 13, seed=5)), random_ids(2, 13).flatten()
    with torch.inference_mode():
        hidden = [each(**inputs) for each in (quick, model)]
        logits = [each.logits(h).float() for each, h in zip((quick, model), hidden)]
        losses = [
            each.vocabulary_loss(h.flatten(0, 1), targets).float()
            for each, h in zip((quick, model), hidden)
        ]
    share = 1e-5 if dtype == torch.float32 else 0.05
    spread = float(logits[1].std())
    torch.testing.assert_close(*logits, rtol=0.0, atol=8 * share * spread)
    torch.testing.assert_close(*losses, rtol=share, atol=0.0)


@pytest.mark.parametrize("make", [pack, quantize])
@pytest.mark.parametrize("name", SPECS)
def test_on_a_cpu_short_weights_meet_long_activations(name, make):
    """Matrices and token vectors keep their 16 (or 8) bits, and nothing else is rounded to them."""
    model = small_model(name).bfloat16()
    wide = copy.deepcopy(model).float()
    make(model)
    if make is quantize:
        make(wide)
    assert model.tokens.weight.dtype == model.dtype == torch.bfloat16
    inputs = inputs_for(name, random_ids(1, 7, seed=5))
    inputs["input_ids"] = inputs["input_ids"][:, :7]
    with torch.inference_mode():
        hidden = model(**inputs)
        assert hidden.dtype == model.logits(hidden).dtype == torch.float32
        expected = wide(**inputs)
    # Products of few rows add up in float32, from weights that are exact.
    torch.testing.assert_close(hidden, expected, rtol=0.0, atol=1e-4 * float(expected.std()))


@pytest.mark.parametrize("name", [*CAUSAL, *BOTH])
def test_every_family_writes_the_same(name):
    model = small_model(name)
    assert written(packed(model)) == written(model)


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
@pytest.mark.parametrize("rows", [1, 3, 7, 300])
def test_products_are_those_of_the_matrix(rows, capability, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    weight, x = torch.randn(67, 31), torch.randn(rows, 31)
    for bias in (None, torch.nn.Parameter(torch.randn(67))):
        layer = PackedLinear(weight, bias)
        assert torch.equal(layer.whole(torch.float32), weight)
        torch.testing.assert_close(layer(x), layer.plain(x), rtol=1e-5, atol=1e-5)
    on_fbgemm = "fbgemm" in torch.backends.quantized.supported_engines
    twice = on_fbgemm and capability == "AVX512"
    assert layer.num_bytes == weight.nbytes * (2 if twice else 1)


@pytest.mark.parametrize("size", [1e-30, 1e-4, 1.0, 1e4, 1e30])
def test_few_rows_of_float32_lose_no_more_than_float32_does(size, monkeypatch):
    """Their matrix is a sum of two of float16, whatever the size of its numbers."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    weight, x = torch.randn(67, 500) * size, torch.randn(1, 500)
    weight[:9] *= 2.0 ** -torch.arange(9)[:, None]
    weight[9] = 0.0
    exact = x.double() @ weight.double().T
    error = (PackedLinear(weight)(x) - exact).abs()
    spread = x.double().norm() * weight.double().norm(dim=1)
    assert float((error / spread.clamp_min(1e-300)).max()) < 5e-7


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 0.0])
def test_numbers_that_float16_has_not_are_not_lost(number, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    weight, x = torch.randn(5, 16), torch.rand(1, 16)
    weight[2] = number
    torch.testing.assert_close(PackedLinear(weight)(x), x @ weight.T, equal_nan=True)
    weight[:] = number
    torch.testing.assert_close(PackedLinear(weight)(x), x @ weight.T, equal_nan=True)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_short_weights_that_are_not_packed_any_more_say_the_same(name):
    """As where a model has moved to a GPU: matrices in bfloat16, the rest in float32."""
    model = small_model(name).bfloat16()
    pack(model)
    inputs = inputs_for(name, random_ids(1, 7))
    with torch.inference_mode():
        expected = model.logits(model(**inputs))
        for product in products(model):
            product.unpack()
        found = model.logits(model(**inputs))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.1 * float(expected.std()))


def test_it_moves_and_changes_its_precision():
    model = small_model("llama")
    quick = packed(model)
    found, wanted = (each.to(torch.bfloat16) for each in (quick, model))
    ids = random_ids(2, 7)
    with torch.inference_mode():
        a, b = (each.logits(each(ids)).float() for each in (found, wanted))
    torch.testing.assert_close(a, b, rtol=0.0, atol=0.3 * float(b.std()))
    assert all(
        layer.whole(torch.float32).shape[0] == layer.out_features for layer in products(quick)
    )
    assert all(p.device.type == "meta" for p in quick.to("meta").parameters())


def test_attention_can_be_looked_at():
    model, ids = small_model("gpt2"), random_ids(2, 7)
    for a, b in zip(
        attention_weights(packed(model), ids).decoder, attention_weights(model, ids).decoder
    ):
        torch.testing.assert_close(a, b)


def test_what_stays_as_it_is():
    adapted = small_model("gpt2")
    add_lora(adapted, LoRA())
    cells = {"vocab_size": VOCABULARY, "d_model": 7, "cell": "lstm", "d_hidden": 5}
    recurrent = build(spec.RNNSpec(**cells, num_layers=2, heads=(spec.LMHead(tied=False),)))
    quantized = small_model("gpt2")
    quantize(quantized)
    for model in (adapted, recurrent, quantized, packed(small_model("gpt2"))):
        kinds = [type(module) for module in model.modules()]
        assert pack(model) == 0
        assert [type(module) for module in model.modules()] == kinds
    with pytest.raises(SpecError, match="packed or quantised already"):
        quantize(packed(small_model("gpt2")))


def test_loading_packs_and_such_a_model_is_not_saved(tmp_path):
    model = small_model("gpt2")
    LanguageModel(model.spec, model).save(tmp_path / "model")
    quick = load(tmp_path / "model", packed=True, dtype="bfloat16")
    assert quick.module.dtype == torch.bfloat16
    assert products(quick.module)
    with pytest.raises(SpecError, match="packed or quantised weights cannot be saved"):
        quick.save(tmp_path / "new")
    assert not list((tmp_path / "new").glob("[!.]*"))
    small = load(tmp_path / "model", packed=True, quantize="int8").module
    assert any(isinstance(module, InferenceLinear) for module in small.modules())
    assert not products(small)
    with pytest.raises(TriviumError, match=r'dtype is "float8".*float32, bfloat16, float16'):
        load(tmp_path / "model", dtype="float8")  # type: ignore[arg-type]
