"""The base class of fine-tuning tasks: objectives for labelled examples."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field

from trivium.data.batch import IGNORE_INDEX, Batch, Ints, RowBatch
from trivium.data.checks import Finding
from trivium.data.encoded import EncodedExamples
from trivium.data.records import Record, RecordOptions, read_records
from trivium.data.row_order import RowRandom
from trivium.data.schema import Fields, Schema, Slot
from trivium.errors import MissingExtraError
from trivium.inference import forward
from trivium.inference.forward import check_ids
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models.base_model import Spec
from trivium.objectives.objective import Objective
from trivium.objectives.task_metrics import Metrics
from trivium.text.inputs import TextInput, encode_inputs
from trivium.text.vocabulary import Vocabulary

MapOverRanks = Callable[[Callable[[Sequence[Any]], list[Any]], Sequence[Any]], list[Any]]
"""A function of (f, items) that returns f(items), with the items divided among the processes."""

_POSITIONS_AT_ONCE = 8192  # tokens of a batch when metrics are computed, including padding


class LabelledObjective(Objective):
    """Base class of fine-tuning tasks: objectives for labelled examples, with task metrics.

    Each task defines a small dataclass for its examples.
    """

    labelled: ClassVar[bool] = True
    metric_libraries: ClassVar[Sequence[str]] = ()
    """The names of the optional Python modules that the metrics need."""
    generates: ClassVar[bool] = False
    """Whether metrics need generated text. Generation is slow, so evaluations during training then
    use fewer examples."""
    measures_cut_answers: ClassVar[bool] = False
    """Whether metrics count an example as wrong if its whole target has been truncated."""
    example_type: ClassVar[type | None] = None
    """The dataclass of the examples, if JSON can represent their fields. The examples are then kept
    in a file instead of in the memory of every process."""
    fields: ClassVar[Sequence[Slot]] = ()
    """The fields of labelled records. The recipe key `NAME_field` sets the column of `NAME`."""

    inputs: ClassVar[Sequence[Fields]] = ()
    """The fields of unlabelled records. Empty if `trivium predict` does not support the task."""

    @property
    def record_schema(self) -> Schema:
        """The fields of labelled records, with the column names set in the recipe."""
        keys = {
            name.removesuffix("_field"): getattr(self, name)
            for name in type(self).model_fields
            if name.endswith("_field")
        }
        chosen = {name: str(column) for name, column in keys.items() if column is not None}
        return Schema(self.fields, chosen, frozenset(keys), field_option("{}"))

    @property
    def input_schema(self) -> Schema:
        """The fields of unlabelled records, with the column names set in the recipe."""
        schema, names = self.record_schema, {name for each in self.inputs for name in each.names}
        chosen = {name: column for name, column in schema.chosen.items() if name in names}
        return replace(schema, slots=self.inputs, chosen=chosen)

    def read_unlabelled(self, record: Record, lm: LanguageModel) -> Any:
        """Read an unlabelled example from a record, so that the model can predict its labels.

        `record.columns` maps each field in `inputs` to its column. Raises DataError, with file and
        line, if the model cannot process the record.
        """
        raise NotImplementedError

    def predicted_columns(self, lm: LanguageModel) -> Sequence[str]:
        """Return the names of the columns that `trivium predict` adds to the records."""
        return "prediction", "score"

    def to_columns(self, prediction: Any, *, in_cell: bool = False) -> tuple[Any, ...]:
        """Return the values of the output columns (`predicted_columns`) for one prediction.

        If `in_cell`, several labels are joined into one string for a table cell.
        """
        raise NotImplementedError

    def read(self, paths: Sequence[str], options: RecordOptions | None = None) -> Iterator[Any]:
        """Return an iterator over the examples in files.

        A bad record raises DataError, unless `options` say to skip and count bad records.
        """
        options = options or RecordOptions()
        return self.build_examples(self.records(paths, options), options)

    def build_examples(self, records: Iterable[Any], options: RecordOptions) -> Iterator[Any]:
        """Convert records to examples and yield them. `record_schema` defines the columns to read.

        Items that are already examples are yielded unchanged.
        """
        schema = self.record_schema
        for record in records:
            with options.skip_invalid_records():
                if isinstance(record, Record):
                    schema.resolve(record, options.report)
                    record = self.read_example(record)
                yield record

    def records(self, paths: Sequence[str], options: RecordOptions) -> Iterator[Any]:
        """Return an iterator over the records in files. Some tasks return examples instead."""
        return read_records(paths, options)

    @abstractmethod
    def read_example(self, record: Record) -> Any:
        """Read an example from a record. `record.columns` maps each field to its column.

        Raises DataError, with file and line, if the record is bad.
        """

    def input_text(self, example: Any) -> str:
        """Return the input text of an example, which is its grouping key by default."""
        return example.group_key

    def find_problems(self, examples: Sequence[Any]) -> list[Finding]:
        """Return the findings of task-specific checks, for `trivium check`. By default none."""
        return []

    def supports_class_weights(self, examples: Sequence[Any]) -> bool:
        """Return whether `objective.class_weights` can give rare labels more weight."""
        return False

    def labels_by_example(self, examples: Sequence[Any]) -> Iterator[Sequence[str]]:
        """Yield a sequence of labels for each example. By default, the sequences are empty.

        The labels are used to make both splits (training and validation) contain every label.
        """
        yield from (() for _ in examples)

    def adapt_to_model(self, settings: Settings, examples: Sequence[Any]) -> Self:
        """Adapt the objective to a model that was already fine-tuned for the same task.

        `settings` are the settings of this model. Returns the new objective. By default, nothing is
        changed.
        """
        return self

    def with_labels(self, labels: Sequence[str], examples: Sequence[Any]) -> Self:
        """Set the keys that depend on the model's label names `labels`, such as class weights.

        Returns the new objective. By default, nothing is changed.
        """
        return self

    def with_label_statistics(self, settings: Settings, train: Sequence[Any]) -> Settings:
        """Add statistics of the training examples to the settings.

        Returns the new settings. By default, nothing is added.
        """
        return settings

    def infer_keys(self, spec: Spec, examples: Sequence[Any]) -> Self:
        """Set the keys that are inferred from the examples, such as the kind of labels.

        This method may also check the examples. Returns the new objective. By default, nothing is
        changed.
        """
        return self

    def label_names(self, examples: Sequence[Any]) -> tuple[str, ...]:
        """Return the distinct label names in the examples, in the order of the head's outputs.

        Returns an empty tuple if the task has no label names.
        """
        return ()

    def add_settings(self, settings: Settings, examples: Sequence[Any]) -> Settings:
        """Add the settings that this task needs, such as label names, to the model settings.

        By default only the name of the task is added. Returns the new settings, which are saved
        with the model.
        """
        return settings.with_task(self.kind)

    @abstractmethod
    def encode(self, examples: Sequence[Any], lm: LanguageModel) -> EncodedExamples:
        """Encode examples as token ids and labels, truncated to the maximum length of `lm`.

        The attribute `truncations` of the result has the numbers of removed tokens.
        """

    def remember_encoded(self, examples: Sequence[Any], encoded: EncodedExamples) -> None:
        """Store what the metrics need of the validation examples. By default, nothing is stored.

        A run calls this method once in every process, with all validation examples. `encode`, in
        contrast, gets only a part of the examples in each process.
        """

    def source_texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Return an iterator over the input texts of the encoder.

        For models that are not encoder-decoders, these are all texts of the examples.
        """
        return map(self.input_text, examples)

    def target_texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Yield the target texts that an encoder-decoder should generate. By default, none."""
        yield from ()

    def texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Yield all input texts, then all target texts, for example to train a tokenizer."""
        yield from self.source_texts(examples)
        yield from self.target_texts(examples)

    def evaluate(self, lm: LanguageModel, examples: Sequence[Any]) -> Metrics:
        """Predict the labels of all examples, and return the metrics of the predictions."""
        return self.compute_metrics(self.predict(lm, examples), examples, lm)

    @abstractmethod
    def predict(self, lm: LanguageModel, examples: Sequence[Any]) -> list[Any]:
        """Return the predictions of the model, usually one per example, in order.

        In distributed evaluation each process predicts different examples. The lists of all
        processes are then concatenated.
        """

    @abstractmethod
    def compute_metrics(
        self, predictions: list[Any], examples: Sequence[Any], lm: LanguageModel
    ) -> Metrics:
        """Compute the metrics of `predictions` for labelled examples."""

    def add_generations(self, lm: LanguageModel, metrics: Metrics) -> Metrics:
        """Generate texts for the report, and add them to the predictions of the metrics.

        This method is called once, at the end of a run. By default, it returns the metrics
        unchanged.
        """
        return metrics

    def check_metric_libraries(self) -> None:
        """Raise MissingExtraError if a module in `metric_libraries` is not installed.

        This method is called before training.
        """
        missing = [name for name in self.metric_libraries if not importlib.util.find_spec(name)]
        if missing:
            raise MissingExtraError(f"measuring {self.kind} ({', '.join(missing)})", "metrics")

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return the rows as a batch. Rows of encoded examples already have labels."""
        return rows.to_batch()


def column_key(description: str, fields: Fields, name: str = "") -> Any:
    """Return a pydantic field for a recipe key that sets the column of a record field.

    The default column names are added to the description of the key.

    Args:
        description: the first part of the description, such as "column of the text".
        fields: the record fields, among them the one whose column is set.
        name: the name of this record field. If empty, it is the first of `fields`.
    """
    name = name or fields.names[0]
    usual = ", ".join(fields.get_usual(name))
    default = f"one of {usual}" if name in fields.required else f"{usual}, if there is one"
    return Field(None, description=f"{description}; default: {default}")


def field_option(name: str) -> str:
    """Return the command-line option that sets the column of a record field, for error messages.

    `name` is the name of the field, or the placeholder "{}".
    """
    return f"--set objective.{name}_field=NAME"


def batch_by_length(
    encoded: EncodedExamples, indices: Ints | None = None
) -> Iterator[tuple[Ints, RowBatch]]:
    """Yield batches of encoded examples, the longest examples first.

    `indices` [n] selects the examples; None for all of them. Each item is a pair: the places of the
    B examples of the batch in `indices`, int64 [B], and their rows.
    """
    indices = np.arange(len(encoded)) if indices is None else indices
    for batch in forward.batch_by_length(encoded.lengths[indices].tolist(), _POSITIONS_AT_ONCE):
        yield np.array(batch), encoded.take(indices[batch])


def encode_texts(
    lm: LanguageModel, texts: Sequence[tuple[str, str | None]]
) -> tuple[list[TextInput], dict[str, list[list[int]]]]:
    """Encode texts or text pairs in the same way as `LanguageModel.classify`.

    Returns the encoded texts, and a dict by field of `RowBatch` with one list per text: the token
    ids and, if the model uses them, the token type ids.
    """
    inputs = encode_inputs(lm.source_tokenizer, texts, max_length=lm.max_length)
    rows = {"input_ids": [one.ids for one in inputs]}
    if lm.spec.num_token_types > 1:
        rows["token_type_ids"] = [one.type_ids for one in inputs]
    return inputs, rows


def next_token_labels(encoded: TextInput) -> list[int]:
    """Return the next token of each position as its label, for the LM loss.

    In a truncated text, special tokens are not used as labels. Otherwise the model would learn to
    stop in the middle of a text.
    """
    is_label = [text is not None or not encoded.cut for text in encoded.texts]
    ids = [token if kept else IGNORE_INDEX for token, kept in zip(encoded.ids, is_label)]
    return [*ids[1:], IGNORE_INDEX]


def check_example_ids(examples: EncodedExamples, spec: Spec) -> None:
    """Raise SpecError if an example contains a token id outside the model's vocabulary."""
    check_ids([examples.largest_id("input_ids")], spec.input_vocab_size, "an example")
    check_ids([examples.largest_id("decoder_input_ids")], spec.vocab_size, "an example")
