"""Folders of `sentence-transformers`: modules, pooling, length and prompts, from disk and the hub.

The expected vectors are those of its formulas, computed with `transformers`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from hf_models import Case, hf_model

from trivium import load
from trivium.errors import CheckpointError
from trivium.interop.hub import find_folder

TYPE = "sentence_transformers.models."
MODES = {"mean": "mean_tokens", "first": "cls_token", "last": "lasttoken"}
TEXTS = ["a b", "c a b d", "d"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", ":"]


def save(folder: Path, pooling: str = "mean_tokens", kinds=("Pooling", "Normalize")) -> Path:
    """Write a BERT with the files of `sentence-transformers`."""
    hf_model(Case("BertModel", {})).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    paths = {"": "Transformer", **{f"{i}_{kind}": kind for i, kind in enumerate(kinds, 1)}}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": TYPE + kind}
        for i, (path, kind) in enumerate(paths.items())
    ]
    write(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir()
    pools = {f"pooling_mode_{mode}": mode == pooling for mode in (*MODES.values(), "max_tokens")}
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 22, **pools})
    return folder


def write(file: Path, content) -> None:
    file.write_text(json.dumps(content))


def expected(folder: Path, texts: list[str], pooling: str, length: int | None) -> torch.Tensor:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        inputs = tokenizer(
            text, return_tensors="pt", truncation=length is not None, max_length=length
        )
        with torch.no_grad():
            hidden = model(**inputs).last_hidden_state[0]
        rows.append({"mean": hidden.mean(0), "first": hidden[0], "last": hidden[-1]}[pooling])
    return torch.nn.functional.normalize(torch.stack(rows), dim=-1)


@pytest.mark.filterwarnings("ignore:.*their ends are cut")
def test_files_of_version_6(tmp_path):
    """Pooling by its name, and the length in the tokenizer's options."""
    folder = save(tmp_path / "model")
    write(folder / "1_Pooling/config.json", {"embedding_dimension": 22, "pooling_mode": "cls"})
    options = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder / "tokenizer_config.json", {**options, "model_max_length": 4})
    vectors = expected(folder, TEXTS, "first", 4).float()
    torch.testing.assert_close(load(folder).embed(TEXTS), vectors, rtol=1e-4, atol=1e-5)
    write(folder / "1_Pooling/config.json", {"pooling_mode": ["cls", "max"]})
    with pytest.raises(CheckpointError, match="pooling_mode_max is not supported"):
        load(folder)


@pytest.mark.parametrize("place", ["folder", "hub"])
@pytest.mark.parametrize("pooling", MODES)
@pytest.mark.filterwarnings("ignore:.*their ends are cut")
def test_vectors_are_those_of_sentence_transformers(pooling, place, tmp_path, monkeypatch):
    folder = save(tmp_path / "model", MODES[pooling])
    write(folder / "sentence_bert_config.json", {"max_seq_length": 5})
    prompts = {"prompts": {"query": "c : ", "other": "d"}, "default_prompt_name": "query"}
    write(folder / "config_sentence_transformers.json", prompts)
    path = str(folder)
    if place == "hub":
        monkeypatch.setattr("huggingface_hub.snapshot_download", hub_of(folder, tmp_path / "cache"))
        path = "org/model"
    lm = load(path)
    vectors = expected(folder, ["c : " + text for text in TEXTS], pooling, 5)
    torch.testing.assert_close(lm.embed(TEXTS), vectors.float(), rtol=1e-4, atol=1e-5)
    # Saved and exported it reads the same.
    for again in (lm.save(tmp_path / "own"), lm.save_hf(tmp_path / "hf")):
        torch.testing.assert_close(load(again).embed(TEXTS), vectors.float(), rtol=1e-4, atol=1e-5)
    assert (
        json.loads((tmp_path / "hf/sentence_bert_config.json").read_text())["max_seq_length"] == 5
    )


def hub_of(folder: Path, cache: Path):
    """Return a double of `snapshot_download` that copies the files that patterns name."""

    def snapshot_download(name, *, revision, allow_patterns, ignore_patterns):
        from huggingface_hub.utils import filter_repo_objects

        files = [str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()]
        for file in filter_repo_objects(
            files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        ):
            (cache / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / file, cache / file)
        return str(cache)

    return snapshot_download


def test_unknown_modules_and_poolings_are_refused_by_name(tmp_path, monkeypatch):
    for kinds, message in (
        (("Pooling", "Dense"), "the module 'Dense' in '2_Dense' is not supported"),
        (("Pooling", "Whitening"), "the module 'Whitening'"),
    ):
        folder = save(tmp_path / kinds[1], kinds=kinds)
        with pytest.raises(CheckpointError, match=message):
            load(folder)
        monkeypatch.setattr("huggingface_hub.snapshot_download", hub_of(folder, tmp_path / "cache"))
        with pytest.raises(CheckpointError, match=message):
            find_folder("org/model")
    with pytest.raises(CheckpointError, match="pooling_mode_max_tokens is not supported"):
        load(save(tmp_path / "max", "max_tokens"))


def test_an_export_has_the_trained_length(tmp_path):
    lm = load(save(tmp_path / "model"))
    lm.settings.config["trained_length"] = 7  # type: ignore[index]
    exported = lm.save_hf(tmp_path / "hf")
    options = json.loads((exported / "sentence_bert_config.json").read_text())
    assert options["max_seq_length"] == 7
