"""Hugging Face folders: every format of weights in, out again, and damage of every kind."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from double import FLOAT32, double_precision, relative_error
from hf_models import LLAMA3_ROPE, Case, case_id, hf_model, inputs_of, transformers
from hugging_face import randomize
from safetensors.torch import load_file, save_file
from torch import Tensor

from trivium.errors import CheckpointError, SpecError
from trivium.interop import hf_folder as folders
from trivium.interop.hf_folder import is_hf_folder, read_folder, write_folder
from trivium.interop.settings import Settings
from trivium.interop.tensor_files import read_tensors
from trivium.model_loading import load
from trivium.models import build
from trivium.presets import presets
from trivium.text import Tokenizer

BERT, T5 = Case("BertForMaskedLM", {}), Case("T5ForConditionalGeneration", {})


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """BERT and T5 as `transformers` saves them; tests work on copies."""
    root = tmp_path_factory.mktemp("saved")
    for case in (BERT, T5):
        hf_model(case).save_pretrained(root / case.name)
    return root


@pytest.fixture
def bert_folder(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved / BERT.name, tmp_path / "bert"))


def logits(case: Case, folder: Path) -> Tensor:
    """By this project."""
    module, inputs = read_folder(folder).module.eval(), inputs_of(case)
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"])
    with torch.no_grad():
        return module.logits(module(**inputs), attention_mask=mask)[mask.bool()]


def hf_logits(case: Case, model: Any) -> Tensor:
    inputs = inputs_of(case)
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"])
    with torch.no_grad():
        return model.eval()(**inputs).logits[mask.bool()]


def check_equal(local: Tensor, hf: Tensor) -> None:
    assert (local - hf).abs().max() < 1e-4 * hf.abs().max()


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    options = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in options.items() if v is not None}))


def change_weights(folder: Path, change) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file(change({name: tensor.clone() for name, tensor in tensors.items()}), file)


def save_pickled(model: Any, folder: Path, *, zipped: bool = True, shards: int = 1) -> None:
    """As `transformers` once did: a state dict that repeats tied weights."""
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    tensors, form = model.state_dict(), {"_use_new_zipfile_serialization": zipped}
    if shards == 1:
        torch.save(tensors, folder / "pytorch_model.bin", **form)
        return
    files = {name: f"pytorch_model-{i % shards}.bin" for i, name in enumerate(tensors)}
    for file in {*files.values()}:
        part = {name: t.clone() for name, t in tensors.items() if files[name] == file}
        torch.save(part, folder / file, **form)
    index = {"metadata": {}, "weight_map": files}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("case", [BERT, T5], ids=case_id)
def test_every_format_of_weights(case, tmp_path):
    forms = {
        "safetensors": lambda model, folder: model.save_pretrained(folder),
        "shards": lambda model, folder: model.save_pretrained(folder, max_shard_size="20KB"),
        "pickle": save_pickled,
        "old pickle": lambda model, folder: save_pickled(model, folder, zipped=False),
        "shards of pickle": lambda model, folder: save_pickled(model, folder, shards=3),
    }
    model = hf_model(case)
    expected = hf_logits(case, model)
    for name, save in forms.items():
        folder = tmp_path / case.name / name
        save(model, folder)
        assert len(list(folder.glob("*-0*"))) > 1 or name != "shards"
        assert is_hf_folder(folder)
        check_equal(logits(case, folder), expected)


@pytest.mark.parametrize(("case", "limit"), [(BERT, 10**9), (T5, 9_000)], ids=["bert", "t5"])
def test_written_again_transformers_loads_it(case, limit, saved, tmp_path):
    model, out = read_folder(saved / case.name), tmp_path / case.name
    out.mkdir()
    write_folder(out, model.module, model.tokenizer, model.settings, max_shard_bytes=limit)
    again = getattr(transformers, case.name).from_pretrained(out)
    check_equal(hf_logits(case, again), logits(case, saved / case.name))
    shards = list(out.glob("model-*.safetensors"))
    assert (len(shards) > 3) == (limit == 9_000)
    if shards:
        index = json.loads((out / "model.safetensors.index.json").read_text())
        assert {*index["weight_map"].values()} == {file.name for file in shards}
        size = sum(tensor.nbytes for tensor in read_tensors(out).values())
        assert index["metadata"]["total_size"] == size
    umask = os.umask(0o22)
    os.umask(umask)
    assert {f.stat().st_mode & 0o777 for f in out.iterdir()} == {0o666 & ~umask}


def test_ids_that_a_class_would_take_from_its_published_vocabulary_are_written(tmp_path):
    tokenizer = Tokenizer.train("wordpiece", texts=["the cat sat"], vocab_size=120, progress=False)
    spec = presets["modernbert-tiny"].replace(vocab_size=tokenizer.vocab_size)
    write_folder(tmp_path, build(spec, seed=0), tokenizer, Settings())
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (config.cls_token_id, config.sep_token_id) == (tokenizer.cls_id, tokenizer.sep_id)
    assert config.bos_token_id is None


@pytest.mark.parametrize(
    "name", ["gpt1", "gpt2", "opt", "llama", "mistral", "t5", "t5-v1.1", "bart", "marian"]
)
def test_config_has_the_ids_of_generation_and_transformers_the_same_loss(name, tmp_path):
    specials = ["<pad>", "</s>", "<unk>", "<s>"]
    tokenizer = Tokenizer.train(
        "byte-bpe", texts=["a cat sat"], vocab_size=262, special_tokens=specials, progress=False
    )
    ids = {"bos_token_id": 3, "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 3}
    module = build(presets[f"{name}-tiny"].replace(vocab_size=262), seed=0).eval()
    folder = tmp_path / name
    folder.mkdir()
    write_folder(folder, module, tokenizer, Settings(generation=ids))
    written = [
        json.loads((folder / f"{n}.json").read_text()) for n in ("config", "generation_config")
    ]
    assert all({n: each.get(n) for n in ids} == ids for each in written)
    if module.spec.family != "encoder-decoder":
        return
    source, labels = torch.tensor([[5, 6, 7, 1]]), torch.tensor([[8, 9, 10, 1]])
    hf = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval().double()
    module.double()
    with torch.no_grad(), double_precision():
        loss = hf(input_ids=source, labels=labels).loss
        start = torch.tensor([[3, 8, 9, 10]])
        ours = module.logits(module(input_ids=source, decoder_input_ids=start))
    expected = torch.nn.functional.cross_entropy(ours[0], labels[0])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)  # Marian's sinusoids


def test_norms_named_as_in_tensorflow(bert_folder):
    expected = logits(BERT, bert_folder)

    def renamed(name: str) -> str:
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        return name.replace("LayerNorm.bias", "LayerNorm.beta")

    change_weights(bert_folder, lambda tensors: {renamed(n): t for n, t in tensors.items()})
    assert torch.equal(logits(BERT, bert_folder), expected)


def test_precision_stays(bert_folder, tmp_path):
    change_weights(bert_folder, lambda tensors: {n: t.bfloat16() for n, t in tensors.items()})
    model = read_folder(bert_folder)
    assert {weight.dtype for weight in model.module.parameters()} == {torch.bfloat16}
    (tmp_path / "out").mkdir()
    write_folder(tmp_path / "out", model.module, None, model.settings)
    assert transformers.AutoModel.from_pretrained(tmp_path / "out").dtype == torch.bfloat16


def test_a_checkpoint_of_several_precisions_is_read_exactly(tmp_path):
    """In float32 when asked for, else in the precision of most numbers."""
    config = transformers.MixtralConfig(
        vocab_size=37,
        hidden_size=28,
        intermediate_size=36,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=3,
        tie_word_embeddings=False,
    )
    theirs = randomize(transformers.MixtralForCausalLM(config), seed=3).eval()
    theirs.save_pretrained(tmp_path)

    def is_exact(name: str) -> bool:
        return "norm" in name or "block_sparse_moe.gate.weight" in name

    change_weights(
        tmp_path,
        lambda tensors: {n: t if is_exact(n) else t.bfloat16() for n, t in tensors.items()},
    )
    exact = load(tmp_path, device="cpu", dtype="float32").module
    assert {weight.dtype for weight in exact.parameters()} == {torch.float32}
    theirs = transformers.MixtralForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    for layer, block in zip(theirs.model.layers, exact.blocks, strict=True):
        assert torch.equal(block.feed_forward.router.weight, layer.mlp.gate.weight)
    ids = torch.arange(1, 12)[None]
    with torch.no_grad():
        assert relative_error(exact.logits(exact(ids)), theirs(ids).logits) < FLOAT32
    module = load(tmp_path, device="cpu").module
    assert {weight.dtype for weight in module.parameters()} == {torch.bfloat16}


def test_weights_are_not_copied(bert_folder, monkeypatch):
    read: dict[str, Tensor] = {}

    def set_encoder_output(folder, **options):
        read.update(read_tensors(folder, **options))
        return read

    monkeypatch.setattr(folders, "read_tensors", set_encoder_output)
    weights = list(read_folder(bert_folder).module.parameters())
    pointers = {tensor.data_ptr() for tensor in read.values()}
    assert len(weights) > 30
    assert all(weight.data_ptr() in pointers for weight in weights)


class Evil:
    """A pickle that runs code."""

    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (self.trace,)


def test_a_pickle_with_code_is_refused(tmp_path):
    folder, trace = tmp_path / "hf", tmp_path / "trace"
    save_pickled(hf_model(BERT), folder)
    file, content = folder / "pytorch_model.bin", {"weight": Evil(str(trace))}
    for form in ("torch", "old torch", "plain"):
        if form == "plain":
            file.write_bytes(pickle.dumps(content))
        else:
            torch.save(content, file, _use_new_zipfile_serialization=form == "torch")
        with pytest.raises(CheckpointError, match=r"refused.*asks to run code.*None of it was run"):
            read_folder(folder)
        assert not trace.exists()
    torch.save({"epoch": 3}, file)
    with pytest.raises(CheckpointError, match="'epoch' is not a tensor, but a int"):
        read_folder(folder)
    torch.save([torch.zeros(3)], file)
    with pytest.raises(CheckpointError, match="not tensors by name, but a list"):
        read_folder(folder)


def test_damaged_weights(saved, bert_folder, tmp_path):
    pickled = tmp_path / "pickled"
    save_pickled(hf_model(BERT), pickled)
    for file in (bert_folder / "model.safetensors", pickled / "pytorch_model.bin"):
        content = file.read_bytes()
        for length in (0, 3, 100, 3001):
            file.write_bytes(content[:length])
            with pytest.raises(CheckpointError, match=rf"{file.name}: (cannot be read as|refused)"):
                read_folder(file.parent)
    (pickled / "pytorch_model.bin").rename(pickled / "tf_model.h5")
    with pytest.raises(CheckpointError, match=r"no weights: .*tf_model\.h5 is in a format"):
        read_folder(pickled)


def test_damaged_shards(tmp_path):
    hf_model(BERT).save_pretrained(tmp_path, max_shard_size="20KB")
    index = tmp_path / "model.safetensors.index.json"
    content = index.read_text()
    for text, message in {
        "{": "cannot be read as JSON",
        '{"weight_map": {}}': 'no "weight_map"',
        '{"weight_map": {"a": "../model.safetensors"}}': "not the name of a file beside it",
    }.items():
        index.write_text(text)
        with pytest.raises(CheckpointError, match=message):
            read_folder(tmp_path)
    index.write_text(content)
    shard = sorted(tmp_path.glob("model-00002-*"))[0]
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"{shard.name}: this shard is missing"):
        read_folder(tmp_path)


def test_damaged_configs_name_their_folder(bert_folder):
    change_config(bert_folder, hidden_act="sparkle")
    with pytest.raises(CheckpointError, match=rf"{bert_folder}: .*\"hidden_act\" is 'sparkle'"):
        read_folder(bert_folder)
    for content in ("", "{", "[]", "\xff"):
        (bert_folder / "config.json").write_text(content, encoding="latin-1")
        with pytest.raises(CheckpointError, match=r"config\.json.*JSON"):
            read_folder(bert_folder)


def test_what_cannot_be_exported(tmp_path):
    gru = build(presets["gru-tiny"].replace(vocab_size=97))
    with pytest.raises(SpecError, match=r"no [RN].*Model: only Transformers"):
        write_folder(tmp_path, gru, None, Settings())
    assert not list(tmp_path.iterdir())


def test_labels_travel(tmp_path):
    names = {0: "no", 1: "maybe", 2: "yes", 3: "never", 4: "always"}
    classifier = Case("BertForSequenceClassification", {"id2label": names})
    hf_model(classifier).save_pretrained(tmp_path / "hf")
    model = read_folder(tmp_path / "hf")
    assert model.settings.labels == tuple(names.values())
    model.settings.write(tmp_path / "local")
    assert Settings.read(tmp_path / "local").labels == model.settings.labels
    (tmp_path / "out").mkdir()
    write_folder(tmp_path / "out", model.module, None, Settings.read(tmp_path / "local"))
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").id2label == names
    many = {n: f"class {n}" for n in range(12)}  # in a file 10 and 11 come before 2
    text = transformers.BertConfig(id2label=many).to_json_string()
    assert Settings(config=json.loads(text)).labels == tuple(many.values())
    # Where a file counts labels and names them, the count is believed.
    change_config(tmp_path / "hf", id2label={"0": "a", "1": "b"}, label2id={"a": 0}, num_labels=5)
    assert read_folder(tmp_path / "hf").module.spec.heads[0].num_labels == 5


def test_generation_settings_and_chat_template_travel(tmp_path):
    llama = hf_model(Case("LlamaForCausalLM", {"vocab_size": 331}))
    llama.generation_config.temperature, llama.generation_config.do_sample = 0.7, True
    llama.generation_config.eos_token_id = [2, 11]
    llama.save_pretrained(tmp_path / "hf")
    specials = ["<pad>", "<s>", "</s>", "<unk>"]
    tokenizer = Tokenizer.train(
        "byte-bpe", texts=["Hi there"] * 5, vocab_size=271, special_tokens=specials, progress=False
    )
    tokenizer.save(tmp_path / "hf")
    template = "{{ messages[0]['content'] }} \u597d"
    (tmp_path / "hf" / "chat_template.jinja").write_text(template, encoding="utf-8")
    read_folder(tmp_path / "hf").settings.write(tmp_path / "local")
    settings = Settings.read(tmp_path / "local")
    assert settings.ids("eos_token_id") == (2, 11)
    (tmp_path / "out").mkdir()
    write_folder(tmp_path / "out", read_folder(tmp_path / "hf").module, tokenizer, settings)
    written = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert (written.temperature, written.eos_token_id) == (0.7, [2, 11])
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [{"role": "user", "content": "Hi"}]
    assert hf_tokenizer.apply_chat_template(messages, tokenize=False) == "Hi \u597d"
    # An encoder-decoder gets our limit: theirs would be 20 tokens.
    (tmp_path / "t5").mkdir()
    write_folder(tmp_path / "t5", build(presets["t5-tiny"].replace(vocab_size=97)), None, settings)
    assert transformers.GenerationConfig.from_pretrained(tmp_path / "t5").max_length == 257
    # Settings without them do not inherit the files of others.
    Settings().write(tmp_path / "local")
    assert Settings.read(tmp_path / "local") == Settings(tokenizer={})


def test_what_settings_answer():
    generation = {
        "eos_token_id": 5,
        "bad_words_ids": [[7]],
        "suppress_tokens": [11],
        "forced_bos_token_id": 13,
        "forced_eos_token_id": [2, 3],
    }
    settings = Settings(generation=generation, config={"decoder_start_token_id": 17})
    assert settings.ids("eos_token_id") == (5,)
    assert settings.banned_ids == {7, 11}
    with pytest.raises(CheckpointError, match=r"bad_words_ids has \[3, 4\], but only words of one"):
        _ = Settings(generation={"bad_words_ids": [[7], [3, 4]]}).banned_ids
    assert settings.decoder_start == (17,)
    assert settings.ids("forced_eos_token_id") == (2, 3)
    empty = Settings()
    assert (empty.ids("eos_token_id"), empty.decoder_start) == ((), ())
    for names, kind in (
        (("a", "b"), "classes"),
        (("x",), "regression"),
        (("a", "b"), "multi-label"),
    ):
        labelled = empty.with_labels(names, kind)
        assert (labelled.labels, labelled.label_kind) == (names, kind)
    assert Settings(config={"id2label": {"0": "score"}}).label_kind == "regression"
    tuned = empty.with_task("qa", stride=3).with_task("tagging", scheme="BIO")
    assert (tuned.task, dict(tuned.task_options("qa"))) == ("tagging", {"stride": 3})
    assert (empty.task, dict(empty.task_options("qa"))) == (None, {})


def test_llama_3_1_keeps_its_context(tmp_path):
    """Its 131,072 positions are 16 times those before scaling, not 8 times as its factor says."""
    rope = {**LLAMA3_ROPE, "original_max_position_embeddings": 8}
    changes = {"rope_parameters": rope, "max_position_embeddings": 128}
    hf_model(Case("LlamaForCausalLM", changes)).save_pretrained(tmp_path / "hf")
    model = read_folder(tmp_path / "hf")
    (tmp_path / "out").mkdir()
    write_folder(tmp_path / "out", model.module, None, model.settings)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert config.max_position_embeddings == 128
    assert config.rope_parameters["original_max_position_embeddings"] == 8


@pytest.mark.filterwarnings('ignore:config.json. "time_step_limit" is')
@pytest.mark.parametrize("limit", [[0.0, math.inf], [0.3, math.inf], [0.1, 0.5]], ids=str)
def test_infinity_in_a_config(limit, tmp_path):
    """As transformers 5 writes it in an object, and as earlier releases wrote it in a list."""
    case = Case("Mamba2ForCausalLM", {"time_step_limit": limit})
    hf = hf_model(case)
    hf.save_pretrained(tmp_path / "five")
    shutil.copytree(tmp_path / "five", tmp_path / "four")
    config = json.loads((tmp_path / "five" / "config.json").read_text())
    four = json.dumps({**config, "time_step_limit": limit})
    (tmp_path / "four" / "config.json").write_text(four)
    assert ("Infinity" in four) == (limit[1] == math.inf)
    for name in ("four", "five"):
        model = read_folder(tmp_path / name)
        assert relative_error(logits(case, tmp_path / name), hf_logits(case, hf)) < FLOAT32
        (tmp_path / f"again-{name}").mkdir()
        write_folder(tmp_path / f"again-{name}", model.module, None, model.settings)
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / f"again-{name}")
        assert [*again.config.time_step_limit] == limit
        assert relative_error(hf_logits(case, again), hf_logits(case, hf)) < FLOAT32


def test_every_generation_setting_is_read_and_written(tmp_path):
    """Those of `generation_config.json`, or of `config.json` where there is no such file."""
    values = {
        "max_length": 17,
        "min_length": 5,
        "min_new_tokens": 3,
        "num_beams": 3,
        "early_stopping": True,
        "length_penalty": 0.7,
        "no_repeat_ngram_size": 2,
        "encoder_no_repeat_ngram_size": 3,
        "repetition_penalty": 1.3,
        "begin_suppress_tokens": [7],
        "suppress_tokens": [11],
        "bad_words_ids": [[13]],
        "forced_eos_token_id": 2,
        "do_sample": True,
        "temperature": 0.7,
        "top_k": 9,
        "top_p": 0.8,
        "min_p": 0.1,
        "typical_p": 0.9,
    }
    file = tmp_path / "hf" / "generation_config.json"
    hf_model(Case("BartForConditionalGeneration", {})).save_pretrained(file.parent)
    file.unlink()
    old = {**values, "force_bos_token_to_be_generated": True}
    change_config(file.parent, **old)
    expected = {**values, "forced_bos_token_id": 1}
    for name in ("config.json", "generation_config.json"):
        if name == file.name:  # alone where it is
            file.write_text(json.dumps(expected))
            change_config(file.parent, max_length=23, num_return_sequences=3)
        with pytest.warns(UserWarning, match=r"^typical_p = 0\.9 .* not applied\.$"):
            model = read_folder(file.parent)
        assert expected.items() <= model.settings.generation.items(), name
        (tmp_path / name).mkdir()
        write_folder(tmp_path / name, model.module, None, model.settings)
        hf = transformers.GenerationConfig.from_pretrained(tmp_path / name).to_dict()
        assert {key: hf[key] for key in expected} == expected, name
    file.write_text(json.dumps({"temperature": "warm"}))
    with pytest.raises(CheckpointError, match="\"temperature\" is 'warm'; expected a number"):
        read_folder(file.parent)


def test_generation_settings_in_an_old_config(tmp_path):
    options = {"num_beams": 4, "hidden_size": 22, "bos_token_id": 1}
    assert Settings.read_hf(tmp_path, options, generates=True).generation["num_beams"] == 4
    assert not Settings.read_hf(tmp_path, options, generates=False).generation
    named = {"chat_template": [{"name": "tool", "template": "t"}, {"name": "default"}]}
    named["chat_template"][1]["template"] = "d"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    assert Settings.read_hf(tmp_path, options, generates=True).chat_template == "d"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja is not UTF-8"):
        Settings.read(tmp_path)
