"""Sequence models before the Transformer by the same command: trained, resumed, asked, ranked."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

import trivium
from trivium.cli import main
from trivium.errors import RecipeError
from trivium.train.run import RunFolder
from trivium.workflows.pretrain import pretrain

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "seven", "grey", "dogs", "ran", "over"]
CAUSAL = ["ngram-tiny", "rnn-tiny", "lstm-tiny", "gru-tiny", "elmo-tiny"]
BOTH = ["birnn-tiny", "bilstm-tiny"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences in which every word but the first follows from the one before it."""
    chance = random.Random(7)

    def sentence() -> str:
        start, length = chance.randrange(len(WORDS)), chance.randint(5, 15)
        return " ".join(WORDS[(start + 5 * step) % len(WORDS)] for step in range(length)) + "."

    documents = ["\n".join(sentence() for _ in range(chance.randint(2, 9))) for _ in range(200)]
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("\n\n".join(documents))
    return path


def settings(steps: int, **data: object) -> dict[str, object]:
    return {
        "model": {"dropout": 0.1},
        "tokenizer": {"vocab_size": 300},
        "data": {"length": 32, **data},
        "train": {
            "steps": steps,
            "batch_tokens": 32 * 7,
            "micro_batch": 3,
            "log_every": 3,
            "eval_every": 8,
            "save_every": 12,
        },
    }


@pytest.fixture(scope="module")
def runs(text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    root = tmp_path_factory.mktemp("runs")
    return {
        name: pretrain(name, data=text, out=root / name, changes=settings(24))
        for name in CAUSAL + BOTH
    }


def last_loss(run: RunFolder) -> float:
    return [record["valid_loss"] for record in run.read_metrics() if "valid_loss" in record][-1]


@pytest.mark.parametrize("name", CAUSAL)
def test_it_learns_and_goes_on_with_texts(name: str, runs: dict[str, RunFolder]) -> None:
    run = runs[name]
    assert last_loss(run) < run.read_facts()["unigram_loss"] - 0.3
    model = trivium.load(run.path)
    assert model.verbs == ("logits", "generate", "score", "embed")
    prompts = ["the dogs", "a", "seven grey cats sat on"]
    together = model.generate(prompts, max_new_tokens=9, temperature=0.0)
    assert together == [model.generate(p, max_new_tokens=9, temperature=0.0) for p in prompts]
    assert model.score("the dogs ran over the mat") < 0.0


@pytest.mark.parametrize("name", BOTH)
def test_an_encoder_fills_masks(name: str, runs: dict[str, RunFolder]) -> None:
    model = trivium.load(runs[name].path)
    assert model.verbs == ("logits", "fill_mask", "score", "embed")
    assert len(model.fill_mask("the cat [MASK] on a mat", top_k=3)) == 3
    assert not (runs[name].path / "baselines.json").exists()


@pytest.mark.parametrize("name", ["ngram-tiny", "lstm-tiny", "elmo-tiny", "birnn-tiny"])
def test_resumed_equals_uninterrupted(
    name: str, runs: dict[str, RunFolder], text: Path, tmp_path: Path
) -> None:
    def lasting(run: RunFolder) -> list[dict[str, float]]:
        clocks = ("seconds", "tokens_per_second")
        return [{k: v for k, v in one.items() if k not in clocks} for one in run.read_metrics()]

    run = pretrain(name, data=text, out=tmp_path / "run", changes=settings(24))
    for checkpoint in sorted(run.checkpoints.iterdir())[1:]:
        # As if the run had died after its first checkpoint that is still there.
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    run.weights.unlink()
    again = pretrain(name, out=run.path, resume=True)
    assert lasting(again) == lasting(runs[name])
    assert again.weights.read_bytes() == runs[name].weights.read_bytes()


def test_the_run_says_what_counting_reaches(runs: dict[str, RunFolder]) -> None:
    for name in CAUSAL:
        found = json.loads((runs[name].path / "baselines.json").read_text())
        # Every word follows from the one before: n-grams know nearly all of it.
        assert 0.0 < found["n_gram"] < found["unigram"] - 1.0
        assert found["unigram"] == pytest.approx(runs[name].read_facts()["unigram_loss"], abs=0.2)
        assert found["judged"] % 31 == 0
        assert math.isfinite(found["n_gram"])


def test_the_report_ranks_them(
    runs: dict[str, RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(run.path) for run in runs.values()]
    assert main(["report", *folders, "--out", str(tmp_path / "all.html")]) == 0
    output = capsys.readouterr().out
    assert "Next token, after" in output
    assert "Masked token, after" in output
    assert output.index("5-gram counts") < output.index("word-frequency counts")
    assert "5-gram counts" in (tmp_path / "all.html").read_text("utf-8")
    assert "5-gram counts" in runs["lstm-tiny"].report.read_text("utf-8")


@pytest.mark.parametrize("mode", ["truncate", "apart"])
@pytest.mark.parametrize("name", ["gru-tiny", "elmo-tiny", "bilstm-tiny", "ngram-tiny"])
def test_rows_of_any_kind_train(name: str, mode: str, text: Path, tmp_path: Path) -> None:
    data = {"separate_documents": True} if mode == "apart" else {"mode": "truncate"}
    run = pretrain(name, data=text, out=tmp_path / "run", changes=settings(4, **data))
    assert math.isfinite(last_loss(run))


def test_muon_trains_the_matrices_of_cells(text: Path, tmp_path: Path) -> None:
    changes = settings(20) | {"optimizer": {"kind": "muon"}}
    run = pretrain("gru-tiny", data=text, out=tmp_path / "run", changes=changes)
    assert last_loss(run) < 4.0


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("lstm-tiny", "bidirectional-lm", "belong together"),
        ("elmo-tiny", "causal", "belong together"),
        ("gpt2-tiny", "bidirectional-lm", "belong together"),
        ("bilstm-tiny", "causal", "head of kind lm"),
        ("ngram-tiny", "masked", "mask token"),
    ],
)
def test_an_objective_that_does_not_fit_is_refused(
    name: str, kind: str, message: str, text: Path, tmp_path: Path
) -> None:
    changes = settings(4) | {"objective": {"kind": kind}}
    with pytest.raises(RecipeError, match=message):
        pretrain(name, data=text, out=tmp_path / "run", changes=changes)


def test_a_description_in_a_recipe(text: Path, tmp_path: Path) -> None:
    described = {
        "kind": "rnn",
        "vocab_size": 300,
        "d_model": 22,
        "cell": "gru",
        "d_hidden": 17,
        "num_layers": 1,
        "heads": [{"kind": "lm", "tied": True}],
    }
    recipe = tmp_path / "mine.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in described.items() if key != "heads"]
    recipe.write_text(
        "\n".join(["[model.spec]", *lines, "[[model.spec.heads]]", 'kind = "lm"', "tied = true"])
    )
    run = pretrain(str(recipe), data=text, out=tmp_path / "run", changes=settings(4))
    saved = json.loads(run.spec.read_text())
    assert (saved["kind"], saved["cell"], saved["dropout"]) == ("rnn", "gru", 0.1)
    assert trivium.load(run.path).spec.family == "decoder-only"
