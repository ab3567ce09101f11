"""What the files of a run folder say, read without anything that made them."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.errors import CheckpointError

RECIPE, SPEC, METRICS = "recipe.toml", "spec.json", "metrics.jsonl"
FACTS, TOKENIZER, WEIGHTS = "facts.json", "tokenizer.json", "model.safetensors"
BASELINES, EVALUATION = "baselines.json", "evaluation.json"

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class RunFiles:
    """A run as its folder tells it; what is missing there is empty here."""

    folder: Path
    recipe_text: str
    recipe: dict[str, Any]
    spec: dict[str, Any]
    facts: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    tokenizer: dict[str, Any]
    parameters: dict[str, int]
    baselines: dict[str, Any]
    evaluation: dict[str, Any]

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    def series(self, key: str, *, over: str = "step") -> Points:
        """(record[over], record[key]) of every record with a finite number in both."""
        pairs = ((number(record.get(over)), number(record.get(key))) for record in self.metrics)
        return [(x, y) for x, y in pairs if x is not None and y is not None]

    def fact(self, key: str) -> float | None:
        """A number of `facts.json`, None where there is none."""
        return number(self.facts.get(key))

    @property
    def count_losses(self) -> dict[str, float]:
        """What counting reaches, in nats a token: from word frequency alone, and from n-grams."""
        order = number(self.baselines.get("order"))
        labels = {"unigram": "word-frequency counts", "n_gram": f"{order or 0:.0f}-gram counts"}
        found = {label: number(self.baselines.get(key)) for key, label in labels.items()}
        return {label: loss for label, loss in found.items() if loss is not None}

    @property
    def tells_next(self) -> bool:
        """Whether it was trained to tell tokens from those before (or after) them, not masks."""
        return self.setting("objective", "kind") in ("causal", "bidirectional-lm")

    @property
    def task(self) -> str | None:
        """What it was taught, None for a run that is no fine-tuning."""
        kind = self.setting("task", "kind")
        return kind if isinstance(kind, str) else None

    @property
    def metric(self) -> str | None:
        """What its task is judged by, None where that is not known or there is none."""
        found = self.evaluation.get("metric") or self.facts.get("metric")
        return found if isinstance(found, str) and self.task is not None else None

    def setting(self, section: str, key: str) -> Any:
        """A value of the recipe, None where there is none."""
        table = self.recipe.get(section)
        return table.get(key) if isinstance(table, dict) else None


def read_run(folder: Path) -> RunFiles:
    """Read a run folder, finished or not.

    Raises:
        CheckpointError: no folder, no run in it, nothing measured yet, or a damaged file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder}: there is no such run folder. Give the folder that "
            "`trivium pretrain ... --out` named."
        )
    if not (folder / RECIPE).is_file() and not (folder / METRICS).is_file():
        raise CheckpointError(
            f"{folder} is not a run: it has neither {RECIPE} nor {METRICS}. Give the folder that "
            "`trivium pretrain ... --out` named."
        )
    metrics = tuple(_read_metrics(folder / METRICS))
    if not metrics:
        raise CheckpointError(
            f"{folder} has nothing to report yet: {METRICS} holds no record. It gets its first one "
            "at step train.log_every."
        )
    recipe_text = _read_text(folder / RECIPE)
    try:
        recipe = tomllib.loads(recipe_text)
    except tomllib.TOMLDecodeError as error:
        raise CheckpointError(f"{folder / RECIPE} is damaged: {error}.") from None
    return RunFiles(
        folder=folder,
        recipe_text=recipe_text,
        recipe=recipe,
        spec=_read_json(folder / SPEC),
        facts=_read_json(folder / FACTS),
        metrics=metrics,
        tokenizer=_read_json(folder / TOKENIZER),
        parameters=_read_parameters(folder / WEIGHTS),
        baselines=_read_json(folder / BASELINES),
        evaluation=_read_json(folder / EVALUATION),
    )


def number(value: object) -> float | None:
    """A finite number as a float, None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _read_text(path: Path) -> str:
    if not path.is_file():
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is damaged: {error}.") from None


def _read_json(path: Path) -> dict[str, Any]:
    text = _read_text(path)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}.") from None
    return found if isinstance(found, dict) else {}


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records in order; a line that a dying run left half-written ends them."""
    records = []
    for line in _read_text(path).splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            break
        if isinstance(record, dict):
            records.append(record)
    return records


def _read_parameters(path: Path) -> dict[str, int]:
    """Tensor name -> how many numbers, from the header of a safetensors file (its first bytes)."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise CheckpointError(f"{path} is damaged: its header is longer than the file.")
        try:
            header = json.loads(file.read(length))
            return {
                name: math.prod(entry["shape"])
                for name, entry in header.items()
                if name != "__metadata__"
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: no readable header ({error}).") from None
