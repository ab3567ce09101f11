"""Labelled runs that were measured on different held-out examples, compared on the common ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trivium.messages import translated
from trivium.report.run_files import RunFiles

# The keys that a run adds to an example in predictions.jsonl; the others are the example itself.
_ANSWERS = {"predicted", "score", "rank", "response", "reward", "mix", "id"}
_RIGHT = ("label", "tags", "answers", "target")


def common_examples(runs: Sequence[RunFiles]) -> list[str]:
    """Return sentences where the held-out examples of runs differ, with metrics on common ones."""
    rows = [{_content(row): row for row in run.predictions} for run in runs]
    common = set(rows[0]).intersection(*rows[1:])
    if not all(rows) or all(len(one) == len(common) for one in rows):
        return []
    if not common:
        return [translated("comparison.no_common_examples")]
    sizes = ", ".join(f"{run.name}: {len(one):,}" for run, one in zip(runs, rows))
    sentences = [translated("comparison.common_examples", count=len(common), sizes=sizes)]
    values = [_metric([one[key] for key in sorted(common)]) for one in rows]
    if all(values):
        shown = ", ".join(f"{run.name} {value}" for run, value in zip(runs, values))
        sentences.append(
            translated("comparison.on_common_examples", count=len(common), values=shown)
        )
    return sentences


def _content(row: Mapping[str, Any]) -> str:
    """Return the text and the right answer of an example as JSON, which identify the example."""
    return json.dumps({k: v for k, v in row.items() if k not in _ANSWERS}, sort_keys=True)


def _metric(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the name and the value of the metric that follows from predictions alone.

    The result is empty for tasks whose metric needs more than the predictions.
    """
    key = next((key for key in _RIGHT if key in rows[0]), None)
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
