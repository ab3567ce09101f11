"""Phases: rows, batches, rates and mixtures that change during a run."""

from __future__ import annotations

import dataclasses
import tomllib

import numpy as np
import pytest
from batches import row_stream
from distributed_runs import run_processes, small
from run_settings import assert_equal_runs, interrupt_and_resume, quiet, settings
from test_workflows_distributed import DDP, assert_same_curve

from trivium.data.rows import Rows
from trivium.errors import RecipeError
from trivium.objectives.causal import Causal
from trivium.train.loader import Loader, LoaderPhase
from trivium.train.phases import phase_end_steps
from trivium.train.recipe_loading import load_recipe
from trivium.workflows.training import pretrain

ROW, BATCH = 32, 32 * 7
# Devlin et al. 2018: short rows for 90 % of the steps, and the same number of rows per step.
TWO_LENGTHS = [{"until": 0.75, "data": {"length": 11}, "train": {"batch_tokens": 11 * 7}}]
# Brown et al. 2020: the batch grows.
RAMP = [
    {"until": 0.2, "train": {"batch_tokens": ROW * 2}},
    {"until": 0.5, "train": {"batch_tokens": ROW * 3}},
]
RUNS = {
    "two lengths": ("bert-tiny", {"steps": 8}, TWO_LENGTHS, [4, 5, 6]),
    "ramp": ("gpt2-tiny", {"steps": None, "tokens": ROW * 40}, RAMP, [3, 4, 7, 8]),
    "epochs": ("gpt2-tiny", {"steps": None, "epochs": 0.2}, RAMP, [2]),
}


def changes_of(name, changes=None):
    """The preset and the changes of one of RUNS."""
    preset, budget, phases, _ = RUNS[name]
    changes = changes or settings()
    changes["train"] |= {"log_every": 1, "eval_every": 4, "save_every": 3, **budget}
    changes["train"] = {key: value for key, value in changes["train"].items() if value is not None}
    return preset, {**changes, "phases": phases}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_interrupted_around_a_border_ends_bit_equal(
    name, text, tmp_path, monkeypatch
):
    preset, changes = changes_of(name)
    console = quiet()

    def start(out, resume):
        return pretrain(
            "" if resume else preset, data=() if resume else text, out=out, resume=resume,
            changes=() if resume else changes, console=console,
        )  # fmt: skip

    whole = start(tmp_path / "whole", False)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    run = interrupt_and_resume(monkeypatch, start, tmp_path / "run", *RUNS[name][3])
    assert_equal_runs(run, whole)
    records = [record for record in whole.read_metrics() if "train_loss" in record]
    sizes = np.diff([0, *(record["tokens"] for record in records)]).tolist()
    if name == "two lengths":
        assert sizes == [11 * 7] * 6 + [ROW * 7] * 2
        assert "1 of 2: data.length 11, train.batch_tokens 77, until step 6" in printed
    elif name == "ramp":
        assert sizes == [ROW * 2] * 4 + [ROW * 3] * 4 + [ROW * 7] * 3
        assert "2 of 3: train.batch_tokens 96, until step 8" in printed
    else:
        assert sorted(set(sizes)) == [ROW * 2, ROW * 3, ROW * 7]
        assert sum(sizes) >= 0.2 * ROW * (whole.read_metadata()["train_tokens"] // ROW)
    recipe = tomllib.loads((whole.path / "recipe.toml").read_text())
    assert recipe["phases"] == changes["phases"]


@pytest.mark.slow
def test_two_processes_have_the_phases_of_one(text, tmp_path):
    jobs = []
    for name in ("two lengths", "ramp"):
        for parallel in ({}, DDP):
            preset, changes = changes_of(name, small(**parallel))
            out = tmp_path / f"{name}-{len(parallel)}"
            if parallel:
                jobs.append({"recipe": preset, "data": text, "out": out, "changes": changes})
            else:
                pretrain(preset, data=text, out=out, changes=changes, console=quiet())
    run_processes(2, jobs)
    for name in ("two lengths", "ramp"):
        assert_same_curve(tmp_path / f"{name}-1", tmp_path / f"{name}-0")


def test_rates_clips_and_fields_of_the_objective_change(text, tmp_path):
    phase = {
        "until": 0.5,
        "optimizer": {"lr": 1e-4, "weight_decay": 0.3},
        "train": {"clip": 1e-6},
        "objective": {"probability": 0.9},
    }
    changes = settings(steps=4, log_every=1, eval_every=4, save_every=4) | {"phases": [phase]}
    changes |= {"optimizer": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.1}}
    changes |= {"schedule": {"kind": "constant", "warmup": 0}}
    seen = []

    def note(trainer, batch, step):
        group = trainer.optimizers[0].param_groups[0]
        seen.append((group["lr"], group["weight_decay"], batch.stream.objective.probability))
        return original(trainer, batch, step)

    from trivium.train import trainer as trainer_module

    original = trainer_module.forward_backward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "forward_backward", note)
        run = pretrain(
            "bert-tiny", data=text, out=tmp_path / "run", changes=changes, console=quiet()
        )
    early, late = (pytest.approx(1e-4), 0.3, 0.9), (pytest.approx(1e-3), 0.1, 0.3)
    assert seen == [early, early, late, late]
    lrs = [record["lr"] for record in run.read_metrics() if "lr" in record]
    assert lrs == pytest.approx([1e-4, 1e-4, 1e-3, 1e-3])


