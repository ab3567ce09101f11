"""Adapters in PEFT's files: merged by their configuration, names, refusals."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import warnings

import pytest
import torch
from hf_models import Case, assert_equal, hf_model, hf_outputs, inputs_of, local_outputs
from hugging_face import ours_of
from safetensors.torch import load_file
from small_models import SPECS, random_model, small_model
from transformers.pytorch_utils import Conv1D

from trivium import spec
from trivium.adapt import LoRA, add_lora, merged_state
from trivium.errors import SpecError
from trivium.interop.convert import exported_spec, hf_weight_map, to_hf_config, to_hugging_face
from trivium.interop.families import FAMILIES
from trivium.interop.peft_format import save_adapter
from trivium.presets import presets

pytestmark = pytest.mark.usefixtures("double_precision")

EVERY = LoRA(rank=3, alpha=7.0, targets=("all-linear",), trained=())
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# A model of each family with a head over the vocabulary, and one with labels.
ENDS = ("ForMaskedLM", "ForCausalLM", "LMHeadModel", "MTModel", "ForConditionalGeneration")
FAMILY_CLASSES = [
    name
    for family in FAMILIES.values()
    for name in family.architectures
    if name.endswith((*ENDS, "ForSequenceClassification"))
]
# Their experts are fused when they are read.
FUSED_EXPERTS = ("Mixtral", "Deepseek", "Qwen2Moe", "Qwen3Moe")
EVERYWHERE = ("value", "all-linear")
LINEAR = (torch.nn.Linear, Conv1D)


def base(name):
    """A small model that a Hugging Face family can express: heads share out the width."""
    described = SPECS[name].replace(d_model=30)
    if name == "t5":
        described = described.replace(heads=(described.heads[0].replace(scale=30**-0.5),))
    if name == "bart":
        described = described.replace(heads=(spec.LMHead(tied=True),))
    return random_model(described)


def adapted(name, lora=EVERY, model=None):
    """A small model whose adapter, and what is trained beside it, is random."""
    model = base(name) if model is None else model
    add_lora(model, lora)
    for weight in model.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.3)
    return model


def merged_as_configured(weights, folder):
    """Hugging Face weights with scale B A added, as `peft` reads its configuration."""
    config = json.loads((folder / CONFIG).read_text())
    tensors, merged = load_file(folder / WEIGHTS), dict(weights)
    for key, a in tensors.items():
        if not key.endswith(".lora_A.weight"):
            continue
        b = tensors[key.replace("lora_A", "lora_B")]
        module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        targets = config["target_modules"]
        assert any(module == target or module.endswith(f".{target}") for target in targets)
        rank = config["rank_pattern"].get(module, config["r"])
        assert len(a) == b.shape[1] == rank
        update = config["alpha_pattern"].get(module, config["lora_alpha"]) / rank * b @ a
        update = update.T if config["fan_in_fan_out"] else update
        merged[f"{module}.weight"] = weights[f"{module}.weight"] + update
    return merged


@pytest.mark.parametrize("name", ["bert", "albert", "modernbert", "gpt2", "llama", "t5", "bart"])
def test_scaled_as_its_configuration_says_the_adapter_gives_the_merged_weights(name, tmp_path):
    model, folder = adapted(name), tmp_path / name
    save_adapter(folder, model, EVERY, base="org/base")
    plain = base(name)
    start = {k: v.clone() for k, v in to_hugging_face(plain)[1].items()}
    plain.load_state_dict(merged_state(model))
    _, merged = to_hugging_face(plain)
    expected = merged_as_configured(start, folder)
    changed = [key for key, weight in expected.items() if not torch.equal(weight, start[key])]
    assert len(changed) > 5
    for key, weight in expected.items():
        torch.testing.assert_close(weight, merged[key], rtol=1e-9, atol=1e-9)


def test_names_are_those_of_the_family(tmp_path):
    lora = LoRA(rank=3, trained=("decoder.norm",))
    save_adapter(tmp_path, adapted("llama", lora), lora)
    config, names = json.loads((tmp_path / CONFIG).read_text()), load_file(tmp_path / WEIGHTS)
    assert config["target_modules"] == ["q_proj", "v_proj"]
    assert config["modules_to_save"] == ["model.norm"]
    assert (config["r"], config["lora_alpha"], config["rank_pattern"]) == (3, 16.0, {})
    assert "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight" in names
    assert "base_model.model.model.norm.weight" in names
    assert len(names) == 2 * 2 * 2 + 1


@pytest.mark.parametrize(
    ("name", "target", "path"),
    [
        ("sliding", "query", "tokens"),
        ("alibi", "value", "decoder.norm"),
        ("ngram", "hidden", "before"),
    ],
)
def test_a_model_without_a_family_keeps_its_own_names(name, target, path, tmp_path):
    lora = LoRA(rank=3, targets=(target,), trained=(path,))
    model = adapted(name, lora, small_model(name))
    save_adapter(tmp_path / name, model, lora)
    config = json.loads((tmp_path / name / CONFIG).read_text())
    assert config["auto_mapping"]["base_model_class"] == type(model).__name__
    assert config["target_modules"] == [target]
    trained = {n: w for n, w in model.named_parameters() if w.requires_grad}
    expected = {
        "base_model.model."
        + n.replace("lora_a", "lora_A.weight").replace("lora_b", "lora_B.weight"): w
        for n, w in trained.items()
    }
    written = load_file(tmp_path / name / WEIGHTS)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[n], weight) for n, weight in expected.items())


def test_what_has_no_name_in_the_family_is_refused(tmp_path):
    with pytest.raises(SpecError, match="it has none"):
        save_adapter(tmp_path, base("gpt2"), EVERY)
    lora = LoRA(rank=3, trained=("layers.0.mixer.key",))
    with pytest.raises(SpecError, match="only as a part of another"):
        save_adapter(tmp_path, adapted("gpt2", lora), lora)


def published(name: str, lora: LoRA):
    """A class of `transformers`, and the same model here with a random adapter."""
    hf = hf_model(Case(name, {}))
    return hf, adapted(name, lora, ours_of(hf))


@pytest.mark.parametrize("targets", [("value",), ("all-linear",), ("up",), ("output",)])
@pytest.mark.parametrize("name", FAMILY_CLASSES)
def test_an_adapter_names_layers_of_transformers_or_is_refused(name, targets, tmp_path):
    lora, folder = LoRA(rank=3, alpha=7.0, targets=targets), tmp_path / "adapter"
    with contextlib.suppress(SpecError):  # there is no such layer, or PEFT cannot adapt it
        hf, model = published(name, lora)
        save_adapter(folder, model, lora, model_type=hf.config.model_type)
    if not folder.exists():
        refused = ("XLNet", "Mamba", "GptOss", *FUSED_EXPERTS)
        refused = refused if targets[0] in EVERYWHERE else FAMILY_CLASSES
        assert name.startswith(tuple(refused))
        return
    config, modules = json.loads((folder / CONFIG).read_text()), dict(hf.named_modules())
    written = {
        key.removeprefix("base_model.model.").removesuffix(".lora_A.weight"): len(a)
        for key, a in load_file(folder / WEIGHTS).items()
        if key.endswith(".lora_A.weight")
    }
    if not name.startswith(FUSED_EXPERTS):
        assert all(isinstance(modules[path], LINEAR) for path in written)
        targeted = {
            path
            for path, module in modules.items()
            if any(path == end or path.endswith(f".{end}") for end in config["target_modules"])
        }
        assert targeted == written.keys()
    if importlib.util.find_spec("peft") is None:
        return
    peft, inputs = importlib.import_module("peft"), inputs_of(Case(name, {}))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # theirs of each other
        theirs = peft.PeftModel.from_pretrained(hf, folder).eval()
        assert_equal(local_outputs(model, inputs), hf_outputs(theirs, inputs), inputs, name)


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("XLNetLMHeadModel", ("query", "value")),
        ("MambaForCausalLM", ("all-linear",)),
        ("MambaForCausalLM", ("dt_proj",)),
        ("MixtralForCausalLM", ("up",)),
    ],
)
def test_an_adapter_that_peft_cannot_read_is_refused_before_anything_is_written(
    name, targets, tmp_path
):
    lora = LoRA(rank=3, targets=targets)
    _, model = published(name, lora)
    with pytest.raises(SpecError, match="PEFT cannot read an adapter of"):
        save_adapter(tmp_path / "adapter", model, lora)
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize("name", ["deberta-tiny", "gpt2-tiny"])
def test_an_adapter_has_the_names_of_the_model_that_is_exported(name, tmp_path):
    """DeBERTa without its mask decoder, a decoder with labels without its language model."""
    described = presets[name].replace(vocab_size=101)
    if described.decoder is not None:
        labels = spec.ClassifierHead(num_labels=3, pooling="last", bias=False)
        described = described.replace(heads=(*described.heads, labels))
    lora = LoRA(rank=3)
    save_adapter(tmp_path, adapted(name, lora, random_model(described)), lora)
    config, options = (
        json.loads((tmp_path / CONFIG).read_text()),
        to_hf_config(exported_spec(described)),
    )
    assert "auto_mapping" not in config
    known = {weight.hf for weight in hf_weight_map(exported_spec(described))}
    for key in load_file(tmp_path / WEIGHTS):
        path = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        assert f"{path.removesuffix('.lora_B.weight')}.weight" in known or path in known
    assert options.architecture.endswith(("Model", "ForSequenceClassification"))
