"""Model folders: round trips, damage, and what is never overwritten."""

from __future__ import annotations

import os
import shutil
import stat

import pytest
import torch
from double import FLOAT32, relative_error
from safetensors.torch import load_file, save_file
from shaken_models import TEXT, shaken
from sharded_files import write_shards

from trivium import model_folder
from trivium.adapt import LoRA, add_lora
from trivium.errors import CheckpointError, SpecError, TriviumError
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.model_folder import WEIGHTS
from trivium.model_loading import load
from trivium.models import build
from trivium.presets import presets
from trivium.spec import LMHead, RNNSpec
from trivium.text import Tokenizer

SPEC = presets["bert-tiny"].replace(vocab_size=144)
IDS = [[5, 7, 11], [13, 17, 19]]


@pytest.fixture(scope="module")
def model():
    tokenizer = Tokenizer.train("wordpiece", texts=TEXT * 5, vocab_size=139, progress=False)
    settings = Settings().with_labels(["bad", "good"]).with_task("qa", stride=7)
    return LanguageModel(SPEC, shaken(SPEC), tokenizer, settings)


@pytest.fixture(scope="module")
def other(model):
    return LanguageModel(SPEC, build(SPEC, seed=5), model.tokenizer)


@pytest.fixture
def folder(model, tmp_path):
    return model.save(tmp_path / "model")


def same(a: LanguageModel, b: LanguageModel) -> bool:
    return torch.equal(a.logits(IDS), b.logits(IDS))


def overwrite_bytes(file, count: int = 1) -> None:
    data = bytearray(file.read_bytes())
    for place in range(count):
        data[-7 - place] ^= 1
    file.write_bytes(data)


def test_round_trip(model, folder):
    again = load(folder)
    assert again.spec == model.spec
    assert again.tokenizer.fingerprint == model.tokenizer.fingerprint
    assert again.settings == model.settings
    assert same(again, model)
    assert not again.module.training
    names = {file.name for file in folder.iterdir()}
    assert names >= {"model.safetensors", "spec.json", "tokenizer.json", "checksums.json"}
    # The mode follows the umask, not the library that writes weights.
    umask = os.umask(0)
    os.umask(umask)
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask, file.name
    half = load(folder, device="cpu", dtype="bfloat16")
    assert half.module.dtype == torch.bfloat16
    assert half.logits(IDS).dtype == torch.float32
    packed = load(folder, pack=True)
    assert relative_error(packed.logits(IDS), model.logits(IDS)) < FLOAT32
    rounded = load(folder, quantize="int8").logits(IDS)
    assert 0 < (rounded - model.logits(IDS)).abs().max() < 1.0
    # Weights are mapped, not copied, and can be trained.
    (folder / "model.safetensors").unlink()
    with torch.no_grad():
        again.module.tokens.weight[0] += 1.0
    assert again.module.tokens.weight.requires_grad


def test_models_without_tokenizer_and_with_two(model, tmp_path):
    bare = load(LanguageModel(SPEC, model.module).save(tmp_path / "bare"))
    assert bare.tokenizer is None
    assert same(bare, model)
    spec = presets["transformer-tiny"].replace(vocab_size=144, source_vocab_size=140)
    both = LanguageModel(spec, build(spec), model.tokenizer, source_tokenizer=model.tokenizer)
    again = load(both.save(tmp_path / "two"))
    assert again.source_tokenizer is not again.text_tokenizer
    rnn = RNNSpec(
        vocab_size=144, d_model=7, cell="gru", d_hidden=7, num_layers=1, heads=(LMHead(tied=True),)
    )
    network = LanguageModel(rnn, build(rnn))
    assert same(load(network.save(tmp_path / "rnn")), network)
    with pytest.raises(SpecError, match="only Transformers"):
        network.save_hf(tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_nothing_but_a_model_is_replaced_and_only_on_demand(model, other, folder, tmp_path):
    for save in (model.save, model.save_hf):
        with pytest.raises(CheckpointError, match="holds a model already"):
            save(folder)
        foreign = tmp_path / "foreign"
        foreign.mkdir(exist_ok=True)
        (foreign / "thesis.txt").write_text("years of work")
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        (run / "recipe.toml").write_text("")
        checkpoint = tmp_path / "checkpoints" / "step-00000005"
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "spec.json").write_text("{}")
        for overwrite in (False, True):
            with pytest.raises(CheckpointError, match="checkpoint of a run"):
                save(checkpoint, overwrite=overwrite)
            with pytest.raises(CheckpointError, match=r"no model \(thesis\.txt\)"):
                save(foreign, overwrite=overwrite)
            with pytest.raises(CheckpointError, match="training run"):
                save(run, overwrite=overwrite)
        assert (foreign / "thesis.txt").read_text() == "years of work"
    with pytest.raises(CheckpointError, match="is a file"):
        model.save(foreign / "thesis.txt")
    link = tmp_path / "link"
    link.symlink_to(folder)
    other.save(link, overwrite=True)
    assert link.is_symlink()
    assert same(load(folder), other)
    hf = model.save_hf(tmp_path / "hf")
    assert same(load(hf), model)
    other.save_hf(hf, overwrite=True)
    assert same(load(hf), other)


