"""A fine-tuning that was stopped goes on as if nothing had happened; the best weights are kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from labelled_examples import classes, dictionary, lasting, taught, write_lines
from safetensors.torch import load_file

import trivium
from trivium.adapt import load_adapter, merge_lora
from trivium.errors import CheckpointError, RecipeError
from trivium.train.checkpoint import load_state
from trivium.train.loop import Interrupted
from trivium.train.run import RunFolder
from trivium.workflows import finetune as module
from trivium.workflows.finetune import finetune

RHYTHM = [
    *("train.batch=16", "train.log_every=4", "train.eval_every=4", "train.save_every=8"),
    *("schedule.kind=constant", "schedule.warmup=2", "train.precision=fp32"),
]
LORA = ["adapter.rank=4", 'adapter.targets=["attention"]', "adapter.dropout=0.1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("data") / "classes.jsonl", classes(150))


def begun(
    out: Path, data: Path, steps: int, *changes: str, model: str | Path = "bert-tiny"
) -> RunFolder:
    return finetune(
        "classification",
        model=model,
        data=data,
        out=out,
        changes=[*RHYTHM, f"train.steps={steps}", *changes],
    )


def assert_equal_runs(run: RunFolder, whole: RunFolder) -> None:
    assert lasting(run) == lasting(whole)
    assert run.weights.read_bytes() == whole.weights.read_bytes()
    for name in ("evaluation.json", "predictions.jsonl", "tokenizer.json", "spec.json"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()
    mine, theirs = (sorted(one.checkpoints.glob("step-*"))[-1] for one in (run, whole))
    states = [load_state(mine), load_state(theirs)]
    for state in states:
        state.seconds, state.began = 0.0, 0.0
    assert states[0] == states[1]


@pytest.mark.parametrize("changes", [[], LORA, ["model.freeze=layers:1"]], ids=str)
def test_going_on_is_bit_equal(changes: list[str], data: Path, tmp_path: Path) -> None:
    """With dropout, whose noise is keyed by the step."""
    whole = begun(tmp_path / "whole", data, 24, *changes)
    half = begun(tmp_path / "half", data, 8, *changes)
    assert lasting(half) == lasting(whole)[: len(lasting(half))]
    run = finetune("", out=half.path, changes=["train.steps=24"], resume=True)
    assert_equal_runs(run, whole)


def test_other_tasks_go_on_too(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "pairs.tsv", ["\t".join(pair) for pair in dictionary(90)])
    changes = [*RHYTHM, "task.beams=1", "task.smoothing=0.1", "tokenizer.kind=whitespace"]
    runs = []
    for name, steps in (("whole", 16), ("half", 8)):
        runs.append(
            finetune(
                "translation",
                model="t5-tiny",
                data=data,
                out=tmp_path / name,
                changes=[*changes, f"train.steps={steps}"],
            )
        )
    whole, half = runs
    assert_equal_runs(finetune("", out=half.path, changes=["train.steps=16"], resume=True), whole)


def test_a_run_stopped_before_its_first_checkpoint_begins_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the model it was to start from, not from random weights."""
    start = begun(tmp_path / "start", data, 8)
    whole = begun(tmp_path / "whole", data, 8, model=start.path)
    out = tmp_path / "run"
    evaluate = module._Finetuning._evaluate

    def die(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(module._Finetuning, "_evaluate", die)
    with pytest.raises(RuntimeError):
        begun(out, data, 8, model=start.path)
    assert not list(out.glob("checkpoints/*"))
    monkeypatch.setattr(module._Finetuning, "_evaluate", evaluate)
    assert_equal_runs(finetune("", out=out, resume=True), whole)


def test_interrupting_saves(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = begun(tmp_path / "whole", data, 16)
    evaluate = module._Finetuning._evaluate

    def interrupt(self: object, state: object, valid: object) -> object:
        if state.step == 8:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(self, state, valid)  # type: ignore[arg-type]

    monkeypatch.setattr(module._Finetuning, "_evaluate", interrupt)
    with pytest.raises(Interrupted):
        begun(tmp_path / "run", data, 16)
    monkeypatch.setattr(module._Finetuning, "_evaluate", evaluate)
    assert_equal_runs(finetune("", out=tmp_path / "run", resume=True), whole)


def test_the_recipe_of_a_run_repeats_it(short: RunFolder, tmp_path: Path) -> None:
    again = finetune(str(short.recipe), out=tmp_path / "again")
    assert_equal_runs(again, short)
    assert again.recipe.read_bytes() == short.recipe.read_bytes()


@pytest.fixture(scope="module")
def short(data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return begun(tmp_path_factory.mktemp("short") / "run", data, 8)


@pytest.mark.parametrize(
    "change",
    [
        *("task.pooling=mean", "data.length=9", "seed=3"),
        *("model.start=gpt2-tiny", "adapter.rank=2", "train.batch=8"),
    ],
)
def test_what_the_weights_depend_on_stays(change: str, short: RunFolder) -> None:
    with pytest.raises(RecipeError, match="a resumed run cannot change"):
        finetune("", out=short.path, changes=[change], resume=True)


@pytest.mark.parametrize(
    ("rows", "message"),
    [(classes(151), r"from 1\d\d examples and was judged by \d+, now there are 1\d\d and \d+"),
     ([*classes(149), {"text": "something else", "label": "warm"}], "the example files have")],
)  # fmt: skip
def test_other_examples_are_refused(
    rows: list[object], message: str, tmp_path: Path, data: Path
) -> None:
    file = tmp_path / "classes.jsonl"
    shutil.copyfile(data, file)
    run = begun(tmp_path / "run", file, 4)
    before = {path.name: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    write_lines(file, rows)
    with pytest.raises(RecipeError, match=message):
        finetune("", out=run.path, changes=["train.steps=8"], resume=True)
    assert before == {path.name: path.stat().st_mtime_ns for path in run.path.rglob("*")}


def test_there_must_be_a_run(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no run to resume"):
        finetune("", out=tmp_path / "none", resume=True)


def test_the_best_weights_are_kept(data: Path, tmp_path: Path) -> None:
    """Of a run whose rate grows so high that it forgets everything."""
    run = begun(
        *(tmp_path / "run", data, 40, "optimizer.lr=3e-3", "train.clip=1000", "model.dropout=0"),
        "schedule.warmup=38",
        *("train.save_every=4", "train.keep_checkpoints=10"),
        model="bert-tiny",
    )
    measured = {one["step"]: one for one in run.read_metrics() if "valid_accuracy" in one}
    state = load_state(sorted(run.checkpoints.glob("step-*"))[-1])
    best = max(measured.values(), key=lambda one: (one["valid_accuracy"], -one["step"]))
    assert state.best_step < state.step == 40
    assert (state.best, state.best_step) == (best["valid_accuracy"], best["step"])
    kept = load_file(run.checkpoints / f"step-{state.best_step:08}" / "model.safetensors")
    ours = load_file(run.weights)
    assert all(torch.equal(ours[name], kept[name]) for name in ours)
    told = json.loads((run.path / "evaluation.json").read_text())
    assert told["score"] == pytest.approx(state.best)


def test_patience_ends_the_run(data: Path, tmp_path: Path) -> None:
    """A rate of nearly zero makes nothing better."""
    changes = ["train.patience=2", "optimizer.lr=1e-12", "train.save_every=4"]
    whole = begun(tmp_path / "whole", data, 100, *changes)
    assert [one["step"] for one in whole.read_metrics() if "valid_loss" in one] == [4, 8, 12]
    half = begun(tmp_path / "half", data, 8, *changes)
    run = finetune("", out=half.path, changes=["train.steps=100"], resume=True)
    assert_equal_runs(run, whole)


def test_an_adapter_is_merged_and_kept_apart(data: Path, tmp_path: Path) -> None:
    start = taught("classification", "gpt2-tiny", data, tmp_path / "start", steps=10)
    run = begun(
        *(tmp_path / "run", data, 16, *LORA, "adapter.keep_apart=true", "optimizer.lr=1e-2"),
        *("train.save_every=4", "train.keep_checkpoints=9"),
        model=start.path,
    )
    facts = run.read_facts()
    assert 0 < facts["trained_parameters"] < facts["num_parameters"] / 5
    merged, base = trivium.load(run.path), trivium.load(start.path)
    ids = [[5, 7, 11, 13, 2], [17, 3, 5, 7, 11]]
    wanted = merged.logits(ids, head="classifier")
    assert not torch.allclose(base.logits(ids, head="classifier"), wanted, atol=1e-3)
    # The adapter is that of the best weights, not of the last.
    lora = load_adapter(run.path / "adapter", base.module)
    assert lora.rank == 4
    torch.testing.assert_close(base.logits(ids, head="classifier"), wanted)
    merge_lora(base.module)
    torch.testing.assert_close(base.logits(ids, head="classifier"), wanted)


def test_a_checkpoint_with_an_adapter_says_what_to_do(data: Path, tmp_path: Path) -> None:
    run = begun(tmp_path / "run", data, 8, *LORA)
    (checkpoint,) = run.checkpoints.glob("step-*")
    with pytest.raises(CheckpointError, match="trivium finetune --resume"):
        trivium.load(checkpoint)
    assert trivium.load(run.path).classify("a red house").label


def test_frozen_weights_stay(data: Path, tmp_path: Path) -> None:
    start = taught("classification", "bert-tiny", data, tmp_path / "start", steps=4)
    before = load_file(start.weights)
    for freeze, moved in (
        ("body", lambda name: name.startswith("heads.")),
        ("embeddings", lambda name: not name.startswith("embedding.")),
    ):
        run = begun(tmp_path / freeze, data, 8, f"model.freeze={freeze}", model=start.path)
        after = load_file(run.weights)
        changed = {name for name in after if not torch.equal(after[name], before[name])}
        assert changed, freeze
        assert changed <= {name for name in after if moved(name)}, freeze


def test_contradictions_are_refused(data: Path, tmp_path: Path) -> None:
    for changes, message in (
        ([*LORA, "model.freeze=body"], "leave model.freeze out"),
        ([*LORA, "train.average=3"], "train.average is the mean of whole weights"),
        (["model.freeze=everything"], "everything"),
        (["adapter.rank=2", 'adapter.targets=["nothing"]'], "nothing"),
    ):
        with pytest.raises(ValueError, match=message):
            begun(tmp_path / "run", data, 8, *changes)
        assert not (tmp_path / "run").exists()
