"""Bases quantised by bitsandbytes, compared with `transformers` and with dequantised weights."""

from __future__ import annotations

import copy

import pytest
import torch
from double import FLOAT32
from hf_models import Case, hf_model
from hugging_face import ours_of
from small_models import ALL_SPECS, inputs_for, random_ids, small_model

from trivium.adapt import LoRA, add_lora, count_parameters, merged_state, pack
from trivium.adapt.quantize import quantize_base
from trivium.errors import SpecError
from trivium.interop.convert import hf_weight_map
from trivium.interop.peft_format import save_adapter
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.models import build

transformers = pytest.importorskip("transformers")
bitsandbytes = pytest.importorskip("bitsandbytes")

CPU = torch.device("cpu")
EVERY = LoRA(rank=3, alpha=7.0, targets=("all-linear",), trained=())


def logits(model, name="llama"):
    with torch.no_grad():
        return model.logits(model(**inputs_for(name, random_ids(2, 11))))


def relative(actual, expected):
    return float(((actual - expected).abs().max() / expected.abs().max()).detach())


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3ForCausalLM", "BertForMaskedLM"])
@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_logits_equal_those_of_transformers(name, kind, tmp_path):
    """The same weights, quantised by `BitsAndBytesConfig`."""
    hf = hf_model(Case(name, {}))
    hf.save_pretrained(tmp_path)
    base = ours_of(copy.deepcopy(hf))
    exact = copy.deepcopy(base)
    quantize_base(base, kind, CPU)
    config = transformers.BitsAndBytesConfig(
        **(
            {"load_in_8bit": True}
            if kind == "int8"
            else {
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
                "bnb_4bit_compute_dtype": torch.float32,
            }
        ),
        llm_int8_skip_modules=["lm_head", "cls"],
    )
    theirs = (
        type(hf)
        .from_pretrained(
            tmp_path, quantization_config=config, dtype=torch.float32, device_map="cpu"
        )
        .eval()
    )
    for layer in theirs.modules():
        layer.support_avx512bf16_for_cpu = False  # of large matrices alone
    ids = torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]])
    with torch.no_grad():
        expected, actual = theirs(ids).logits, base.logits(base(ids))
        unquantized = exact.logits(exact(ids))
        # LLM.int8() rounds the inputs of every layer, where the smallest difference may round up.
        assert relative(actual, expected) < (FLOAT32 if kind == "nf4" else 0.2)
        assert relative(actual, unquantized) > 0.001
        kinds = (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt)
        layers = {name: each for name, each in theirs.named_modules() if isinstance(each, kinds)}
        assert len(layers) > 5
        weights = {weight.hf: weight.local for weight in hf_weight_map(exact.spec)}
        for name, layer in layers.items():
            (local,) = weights[f"{name}.weight"]
            ours = base.get_submodule(local.removesuffix(".weight"))
            x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(0))
            torch.testing.assert_close(ours(x), layer(x))
            plain = ours.bias if ours.bias is not None else 0.0
            rounded = x @ ours.dequantize().T + plain
            assert relative(layer(x), rounded) < (FLOAT32 if kind == "nf4" else 0.05)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_an_adapter_is_trained_on_the_quantised_base_and_merged_into_it(kind):
    model = small_model("llama")
    counts = add_lora(model, EVERY)
    before = set(model.state_dict())
    quantize_base(model, kind, CPU)
    assert count_parameters(model) == counts
    own = set(model.state_dict())
    assert {name for name in own if ".lora_" in name} == {n for n in before if ".lora_" in n}
    assert not any(n.endswith(("query.weight", "up.weight")) for n in own)
    inputs = inputs_for("llama", random_ids(2, 11))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model.lm_loss(model(**inputs).flatten(0, 1), random_targets())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    model.eval()
    merged = build(model.spec, seed=0).eval()
    merged.load_state_dict(merged_state(model, "cpu"))
    # LLM.int8() rounds the inputs, too.
    actual, expected = (each.logits(each(**inputs)) for each in (merged, model))
    assert relative(actual, expected) < (FLOAT32 if kind == "nf4" else 0.05)


