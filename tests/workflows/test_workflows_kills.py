"""Runs of every objective, killed at random times, end as undisturbed ones."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from killed_runs import PRESETS, kill_and_resume, train_until, write_examples
from run_settings import assert_equal_runs

from trivium.objectives import Objective
from trivium.train.run_folder import RunFolder


@pytest.fixture(scope="module")
def examples(text, tmp_path_factory) -> dict[str, Path]:
    """The file that every objective reads."""
    return write_examples(tmp_path_factory.mktemp("examples"), text)


@pytest.mark.parametrize("count", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_runs_that_are_killed_end_bit_equal(count, examples, tmp_path):
    """Every fourth run is one of two processes, where the objective may have them."""
    chance, kills = random.Random(count), 0
    kinds = chance.sample(sorted(PRESETS), len(PRESETS))
    assert set(kinds) == Objective.kinds.keys()
    for number, kind in enumerate(itertools.cycle(kinds), start=1):
        size = 2 if number % 4 == 0 and not Objective.kinds[kind].rolls_out else 1
        whole, run = (tmp_path / f"{kind}-{size}-{name}" for name in ("whole", number))
        if not whole.exists():
            train_until(size, (kind, examples[kind], whole), None, chance)
        job, most = (kind, examples[kind], run), min(7, count - kills)
        kills += kill_and_resume(size, job, chance, at_most=most)
        assert_equal_runs(RunFolder(run), RunFolder(whole))
        if kills == count:
            return
