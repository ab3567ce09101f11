"""One table of runs, whatever they train on: a row per run, the columns that apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trivium.config import flatten_keys
from trivium.report.run_files import RunFiles


def run_names(runs: Sequence[RunFiles]) -> list[str]:
    """Return the names of the folders; where two are equal, their paths."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def different_settings(runs: Sequence[RunFiles]) -> dict[str, list[Any]]:
    """Return the keys of the recipes in which the runs differ, with the value of each run.

    The value of a run whose recipe lacks the key is None.
    """
    recipes = [flatten_keys(run.recipe) for run in runs]
    keys = dict.fromkeys(key for one in recipes for key in one)
    rows = {key: [one.get(key) for one in recipes] for key in keys}
    return {key: values for key, values in rows.items() if len(set(map(str, values))) > 1}


def common_table(runs: Sequence[RunFiles]) -> list[dict[str, Any]]:
    """Return a row per run: name, folder, model, objective, sizes, results and settings.

    `loss` and the metrics are `RunFiles.validation_metrics`. `seconds` includes preparation and
    evaluations. Settings are the keys of the recipe in which the runs differ. All rows have the
    same keys. A value that a run lacks is None, and a key that every run lacks is left out.
    """
    rows: list[dict[str, Any]] = []
    for name, run in zip(run_names(runs), runs, strict=True):
        held_out = run.validation_metrics
        bits = run.bits_per_byte(held_out["loss"]) if "loss" in held_out else None
        row = {"run": name, "folder": str(run.folder), "model": run.model}
        row |= {"objective": run.objective, "parameters": run.fact("num_parameters")}
        row |= {size: run.last(size) for size in ("step", "tokens")}
        row = {key: int(one) if isinstance(one, float) else one for key, one in row.items()}
        row |= {"train_loss": [None, *(loss for _, loss in run.series("train_loss"))][-1]}
        rows.append(row | held_out | {"bits_per_byte": bits, "seconds": run.last("seconds")})
    known = dict.fromkeys(key for row in rows for key in row if row[key] not in (None, ""))
    different = different_settings(runs)
    settings = [{key: different[key][index] for key in different} for index in range(len(runs))]
    return [{key: row.get(key) for key in known} | one for row, one in zip(rows, settings)]
