"""Compares fine-tuned runs on their common validation examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trivium.messages import translated
from trivium.report.run_files import RunFiles

# The keys of predictions.jsonl that differ between runs. All other keys identify the example.
_PREDICTION_KEYS = {"predicted", "score", "rank", "response", "reward", "mix", "id"}
_TARGET_KEYS = ("label", "tags", "answers", "target")


def compare_common_examples(runs: Sequence[RunFiles]) -> list[str]:
    """Return warnings if fine-tuned runs have different validation examples.

    The warnings state the metric of every run on the common examples, where it can be computed. The
    list is empty if all runs have the same examples, or if a run has no stored predictions.
    """
    rows = [{_make_example_key(row): row for row in run.predictions} for run in runs]
    common = set(rows[0]).intersection(*rows[1:])
    if not all(rows) or all(len(examples) == len(common) for examples in rows):
        return []
    if not common:
        return [translated("comparison.no_common_examples")]
    sizes = ", ".join(f"{run.name}: {len(examples):,}" for run, examples in zip(runs, rows))
    sentences = [translated("comparison.common_examples", count=len(common), sizes=sizes)]
    values = [_compute_metric([examples[key] for key in sorted(common)]) for examples in rows]
    if all(values):
        shown = ", ".join(f"{run.name} {value}" for run, value in zip(runs, values))
        sentences.append(
            translated("comparison.on_common_examples", count=len(common), values=shown)
        )
    return sentences


def _make_example_key(row: Mapping[str, Any]) -> str:
    """Return a key that identifies the example of a predictions.jsonl row.

    The key is the text and the correct answer as JSON.
    """
    return json.dumps({k: v for k, v in row.items() if k not in _PREDICTION_KEYS}, sort_keys=True)


def _compute_metric(rows: Sequence[Mapping[str, Any]]) -> str:
    """Compute a metric from rows of predictions.jsonl. Returns a string such as "accuracy 0.9".

    Returns an empty string if the metric cannot be computed from predictions alone.
    """
    key = next((key for key in _TARGET_KEYS if key in rows[0]), None)
    if key is None or any("predicted" not in row or key not in row for row in rows):
        return ""
    right, predicted = ([row[name] for row in rows] for name in (key, "predicted"))
    if all(isinstance(one, float) for one in (*right, *predicted)):
        gold, found = np.array(right), np.array(predicted)
        spread = float(((gold - gold.mean()) ** 2).sum())
        r2 = f"r2 {1 - float(((gold - found) ** 2).sum()) / spread:.4f}, " if spread else ""
        return f"{r2}mae {float(np.abs(gold - found).mean()):.4f}"
    if key == "tags":
        equal = [a == b for one, other in zip(right, predicted) for a, b in zip(one, other)]
        return f"accuracy {np.mean(equal):.4f}"
    if key == "answers":
        equal = [text in texts or (not texts and not text) for texts, text in zip(right, predicted)]
    else:
        equal = [one == other for one, other in zip(right, predicted)]
    name = "accuracy" if key == "label" and isinstance(right[0], str) else "exact_match"
    return f"{name} {np.mean(equal):.4f}"
