"""`trivium import` and `trivium export`: what they write and print, and how they refuse."""

from __future__ import annotations

import json

import pytest
import torch
from hugging_face_folders import TEXT, bert, inputs_of, llama, logits_of, t5, tokenizer_of

from trivium.cli import main
from trivium.language_model import load

transformers = pytest.importorskip("transformers")


@pytest.fixture
def theirs(tmp_path):
    folder = tmp_path / "theirs"
    bert(transformers).save_pretrained(folder)
    tokenizer_of("wordpiece").save(folder)
    return folder


def change_config(folder, **changes) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_there_and_back(theirs, tmp_path, capsys):
    ours, out = tmp_path / "models" / "ours", tmp_path / "exported" / "out"
    assert main(["import", str(theirs), str(ours)]) == 0
    lines = capsys.readouterr().out.splitlines()
    model = load(ours)
    assert lines == [
        f"{ours}: encoder-only, {model.spec.num_parameters:,} parameters",
        "  heads      mlm",
        f"  tokenizer  wordpiece, {tokenizer_of('wordpiece').vocab_size} tokens",
        "  verbs      logits, fill-mask, score, embed",
    ]
    assert main(["export", str(ours), str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{out}: BertForMaskedLM"
    names = ["config.json", "model.safetensors", "special_tokens_map.json"]
    names += ["tokenizer.json", "tokenizer_config.json"]
    assert [line.split()[0] for line in lines[1:]] == names
    hf_model = transformers.AutoModelForMaskedLM.from_pretrained(out)
    wanted = logits_of(hf_model)
    assert torch.equal(wanted, logits_of(bert(transformers)))
    found = model.logits(inputs_of(hf_model)["input_ids"])
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_a_verb_on_their_folder_and_on_ours(theirs, tmp_path, capsys):
    assert main(["import", str(theirs), str(tmp_path / "ours")]) == 0
    capsys.readouterr()
    said = []
    for folder in (theirs, tmp_path / "ours"):
        assert main(["fill-mask", str(folder), "The [MASK] was cloudy.", "--json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert len(json.loads(said[0])["masks"][0]) == 5


@pytest.mark.parametrize("make", [t5, llama])
def test_generate_from_their_folder(tmp_path, capsys, make):
    make(transformers).save_pretrained(tmp_path / "theirs")
    tokenizer_of("byte-bpe").save(tmp_path / "theirs")
    options = ["--greedy", "--max-new-tokens", "7"]
    assert main(["generate", str(tmp_path / "theirs"), TEXT[0], *options]) == 0
    wanted = load(tmp_path / "theirs").generate(TEXT[0], max_new_tokens=7, temperature=0)
    assert capsys.readouterr().out.endswith(f"{wanted}\n")


def test_case_of_a_vocabulary(tmp_path, capsys):
    bert(transformers).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nThe\n")
    found = []
    for option in ("--lowercase", "--cased"):
        assert main(["import", str(tmp_path), str(tmp_path / "ours"), option]) == 0
        tokenizer = load(tmp_path / "ours").tokenizer
        assert tokenizer is not None
        found.append(tokenizer.encode("The").tokens[1])
    assert found == ["the", "The"]
    assert "7 tokens" in capsys.readouterr().out


def one_error(capsys) -> str:
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("error: ")
    assert found.err.count("\n") == 1
    return found.err


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model_type": "colourful"}, "'colourful', which is not supported"),
        ({"colour": "blue"}, "\"colour\" ('blue') is not supported for bert"),
        ({"hidden_size": 24}, "is [331, 22], but config.json describes [331, 24]"),
    ],
)
def test_import_refuses(theirs, tmp_path, capsys, changes, what):
    change_config(theirs, **changes)
    assert main(["import", str(theirs), str(tmp_path / "ours")]) == 1
    assert what in one_error(capsys)
    assert not (tmp_path / "ours").exists()


def test_import_of_damaged_files(theirs, tmp_path, capsys):
    weights, config = theirs / "model.safetensors", theirs / "config.json"
    weights.write_bytes(weights.read_bytes()[:5000])
    assert main(["import", str(theirs), str(tmp_path / "ours")]) == 1
    assert "model.safetensors: cannot be read as safetensors" in one_error(capsys)
    config.write_text("{")
    assert main(["import", str(theirs), str(tmp_path / "ours")]) == 1
    assert "config.json: cannot be read as JSON" in one_error(capsys)


def test_import_of_nothing(tmp_path, capsys):
    assert main(["import", str(tmp_path / "nowhere"), str(tmp_path / "ours")]) == 1
    assert "there is no such folder" in one_error(capsys)
    assert main(["import", "org/no-such-model", str(tmp_path / "ours")]) == 1
    assert "no model of that name came from the Hugging Face hub" in one_error(capsys)


def test_neither_spoils_the_other(theirs, tmp_path, capsys):
    assert main(["import", str(theirs), str(theirs)]) == 1
    assert "holds a Hugging Face model" in one_error(capsys)
    assert main(["import", str(theirs), str(tmp_path / "ours")]) == 0
    capsys.readouterr()
    assert main(["export", str(tmp_path / "ours"), str(tmp_path / "ours")]) == 1
    assert "holds a model of ours" in one_error(capsys)
    assert load(tmp_path / "ours").verbs == ("logits", "fill_mask", "score", "embed")