def test_weights_in_another_form_are_not_saved(folder, tmp_path):
    """Such weights were written, and could not be loaded again."""
    adapted = load(folder)
    add_lora(adapted.module, LoRA(rank=2))
    for lm, message in (
        (load(folder, device="cpu", pack=True), "packed or quantised"),
        (load(folder, device="cpu", quantize="int8"), "packed or quantised"),
        (load(folder, device="meta"), "has no weights"),
        (adapted, "merge_adapter"),
    ):
        for save in (lm.save, lm.save_hf):
            with pytest.raises(SpecError, match=message):
                save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_failed_save_leaves_the_old_model(model, other, folder, monkeypatch):
    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr("trivium.interop.tensor_files.save_file", fail)
    with pytest.raises(CheckpointError, match="cannot be saved: no space left"):
        other.save(folder, overwrite=True)
    assert same(load(folder), model)
    assert [file.name for file in folder.parent.iterdir()] == [folder.name]
    with pytest.raises(CheckpointError, match="cannot be saved"):
        model.save(folder / "spec.json" / "model")


def test_damage_is_found_by_checksum(folder):
    """Weights with 4,000 bytes overwritten were used."""
    overwrite_bytes(folder / "model.safetensors", 4000)
    with pytest.raises(CheckpointError, match=r"model\.safetensors does not match its checksum"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no model inside"):
        load(folder)
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "checksums.json").write_text("[7]")
    with pytest.raises(CheckpointError, match=r"checksums\.json is missing or damaged"):
        load(folder)
    (folder / "checksums.json").write_text("{}")
    with pytest.raises(CheckpointError, match="does not list"):
        load(folder)


def test_a_damaged_source_tokenizer_is_found(model, tmp_path):
    spec = presets["transformer-tiny"].replace(vocab_size=144, source_vocab_size=140)
    both = LanguageModel(spec, build(spec), model.tokenizer, source_tokenizer=model.tokenizer)
    folder = both.save(tmp_path / "two")
    file = folder / "source_tokenizer.json"
    file.write_text(file.read_text().replace("[MASK]", "[MUSK]"))
    with pytest.raises(CheckpointError, match=r"source_tokenizer\.json does not match"):
        load(folder)


def test_on_the_meta_device_no_weights_are_read(model, folder, tmp_path):
    """Neither of a folder of ours nor of Hugging Face: what cannot be used is not noticed."""
    overwrite_bytes(folder / "model.safetensors", 4000)
    module = shaken(SPEC)
    hf = LanguageModel(SPEC, module, model.tokenizer).save_hf(tmp_path / "hf")
    weights = {name: torch.full_like(w, torch.nan) for name, w in load_file(hf / WEIGHTS).items()}
    save_file(weights, hf / WEIGHTS)
    for path in (folder, hf):
        with pytest.raises(CheckpointError, match=r"does not match|not finite"):
            load(path)
        described = load(path, device="meta")
        assert described.spec.heads == SPEC.heads
        assert described.capabilities == model.capabilities
        assert described.tokenizer.fingerprint == model.tokenizer.fingerprint
        assert all(weight.is_meta for weight in described.module.parameters())


def test_weights_and_specs_that_do_not_fit(folder):
    file, spec = folder / "model.safetensors", folder / "spec.json"
    weights = load_file(file)
    name = "encoder.layers.0.mixer.query.weight"
    content = spec.read_text()

    def changed() -> None:
        model_folder.write_checksums(folder, ["model.safetensors", "spec.json", "tokenizer.json"])

    for tensors, what in (
        ({**weights, name: torch.zeros(64, 128)}, rf"size mismatch for {name}"),
        ({k: v for k, v in weights.items() if k != name}, rf"Missing key.*{name}"),
        ({**weights, "extra": torch.zeros(1)}, "Unexpected key.*extra"),
        ({**weights, "encoder.lora_a": torch.zeros(1)}, "LoRA run has not finished"),
    ):
        save_file(tensors, file)
        changed()
        with pytest.raises(CheckpointError, match=what):
            load(folder)
    pair = {f"discriminator.{k}": v for k, v in weights.items()}
    save_file({**pair, "generator.x": torch.zeros(1)}, file)
    changed()
    assert load(folder).logits(IDS).isfinite().all()
    file.write_bytes(file.read_bytes()[:3001])
    changed()
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        load(folder)
    for text, what in (
        ("{", "JSON"),
        ("[]", "not an object"),
        ('{"trivium": "0.3", "architecture": "x"}', "describe"),
        ('{"architecture": "x"}', "version 0.2"),
    ):
        spec.write_text(text)
        changed()
        with pytest.raises(CheckpointError, match=what):
            load(folder)
    spec.write_text(content)


