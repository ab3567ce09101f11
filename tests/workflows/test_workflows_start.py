"""Training that goes on from a model there is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import trivium
from trivium.errors import TriviumError
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.text import Tokenizer

TEXT = "the cat sat on the mat and the dog lay on the rug by the old green door\n\n"
SHORT = {
    "data": {"length": 16, "validation": 0.2, "keep_duplicates": True},
    "train": {"steps": 1, "batch_tokens": 64, "eval_tokens": 64},
}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{i} {TEXT}" for i in range(97)), encoding="utf-8")
    return path


@pytest.fixture
def begun(tmp_path: Path) -> LanguageModel:
    """A model with two heads and a tokenizer, as it comes from somewhere else."""
    tokenizer = Tokenizer.train("wordpiece", texts=[TEXT] * 3, vocab_size=90, progress=False)
    spec = trivium.presets["bert-tiny"].replace(vocab_size=101)
    return LanguageModel(spec, build(spec, seed=3), tokenizer)


def pretrain(start: Path, texts: Path, out: Path, *, resume: bool = False, **train):
    changes = {**SHORT, "train": {**SHORT["train"], **train}}
    if resume:
        return trivium.pretrain("", out=out, resume=True, changes={"train": train})
    return trivium.pretrain(str(start), data=texts, out=out, changes=changes)


@pytest.mark.parametrize("format", ["ours", "theirs"])
def test_it_begins_with_the_weights_and_the_tokenizer(begun, texts, tmp_path, format):
    start = tmp_path / "start"
    begun.save(start) if format == "ours" else begun.save_hf(start)
    changes = {**SHORT, "optimizer": {"lr": 1e-9, "weight_decay": 0.0}}
    trivium.pretrain(str(start), data=texts, out=tmp_path / "run", changes=changes)
    found = trivium.load(tmp_path / "run")
    assert found.tokenizer is not None
    assert found.tokenizer.fingerprint == trivium.load(start).tokenizer.fingerprint
    assert found.spec.vocab_size == 101
    ids = torch.randint(5, 90, (3, 13))
    assert torch.allclose(found.logits(ids), begun.logits(ids), atol=1e-5)
    assert [head.kind for head in found.spec.heads] == ["mlm"]


def test_a_run_is_a_start_and_resumes_without_it(begun, texts, tmp_path):
    begun.save(tmp_path / "start")
    pretrain(tmp_path / "start", texts, tmp_path / "one")
    pretrain(tmp_path / "one", texts, tmp_path / "two")
    shutil.rmtree(tmp_path / "one")
    pretrain(tmp_path, texts, tmp_path / "two", resume=True, steps=2)
    recipe = (tmp_path / "two" / "recipe.toml").read_text(encoding="utf-8")
    assert "start = " in recipe
    # A tenth of what a new model of this width would take: post-norm at 128.
    assert "lr = 0.000168" in recipe


def test_other_tokens_are_refused(begun, texts, tmp_path):
    begun.save(tmp_path / "start")
    trivium.pretrain("bert-tiny", data=texts, out=tmp_path / "other", changes=SHORT)
    with pytest.raises(TriviumError, match="prepared with another tokenizer"):
        pretrain(tmp_path / "start", tmp_path / "other" / "shards", tmp_path / "run")


def test_a_model_without_a_tokenizer_is_refused(begun, texts, tmp_path):
    LanguageModel(begun.spec, begun.module).save(tmp_path / "start")
    with pytest.raises(TriviumError, match="has no tokenizer"):
        pretrain(tmp_path / "start", texts, tmp_path / "run")


def test_a_folder_without_a_model_is_refused(texts, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(TriviumError, match="no model inside"):
        pretrain(tmp_path / "empty", texts, tmp_path / "run")
