"""A table with one row per run. The runs may have different objectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trivium.config import flatten_keys
from trivium.report.run_files import RunFiles


def name_runs(runs: Sequence[RunFiles]) -> list[str]:
    """Return the folder names of the runs, or their paths if two folder names are equal."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def find_different_settings(runs: Sequence[RunFiles]) -> dict[str, list[Any]]:
    """Return the recipe keys whose values differ between runs, each with a list of values.

    The list contains one value per run. The value is None if the recipe of the run lacks the key.
    """
    recipes = [flatten_keys(run.recipe) for run in runs]
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    rows = {key: [recipe.get(key) for recipe in recipes] for key in keys}
    return {key: values for key, values in rows.items() if len(set(map(str, values))) > 1}


def make_run_table(runs: Sequence[RunFiles]) -> list[dict[str, Any]]:
    """Return a table of runs: one dict per run, with the values of the columns.

    The columns are the name, folder, model, objective, sizes, results and settings. `loss` and the
    metrics come from `RunFiles.validation_metrics`. `seconds` includes preparation and evaluations.
    The settings are the recipe keys whose values differ between runs. All rows have the same keys.
    A missing value is None. Result columns without any value are omitted.
    """
    rows: list[dict[str, Any]] = []
    for name, run in zip(name_runs(runs), runs, strict=True):
        metrics = run.validation_metrics
        bits = run.bits_per_byte(metrics["loss"]) if "loss" in metrics else None
        row = {"run": name, "folder": str(run.folder), "model": run.model}
        row |= {"objective": run.objective, "parameters": run.get_metadata("num_parameters")}
        row |= {size: run.get_last(size) for size in ("step", "tokens")}
        row = {key: int(one) if isinstance(one, float) else one for key, one in row.items()}
        row |= {"train_loss": [None, *(loss for _, loss in run.get_curve("train_loss"))][-1]}
        rows.append(row | metrics | {"bits_per_byte": bits, "seconds": run.get_last("seconds")})
    known = dict.fromkeys(key for row in rows for key in row if row[key] not in (None, ""))
    different = find_different_settings(runs)
    settings = [{key: different[key][index] for key in different} for index in range(len(runs))]
    return [{key: row.get(key) for key in known} | one for row, one in zip(rows, settings)]
