"""The run folder: where everything a run writes has its place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class RunFolder:
    """The files of one run, `runs/NAME/`.

    `recipe.toml` (complete), `spec.json`, `tokenizer.json`, `shards/` (of several sources
    `shards/NAME/`), `metrics.jsonl`, `model.safetensors`, `report.html`,
    `checkpoints/step-{n:08}/`; of replaced tokens `generator/`, a model folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.recipe = self.path / "recipe.toml"
        self.spec = self.path / "spec.json"
        self.tokenizer = self.path / "tokenizer.json"
        self.shards = self.path / "shards"
        self.metrics = self.path / "metrics.jsonl"
        self.facts = self.path / "facts.json"
        self.weights = self.path / "model.safetensors"
        self.report = self.path / "report.html"
        self.checkpoints = self.path / "checkpoints"

    def write_text(self, file: Path, text: str) -> None:
        """Write a small file whole or not at all."""
        self.path.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.partial")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, file)

    def write_json(self, file: Path, data: Any) -> None:
        """Write data as JSON, whole or not at all."""
        self.write_text(file, json.dumps(data, indent=1, ensure_ascii=False) + "\n")

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Add one line to `metrics.jsonl`."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`; a half-written last line is left out."""
        return list(read_metrics(self.metrics))

    def read_facts(self) -> dict[str, Any]:
        """What was noted about model, text and machine when training began."""
        return json.loads(self.facts.read_text(encoding="utf-8"))

    def rewind_metrics(self, step: int) -> None:
        """Drop the records after `step`: a resumed run writes them again."""
        kept = [record for record in self.read_metrics() if record["step"] <= step]
        self.write_text(self.metrics, "".join(json.dumps(record) + "\n" for record in kept))


def read_metrics(file: Path) -> Iterable[dict[str, Any]]:
    """The records of a metrics file, in order."""
    if not file.is_file():
        return
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return
