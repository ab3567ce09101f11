"""Adapters in peft's format: what it would compute from the files, names, ways back, refusals."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from shaken_models import shaken
from small_models import VOCABULARY, inputs_for, random_ids

from trivium import spec
from trivium.adapt import LoRA, add_lora, is_peft, load_peft, merge_lora, save_peft
from trivium.errors import CheckpointError, SpecError
from trivium.interop import to_hugging_face
from trivium.interop.convert import family_for
from trivium.presets import presets

LORA = LoRA(rank=3, alpha=7.0, targets=("query", "value", "feed-forward"), trained=())
FAMILIES = ["bert", "roberta", "albert", "modernbert", "gpt1", "gpt2", "llama", "t5", "bart"]


def base(name):
    """The tiny preset of a family, its weights large enough to tell things apart."""
    return shaken(presets[f"{name}-tiny"].replace(vocab_size=VOCABULARY)).eval()


def table_of(model):
    family = family_for(model.spec)
    return family.table(model.spec, family.write(model.spec)[0])


def trained(name, lora=LORA):
    model = base(name)
    add_lora(model, lora)
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if "lora_" in path:
                weight.normal_()
    return model


def theirs_merged(weights, folder):
    """Their matrices with scale B A added, by the rules of their configuration."""
    config = json.loads((folder / "adapter_config.json").read_text())
    thin = load_file(folder / "adapter_model.safetensors")
    merged = dict(weights)
    for key, a in thin.items():
        if not key.endswith(".lora_A.weight"):
            continue
        b = thin[key.replace("lora_A", "lora_B")]
        module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        assert any(
            module == target or module.endswith(f".{target}") for target in config["target_modules"]
        )
        rank = config["rank_pattern"].get(module, config["r"])
        assert a.shape[0] == b.shape[1] == rank
        update = config["alpha_pattern"].get(module, config["lora_alpha"]) / rank * b @ a
        name = f"{module}.weight"
        if weights[name].shape != update.shape or module.split(".")[-1].startswith("c_"):
            update = update.T
            assert config["fan_in_fan_out"]
        merged[name] = weights[name] + update
    return merged


@pytest.mark.parametrize("name", FAMILIES)
def test_what_theirs_computes_from_the_files_is_our_sum(name, tmp_path):
    _, start = to_hugging_face(base(name))
    model = trained(name)
    folder = save_peft(tmp_path, model, LORA, table_of(model))
    assert is_peft(folder)
    merge_lora(model)
    _, expected = to_hugging_face(model)
    found = theirs_merged(start, folder)
    for key, weight in expected.items():
        torch.testing.assert_close(found[key], weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_there_and_back(name, tmp_path):
    model = trained(name)
    save_peft(tmp_path, model, LORA, table_of(model))
    other = base(name)
    lora = load_peft(tmp_path, other, table_of(other))
    assert (lora.rank, lora.alpha, lora.trained) == (3, pytest.approx(7.0), ())
    state, expected = other.state_dict(), model.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], weight) for key, weight in expected.items())
    with torch.no_grad():
        inputs = inputs_for(name, random_ids(2, 11))
        torch.testing.assert_close(other(**inputs), model(**inputs), rtol=1e-5, atol=1e-5)


def test_names_are_theirs(tmp_path):
    model = trained("llama", LoRA(rank=3, trained=("decoder.norm",)))
    save_peft(tmp_path, model, LoRA(rank=3, trained=("decoder.norm",)), table_of(model), base="x/y")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj", "v_proj"]
    assert config["modules_to_save"] == ["model.norm"]
    assert (config["r"], config["lora_alpha"], config["rank_pattern"]) == (3, 16.0, {})
    assert config["base_model_name_or_path"] == "x/y"
    names = load_file(tmp_path / "adapter_model.safetensors")
    assert "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight" in names
    assert "base_model.model.model.norm.weight" in names
    assert len(names) == 2 * 2 * 2 + 1


def test_targets_are_whole_paths_where_short_ones_would_mean_more(tmp_path):
    lora = LoRA(targets=("attention.output",))
    model = trained("bart", lora)
    save_peft(tmp_path, model, lora, table_of(model))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert "model.decoder.layers.0.self_attn.out_proj" in config["target_modules"]
    assert all("encoder_attn" not in target for target in config["target_modules"])


def test_trained_heads_go_with_it(tmp_path):
    described = presets["bert-tiny"].replace(
        heads=(
            spec.ClassifierHead(num_labels=5, pooling="first", dense=spec.Dense(activation="tanh")),
        )
    )
    model = shaken(described)
    add_lora(model, LoRA())
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.normal_()
    save_peft(tmp_path, model, LoRA(), table_of(model))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["bert.pooler.dense", "classifier"]
    other = shaken(described)
    lora = load_peft(tmp_path, other, table_of(other))
    assert set(lora.trained) == {n for n, _ in other.named_parameters() if n.startswith("heads.")}
    state = other.state_dict()
    assert all(torch.equal(state[key], weight) for key, weight in model.state_dict().items())


def files(tmp_path, config, tensors):
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "adapter_model.safetensors")


def theirs(layers=(0, 1), rank=2, prefix="base_model.model.model."):
    """An adapter of queries as theirs writes it, for the tiny LLaMA (128 wide)."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for layer in layers:
        name = f"{prefix}layers.{layer}.self_attn.q_proj.lora_"
        ranks = rank[layer] if isinstance(rank, tuple) else rank
        tensors[f"{name}A.weight"] = torch.randn(ranks, 128, generator=generator)
        tensors[f"{name}B.weight"] = torch.randn(128, ranks, generator=generator)
    return tensors


CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "target_modules": ["q_proj"]}


@pytest.mark.parametrize(
    ("changes", "rank", "scales"),
    [
        ({}, 2, (4.0, 4.0)),
        ({"use_rslora": True}, 2, (8 / 2**0.5, 8 / 2**0.5)),
        ({"alpha_pattern": {"layers.1.self_attn.q_proj": 3}}, 2, (4.0, 1.5)),
        ({"rank_pattern": {"layers.1.*": 5}}, (2, 5), (4.0, 1.6)),
    ],
)
def test_what_theirs_may_vary(changes, rank, scales, tmp_path):
    tensors = theirs(rank=rank)
    files(tmp_path, {**CONFIG, **changes}, tensors)
    model = base("llama")
    load_peft(tmp_path, model, table_of(model))
    merge_lora(model)
    start = base("llama")
    for layer, scale in enumerate(scales):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_"
        a, b = (tensors[f"{name}{part}.weight"] for part in "AB")
        path = f"decoder.layers.{layer}.attention.query.weight"
        expected = start.get_parameter(path) + scale * b @ a
        torch.testing.assert_close(model.get_parameter(path), expected, rtol=1e-5, atol=1e-5)


def test_an_adapter_of_the_body_alone(tmp_path):
    files(tmp_path, CONFIG, theirs(prefix="base_model.model."))
    model = base("llama")
    lora = load_peft(tmp_path, model, table_of(model))
    assert lora.targets == ("query",)


def test_one_a_for_queries_keys_and_values(tmp_path):
    """GPT-2 as theirs trains it: one A, and B for all three one above the other."""
    a, b = torch.randn(2, 128), torch.randn(384, 2)
    name = "base_model.model.transformer.h.1.attn.c_attn.lora_"
    files(tmp_path, CONFIG, {f"{name}A.weight": a, f"{name}B.weight": b})
    model = base("gpt2")
    lora = load_peft(tmp_path, model, table_of(model))
    assert lora.rank == 2
    assert lora.targets == tuple(
        f"decoder.layers.1.attention.{part}" for part in ("key", "query", "value")
    )
    merge_lora(model)
    found = to_hugging_face(model)[1]["transformer.h.1.attn.c_attn.weight"]
    start = to_hugging_face(base("gpt2"))[1]["transformer.h.1.attn.c_attn.weight"]
    torch.testing.assert_close(found, start + 4.0 * (b @ a).T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "'IA3'.* not supported"),
        ({"use_dora": True}, '"use_dora"'),
        ({"bias": "all"}, "\"bias\" is 'all'"),
    ],
)
def test_adapters_of_another_kind(changes, message, tmp_path):
    files(tmp_path, {**CONFIG, **changes}, theirs())
    model = base("llama")
    with pytest.raises(CheckpointError, match=message):
        load_peft(tmp_path, model, table_of(model))


def test_adapters_of_another_base(tmp_path):
    model = base("llama")
    names = list(model.state_dict())

    def refused(tensors, message):
        files(tmp_path, CONFIG, tensors)
        with pytest.raises(CheckpointError, match=message):
            load_peft(tmp_path, model, table_of(model))
        assert list(model.state_dict()) == names

    refused(theirs(layers=(0, 7)), re.escape("layers.7.self_attn.q_proj.weight has no place"))
    half = {name: w for name, w in theirs().items() if "B" not in name}
    refused(half, r"q_proj.weight is adapted by .* \[128, 128\]")
    wide = {name: torch.cat((w, w), 1) if "A" in name else w for name, w in theirs().items()}
    refused(wide, r"is adapted by .*\[2, 256\]")
    refused({"base_model.model.model.norm.weight": torch.zeros(128)}, "no matrices of LoRA")
    refused({}, "no matrices of LoRA")
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        load_peft(tmp_path, model, table_of(model))


def test_what_theirs_has_no_name_for(tmp_path):
    lora = LoRA(trained=("decoder.layers.0.attention.key.bias",))
    model = trained("gpt2", lora)
    with pytest.raises(SpecError, match=r"key\.bias is trained .* merge"):
        save_peft(tmp_path, model, lora, table_of(model))
    with pytest.raises(SpecError, match="no LoRA adapter"):
        save_peft(tmp_path, base("gpt2"), LoRA(), table_of(model))
    assert not list(tmp_path.iterdir())
