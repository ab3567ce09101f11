"""The files of a run folder, as far as they exist."""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trivium.errors import CheckpointError, DataError
from trivium.files import did_you_mean_folder, read_json, read_json_lines
from trivium.messages import translated
from trivium.text import Tokenizer

RECIPE, METRICS = "recipe.toml", "metrics.jsonl"
Points = Sequence[tuple[float, float]]


class _Shape(BaseModel):
    """What a report reads of a JSON file; other keys are not looked at."""

    model_config = ConfigDict(extra="ignore", strict=True)


class _Sample(_Shape):
    prompt: str
    output: str


class _ShownRow(_Shape):
    caption: str
    tokens: list[Annotated[list[str], Field(min_length=3, max_length=3)]]


class _Metadata(_Shape):
    samples: list[_Sample] | None = None
    first_batch: list[_ShownRow] | None = None


class _Response(_Shape):
    prompt: str
    response: str
    reward: float


class _Record(_Shape):
    samples: list[_Response] = []


class _LabelScores(_Shape):
    label: str
    precision: float
    recall: float
    f1: float
    support: int


class _Mistake(_Shape):
    where: str
    text: str
    expected: str
    predicted: str
    confidence: float | None


class _Calibration(_Shape):
    calibration_error: float
    points: Annotated[
        list[Annotated[list[float], Field(min_length=3, max_length=3)]], Field(min_length=1)
    ]
    threshold: float | None
    coverage: float | None
    accuracy: float | None
    bins: int
    rule: str


class _Evaluation(_Shape):
    values: dict[str, float | None] = {}
    notes: list[str] = []
    by_label: list[_LabelScores] = []
    labels: list[str] = []
    confusion: list[list[int]] = []
    mistakes: list[_Mistake] = []
    calibration: _Calibration | None = None

    @model_validator(mode="after")
    def _is_square(self) -> Self:
        if any(len(row) != len(self.labels) for row in self.confusion):
            raise ValueError("confusion has no number for each pair of labels")
        return self


