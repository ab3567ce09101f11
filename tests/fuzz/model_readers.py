"""Readers of tokenizers, models, recipes, shards, checkpoints and runs."""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import io
import json
import shutil
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import sentencepiece
import torch
from damage import Files
from readers import MESSAGES, TEXT, made, reader, small_tokenizer
from safetensors.torch import load_file
from sharded_files import write_shards
from small_models import SPECS

from trivium.adapt import LoRA, add_lora
from trivium.data import Shards
from trivium.data.prepare import prepare
from trivium.data.splitting import CorpusOptions
from trivium.errors import CheckpointError, SpecError
from trivium.explain import explain
from trivium.files import write_json
from trivium.interop.convert import from_hugging_face, to_hf_config
from trivium.interop.hf_config import read_json_object
from trivium.interop.peft_format import save_adapter
from trivium.interop.settings import Settings
from trivium.interop.tensor_files import read_tensors, write_tensors
from trivium.interop.tokenizer_files import read_tokenizer
from trivium.language_model import LanguageModel
from trivium.model_folder import CHECKSUMS, new_model_folder, write_checksums, write_model
from trivium.model_loading import load
from trivium.models import build
from trivium.objectives.task_metrics import Metrics, Mistake, read_prediction, write_evaluation
from trivium.presets import presets
from trivium.report import format_report, write_report
from trivium.spec import TransformerSpec
from trivium.stored_model import open_model
from trivium.text import Tokenizer
from trivium.text.chat_template import PLAIN_TEMPLATE, ChatTemplate
from trivium.train import TrainState, load_recipe, restore, save_checkpoint
from trivium.train.checkpoint import Checkpoints
from trivium.train.recipe_loading import builtin_recipes
from trivium.train.run_folder import RunFolder
from trivium.workflows.evaluate import build_task_objective, read_run_recipe


def _sentencepiece(kind: str) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXT.split("\n") * 20),
        model_writer=model,
        model_type=kind,
        vocab_size=70 if kind == "bpe" else 60,
        user_defined_symbols=["<sep>"],
        normalization_rule_name="nmt_nfkc" if kind == "unigram" else "identity",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def _vocab_and_merges() -> Files:
    tokenizer = small_tokenizer("byte-bpe")
    merges = "".join(f"{a} {b}\n" for a, b in tokenizer.model["merges"])
    vocab = {token: index for index, token in enumerate(tokenizer.tokens)}
    return {
        "vocab.json": json.dumps(vocab).encode(),
        "merges.txt": f"#version: 0.2\n{merges}".encode(),
        "tokenizer_config.json": b'{"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": false}',
        "special_tokens_map.json": b'{"eos_token": "</s>", "pad_token": {"content": "<pad>"}}',
    }


def _ranks() -> bytes:
    tokens = [*(bytes([i]) for i in range(256)), b"th", b"the"]
    return b"".join(b"%s %d\n" % (base64.b64encode(one), i) for i, one in enumerate(tokens))


def _load_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode("The caf\u00e9 in 北京, [MASK] </s>").ids
    tokenizer.decode(ids)
    tokenizer.encode_ids_batch(["a b", ""])
    vocabulary = tokenizer.vocabulary
    _ = vocabulary.continues_word, vocabulary.ends_sentence, vocabulary.regular_ids
    _ = tokenizer.readable_tokens, tokenizer.fingerprint, tokenizer.merges, tokenizer.kind
    explain(tokenizer.kind, ["The caf\u00e9"], tokenizer=folder)


for _kind in ("byte-bpe", "bpe", "unigram", "wordpiece", "whitespace"):
    _weight_files = made(lambda folder, kind=_kind: small_tokenizer(kind).save(folder))
    reader(f"tokenizer-{_kind}", _weight_files)(_load_tokenizer)
reader("tokenizer-vocab-merges", _vocab_and_merges)(_load_tokenizer)
reader(
    "tokenizer-vocab-txt",
    lambda: {
        "vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nthe\n##e\n北\n".encode(),
        "tokenizer_config.json": b'{"do_lower_case": true, "strip_accents": null}',
    },
)(_load_tokenizer)
for _kind in ("unigram", "bpe"):
    reader(
        f"tokenizer-sentencepiece-{_kind}",
        lambda kind=_kind: {
            "spiece.model": _sentencepiece(kind),
            "tokenizer_config.json": b'{"add_bos_token": true, "add_eos_token": true}',
        },
    )(_load_tokenizer)
reader("tokenizer-tiktoken", lambda: {"small.tiktoken": _ranks()})(_load_tokenizer)


