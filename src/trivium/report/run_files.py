"""Reads the files of a run folder for reports. Most files may be missing."""

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


class _Schema(BaseModel):
    """The part of a JSON file that a report reads. Other keys are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)


class _Sample(_Schema):
    """A sample of the model's output in run.json."""

    prompt: str
    output: str


class _BatchRow(_Schema):
    """A row of the first batch in run.json: (token, label, color) triples and a caption."""

    caption: str
    tokens: list[Annotated[list[str], Field(min_length=3, max_length=3)]]


class _Metadata(_Schema):
    """The contents of run.json."""

    samples: list[_Sample] | None = None
    first_batch: list[_BatchRow] | None = None


class _Response(_Schema):
    """A sampled response with its reward in metrics.jsonl."""

    prompt: str
    response: str
    reward: float


class _Record(_Schema):
    """A record (line) of metrics.jsonl."""

    samples: list[_Response] = []


class _LabelScores(_Schema):
    """Precision, recall, F1 and number of examples of a label in evaluation.json."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


class _Mistake(_Schema):
    """A wrong prediction in evaluation.json."""

    where: str
    text: str
    expected: str
    predicted: str
    confidence: float | None


class _Calibration(_Schema):
    """The calibration of a classifier in evaluation.json."""

    calibration_error: float
    points: Annotated[
        list[Annotated[list[float], Field(min_length=3, max_length=3)]], Field(min_length=1)
    ]
    threshold: float | None
    coverage: float | None
    accuracy: float | None
    bins: int
    rule: str


class _Evaluation(_Schema):
    """The contents of evaluation.json."""

    values: dict[str, float | None] = {}
    notes: list[str] = []
    by_label: list[_LabelScores] = []
    labels: list[str] = []
    confusion: list[list[int]] = []
    mistakes: list[_Mistake] = []
    calibration: _Calibration | None = None

    @model_validator(mode="after")
    def _check_confusion_size(self) -> Self:
        """Check that the confusion matrix has as many columns as there are labels."""
        if any(len(row) != len(self.labels) for row in self.confusion):
            raise ValueError("confusion does not have a number for each pair of labels")
        return self


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run folder. The run may be unfinished, and missing files are empty.

    Args:
        folder: the run folder.
        recipe_text: the text of recipe.toml.
        recipe: the recipe.
        spec: the model specification, from spec.json.
        metadata: the run metadata, from run.json.
        metrics: the records of metrics.jsonl.
        evaluation: the final evaluation of a fine-tuned run, from evaluation.json.
        tokenizer: the tokenizer of the model, in an encoder-decoder that of the targets.
        source_tokenizer: the tokenizer of the sources, if there is one.
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
        """The name of the run folder."""
        return self.folder.resolve().name

    @property
    def predictions(self) -> list[dict[str, Any]]:
        """The validation examples of a fine-tuned run with its predictions; empty if unknown."""
        return list(read_json_lines(self.folder / "predictions.jsonl"))

    def series(self, key: str, *, over: str = "step") -> Points:
        """Return the curve of a logged value: (x, y) points, with x from the key `over`."""
        return extract_curve(self.metrics, key, over)

    def metadata_number(self, key: str) -> float | None:
        """Return a number from run.json; None if it is missing."""
        return to_float(self.metadata.get(key))

    def last_number(self, key: str) -> float | None:
        """Return a number from the last record of metrics.jsonl; None if it is missing."""
        return to_float(self.metrics[-1].get(key))

    @property
    def tokens_per_second(self) -> float | None:
        """The median of the measured training speeds; None if no speed was measured."""
        speeds = [speed for _, speed in self.series("tokens_per_second")]
        return statistics.median(speeds) if speeds else None

    def recipe_value(self, section: str, key: str) -> Any:
        """Return the value of a recipe key in a section; None if it is missing."""
        table = self.recipe.get(section)
        return table.get(key) if isinstance(table, dict) else None

    @property
    def model(self) -> str:
        """The preset of the model, or else the model whose weights initialized the run."""
        return str(
            self.recipe_value("model", "preset") or self.recipe_value("model", "init_from") or ""
        )

    @property
    def objective(self) -> str:
        """The kind of the objective. Objectives of several data sources are joined by "+"."""
        sources = self.recipe.get("mix") or [self.recipe]
        kinds = [str((source.get("objective") or {}).get("kind", "")) for source in sources]
        return " + ".join(dict.fromkeys(filter(None, kinds)))

    @property
    def predicts_next_token(self) -> bool:
        """Whether the model predicts every token of the text, so that bits per byte are defined."""
        return self.objective in ("causal", "bidirectional-lm")

    def bits_per_byte(self, loss: float) -> float | None:
        """Convert a loss from nats per token to bits per byte.

        Returns None if the loss does not cover every token of the text.
        """
        per_token = self.metadata_number("bytes_per_token")
        if not per_token or not self.predicts_next_token:
            return None
        return loss / math.log(2) / per_token

    @property
    def loss_terms(self) -> list[str]:
        """The names of data sources and loss terms that have `train_NAME` and `valid_NAME` records.

        Empty for a policy, which has no validation loss. See `policy_metrics`.
        """
        keys = dict.fromkeys(key for record in self.metrics for key in record)
        names = (key.removeprefix("valid_") for key in keys if key.startswith("valid_"))
        both = [name for name in names if name != "loss" and f"train_{name}" in keys]
        return both if "valid_loss" in keys else []

    @property
    def policy_metrics(self) -> list[str]:
        """The names of the values logged in policy optimization, such as rewards and lengths."""
        keys = dict.fromkeys(key for record in self.metrics for key in record)
        names = (key.removeprefix("train_") for key in keys if key.startswith("train_"))
        return [name for name in names if name != "loss"] if "train_policy" in keys else []

    @property
    def unfinished(self) -> bool:
        """Whether the run is still training or was interrupted. False if this is unknown."""
        return self.metadata.get("finished") is False

    @property
    def metric(self) -> str | None:
        """The name of the main metric of a fine-tuned run; None for pretraining."""
        if self.evaluation or self.metadata.get("task"):
            return str(self.evaluation.get("main", self.metadata.get("metric", "loss")))
        return None

    @property
    def unit(self) -> str:
        """The name of the unit of losses: nats, or nats per token for pretraining."""
        return translated("unit.nats" if self.metric else "unit.nats_per_token")

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value of the main metric is better."""
        logged = self.metadata.get("higher_is_better", self.metric != "loss")
        return bool(self.evaluation.get("higher_is_better", logged))

    @property
    def score(self) -> float | None:
        """The value of the main metric in the final evaluation; None if there is none."""
        values = self.evaluation.get("values")
        return to_float(values.get(self.metric)) if isinstance(values, dict) else None

    @property
    def validation_metrics(self) -> dict[str, float]:
        """The validation losses and metrics of the weights that the run saved: name -> value.

        These are the results of the final evaluation, and the values that were measured during
        training at the step of the saved weights. If this step is unknown, the values of the last
        evaluation are used.
        """
        records = [row for row in self.metrics if any(key.startswith("valid_") for key in row)]
        kept = [row for row in records if row.get("step") == self.metadata_number("weights_step")]
        record = [{}, *records, *kept][-1]
        measured = {
            key.removeprefix("valid_"): record[key] for key in record if key[:6] == "valid_"
        }
        final = self.evaluation.get("values") or {}
        values = (final | measured | final).items()
        return {name: one for name, value in values if (one := to_float(value)) is not None}

    @property
    def baselines(self) -> dict[str, float]:
        """The loss of the unigram baseline in nats per token: label -> loss; empty if unknown."""
        loss = self.metadata_number("unigram_loss")
        return {} if loss is None else {translated("report.unigram_baseline"): loss}


