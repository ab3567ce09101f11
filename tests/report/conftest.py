"""The fixture that writes run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_runs import FACTS, RECIPE, SPEC, TOKENIZER, losses


@pytest.fixture
def make_run(tmp_path: Path):
    """Writes a run folder below a temporary one."""

    def make(
        name: str = "mine",
        *,
        metrics: list[dict[str, Any]] | None = None,
        metadata: dict[str, Any] = FACTS,
        recipe: str = RECIPE,
        evaluation: dict[str, Any] | None = None,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        records = losses(6.5, 5.25, 4.5) if metrics is None else metrics
        (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
        (folder / "recipe.toml").write_text(recipe)
        (folder / "spec.json").write_text(json.dumps(SPEC))
        (folder / "run.json").write_text(json.dumps(metadata))
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        if evaluation is not None:
            (folder / "evaluation.json").write_text(json.dumps(evaluation))
        return folder

    return make
