"""Reads the files of a run folder for reports. Most of these files are optional."""

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
    """A schema for the part of a JSON file that reports use. Other keys are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)


class _Sample(_Schema):
    """The schema of an entry of run.json: a prompt with the output of the model."""

    prompt: str
    output: str


class _BatchRow(_Schema):
    """The schema of an entry of run.json: a row of the first batch.

    A row has a caption and a list of (token, label, color) triples.
    """

    caption: str
    tokens: list[Annotated[list[str], Field(min_length=3, max_length=3)]]


class _Metadata(_Schema):
    """The schema of run.json."""

    samples: list[_Sample] | None = None
    first_batch: list[_BatchRow] | None = None


class _Response(_Schema):
    """The schema of an entry of metrics.jsonl: a sampled response with its reward."""

    prompt: str
    response: str
    reward: float


class _Record(_Schema):
    """The schema of a log record (a line) in metrics.jsonl."""

    samples: list[_Response] = []


class _LabelScores(_Schema):
    """The schema of an entry of evaluation.json: precision, recall, F1 and support of a label."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


class _Mistake(_Schema):
    """The schema of an entry of evaluation.json: a misclassified example."""

    where: str
    text: str
    expected: str
    predicted: str
    confidence: float | None


class _Calibration(_Schema):
    """The schema of an entry of evaluation.json: the calibration of a classifier."""

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
    """The schema of evaluation.json."""

    values: dict[str, float | None] = {}
    notes: list[str] = []
    by_label: list[_LabelScores] = []
    labels: list[str] = []
    confusion: list[list[int]] = []
    mistakes: list[_Mistake] = []
    calibration: _Calibration | None = None

    @model_validator(mode="after")
    def _check_confusion_size(self) -> Self:
        """Raise ValueError unless each row of the confusion matrix has one count per label."""
        if any(len(row) != len(self.labels) for row in self.confusion):
            raise ValueError("confusion does not have a number for each pair of labels")
        return self


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run folder. The run may be unfinished.

    A missing file counts as empty.

    Args:
        folder: the run folder.
        recipe_text: the text of recipe.toml.
        recipe: the recipe as a nested dict.
        spec: the model specification, from spec.json.
        metadata: the run metadata, from run.json.
        metrics: the log records of metrics.jsonl.
        evaluation: the final evaluation of a fine-tuned run, from evaluation.json.
        tokenizer: the tokenizer of the model; in an encoder-decoder, the tokenizer of target texts.
        source_tokenizer: the separate tokenizer of source texts, if there is one.
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
        """The rows of predictions.jsonl: validation examples with their predictions, if any."""
        return list(read_json_lines(self.folder / "predictions.jsonl"))

    def get_curve(self, key: str, *, over: str = "step") -> Points:
        """Return a logged value as a curve of (x, y) points.

        `key` is the key of y in the log records, and `over` is the key of x.
        """
        return extract_curve(self.metrics, key, over)

    def metadata_number(self, key: str) -> float | None:
        """Return the number stored under a key of run.json, or None if there is no number."""
        return to_float(self.metadata.get(key))

    def last_number(self, key: str) -> float | None:
        """Return the number under a key of the last log record, or None if there is no number."""
        return to_float(self.metrics[-1].get(key))

    @property
    def tokens_per_second(self) -> float | None:
        """The median training throughput in tokens per second, or None if it was not logged."""
        speeds = [speed for _, speed in self.get_curve("tokens_per_second")]
        return statistics.median(speeds) if speeds else None

    def recipe_value(self, section: str, key: str) -> Any:
        """Return the value of a key in a section of the recipe, or None if it is missing."""
        table = self.recipe.get(section)
        return table.get(key) if isinstance(table, dict) else None

    @property
    def model(self) -> str:
        """The preset of the model, or else the model whose weights the run started from."""
        return str(
            self.recipe_value("model", "preset") or self.recipe_value("model", "init_from") or ""
        )

    @property
    def objective(self) -> str:
        """The kind of training objective; for a mixture, all kinds joined with plus signs."""
        sources = self.recipe.get("mix") or [self.recipe]
        kinds = [str((source.get("objective") or {}).get("kind", "")) for source in sources]
        return " + ".join(dict.fromkeys(filter(None, kinds)))

    @property
    def predicts_next_token(self) -> bool:
        """Whether the model predicts every token of the text, so that bits per byte are defined."""
        return self.objective in ("causal", "bidirectional-lm")

    def bits_per_byte(self, loss: float) -> float | None:
        """Convert a loss from nats per token to bits per byte.

        Returns None if the objective does not predict every token of the text.
        """
        per_token = self.metadata_number("bytes_per_token")
        if not per_token or not self.predicts_next_token:
            return None
        return loss / math.log(2) / per_token

    @property
    def loss_terms(self) -> list[str]:
        """The names of the loss terms and data sources that have their own logged losses.

        Only names with both a training and a validation loss are included. The list is empty for
        policy optimization, which has no validation loss.
        """
        keys = dict.fromkeys(key for record in self.metrics for key in record)
        names = (key.removeprefix("valid_") for key in keys if key.startswith("valid_"))
        both = [name for name in names if name != "loss" and f"train_{name}" in keys]
        return both if "valid_loss" in keys else []

    @property
    def policy_metrics(self) -> list[str]:
        """The names of values logged in policy optimization, such as the reward.

        The list is empty for other objectives.
        """
        keys = dict.fromkeys(key for record in self.metrics for key in record)
        names = (key.removeprefix("train_") for key in keys if key.startswith("train_"))
        return [name for name in names if name != "loss"] if "train_policy" in keys else []

    @property
    def unfinished(self) -> bool:
        """Whether the run is still training or was interrupted; False if this is unknown."""
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
        """Whether higher values of the main metric are better."""
        logged = self.metadata.get("higher_is_better", self.metric != "loss")
        return bool(self.evaluation.get("higher_is_better", logged))

    @property
    def score(self) -> float | None:
        """The value of the main metric in the final evaluation; None before this evaluation."""
        values = self.evaluation.get("values")
        return to_float(values.get(self.metric)) if isinstance(values, dict) else None

    @property
    def validation_metrics(self) -> dict[str, float]:
        """The validation losses and metrics of the saved weights, by name.

        They come from the final evaluation, and from the evaluation during training at the step of
        the saved weights. If this step is unknown, the last evaluation during training is used
        instead.
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
        """The unigram baseline as a dict from its label to its loss in nats per token.

        The dict is empty if this loss is unknown.
        """
        loss = self.metadata_number("unigram_loss")
        return {} if loss is None else {translated("report.unigram_baseline"): loss}


def read_run(folder: str | Path) -> RunFiles:
    """Read the files in a run folder for a report.

    Raises:
        CheckpointError: the folder does not exist or contains no run, the run has no log records
            yet, or a file is corrupt.
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
    """Convert a finite number to a float. Any other value becomes None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def extract_curve(records: Iterable[Mapping[str, Any]], y_key: str, x_key: str) -> Points:
    """Return the curve of log records: the points (record[x_key], record[y_key]).

    Records without finite numbers for both keys are skipped.
    """
    pairs = ((to_float(record.get(x_key)), to_float(record.get(y_key))) for record in records)
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def _read_json_object(path: Path, schema: type[_Schema] = _Schema) -> dict[str, Any]:
    """Read a JSON object, and validate it with a schema.

    Returns an empty dict if the file is missing.

    Raises ValueError if the file is not a JSON object or does not match the schema.
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