@functools.cache
def _model(name: str, kind: str) -> LanguageModel:
    """A model that a Hugging Face family can express: heads share out the width."""
    tokenizer = small_tokenizer(kind)
    described = SPECS[name].replace(d_model=30, vocab_size=tokenizer.vocab_size)
    if name == "t5":
        described = described.replace(heads=(described.heads[0].replace(scale=30**-0.5),))
    return LanguageModel(described, build(described, seed=0).eval(), tokenizer)


def _save_hf(folder: Path, name: str, kind: str) -> None:
    _model(name, kind).save_hf(folder / "m", max_shard_bytes=8_000)


def _load_model(folder: Path) -> None:
    load(folder / "m", device="meta")
    lm = load(folder / "m", device="cpu")
    _ = lm.capabilities, lm.max_length, lm.settings.labels, lm.settings.label_kind
    if "generate" in lm.capabilities:
        _ = lm.generation_rules, lm.beam_params(), lm.sampling_params([0], {})
    if lm.tokenizer is not None:
        lm.tokenizer.encode("The cat")
    if lm.settings.chat_template is not None:
        ChatTemplate(lm.settings.chat_template, {})


def _open_model(folder: Path) -> None:
    for weight in open_model(folder / "m").weights.values():
        weight.sum()


for _name, _kind in {
    "bert": "wordpiece",
    "gpt2": "byte-bpe",
    "llama": "unigram",
    "t5": "unigram",
}.items():
    _weight_files = made(functools.partial(_save_hf, name=_name, kind=_kind))
    reader(f"hf-{_name}", _weight_files)(_load_model)
    if _name == "gpt2":  # with fused and transposed matrices
        reader("hf-stored", _weight_files)(_open_model)


def _save_adapter(folder: Path) -> None:
    """An adapter with a part of every kind: updates, a whole weight, an updated embedding."""
    lm = _model("gpt2", "byte-bpe")
    module = copy.deepcopy(lm.module)
    lora = LoRA(rank=2, targets=("query", "up"), trained=("decoder.norm", "tokens"))
    add_lora(module, lora)
    for weight in module.parameters():
        weight.data += 0.1
    save_adapter(folder, module, lora, base="base", model_type="gpt2")
    lm.tokenizer.save(folder)


@reader("peft-adapter", made(_save_adapter))
def _read_adapter(folder: Path) -> None:
    lm = _model("gpt2", "byte-bpe").with_adapter(folder)
    lm.merge_adapter()
    lm.module.logits(lm.module(torch.tensor([[1, 2, 3]])))


def _save_configs(folder: Path) -> None:
    """A `config.json` of every family that a preset has, with few layers."""
    for spec in presets.values():
        if not isinstance(spec, TransformerSpec):
            continue
        stacks = {"encoder": spec.encoder, "decoder": spec.decoder}
        small = {
            name: stack.replace(num_layers=2, first_layers=stack.first_layers[:1])
            for name, stack in stacks.items()
            if stack
        }
        with contextlib.suppress(SpecError):
            config = to_hf_config(spec.replace(**small))
            write_json(folder / f"{config.family.model_type}.json", config.options)


@reader("hf-config", made(_save_configs), alone=True)
def _read_config(folder: Path) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(CheckpointError):  # always: there are no tensors
            from_hugging_face(read_json_object(path), {})


def _save_hf_tokenizers(folder: Path) -> None:
    """Tokenizers in old formats, with the files that add tokens to them."""
    old, pieces = folder / "a", folder / "b"
    old.mkdir()
    pieces.mkdir()
    for name, content in _vocab_and_merges().items():
        (old / name).write_bytes(content)
    write_json(old / "added_tokens.json", {"<new>": small_tokenizer("byte-bpe").vocab_size})
    (pieces / "spiece.model").write_bytes(_sentencepiece("bpe"))
    size = Tokenizer.load(pieces).vocab_size
    added = {f"{size}": {"content": "<extra>", "special": True, "lstrip": False}}
    options = {"added_tokens_decoder": added, "unk_token": "<unk>", "legacy": False}
    write_json(pieces / "tokenizer_config.json", options | {"additional_special_tokens": []})
    for name, own in {
        "c": {"tokenizer_class": "T5Tokenizer", "extra_ids": 3},
        "d": _ALBERT,
    }.items():
        (folder / name).mkdir()
        (folder / name / "spiece.model").write_bytes(_sentencepiece("bpe"))
        write_json(folder / name / "tokenizer_config.json", own | {"eos_token": "</s>"})


_ALBERT = {"tokenizer_class": "AlbertTokenizer", "keep_accents": False, "do_lower_case": True}


@reader("hf-tokenizer", made(_save_hf_tokenizers), alone=True)
def _read_hf_tokenizer(folder: Path) -> None:
    (folder,) = folder.iterdir()
    settings = Settings.read(folder)
    for kind in ("", "LlamaTokenizer"):
        tokenizer = read_tokenizer(folder, settings.tokenizer, tokenizer_class=kind)
        if tokenizer is not None:
            tokenizer.encode("The cat")
            _ = tokenizer.roles, tokenizer.special_ids


