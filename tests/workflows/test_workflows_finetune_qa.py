"""Questions on a text, in both layouts of SQuAD."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from labelled_examples import figures, squad, taught

import trivium
from trivium.errors import RecipeError


def written(folder: Path, data: object) -> Path:
    path = folder / "squad.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize("preset", ["bert-tiny", "modernbert-tiny", "bigru-tiny"])
def test_answers_are_found(preset: str, tmp_path: Path) -> None:
    data = written(tmp_path, squad(300))
    run = taught("qa", preset, data, tmp_path / "run", steps=80)
    assert figures(run)["exact"] > 90.0
    model = trivium.load(run.path)
    (found,) = model.answer("who is red", "the old man saw red Ada near our house")
    assert found.text == "Ada"
    several = model.answer("who is red", "the old man saw red Ada near our house", top_k=3)
    assert len(several) == 3
    assert several[0] == found


def test_no_answer_is_an_answer(tmp_path: Path) -> None:
    data = written(tmp_path, squad(400, impossible=True))
    run = taught("qa", "bigru-tiny", data, tmp_path / "run", steps=100)
    told = figures(run)
    assert told["HasAns_exact"] > 90.0
    assert told["NoAns_exact"] > 90.0
    model = trivium.load(run.path)
    assert model.answer("who is red", "the old man saw red Ada near our house")[0].text == "Ada"
    assert model.answer("who is blue", "the old man saw red Ada near our house")[0].text == ""
    answers = [
        json.loads(line) for line in (run.path / "predictions.jsonl").read_text().splitlines()
    ]
    right = sum(one["answer"] == one["predicted"] for one in answers)
    assert 100 * right / len(answers) == pytest.approx(told["exact"])


def test_long_texts_are_read_in_windows(tmp_path: Path) -> None:
    """An answer behind the first window is found, and learned from."""
    data = squad(300)
    for number, article in enumerate(data["data"][0]["paragraphs"]):
        if number % 2:
            before = "it left the old town " * 3
            article["context"] = before + article["context"]
            for answer in article["qas"][0]["answers"]:
                answer["answer_start"] += len(before)
    run = taught(
        *("qa", "bigru-tiny", written(tmp_path, data), tmp_path / "run"),
        *("data.length=16", "task.stride=4"),
        steps=100,
    )
    assert figures(run)["exact"] > 80.0
    model = trivium.load(run.path)
    context = "it left the old town " * 6 + "the man saw red Ada near our house"
    assert model.answer("who is red", context)[0].text == "Ada"


def test_decoders_cannot_find_answers(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="every word must see all others"):
        taught("qa", "gpt2-tiny", written(tmp_path, squad(30)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