def read_run(folder: str | Path) -> RunFiles:
    """Read a run folder.

    Raises:
        CheckpointError: there is no folder or no run in it, it has no records yet, or a file is
            damaged.
    """
    folder = Path(folder)
    if not (folder / RECIPE).is_file() and not (folder / METRICS).is_file():
        problem = "is not a run" if folder.is_dir() else "does not exist"
        raise CheckpointError(
            f"{folder} {problem}: give the folder from `trivium pretrain ... --out`, which "
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
            spec=_read_json_object(folder / "spec.json"),
            metadata=_read_json_object(folder / "run.json", _Metadata),
            metrics=metrics,
            evaluation=_read_json_object(folder / "evaluation.json", _Evaluation),
            tokenizer=Tokenizer.load(tokenizer) if tokenizer.is_file() else None,
            source_tokenizer=Tokenizer.load(source) if source.is_file() else None,
        )
    except (ValueError, DataError) as error:
        raise CheckpointError(f"{folder} has a damaged file: {error}") from None
    if not metrics:
        raise CheckpointError(
            f"{folder} has nothing to report yet: {METRICS} contains no records. The first one is "
            "written at step train.log_every."
        )
    return run


def to_float(value: object) -> float | None:
    """Return a finite number as a float, and None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def extract_curve(records: Iterable[Mapping[str, Any]], y_key: str, x_key: str) -> Points:
    """Return the points (record[over], record[key]) of all records where both are finite numbers.

    Other records are skipped.
    """
    pairs = ((to_float(record.get(x_key)), to_float(record.get(y_key))) for record in records)
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def _read_json_object(path: Path, schema: type[_Schema] = _Schema) -> dict[str, Any]:
    """Read a JSON object and check it against a schema; a missing file is an empty object.

    Raises ValueError if the file contains something else.
    """
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    try:
        schema.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path.name}: {key} has an unexpected value: {first['msg']}") from None
    return content