def test_a_run_gives_its_last_good_checkpoint(model, other, tmp_path):
    checkpoints = tmp_path / "checkpoints"
    model.save(checkpoints / "step-00000500")
    newest = other.save(checkpoints / "step-00001000")
    (tmp_path / "recipe.toml").write_text("train.steps = 9000")
    with pytest.warns(UserWarning, match="not finished: this is its checkpoint of step 1,000 of 9"):
        assert same(load(tmp_path), other)
    assert same(load(checkpoints), other)
    assert same(load(tmp_path, checkpoint=500), model)
    with pytest.raises(CheckpointError, match="no checkpoint of step 7; it has 500, 1,000"):
        load(tmp_path, checkpoint=7)
    overwrite_bytes(newest / "model.safetensors")
    with (
        pytest.warns(UserWarning, match="step-00001000: model.safetensors does not match"),
        pytest.warns(UserWarning, match="checkpoint of step 500 of 9,000"),
    ):
        assert same(load(tmp_path), model)
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        load(newest)
    model_folder.write_model(tmp_path, model.module, model.tokenizer)
    assert same(load(tmp_path), model)  # the finished model comes first
    resumed = other.save(checkpoints / "step-00001500")
    (tmp_path / "run.json").write_text('{"finished": false}')
    with pytest.warns(UserWarning, match="not finished: this is its checkpoint of step 1,500"):
        assert same(load(tmp_path), other)
    shutil.rmtree(resumed)
    (tmp_path / "run.json").unlink()
    overwrite_bytes(tmp_path / "model.safetensors")
    with (
        pytest.warns(UserWarning, match="using the checkpoint before it"),
        pytest.warns(UserWarning, match="using its last checkpoint"),
    ):
        assert same(load(tmp_path), model)
    (tmp_path / "model.safetensors").unlink()
    shutil.rmtree(checkpoints / "step-00000500")
    with (
        pytest.warns(UserWarning, match="does not match"),
        pytest.raises(CheckpointError, match="all of its checkpoints are damaged"),
    ):
        load(tmp_path)


def test_a_checkpoint_of_shards_is_loaded_and_its_damage_is_found(model, other, tmp_path):
    older = other.save(tmp_path / "checkpoints" / "step-00000500")
    newest = model.save(tmp_path / "checkpoints" / "step-00001000")
    (newest / WEIGHTS).unlink()
    write_shards(newest, "model", model.module.state_dict(), 3)
    names = [file.name for file in newest.iterdir() if file.name != "checksums.json"]
    model_folder.write_checksums(newest, names)
    (tmp_path / "recipe.toml").write_text("train.steps = 9000")
    assert same(load(newest), model)
    with pytest.warns(UserWarning, match="checkpoint of step 1,000"):
        assert same(load(tmp_path), model)
    shard = newest / "model-00002.safetensors"
    content = shard.read_bytes()
    damaged = bytearray(content)
    damaged[-5] ^= 1
    for damage in (content[:-7], bytes(damaged), None):
        shard.write_bytes(damage) if damage is not None else shard.unlink()
        with (
            pytest.warns(UserWarning, match="step-00001000: .?model-00002.*using the checkpoint"),
            pytest.warns(UserWarning, match="checkpoint of step 500"),
        ):
            assert same(load(tmp_path), other)
    with pytest.raises(CheckpointError, match=r"model-00002.* is missing"):
        load(newest)
    assert same(load(older), other)


def test_what_cannot_be_loaded(folder, tmp_path):
    with pytest.raises(CheckpointError, match="no such"):
        load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="is a file, not a folder"):
        load(tmp_path / "file")
    for options, what in (
        ({"device": "nonsense"}, 'device "nonsense"'),
        ({"dtype": "float8"}, 'dtype is "float8"'),
        ({"quantize": "int3"}, 'quantize is "int3"'),
        ({"compile": True, "pack": True}, "compile works on plain weights"),
    ):
        with pytest.raises(TriviumError, match=what):
            load(folder, **options)
