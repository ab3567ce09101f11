"""Hugging Face folders: every format of weights in, out again, and everything that can be wrong."""

from __future__ import annotations

import json
import os
import pickle
import shutil

import pytest
import torch
from hugging_face_folders import (
    MODELS,
    bert,
    gpt2,
    inputs_of,
    llama,
    logits_of,
    save_pickled,
    t5,
    tokenizer_of,
)
from safetensors.torch import load_file, save_file

from trivium.errors import CheckpointError, SpecError
from trivium.interop import folder as folders
from trivium.interop.weights import read_tensors
from trivium.language_model import LanguageModel, load
from trivium.models import build
from trivium.presets import presets

transformers = pytest.importorskip("transformers")


def our_logits(model: LanguageModel, hf_model) -> torch.Tensor:
    return model.logits(**inputs_of(hf_model))


def check_equal(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()


def change_config(folder, **changes) -> None:
    file = folder / "config.json"
    options = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in options.items() if v is not None}))


def change_weights(folder, change) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file(change({name: tensor.clone() for name, tensor in tensors.items()}), file)


@pytest.fixture
def bert_folder(tmp_path):
    bert(transformers).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def split_pickle(hf_model, folder) -> None:
    save_pickled(hf_model, folder)
    tensors = torch.load(folder / "pytorch_model.bin", weights_only=True)
    (folder / "pytorch_model.bin").unlink()
    names = sorted(tensors)
    where = {name: f"pytorch_model-0000{i % 3 + 1}-of-00003.bin" for i, name in enumerate(names)}
    for file in set(where.values()):
        held = {name: tensors[name].clone() for name in names if where[name] == file}
        torch.save(held, folder / file)
    index = {"metadata": {}, "weight_map": where}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


SAVED = {
    "safetensors": lambda model, folder: model.save_pretrained(folder),
    "shards": lambda model, folder: model.save_pretrained(folder, max_shard_size="20KB"),
    "pickle": save_pickled,
    "old pickle": lambda model, folder: save_pickled(model, folder, zipped=False),
    "shards of pickle": split_pickle,
}


@pytest.mark.parametrize("how", SAVED)
@pytest.mark.parametrize("make", [bert, t5])
def test_every_format_of_weights(tmp_path, how, make):
    hf_model = make(transformers)
    SAVED[how](hf_model, tmp_path / "theirs")
    assert len(list((tmp_path / "theirs").glob("*of-0*"))) > 1 or "shards" not in how
    check_equal(our_logits(load(tmp_path / "theirs"), hf_model), logits_of(hf_model))