def _save_model(folder: Path) -> None:
    lm = _model("bert", "wordpiece")
    settings = lm.settings.with_labels(("neg", "pos")).with_task("classification")
    with new_model_folder(folder / "m", overwrite=False) as new:
        write_model(new, lm.module, lm.tokenizer, lm.tokenizer, settings)


reader("model", made(_save_model), summed=True)(_load_model)
reader("stored-model", made(_save_model), summed=True)(_open_model)


def _save_unfinished_run(folder: Path) -> None:
    """A resumed run: its own weights are those of an earlier end."""
    run, state = folder / "m", TrainState(step=7)
    lm = _model("bert", "wordpiece")
    with new_model_folder(run, overwrite=False) as new:
        write_model(new, lm.module, lm.tokenizer, lm.tokenizer, lm.settings)
    write_json(run / "run.json", {"finished": False})
    shutil.copy(builtin_recipes()["textbook-bert"], run / "recipe.toml")
    optimizers = [torch.optim.SGD(lm.module.parameters())]
    files = [path for path in run.iterdir() if path.suffix == ".json"]
    save_checkpoint(run / "checkpoints", lm.module, optimizers, state, files=files)


reader("unfinished-run", made(_save_unfinished_run), summed=True)(_load_model)


@reader("hub-cache", lambda: {"refs/main": b"abc\n", "snapshots/abc/config.json": b"{}"})
def _find_snapshot(folder: Path) -> None:
    with contextlib.suppress(CheckpointError):  # always: it holds no model
        load(folder)


