"""Adapters in PEFT's files: merged by their configuration, loading back, refusals."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import SPECS, inputs_for, random_ids, random_model, small_model

from trivium import spec
from trivium.adapt import LoRA, add_lora, merge_lora
from trivium.errors import CheckpointError, SpecError
from trivium.interop.convert import to_hugging_face
from trivium.interop.peft_format import load_adapter, save_adapter

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


def outputs(model, name):
    with torch.no_grad():
        return model.logits(model(**inputs_for(name, random_ids(2, 11))))


def same_state(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(weight, b[key]) for key, weight in a.items())


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


def test_scaled_as_its_configuration_says_the_adapter_gives_the_same_and_loads_back(tmp_path):
    for name in ("bert", "albert", "modernbert", "gpt2", "llama", "t5", "bart"):
        model, folder = adapted(name), tmp_path / name
        expected = outputs(model, name)
        save_adapter(folder, model, EVERY, base="org/base")
        loaded = base(name)
        lora = load_adapter(folder, loaded)
        assert (lora.rank, lora.scale) == (3, pytest.approx(EVERY.scale))
        assert same_state(loaded, model)
        torch.testing.assert_close(outputs(loaded, name), expected)
        _, start = to_hugging_face(base(name))
        merge_lora(model)
        _, merged = to_hugging_face(model)
        for key, weight in merged_as_configured(start, folder).items():
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


def test_a_model_without_a_family_keeps_its_own_names(tmp_path):
    for name, target, path in (
        ("sliding", "query", "tokens"),
        ("alibi", "value", "decoder.norm"),
        ("ngram", "hidden", "before"),
    ):
        lora = LoRA(rank=3, targets=(target,), trained=(path,))
        model = adapted(name, lora, small_model(name))
        save_adapter(tmp_path / name, model, lora)
        loaded = small_model(name)
        load_adapter(tmp_path / name, loaded)
        assert same_state(loaded, model)


def test_numbers_of_their_own_for_modules(tmp_path):
    """`alpha_pattern`, and the root of the rank of rsLoRA (Kalajdzievski 2023)."""
    save_adapter(tmp_path, adapted("llama"), EVERY)
    config, tensors = json.loads((tmp_path / CONFIG).read_text()), load_file(tmp_path / WEIGHTS)
    changes = {"alpha_pattern": {"q_proj": 3.0}, "use_rslora": True}
    (tmp_path / CONFIG).write_text(json.dumps({**config, **changes}))
    loaded = base("llama")
    load_adapter(tmp_path, loaded)
    for path, module, alpha in (
        ("attention.query", "self_attn.q_proj", 3.0),
        ("feed_forward.down", "mlp.down_proj", 7.0),
    ):
        layer = loaded.get_submodule(f"decoder.layers.0.{path}")
        start = base("llama").get_parameter(f"decoder.layers.0.{path}.weight")
        a, b = (
            tensors[f"base_model.model.model.layers.0.{module}.lora_{matrix}.weight"]
            for matrix in "AB"
        )
        expected = start + alpha / 3**0.5 * b @ a
        torch.testing.assert_close(layer.merged(), expected, rtol=1e-9, atol=1e-9)


def test_a_pattern_is_the_end_of_a_path(tmp_path):
    """Whole parts of it, as in `peft`: layer 1 is not layer 10, and no module is below itself."""
    described = base("llama").spec
    deep = described.replace(decoder=described.decoder.replace(num_layers=11))
    save_adapter(tmp_path, adapted("llama", model=random_model(deep)), EVERY)
    config, tensors = json.loads((tmp_path / CONFIG).read_text()), load_file(tmp_path / WEIGHTS)
    patterns = {"0.self_attn.q_proj": 3.0, "layers.1": 5.0, "_proj": 5.0, "q_pro": 5.0, "mlp": 5.0}
    (tmp_path / CONFIG).write_text(json.dumps({**config, "alpha_pattern": patterns}))
    start, loaded = random_model(deep), random_model(deep)
    load_adapter(tmp_path, loaded)
    for layer in range(11):
        for path, module in (
            ("attention.query", "self_attn.q_proj"),
            ("feed_forward.down", "mlp.down_proj"),
        ):
            name, hf = f"decoder.layers.{layer}.{path}", f"model.layers.{layer}.{module}"
            a, b = (tensors[f"base_model.model.{hf}.lora_{matrix}.weight"] for matrix in "AB")
            alpha = 3.0 if hf.endswith(".0.self_attn.q_proj") else 7.0
            update = loaded.get_submodule(name).merged() - start.get_parameter(f"{name}.weight")
            torch.testing.assert_close(update, alpha / 3 * b @ a, rtol=1e-9, atol=1e-9)


def test_adapters_of_other_kinds_and_bases_are_refused(tmp_path):
    save_adapter(tmp_path, adapted("llama"), EVERY)
    config = json.loads((tmp_path / CONFIG).read_text())

    def refused(message, model=None):
        with pytest.raises(CheckpointError, match=message):
            load_adapter(tmp_path, model or base("llama"))

    wider = base("llama").spec.replace(d_model=60)
    refused("not the adapter's base", random_model(wider))
    refused("not the adapter's base", base("gpt2"))
    refused("not the adapter's base", small_model("ngram"))
    refused("no Hugging Face family", small_model("alibi"))
    for changes in ({"peft_type": "IA3"}, {"use_dora": True}, {"bias": "all"}):
        (tmp_path / CONFIG).write_text(json.dumps({**config, **changes}))
        refused(f'"{next(iter(changes))}" is')
    (tmp_path / CONFIG).write_text("{")
    refused("cannot be read")
    (tmp_path / CONFIG).write_text(json.dumps(config))
    tensors = load_file(tmp_path / WEIGHTS)
    save_file(
        {name: torch.full_like(x, torch.nan) for name, x in tensors.items()}, tmp_path / WEIGHTS
    )
    refused("numbers that are not finite")
    save_file({}, tmp_path / WEIGHTS)
    refused("no LoRA matrices")
    (tmp_path / WEIGHTS).write_bytes(b"damaged")
    refused("cannot be read")


def test_what_has_no_name_in_the_family_is_refused(tmp_path):
    with pytest.raises(SpecError, match="it has none"):
        save_adapter(tmp_path, base("gpt2"), EVERY)
    lora = LoRA(rank=3, trained=("layers.0.attention.key",))
    with pytest.raises(SpecError, match="only as a part of another"):
        save_adapter(tmp_path, adapted("gpt2", lora), lora)