@pytest.mark.parametrize("largest", [10**9, 9_000])
@pytest.mark.parametrize("name", MODELS)
def test_exported_again_theirs_answers_equally(tmp_path, name, largest):
    hf_model = MODELS[name](transformers)
    hf_model.save_pretrained(tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    model.save(tmp_path / "ours")
    load(tmp_path / "ours").save_hf(tmp_path / "out", largest_shard=largest)
    again = type(hf_model).from_pretrained(tmp_path / "out")
    check_equal(logits_of(again), logits_of(hf_model))
    files = {file.name for file in (tmp_path / "out").glob("*.safetensors*")}
    assert ("model.safetensors" in files) == (largest == 10**9)
    if largest == 9_000:
        index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
        assert {*index["weight_map"].values()} == files - {"model.safetensors.index.json"}
        sizes = [tensor.nbytes for tensor in read_tensors(tmp_path / "out").values()]
        assert index["metadata"]["total_size"] == sum(sizes)
        assert len(files) > 3
    body = transformers.AutoModel.from_pretrained(tmp_path / "out").state_dict()
    wanted = hf_model.base_model.state_dict() if name != "t5" else hf_model.state_dict()
    assert all(torch.equal(body[key], wanted[key]) for key in body.keys() & wanted.keys())
    assert len(body.keys() & wanted.keys()) > 10


@pytest.mark.parametrize("make", [bert, gpt2, t5])
@pytest.mark.parametrize("repeated", [False, True])
def test_tied_weights_that_files_repeat_or_not(tmp_path, make, repeated):
    hf_model = make(transformers)
    folder = tmp_path / "theirs"
    (save_pickled if repeated else type(hf_model).save_pretrained)(hf_model, folder)
    names = read_tensors(folder).keys()
    heads = ("cls.predictions.decoder.weight", "lm_head.weight")
    assert any(name in names for name in heads) == repeated
    model = load(folder)
    assert model.module.heads[model.spec.heads[0].kind].weight is None
    check_equal(our_logits(model, hf_model), logits_of(hf_model))
    model.save_hf(tmp_path / "out")
    assert not any(name in read_tensors(tmp_path / "out") for name in heads)


def test_a_repeated_weight_that_differs(bert_folder):
    name = "cls.predictions.decoder.weight"
    change_weights(bert_folder, lambda found: {**found, name: torch.zeros(331, 22)})
    with pytest.raises(CheckpointError, match=f"{name} differs from bert.embeddings"):
        load(bert_folder)


def test_untied_weights_go_out_and_in(tmp_path):
    hf_model = llama(transformers)
    hf_model.save_pretrained(tmp_path / "theirs")
    load(tmp_path / "theirs").save_hf(tmp_path / "out")
    assert "lm_head.weight" in read_tensors(tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False


def test_names_of_norms_from_tensorflow(bert_folder, tmp_path):
    hf_model = bert(transformers)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def renamed(name: str) -> str:
        for new, before in old.items():
            name = name.replace(new, before)
        return name

    change_weights(bert_folder, lambda found: {renamed(n): t for n, t in found.items()})
    check_equal(our_logits(load(bert_folder), hf_model), logits_of(hf_model))


def test_a_head_more_than_the_class_has(tmp_path):
    """As `bert-base-uncased`: a masked model by its configuration, with NSP in the file."""
    hf_model = bert(transformers, "BertForPreTraining")
    hf_model.save_pretrained(tmp_path)
    change_config(tmp_path, architectures=["BertForMaskedLM"])
    model = load(tmp_path)
    assert [head.kind for head in model.spec.heads] == ["mlm", "nsp"]
    with torch.no_grad():
        wanted = hf_model(**inputs_of(hf_model))
    check_equal(our_logits(model, hf_model), wanted.prediction_logits)
    ids = inputs_of(hf_model)["input_ids"]
    check_equal(model.logits(ids, head="nsp"), wanted.seq_relationship_logits)


@pytest.mark.parametrize(
    "name", ["BertForPreTraining", "BertModel", "BertForSequenceClassification"]
)
def test_configurations_without_family_and_class(tmp_path, name):
    bert(transformers, name).save_pretrained(tmp_path)
    wanted = load(tmp_path).spec
    change_config(tmp_path, model_type=None, architectures=None)
    assert load(tmp_path).spec == wanted


def test_labels_counted_apart_from_their_names(tmp_path):
    bert(transformers, "BertForSequenceClassification", num_labels=5).save_pretrained(tmp_path)
    change_config(tmp_path, id2label={"0": "a", "1": "b"}, label2id={"a": 0}, num_labels=5)
    assert load(tmp_path).logits([[3, 5]]).shape == (1, 5)


def test_precision_stays(bert_folder, tmp_path):
    change_weights(bert_folder, lambda found: {n: t.bfloat16() for n, t in found.items()})
    model = load(bert_folder)
    assert model.module.dtype == torch.bfloat16
    model.save_hf(tmp_path / "out")
    assert transformers.AutoModel.from_pretrained(tmp_path / "out").dtype == torch.bfloat16
    change_weights(
        bert_folder,
        lambda found: {n: t.float() if "LayerNorm" in n else t for n, t in found.items()},
    )
    assert {w.dtype for w in load(bert_folder).module.parameters()} == {torch.bfloat16}


def test_what_was_read_is_not_copied(bert_folder, monkeypatch):
    read: dict[str, torch.Tensor] = {}

    def remembered(folder):
        read.update(read_tensors(folder))
        return read

    monkeypatch.setattr(folders, "read_tensors", remembered)
    weights = list(load(bert_folder).module.parameters())
    places = {tensor.data_ptr() for tensor in read.values()}
    assert len(weights) > 30
    assert all(weight.data_ptr() in places for weight in weights)


class Evil:
    """What a pickle can be: an order to do something."""

    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (self.trace,)


@pytest.mark.parametrize("how", ["torch", "torch, old", "plain"])
def test_a_pickle_with_code_is_refused(tmp_path, how):
    folder, trace = tmp_path / "theirs", tmp_path / "trace"
    save_pickled(bert(transformers), folder)
    file, content = folder / "pytorch_model.bin", {"weight": Evil(str(trace))}
    if how == "plain":
        file.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=how == "torch")
    with pytest.raises(CheckpointError, match=r"refused.*asks to run code.*Nothing of it was run"):
        load(folder)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"epoch": 3}, "'epoch' is no tensor, but a int"),
        ([torch.zeros(3)], "no tensors by name, but a list"),
    ],
)
def test_a_pickle_of_something_else(tmp_path, content, what):
    save_pickled(bert(transformers), tmp_path)
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=what):
        load(tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 100, 3001])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_truncated_weights(tmp_path, name, keep):
    (save_pickled if name.endswith("bin") else transformers.PreTrainedModel.save_pretrained)(
        bert(transformers), tmp_path
    )
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=rf"{name}: (cannot be read as|refused)"):
        load(tmp_path)


