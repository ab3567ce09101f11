"""Tags of words: encoders, decoders and recurrent models learn them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from labelled_examples import conll, figures, tagged, taught, write_lines

import trivium
from trivium.errors import RecipeError

TEXT = "the old man saw Ada Grace near our house then Oslo left"
TAGS = ["O", "O", "O", "O", "B-PER", "I-PER", "O", "O", "O", "O", "B-LOC", "O"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("tags") / "names.conll", conll(tagged(240)))


@pytest.mark.parametrize("preset", ["modernbert-tiny", "gpt2-tiny", "bigru-tiny", "lstm-tiny"])
def test_chunks_are_learned(preset: str, data: Path, tmp_path: Path) -> None:
    run = taught("tagging", preset, data, tmp_path / "run")
    assert figures(run)["f1"] > 0.95
    model = trivium.load(run.path)
    assert model.settings.labels == ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")
    assert [word.tag for word in model.tag(TEXT)] == TAGS


def test_parts_of_speech_are_judged_by_accuracy(tmp_path: Path) -> None:
    sentences = [
        {
            "words": one["words"],
            "tags": ["NAME" if tag[0] in "BI" else "WORD" for tag in one["tags"]],
        }
        for one in tagged(150)
    ]
    data = write_lines(tmp_path / "pos.jsonl", sentences)
    run = taught("tagging", "modernbert-tiny", data, tmp_path / "run", steps=40)
    told = json.loads((run.path / "evaluation.json").read_text(encoding="utf-8"))
    assert (told["metric"], told["score"]) == ("accuracy", 1.0)
    answers = (run.path / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert all(one["tags"] == one["predicted"] for one in map(json.loads, answers))


def test_chunks_that_begin_inside_are_mended(tmp_path: Path) -> None:
    """IOB1, where a chunk begins with I-, is learned as IOB2; told so, it is left as it is."""
    sentences = [
        {"words": one["words"], "tags": [tag.replace("B-", "I-") for tag in one["tags"]]}
        for one in tagged(60)
    ]
    data = write_lines(tmp_path / "iob1.conll", conll(sentences))
    mended = taught("tagging", "bilstm-tiny", data, tmp_path / "mended", steps=2)
    kept = taught(
        "tagging", "bilstm-tiny", data, tmp_path / "kept", "task.repair_iob=false", steps=2
    )
    assert mended.read_facts()["labels"] == ["O", "B-LOC", "B-PER", "I-LOC", "I-PER"]
    assert kept.read_facts()["labels"] == ["O", "I-LOC", "I-PER"]


def test_long_sentences_are_read_in_runs(data: Path, tmp_path: Path) -> None:
    """Where a sentence is longer than a row, every word is still asked and told."""
    run = taught("tagging", "modernbert-tiny", data, tmp_path / "run", "data.length=7", steps=100)
    assert figures(run)["f1"] > 0.8
    model = trivium.load(run.path)
    assert model.max_length == 7
    assert len(model.tag(" ".join([TEXT] * 5))) == 5 * len(TAGS)


def test_encoder_decoders_cannot_tag(data: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="take an encoder"):
        taught("tagging", "t5-tiny", data, tmp_path / "run")
    with pytest.raises(RecipeError, match="a model of n-grams"):
        taught("tagging", "ngram-tiny", data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
