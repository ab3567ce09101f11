"""Adapters on the disk: the round trip, bases they do not fit, files that are damaged."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import SPECS, inputs_for, random_ids, small_model

from trivium import spec
from trivium.adapt import (
    LoRA,
    adapter_state,
    add_lora,
    is_adapter,
    load_adapter,
    merge_lora,
    save_adapter,
)
from trivium.errors import CheckpointError, SpecError
from trivium.models import build

LORA = LoRA(rank=3, alpha=7.0, targets=("query", "feed-forward"), dropout=0.1)
CLASSIFIER = spec.ClassifierHead(num_labels=5, pooling="first")


def base(name="bert", *, seed=0, labels=5):
    heads = (*SPECS[name].heads, CLASSIFIER.replace(num_labels=labels))
    return build(SPECS[name].replace(heads=heads), seed=seed).eval()


def trained(name="bert", lora=LORA):
    model = base(name)
    add_lora(model, lora)
    with torch.no_grad():
        for weight in adapter_state(model, lora).values():
            weight.normal_()
    return model


def answer(model, name):
    return model(**inputs_for(name, random_ids(2, 11)))


@pytest.mark.parametrize("name", ["bert", "albert", "llama", "bart"])
def test_the_round_trip(name, tmp_path):
    model = trained(name)
    folder = save_adapter(tmp_path / "a" / "b", model, LORA, base="runs/bert")
    assert is_adapter(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "adapter.json",
        "adapter.safetensors",
    ]
    tensors = load_file(folder / "adapter.safetensors")
    assert all("lora_" in n or n.startswith(("heads.classifier", "heads.nsp")) for n in tensors)
    other = base(name)
    assert load_adapter(folder, other) == LORA
    state = other.state_dict()
    assert all(torch.equal(state[n], weight) for n, weight in model.state_dict().items())
    assert {n for n, w in other.named_parameters() if w.requires_grad} == set(tensors)
    with torch.no_grad():
        assert torch.equal(answer(other, name), answer(model, name))


def test_saving_again_replaces_and_leaves_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    model = trained()
    save_adapter(tmp_path, model, LORA)
    with torch.no_grad():
        adapter_state(model, LORA)["heads.classifier.classifier.bias"].fill_(3.0)
    save_adapter(tmp_path, model, LORA)
    other = base()
    load_adapter(tmp_path, other)
    assert other.get_parameter("heads.classifier.classifier.bias").tolist() == [3.0] * 5
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be saved"):
        save_adapter(tmp_path / "file", trained(), LORA)


def test_a_model_without_an_adapter_has_nothing_to_save(tmp_path):
    with pytest.raises(SpecError, match="no LoRA adapter"):
        save_adapter(tmp_path / "new", base(), LORA)
    assert not (tmp_path / "new").exists()


def refused(folder, model, message):
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        load_adapter(folder, model)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert all(weight.requires_grad for weight in model.parameters())


def test_bases_that_do_not_fit(tmp_path):
    folder = save_adapter(tmp_path, trained(), LORA, base="runs/bert")
    refused(folder, base(labels=7), r"classifier.bias is \[5\], .* it is \[7\].*runs/bert")
    refused(folder, base("llama"), r"encoder\.layers\.0.* has no place .*runs/bert")
    # A model without the head, one of fewer layers, one of more, one of another width.
    refused(folder, small_model("roberta"), r"heads\..* has no place in this model")
    described = base().spec
    assert described.encoder is not None
    fewer = described.encoder.replace(num_layers=1)
    refused(folder, build(described.replace(encoder=fewer)), r"layers\.1\..* has no place")
    more = described.encoder.replace(num_layers=3)
    refused(folder, build(described.replace(encoder=more)), r"layers\.2\..* is missing")
    attention = spec.Attention(num_heads=3, head_dim=8)
    other = described.encoder.replace(attention=attention)
    refused(folder, build(described.replace(encoder=other)), r"is \[30, 3\], .* it is \[24, 3\]")
    rnn = spec.RNNSpec(vocab_size=43, d_model=7, cell="gru", d_hidden=5, num_layers=1)
    refused(folder, build(rnn), "recurrent")


def test_a_target_the_base_has_not(tmp_path):
    lora = LORA.replace(targets=("gate",))
    folder = save_adapter(tmp_path, trained("llama", lora), lora)
    refused(folder, small_model("gpt2"), 'does not fit this model: .*"gate".*query')


def test_a_model_that_has_an_adapter_already(tmp_path):
    model = trained()
    folder = save_adapter(tmp_path, model, LORA)
    with pytest.raises(CheckpointError, match="already"):
        load_adapter(folder, model)


def test_another_base_of_the_same_shapes_is_warned_of(tmp_path):
    folder = save_adapter(tmp_path, trained(), LORA, base="runs/bert")
    with pytest.warns(UserWarning, match=r'not those .* trained with.*"runs/bert"'):
        load_adapter(folder, base(seed=1))
    merged = trained()
    merge_lora(merged)
    with pytest.warns(UserWarning, match="not those"):
        load_adapter(folder, merged)


def test_a_base_in_another_precision_is_not_warned_of(tmp_path):
    folder = save_adapter(tmp_path, trained(), LORA)
    model = base().to(torch.bfloat16)
    load_adapter(folder, model)
    assert model.get_parameter("encoder.layers.0.attention.query.lora_a").dtype == torch.float32


def test_files_that_are_missing_or_damaged(tmp_path):
    refused(tmp_path, base(), "adapter.json is missing")
    assert not is_adapter(tmp_path)
    folder = save_adapter(tmp_path, trained(), LORA)
    description = json.loads((folder / "adapter.json").read_text())

    def with_description(text, message):
        (folder / "adapter.json").write_text(text)
        refused(folder, base(), message)

    for text in ("", "{", "[]", "{}", '{"format": 1, "lora": 3, "base": {}}'):
        with_description(text, "not the description of an adapter")
    with_description(json.dumps({**description, "format": 2}), "adapter format 2.* reads 1")
    wrong = {**description, "lora": {**description["lora"], "rank": -1}}
    with_description(json.dumps(wrong), "not the description.*rank")
    unknown = {**description, "lora": {**description["lora"], "colour": "blue"}}
    with_description(json.dumps(unknown), "not the description.*colour")
    (folder / "adapter.json").write_text(json.dumps(description))
    weights = folder / "adapter.safetensors"
    tensors = load_file(weights)
    save_file({name: w for name, w in tensors.items() if "layers.0" not in name}, weights)
    refused(folder, base(), r"layers\.0.* is missing")
    weights.write_bytes(b"nothing of the kind")
    refused(folder, base(), "cannot be read as safetensors")
    weights.unlink()
    refused(folder, base(), "cannot be read as safetensors")