@dataclass(frozen=True)
class RunFiles:
    """A run, finished or not; what its folder lacks is empty.

    `metadata` are those of `run.json`, `evaluation` that of a fine-tuned run's `evaluation.json`.
    """

    folder: Path
    recipe_text: str
    recipe: dict[str, Any]
    spec: dict[str, Any]
    metadata: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    evaluation: dict[str, Any]
    tokenizer: Tokenizer | None
    source_tokenizer: Tokenizer | None

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    @property
    def predictions(self) -> list[dict[str, Any]]:
        """The held-out examples of a fine-tuned run with its predictions; empty where unknown."""
        return list(read_json_lines(self.folder / "predictions.jsonl"))

    def series(self, key: str, *, over: str = "step") -> Points:
        """A curve of the run, by default over steps."""
        return curve(self.metrics, key, over)

    def fact(self, key: str) -> float | None:
        """A number of `run.json`, None where there is none."""
        return number(self.metadata.get(key))

    def last(self, key: str) -> float | None:
        """A number of the last record, None where there is none."""
        return number(self.metrics[-1].get(key))

    @property
    def tokens_per_second(self) -> float | None:
        """The median of the measured training speeds; None without any."""
        speeds = [speed for _, speed in self.series("tokens_per_second")]
        return statistics.median(speeds) if speeds else None

    def setting(self, section: str, key: str) -> Any:
        """A value of the recipe, None where there is none."""
        table = self.recipe.get(section)
        return table.get(key) if isinstance(table, dict) else None

    @property
    def model(self) -> str:
        """The preset, or the model whose weights it started from."""
        return str(self.setting("model", "preset") or self.setting("model", "init_from") or "")

    @property
    def objective(self) -> str:
        """The kind of its objective, of several sources joined by +."""
        sources = self.recipe.get("mix") or [self.recipe]
        kinds = [str((source.get("objective") or {}).get("kind", "")) for source in sources]
        return " + ".join(dict.fromkeys(filter(None, kinds)))

    @property
    def predicts_next_token(self) -> bool:
        """Whether each token of the text is predicted, so that bits per byte have a meaning."""
        return self.objective in ("causal", "bidirectional-lm")

    def bits_per_byte(self, loss: float) -> float | None:
        """Convert nats per token; None where the loss is not that of the whole text."""
        per_token = self.fact("bytes_per_token")
        if not per_token or not self.predicts_next_token:
            return None
        return loss / math.log(2) / per_token

    @property
    def loss_terms(self) -> list[str]:
        """The sources and terms of the loss that have `train_NAME` and `valid_NAME` records.

        Those of a policy, which has no validation loss, are `step_terms`.
        """
        keys = dict.fromkeys(key for record in self.metrics for key in record)
        names = (key.removeprefix("valid_") for key in keys if key.startswith("valid_"))
        both = [name for name in names if name != "loss" and f"train_{name}" in keys]
        return both if "valid_loss" in keys else []

    @property
    def step_terms(self) -> list[str]:
        """What is logged of the steps of a policy: rewards, divergence, length, ..."""
        keys = dict.fromkeys(key for record in self.metrics for key in record)
        names = (key.removeprefix("train_") for key in keys if key.startswith("train_"))
        return [name for name in names if name != "loss"] if "train_policy" in keys else []

    @property
    def unfinished(self) -> bool:
        """Whether it is known to be training still, or to have been interrupted."""
        return self.metadata.get("finished") is False

    @property
    def metric(self) -> str | None:
        """The main metric of a fine-tuned run, which run.json names; None for pretraining."""
        if self.evaluation or self.metadata.get("task"):
            return str(self.evaluation.get("main", self.metadata.get("metric", "loss")))
        return None

    @property
    def unit(self) -> str:
        """The unit of losses in words: nats, in pretraining nats per token."""
        return translated("unit.nats" if self.metric else "unit.nats_per_token")

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value of the main metric is better."""
        logged = self.metadata.get("higher_is_better", self.metric != "loss")
        return bool(self.evaluation.get("higher_is_better", logged))

    @property
    def score(self) -> float | None:
        """The main metric at the end of the run."""
        values = self.evaluation.get("values")
        return number(values.get(self.metric)) if isinstance(values, dict) else None

    @property
    def validation_metrics(self) -> dict[str, float]:
        """The held-out results of the weights that the run keeps, by name.

        These are the metrics of the final evaluation, and the losses and metrics that were measured
        at the step of these weights; before the end of a run, those of its last evaluation.
        """
        records = [one for one in self.metrics if any(key.startswith("valid_") for key in one)]
        kept = [one for one in records if one.get("step") == self.fact("weights_step")]
        record = [{}, *records, *kept][-1]
        measured = {
            key.removeprefix("valid_"): record[key] for key in record if key[:6] == "valid_"
        }
        final = self.evaluation.get("values") or {}
        values = (final | measured | final).items()
        return {name: one for name, value in values if (one := number(value)) is not None}

    @property
    def baselines(self) -> dict[str, float]:
        """Label -> nats per token of the unigram baseline; empty where there is none."""
        loss = self.fact("unigram_loss")
        return {} if loss is None else {translated("report.unigram_baseline"): loss}


def read_run(folder: str | Path) -> RunFiles:
    """Read a run folder.

    Raises:
        CheckpointError: no folder, no run in it, nothing measured yet, or a damaged file.
    """
    folder = Path(folder)
    if not (folder / RECIPE).is_file() and not (folder / METRICS).is_file():
        problem = "is not a run" if folder.is_dir() else "does not exist"
        raise CheckpointError(
            f"{folder} {problem}: give the folder that `trivium pretrain ... --out` named, which "
            f"has a {RECIPE}.{'' if folder.is_dir() else did_you_mean_folder(folder)}"
        )
    try:
        metrics = tuple(read_json_lines(folder / METRICS))
        for record in metrics:
            _Record.model_validate(record)
        recipe_text = (folder / RECIPE).read_text("utf-8") if (folder / RECIPE).is_file() else ""
        recipe = tomllib.loads(recipe_text)
        tokenizer, source = (folder / f"{name}tokenizer.json" for name in ("", "source_"))
        run = RunFiles(
            folder=folder,
            recipe_text=recipe_text,
            recipe=recipe,
            spec=_read_object(folder / "spec.json"),
            metadata=_read_object(folder / "run.json", _Metadata),
            metrics=metrics,
            evaluation=_read_object(folder / "evaluation.json", _Evaluation),
            tokenizer=Tokenizer.load(tokenizer) if tokenizer.is_file() else None,
            source_tokenizer=Tokenizer.load(source) if source.is_file() else None,
        )
    except (ValueError, DataError) as error:
        raise CheckpointError(f"{folder} has a damaged file: {error}") from None
    if not metrics:
        raise CheckpointError(
            f"{folder} has nothing to report yet: {METRICS} holds no record. The first one is "
            "written at step train.log_every."
        )
    return run


def number(value: object) -> float | None:
    """A finite number as a float, None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def curve(records: Iterable[Mapping[str, Any]], key: str, over: str) -> Points:
    """(record[over], record[key]) of every record with a finite number in both."""
    pairs = ((number(record.get(over)), number(record.get(key))) for record in records)
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def _read_object(path: Path, shape: type[_Shape] = _Shape) -> dict[str, Any]:
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no JSON object")
    try:
        shape.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path.name}: {key} is not as it is written: {first['msg']}") from None
    return content