def _save_weights(folder: Path) -> None:
    """The ways in which a Hugging Face folder holds weights, each in a folder of its own."""
    tensors = {
        "a.weight": torch.arange(6.0).reshape(2, 3).T,
        "b": torch.ones(3, dtype=torch.bfloat16),
        "c": torch.nn.Parameter(torch.zeros(2, 2)),
        "LayerNorm.gamma": torch.tensor(7),
    }
    one, shards, pickle, old, pickles = (folder / name for name in "abcde")
    for path in (one, shards, pickle, old, pickles):
        path.mkdir()
    write_tensors(one, {name: tensor.detach() for name, tensor in tensors.items()})
    write_tensors(shards, {name: t.detach() for name, t in tensors.items()}, max_shard_bytes=9)
    torch.save(tensors, pickle / "pytorch_model.bin")
    torch.save(tensors, old / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    names = dict(zip(tensors, ("1.bin", "1.bin", "2.bin", "2.bin")))
    for file in ("1.bin", "2.bin"):
        torch.save({n: t for n, t in tensors.items() if names[n] == file}, pickles / file)
    write_json(pickles / "pytorch_model.bin.index.json", {"weight_map": names})


@reader("weights", made(_save_weights), alone=True)
def _read_weights(folder: Path) -> None:
    (folder,) = folder.iterdir()
    read_tensors(folder, on_meta=True)
    for tensor in read_tensors(folder).values():
        tensor.abs().sum()


@reader("chat-template", lambda: {"chat_template.jinja": PLAIN_TEMPLATE.encode()})
def _render(folder: Path) -> None:
    source = (folder / "chat_template.jinja").read_text(errors="replace")
    template = ChatTemplate(source, {"eos_token": "</s>"})
    template.get_turns(MESSAGES)
    template.render(MESSAGES, add_generation_prompt=True)


_RECIPE = b"""seed = 3
[model]
preset = "gpt2-mini"
d_model = 32
decoder = {num_layers = 2, layers = {feed_forward = {d_ff = 64}}}
[data]
validation = ["a.txt"]
[[mix]]
paths = ["a.txt", "b.jsonl"]
weight = 2.0
objective = {kind = "causal"}
[[mix]]
name = "second"
weight = 1
paths = "c.txt"
[train]
minutes = 2.5
[tokenizer]
kind = "unigram"
vocab_size = 300
special_tokens = ["<pad>", "</s>"]
[adapter]
rank = 4
[schedule]
kind = "cosine"
"""
_RECIPE_WITH_SPEC = b"""[model.spec]
d_model = 12
vocab_size = 50
embedding = {positions = {kind = "learned", max_length = 16}}
heads = [{kind = "lm", tied = true}]
[model.spec.decoder]
num_layers = 2
[[model.spec.decoder.layers]]
mixer = {kind = "attention", num_heads = 2, head_dim = 6}
feed_forward = {kind = "mlp", d_ff = 8, activation = "gelu"}
norm = {kind = "layer"}
norm_placement = "pre"
[objective]
kind = "chat"
[train]
epochs = 2
"""


@reader(
    "recipe",
    lambda: {
        "a.toml": builtin_recipes()["textbook-bert"].read_bytes(),
        "b.toml": _RECIPE,
        "c.toml": _RECIPE_WITH_SPEC,
    },
    alone=True,
)
def _load_recipes(folder: Path) -> None:
    for path in [*folder.iterdir()]:
        recipe = load_recipe(path, ["train.log_every=7", "optimizer.lr=1e-3"])
        load_recipe(recipe)
        recipe.to_toml()
        build(recipe.model.build_spec(), device="meta")


def _prepare(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "a.txt"
        text.write_text("".join(f"The cat sat {n} times.\n" for n in range(60)))
        options = CorpusOptions(separator="line", validation=0.2)
        prepare(text, small_tokenizer("whitespace"), folder / "shards", options=options)


@reader("shards", made(_prepare))
def _read_shards(folder: Path) -> None:
    shards = Shards.open(folder / "shards")
    for name in shards.names:
        split = shards.split(name)
        split.counts()
        for number in range(min(split.num_documents, 100)):
            split.document(number)
        split.documents_at(np.array([0]), min(split.num_tokens, 100))
    shards.verify()


def _training() -> tuple[torch.nn.Module, list[torch.optim.Optimizer]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, [optimizer]


def _save_checkpoint(folder: Path) -> None:
    state = TrainState(step=7, tokens=70, seconds=1.5, last_losses=[{"loss": [1.0, 2]}], best=0.5)
    save_checkpoint(folder, *_training(), state)


def _save_shards(folder: Path) -> None:
    """As two processes save a checkpoint."""
    _save_checkpoint(folder)
    [checkpoint] = folder.iterdir()
    for kind in ("model", "optimizer"):
        file = checkpoint / f"{kind}.safetensors"
        write_shards(checkpoint, kind, load_file(file), 2)
        file.unlink()
    names = [file.name for file in checkpoint.iterdir() if file.name != CHECKSUMS]
    write_checksums(checkpoint, names)


@reader("checkpoint-shards", made(_save_shards), summed=True)
@reader("checkpoint", made(_save_checkpoint), summed=True)
def _restore(folder: Path) -> None:
    restore(folder, *_training(), warn=lambda message: None)


@reader("checkpoint-shards-parts", made(_save_shards), summed=True)
@reader("checkpoint-parts", made(_save_checkpoint), summed=True)
def _restore_parts(folder: Path) -> None:
    """As a process of several, whose parts are all of the tensors."""
    parallel: Any = types.SimpleNamespace(
        size=2,
        is_main=True,
        checkpoint_group=None,
        barrier=lambda: None,
        gather_results=lambda results: results,
        map=lambda function, items: function(items) if items else [],
    )
    with (
        warnings.catch_warnings(),
        mock.patch("torch.distributed.checkpoint.state_dict_loader.logger"),
    ):
        warnings.filterwarnings("ignore", "torch.distributed is")
        Checkpoints(folder, parallel).restore(*_training(), warn=lambda message: None)


def _write_run(folder: Path) -> None:
    run = RunFolder(folder / "run")
    run.path.mkdir()
    shutil.copy(builtin_recipes()["textbook-bert"], run.recipe)
    facts = {"unigram_loss": 7.0, "num_parameters": 12, "finished": True, "documents": 17}
    run.write_metadata({**facts, "samples": [{"step": 4, "prompt": "a", "output": "b"}]})
    for step in (4, 8, 12):
        rate = {"lr": 1e-3, "grad_norm": 1.0, "tokens_per_second": 99.0, "seconds": step * 0.5}
        loss = {"train_loss": 8.0 / step, "valid_loss": 9.0 / step}
        run.append_metrics({"step": step, "tokens": step * 9, **loss, **rate})
    metrics = Metrics(
        {"accuracy": 0.5},
        by_label=({"label": "pos", "precision": 0.5, "recall": 1.0, "f1": 0.7, "support": 3},),
        labels=("neg", "pos"),
        confusion=((1, 2), (3, 4)),
        mistakes=(Mistake("a.csv, line 3", "a text", "pos", "neg", 0.5),),
    )
    write_evaluation(run.path, "classification", metrics)
    small_tokenizer("wordpiece").save(run.tokenizer)
    write_json(run.spec, SPECS["bert"].to_dict())


@reader("run", made(_write_run))
def _report(folder: Path) -> None:
    recipe = read_run_recipe(folder / "run")
    build_task_objective(_model("bert", "wordpiece"), "classification", recipe)
    read_prediction(str(folder / "run"))
    format_report([folder / "run"])
    write_report(folder / "run", folder / "report.html")


@reader("metrics", made(_write_run))
def _resume(folder: Path) -> None:
    run = RunFolder(folder / "run")
    run.read_metadata()
    run.rewind_metrics(8)
