"""The weights of a model to start from: read one at a time, with the values that `load` reads."""

from __future__ import annotations

import shutil

import pytest
import torch
from hf_models import Case, hf_model
from safetensors.torch import load_file, save_file
from sharded_files import write_shards
from torch.profiler import ProfilerActivity, profile
from training_memory import peak

from trivium.errors import CheckpointError
from trivium.interop.families import FAMILIES
from trivium.language_model import LanguageModel
from trivium.model_folder import write_checksums
from trivium.model_loading import load
from trivium.models import build
from trivium.presets import presets
from trivium.stored_model import StoredModel, open_model

CLASSES = [next(iter(family.architectures)) for family in FAMILIES.values()]
# Of these families, files have fused, transposed or grouped matrices, or experts in one tensor.
LARGER = {
    "BloomForCausalLM": {"n_layer": 9},
    "FalconForCausalLM": {"num_hidden_layers": 9},
    "GPT2LMHeadModel": {"n_layer": 9},
    "GPTNeoXForCausalLM": {"num_hidden_layers": 9},
    "GptOssForCausalLM": {"num_hidden_layers": 9},
    "LlamaForCausalLM": {"num_hidden_layers": 9},
    "MixtralForCausalLM": {"num_hidden_layers": 9},
    "Phi3ForCausalLM": {"num_hidden_layers": 9},
}


def check_reading(stored: StoredModel, lm: LanguageModel, largest: int | None = None) -> None:
    """All weights are those of a loaded model, and few bytes are allocated to read them."""
    assert stored.lm.module.device.type == "meta"
    assert stored.lm.spec == lm.spec
    state = lm.module.state_dict()
    assert stored.weights.keys() == state.keys()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for name, expected in state.items():
            weight = stored.weights[name]
            assert weight.shape == expected.shape
            assert torch.equal(weight, expected), name
    if largest is not None:
        assert peak(profiler) <= largest


@pytest.mark.parametrize("name", CLASSES)
def test_weights_equal_those_of_a_loaded_model_in_every_family(name, tmp_path):
    hf_model(Case(name, {})).float().save_pretrained(tmp_path)
    check_reading(open_model(tmp_path), load(tmp_path, device="cpu"))


@pytest.mark.parametrize("name", LARGER)
def test_no_more_than_two_weights_are_in_memory_at_a_time(name, tmp_path):
    hf_model(Case(name, LARGER[name])).float().save_pretrained(tmp_path)
    lm = load(tmp_path, device="cpu")
    sizes = [weight.nbytes for weight in lm.module.state_dict().values()]
    assert sum(sizes) > 9 * max(sizes)
    check_reading(open_model(tmp_path), lm, 2 * max(sizes))


@pytest.mark.parametrize("processes", [1, 3])
def test_a_folder_of_weights_whole_or_in_shards(processes, tmp_path):
    lm = LanguageModel(spec := presets["llama-tiny"].replace(vocab_size=64), build(spec, seed=1))
    folder = lm.save(tmp_path / "model")
    largest = max(weight.nbytes for weight in lm.module.state_dict().values())
    if processes > 1:
        (folder / "model.safetensors").unlink()
        (folder / "checksums.json").unlink()
        write_shards(folder, "model", lm.module.state_dict(), processes)
        names = ("spec.json", *(file.name for file in folder.glob("model-*")))
        write_checksums(folder, names)
    check_reading(open_model(folder), load(folder, device="cpu"), 2 * largest)


def test_new_tokens_extend_the_tables():
    added = {"tokens": ["qubit"], "special_tokens": ["<end>"]}
    stored = open_model("stories").with_new_tokens(**added)
    lm = load("stories", device="cpu", dtype="bfloat16").with_new_tokens(**added)
    check_reading(stored, lm)
    one, other = (each.text_tokenizer.encode("a qubit<end>").ids for each in (stored.lm, lm))
    assert one == other


def test_damage_is_found_when_a_weight_is_read_and_names_the_folder(tmp_path):
    hf_model(Case("GPT2LMHeadModel", {})).float().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["transformer.h.1.attn.c_attn.weight"][2, 3] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    stored, damaged = open_model(tmp_path), "decoder.layers.1.mixer.query.weight"
    for name in stored.weights.keys() - {damaged}:
        assert stored.weights[name].isfinite().all()
    with pytest.raises(CheckpointError, match=f"^{tmp_path}: {damaged} .* not finite"):
        stored.weights[damaged]


def test_weights_that_do_not_fit_the_spec_are_refused_when_a_model_is_opened(tmp_path):
    spec = presets["llama-tiny"].replace(vocab_size=64)
    for name, size in (("one", 64), ("other", 72)):
        of_size = spec.replace(vocab_size=size)
        LanguageModel(of_size, build(of_size, seed=1)).save(tmp_path / name)
    shutil.copy(tmp_path / "one" / "spec.json", tmp_path / "other" / "spec.json")
    write_checksums(tmp_path / "other", ("spec.json", "model.safetensors"))
    with pytest.raises(CheckpointError, match="weights are of another model"):
        open_model(tmp_path / "other")
