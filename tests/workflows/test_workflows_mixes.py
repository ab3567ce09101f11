"""Sources of a mix: one set of labels, and nothing held out by one and trained on by another."""

from __future__ import annotations

import json

import pytest
from run_settings import quiet, settings

from trivium.data.shards import Shards
from trivium.errors import RecipeError
from trivium.workflows.training import pretrain


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_sources_with_other_labels_are_refused_with_both_named(tmp_path):
    words = [f"word{number}" for number in range(40)]
    reviews = [{"text": word, "label": "xy"[i % 2]} for i, word in enumerate(words)]
    others = [{"text": word, "label": "xz"[i % 2]} for i, word in enumerate(words)]
    tagged = [{"words": [word, "a"], "tags": ["x", "y"]} for word in words]
    several = [{"text": word, "label": ["x", "y"]} for word in words]
    paths = [
        write(tmp_path / f"{number}.jsonl", lines)
        for number, lines in enumerate((reviews, others, tagged, several))
    ]

    def start(name, second, kind):
        one = {"name": "one", "paths": [paths[0]], "objective": {"kind": "classification"}}
        two = {"name": "two", "paths": [second], "objective": {"kind": kind}}
        changes = {"train": {"steps": 1, "device": "cpu"}, "mix": [one, two]}
        return pretrain("bert-tiny", out=tmp_path / name, changes=changes, console=quiet())

    with pytest.raises(
        RecipeError, match=r'one \(classification\) has "x", "y", and two .* "x", "z"'
    ):
        start("a", paths[1], "classification")
    with pytest.raises(RecipeError, match=r"one \(classification\) has .*and two \(tagging\) has"):
        start("b", paths[2], "tagging")
    with pytest.raises(RecipeError, match=r"and two \(classification, multi-label\) has"):
        start("d", paths[3], "classification")
    start("c", paths[0], "classification")


@pytest.mark.parametrize("second", [0.5, "file"])
def test_nothing_is_held_out_by_one_source_and_trained_on_by_another(text, tmp_path, second):
    documents = text.read_text().split("\n\n")
    if second == "file":
        held_out = tmp_path / "valid.txt"
        held_out.write_text("\n\n".join(documents[:50]))
        second = [str(held_out)]
    mix = [
        {"name": "one", "paths": [str(text)], "validation": 0.1},
        {"name": "two", "paths": [str(text)], "validation": second},
    ]
    changes = settings(steps=1) | {"mix": mix}
    out = tmp_path / "run"
    pretrain("gpt2-tiny", out=out, changes=changes, console=quiet())
    sides = {"train": set(), "validation": set()}
    for name in ("one", "two"):
        shards = Shards.open(next(out.rglob(f"shards/{name}")))
        for split in shards.names:
            rows = shards.split(split)
            sides[split] |= {rows.document(n).tobytes() for n in range(rows.num_documents)}
    assert sides["validation"]
    assert not sides["train"] & sides["validation"]