def random_targets():
    return torch.randint(0, 40, (22,), generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")
def test_logits_and_gradients_on_a_4_bit_base_equal_those_of_peft(tmp_path):
    """QLoRA: an adapter of `peft` on a model that `BitsAndBytesConfig` has quantised."""
    peft = pytest.importorskip("peft")
    hf = hf_model(Case("LlamaForCausalLM", {}))
    hf.save_pretrained(tmp_path / "base")
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    theirs = type(hf).from_pretrained(
        tmp_path / "base", quantization_config=config, dtype=torch.float32, device_map="cpu"
    )
    theirs = peft.get_peft_model(theirs, peft.LoraConfig(r=3, target_modules="all-linear"))
    for layer in theirs.modules():
        layer.support_avx512bf16_for_cpu = False
    generator = torch.Generator().manual_seed(0)
    for weight in theirs.parameters():
        if weight.requires_grad:
            weight.data += 0.3 * torch.randn(weight.shape, generator=generator)
    theirs.save_pretrained(tmp_path / "adapter")
    lm = load(tmp_path / "adapter", device="cpu", quantize="nf4")
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    expected, actual = theirs.eval()(ids).logits, lm.module.logits(lm.module(ids))
    assert relative(actual, expected) < FLOAT32
    noise = torch.randn(expected.shape, generator=generator)
    (expected * noise).sum().backward()
    (actual * noise).sum().backward()
    layer = theirs.base_model.model.model.layers[0].self_attn.q_proj
    ours = lm.module.get_submodule("decoder.layers.0.mixer.query")
    assert relative(ours.lora_a.grad, layer.lora_A.default.weight.grad) < FLOAT32
    assert relative(ours.lora_b.grad, layer.lora_B.default.weight.grad) < FLOAT32


@pytest.mark.parametrize("name", [name for name, spec in ALL_SPECS.items() if spec.heads])
def test_every_model_computes_with_4_bits(name):
    """The same as with the dequantised weights, so that no layer reads the packed ones."""
    model = pack(small_model(name).eval(), "nf4")
    exact = build(model.spec, seed=0).eval()
    exact.load_state_dict(merged_state(model))
    inputs = inputs_for(name, random_ids(2, 11))
    with torch.no_grad():
        actual, expected = (each.logits(each(**inputs)) for each in (model, exact))
    assert relative(actual, expected) < FLOAT32


def test_a_model_is_loaded_with_4_bits_and_its_adapter_on_top(tmp_path):
    module = small_model("llama").eval()
    lm = LanguageModel(module.spec, module)
    lm.save(tmp_path / "base")
    adapted = copy.deepcopy(module)
    add_lora(adapted, EVERY)
    for weight in adapted.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.3)
    save_adapter(tmp_path / "adapter", adapted, EVERY, base=str(tmp_path / "base"))
    expected = pack(copy.deepcopy(adapted), "nf4").eval()
    inputs = inputs_for("llama", random_ids(2, 11))
    whole = load(tmp_path / "adapter", device="cpu", quantize="nf4")
    base = load(tmp_path / "base", device="cpu", quantize="nf4")
    with torch.no_grad():
        reference = expected.logits(expected(**inputs))
        for each in (whole, base.with_adapter(tmp_path / "adapter")):
            torch.testing.assert_close(each.module.logits(each.module(**inputs)), reference)
            with pytest.raises(SpecError, match="save_adapter"):
                each.save(tmp_path / "again")
    with pytest.raises(SpecError, match="packed or quantised already"):
        pack(base.module)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_a_gpu_computes_with_the_same_weights(kind):
    """On a GPU as on a CPU, up to the precision of LLM.int8(), which is float16 there."""
    model = small_model("llama").eval()
    add_lora(model, EVERY)
    on_cpu, on_gpu = copy.deepcopy(model), copy.deepcopy(model)
    quantize_base(on_cpu, kind, CPU)
    quantize_base(on_gpu, kind, torch.device("cuda"))
    on_gpu.to("cuda")
    ids = random_ids(2, 11)
    with torch.no_grad():
        expected = on_cpu.logits(on_cpu(ids))
        actual = on_gpu.logits(on_gpu(ids.cuda())).cpu()
    assert relative(actual, expected) < (0.01 if kind == "nf4" else 0.2)
    on_gpu.lm_loss(on_gpu(ids.cuda()).flatten(0, 1), random_targets().cuda()).backward()
    assert all(p.grad is not None for p in on_gpu.parameters() if p.requires_grad)