def test_a_limit_of_zero_clips_nothing(text, tmp_path):
    norms, weights = [], []
    for clip in (0.0, 1e9, 1e-3):
        changes = settings(steps=3, log_every=1, eval_every=3, save_every=3, clip=clip)
        run = pretrain(
            "gpt2-tiny", data=text, out=tmp_path / str(clip), changes=changes, console=quiet()
        )
        norms.append([one["grad_norm"] for one in run.read_metrics() if "grad_norm" in one])
        weights.append(run.weights.read_bytes())
    assert norms[0] == norms[1]
    assert weights[0] == weights[1] != weights[2]


def stream(rows_per_step, length=11, seed=3, name="", rows=37):
    """Rows of a text of 37 x 11 tokens."""
    made = row_stream(Causal(), name=name, rows=rows)
    data = Rows(made.data.split, length)  # type: ignore[union-attr]
    return dataclasses.replace(made, rows_per_step=rows_per_step, seed=seed, data=data)


def rows_of(loader, steps):
    """The rows of some steps, as bytes, in their order."""
    parts = [part for step in steps for part in loader.step(step).micro_batches]
    return [row.tobytes() for part in parts for row in part.input_ids]


def test_a_ramp_repeats_and_skips_no_row():
    earlier = [LoaderPhase([stream(2)], [1.0]), LoaderPhase([stream(3)], [1.0], continues=True)]
    loader = Loader(
        [stream(5)], [1.0], seed=0, micro_batch_tokens=10**6, earlier=earlier, continues=True,
        borders=[4, 7],
    )  # fmt: skip
    plain = Loader([stream(1)], [1.0], seed=0, micro_batch_tokens=10**6)
    ramp, expected = rows_of(loader, range(11)), rows_of(plain, range(4 * 2 + 3 * 3 + 4 * 5))
    assert sorted(ramp) == sorted(expected)
    assert loader.epochs_at(11) == pytest.approx(37 / 37)
    # Another length begins an order of its own.
    other = Loader(
        [stream(5, length=7, seed=99)], [1.0], seed=0, micro_batch_tokens=10**6,
        earlier=[LoaderPhase([stream(2)], [1.0])], borders=[4],
    )  # fmt: skip
    alone = Loader([stream(5, length=7, seed=99)], [1.0], seed=0, micro_batch_tokens=10**6)
    assert rows_of(other, [4, 5]) == rows_of(alone, [0, 1])


