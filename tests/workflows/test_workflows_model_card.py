"""Model cards: what a run knows is in them, what it does not know is a question."""

from __future__ import annotations

import itertools
import json
import lzma
import re
import tomllib
from pathlib import Path

import pytest
import transformers
from huggingface_hub import ModelCard
from run_settings import quiet, settings
from scipy.stats import binomtest

from trivium import load
from trivium.cli import main
from trivium.data import samples
from trivium.data.samples import BUNDLED_TEXTS, copy_samples, find_bundled_text
from trivium.workflows.model_card import _shorten_paths, write_model_card
from trivium.workflows.training import finetune, pretrain

QUESTION = "**To fill in:** where is this text from, and what is in it?"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "samples"
    copy_samples(folder)
    return folder


@pytest.fixture(scope="module")
def classifier(encoder, unpacked, tmp_path_factory):
    """A classifier of bundled reviews, whose base was trained on a text without a licence."""
    changes = {"data": {"validation": 0.1}, "train": {"steps": 3, "batch_examples": 8}}
    return finetune(
        "classification",
        model=encoder.path,
        data=unpacked / "movies.jsonl",
        out=tmp_path_factory.mktemp("runs") / "reviews",
        changes=changes,
        console=quiet(),
    )


@pytest.fixture(scope="module")
def card(classifier, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "reviews"
    assert main(["export", str(classifier.path), str(out), "--card"]) == 0
    return out / "README.md"


def tables(text: str) -> dict[str, list[str]]:
    """The rows of all tables by their first cell."""
    rows = (line.strip("|").split("|") for line in text.splitlines() if line.startswith("|"))
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows}


def test_the_card_says_what_the_run_knows(card, classifier):
    data, text = ModelCard.load(card).data, ModelCard.load(card).text
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-classification")
    assert data.license is None
    assert data.language is None  # of the text of the base, it is unknown
    rows = tables(text)
    movies = BUNDLED_TEXTS["movies.jsonl"]
    assert rows["movies.jsonl"] == ["reviews", movies.origin, f"[{movies.licence}]({movies.url})"]
    assert rows["corpus.txt"][:2] == ["bert", QUESTION]
    evaluation = json.loads((classifier.path / "evaluation.json").read_text())
    values, count = evaluation["values"], evaluation["num_examples"]
    assert f"On {count} examples" in text
    for name, value in values.items():
        assert float(rows[name][0]) == pytest.approx(value, abs=5e-5)
    right = round(values["accuracy"] * count)
    interval = binomtest(right, count).proportion_ci(method="wilson")
    low, high = map(float, rows["accuracy"][1].split(" to "))
    assert (low, high) == pytest.approx((interval.low, interval.high), abs=1e-4)
    assert rows["macro_f1"][1] == "not known"
    metrics = classifier.read_metrics()
    last = [record["valid_loss"] for record in metrics if "valid_loss" in record][-1]
    assert rows["validation loss"] == [f"{last:.4f} nats"]
    assert rows["steps"] == ["3"]
    model = transformers.AutoModel.from_pretrained(card.parent)
    assert type(model).__name__ == "BertModel"
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(card.parent)
    assert f" with {whole.num_parameters():,} parameters" in text


def test_the_recipe_of_the_card_is_that_of_the_run_without_folders(card, classifier, unpacked):
    (block,) = re.findall(r"```toml\n(.*?)```", card.read_text(), re.DOTALL)
    recipe = tomllib.loads((classifier.path / "recipe.toml").read_text())
    recipe["model"]["init_from"] = Path(recipe["model"]["init_from"]).name
    recipe["data"]["paths"] = ["movies.jsonl"]
    assert tomllib.loads(block) == recipe
    for folder in (classifier.path.parent, unpacked, card.parent):
        assert str(folder) not in card.read_text()
    for path in ("/a b/c.txt", "/a/c.txt/", "~/c.txt", "C:\\\\a\\\\c.txt", "s3://private/a/c.txt"):
        assert _shorten_paths(f'paths = ["{path}", "x/y"]') == 'paths = ["c.txt", "x/y"]'


def test_the_code_of_the_card_runs(card, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", card.read_text(), re.DOTALL)
    monkeypatch.chdir(card.parent.parent)
    exec(block, {})
    assert re.search(r"'label': '(positive|negative)'", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["gpt2-tiny", "t5-tiny", "bert-tiny"])
def test_the_code_of_other_cards_runs(preset, text, tmp_path, monkeypatch, capsys):
    run = pretrain(
        preset, data=text, out=tmp_path / "run", changes=settings(steps=3), console=quiet()
    )
    assert main(["export", str(run.path), str(tmp_path / "out"), "--card"]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| validation loss |" in card
    (block,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(block, {})
    assert capsys.readouterr().out  # a T5 of three steps may write an empty text


def test_a_language_is_named_if_all_text_is_known(unpacked, tmp_path):
    path = tmp_path / "english-french.tsv"
    path.write_bytes((unpacked / path.name).read_bytes())
    run = finetune(
        "translation",
        model="bart-tiny",
        data=path,
        out=tmp_path / "run",
        changes={
            "tokenizer": {"vocab_size": 500},
            "train": {"steps": 2, "batch_examples": 4, "eval_examples": 2},
        },
        console=quiet(),
    )
    lm = load(run.path)
    lm.save_hf(tmp_path / "out")
    questions = write_model_card(tmp_path / "out", lm, run.path, name="ada/fr")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.language == ["en", "fr"]
    assert card.data.pipeline_tag == "translation"
    assert questions == 4
    assert "# ada/fr" in card.text
    with path.open("a") as file:
        file.write("more\tplus\n")
    assert write_model_card(tmp_path / "out", lm, run.path) == 6
    assert ModelCard.load(tmp_path / "out" / "README.md").data.language is None


def test_bundled_files_are_known_by_their_content(unpacked, tmp_path):
    easy = itertools.chain(*samples.EASY_TEXTS.values())
    names = {name.removesuffix(".xz") for name in (*samples.SAMPLES.values(), *easy)}
    assert BUNDLED_TEXTS.keys() == names | {one.removesuffix(".xz") for one in samples.EXAMPLES}
    licences = (unpacked / "LICENSES.md").read_text(encoding="utf-8")
    for name, text in BUNDLED_TEXTS.items():
        (row,) = (line for line in licences.splitlines() if line.startswith(f"| `{name}.xz`"))
        assert text.licence in row
        assert text.origin.split()[0] in row
        assert find_bundled_text(unpacked / name) == text
    assert find_bundled_text(samples.sample_path("zh")) == BUNDLED_TEXTS["chinese.txt"]
    for content in (b"mine", (unpacked / "names.conll").read_bytes()[:-1]):
        (tmp_path / "names.conll").write_bytes(content)
        assert find_bundled_text(tmp_path / "names.conll") is None
    (tmp_path / "names.conll.xz").write_bytes(lzma.compress(b"mine"))
    assert find_bundled_text(tmp_path / "names.conll.xz") is None
    (tmp_path / "names.conll.xz").write_bytes(b"damaged")
    assert find_bundled_text(tmp_path / "names.conll.xz") is None
    assert find_bundled_text(tmp_path / "missing" / "names.conll") is None