def test_missing_shards(tmp_path):
    bert(transformers).save_pretrained(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("model-00002-*"))[0]
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"{shard.name}: this shard is missing"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "cannot be read as JSON"),
        ('{"weight_map": {}}', 'no "weight_map"'),
        ('{"weight_map": {"a": "../model.safetensors"}}', "no file beside it"),
    ],
)
def test_bad_index(tmp_path, content, what):
    bert(transformers).save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match=what):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model_type": "colourful"}, "'colourful', which is not supported; supported: .*bert"),
        ({"architectures": ["BertForPainting"]}, "'BertForPainting'.*supported: BertModel"),
        ({"colour": "blue"}, r"\"colour\" \('blue'\) is not supported for bert"),
        ({"hidden_act": "sparkle"}, r"\"hidden_act\" is 'sparkle'"),
        ({"vocab_size": None}, '"vocab_size" is missing'),
        ({"vocab_size": 337}, r"word_embeddings.weight is \[331, 22\].*\[337, 22\]"),
        ({"num_hidden_layers": 4}, r"bert.encoder.layer.3.*is missing"),
        ({"num_hidden_layers": 2}, r"bert.encoder.layer.2.*is not part of the model"),
    ],
)
def test_configurations_that_are_refused(bert_folder, changes, what):
    change_config(bert_folder, **changes)
    if "architectures" in changes:
        change_weights(bert_folder, lambda found: {**found, "brush": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=what) as caught:
        load(bert_folder)
    assert str(bert_folder) in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "\xff"])
def test_a_configuration_that_is_no_json(bert_folder, content):
    (bert_folder / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json: (cannot be read as|is) JSON"):
        load(bert_folder)


def test_folders_without_weights(bert_folder):
    (bert_folder / "model.safetensors").rename(bert_folder / "tf_model.h5")
    with pytest.raises(CheckpointError, match=r"no weights: .*tf_model\.h5 is of a kind"):
        load(bert_folder)


def test_what_theirs_has_no_word_for(tmp_path):
    spec = presets["bert-tiny"].replace(vocab_size=97)
    odd = spec.replace(
        encoder=spec.encoder.replace(feed_forward=spec.encoder.feed_forward.replace(gated=True))
    )
    with pytest.raises(SpecError, match="cannot be exported"):
        LanguageModel(odd, build(odd)).save_hf(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_export_into_a_folder_of_ours(bert_folder, tmp_path):
    model = load(bert_folder)
    model.save(tmp_path / "ours")
    with pytest.raises(CheckpointError, match=r"holds a model of ours .*another folder"):
        model.save_hf(tmp_path / "ours")
    with pytest.raises(CheckpointError, match=r"holds a Hugging Face model, .*another folder"):
        model.save(bert_folder)


def test_export_over_another_export(bert_folder, tmp_path):
    hf_model = bert(transformers)
    model, out = load(bert_folder), tmp_path / "out"
    model.save_hf(out, largest_shard=9_000)
    (out / "notes.txt").write_text("mine")
    model.save_hf(out)
    assert {file.name for file in out.glob("model*")} == {"model.safetensors"}
    assert (out / "notes.txt").is_file()
    check_equal(our_logits(load(out), hf_model), logits_of(hf_model))
    load(out).save_hf(out)  # over the file that its weights are mapped from
    check_equal(our_logits(load(out), hf_model), logits_of(hf_model))


def test_nothing_half_written(bert_folder, tmp_path, monkeypatch):
    model, out = load(bert_folder), tmp_path / "out" / "model"
    model.save_hf(out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "write_tensors", full)
    for target in (out, out.with_name("other")):
        with pytest.raises(CheckpointError, match=r"cannot be written: .*No space left"):
            model.save_hf(target)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert [path.name for path in out.parent.iterdir()] == ["model"]


def test_settings_and_labels_travel(tmp_path):
    names = {0: "no", 1: "maybe", 2: "yes"}
    hf_model = bert(transformers, "BertForSequenceClassification", id2label=names)
    hf_model.save_pretrained(tmp_path / "theirs")
    load(tmp_path / "theirs").save(tmp_path / "ours")
    load(tmp_path / "ours").save_hf(tmp_path / "out")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").id2label == names


def test_generation_settings_and_chat_template_travel(tmp_path):
    hf_model = llama(transformers)
    hf_model.generation_config.temperature, hf_model.generation_config.do_sample = 0.7, True
    hf_model.generation_config.eos_token_id = [2, 11]
    hf_model.save_pretrained(tmp_path / "theirs")
    tokenizer_of("byte-bpe").save(tmp_path / "theirs")
    template = "{{ messages[0]['content'] }} 好"
    (tmp_path / "theirs" / "chat_template.jinja").write_text(template, encoding="utf-8")
    load(tmp_path / "theirs").save(tmp_path / "ours")
    model = load(tmp_path / "ours")
    assert model.settings.stop_ids == {2, 11}
    model.save_hf(tmp_path / "out")
    found = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert (found.temperature, found.eos_token_id) == (0.7, [2, 11])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    said = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert said == "Hi 好"
    # What a model without them saves does not inherit what lay there.
    shutil.rmtree(tmp_path / "theirs")
    LanguageModel(model.spec, model.module, model.tokenizer).save(tmp_path / "ours")
    assert not load(tmp_path / "ours").settings.stop_ids
    assert not (tmp_path / "ours" / "chat_template.jinja").exists()
