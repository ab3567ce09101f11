"""Adapters in PEFT's files: merged by their configuration, names, refusals."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from small_models import SPECS, random_model, small_model

from trivium import spec
from trivium.adapt import LoRA, add_lora, merged_state
from trivium.errors import SpecError
from trivium.interop.convert import to_hugging_face
from trivium.interop.peft_format import save_adapter

pytestmark = pytest.mark.usefixtures("double_precision")

EVERY = LoRA(rank=3, alpha=7.0, targets=("all-linear",), trained=())
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


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