def test_each_source_of_a_mix_continues_when_weights_change():
    pair = [stream(2, name="a"), stream(3, seed=5, name="b")]
    earlier = [LoaderPhase(pair, [3.0, 1.0])]
    loader = Loader(
        pair, [1.0, 3.0], seed=9, micro_batch_tokens=10**6, earlier=earlier, continues=True,
        borders=[40],
    )  # fmt: skip
    names = [loader.step(number).stream.name for number in range(80)]
    assert names[:40].count("a") > 20 > names[40:].count("a")
    for index, name in enumerate("ab"):
        steps = [number for number in range(80) if names[number] == name]
        plain = Loader([pair[index]], [1.0], seed=0, micro_batch_tokens=10**6)
        assert rows_of(loader, steps) == rows_of(plain, range(len(steps)))


def test_a_batch_that_was_read_ahead_is_made_again_after_a_border():
    earlier = [LoaderPhase([stream(2)], [1.0])]
    loader = Loader(
        [stream(5)], [1.0], seed=0, micro_batch_tokens=10**6, earlier=earlier, continues=True
    )
    steps, sizes = loader.steps_from(0), []
    for number in range(6):
        sizes.append(next(steps).num_tokens // 11)
        if number == 2:
            loader.borders.append(3)
    steps.close()
    assert sizes == [2, 2, 2, 5, 5, 5]


def test_a_budget_in_minutes_ends_phases_by_the_clock(text, tmp_path):
    changes = settings(log_every=1, eval_every=10**6, save_every=10**6)
    changes["train"] |= {"minutes": 0.05}
    del changes["train"]["steps"]
    run = pretrain(
        "gpt2-tiny", data=text, out=tmp_path / "run", changes=changes | {"phases": RAMP},
        console=quiet(),
    )  # fmt: skip
    tokens = [record["tokens"] for record in run.read_metrics() if "train_loss" in record]
    sizes = np.diff([0, *tokens])
    assert set(sizes) == {ROW * 2, ROW * 3, ROW * 7}
    assert (np.diff(sizes) >= 0).all()


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([{"until": 0.5}], "needs a key that it changes"),
        ([{"until": 1.5, "train": {"clip": 1.0}}], "until = 1.5"),
        ([{"until": 0.5, "train": {"steps": 3}}], 'unknown key "phases.0..train.steps"'),
        ([{"until": 0.5, "objective": {"kind": "causal"}}], "not its kind"),
        ([{"until": 0.5, "objective": {"probability": 2.0}}], "objective.probability = 2.0"),
        ([{"until": u, "train": {"clip": 1.0}} for u in (0.5, 0.4)], "until must increase"),
        ([{"until": 0.5, "mix": {"a": 1.0}}], "a weight for every source"),
        ([{"until": 0.5, "optimizer": {"weight_decay": 0.1}}], "give both"),
        ({"until": 0.5}, "list of tables"),
    ],
)
def test_what_a_phase_cannot_change_is_refused(phases, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("bert-tiny", {"data.paths": "a.txt", "train.steps": 9, "phases": phases})


def test_rows_of_labelled_data_and_of_carried_state_stay_the_same():
    for preset, objective in (
        ("bert-tiny", {"kind": "classification"}),
        ("lstm-tiny", {"kind": "causal", "carry_state": True}),
    ):
        changes = {"data.paths": "a.txt", "train.steps": 9, "objective": objective}
        with pytest.raises(RecipeError, match=r"phases\[0\].data.length"):
            load_recipe(preset, changes | {"phases": TWO_LENGTHS})
        changes["phases"] = [{"until": 0.5, "optimizer": {"lr": 1e-4}}]
        assert load_recipe(preset, changes).for_phase(0).optimizer.lr == 1e-4


def test_borders_follow_from_the_budget():
    assert phase_end_steps([0.9], [1, 1], steps=1_000_000) == [900_000, 1_000_000]
    assert phase_end_steps([0.25, 0.5], [10, 20, 50], tokens=400) == [10, 15, 19]
