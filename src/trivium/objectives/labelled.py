"""The base class of fine-tuning tasks, which are objectives for labelled examples."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
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
from trivium.inference.forward import check_ids
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models.base_model import Spec
from trivium.objectives.objective import Objective
from trivium.objectives.task_metrics import Metrics
from trivium.text.inputs import TextInput, encode_inputs
from trivium.text.vocabulary import Vocabulary

_BATCH = 16  # examples per batch when metrics are computed


class LabelledObjective(Objective):
    """A fine-tuning task: an objective for labelled examples, with the usual metrics of the task.

    Each task defines a small dataclass for its examples.
    """

    labelled: ClassVar[bool] = True
    metric_libraries: ClassVar[Sequence[str]] = ()
    """The names of optional Python modules that are needed for the metrics."""
    generates: ClassVar[bool] = False
    """Whether metrics need generated text. Since generation is slow, evaluations during training
    then use fewer examples."""
    measures_cut_answers: ClassVar[bool] = False
    """Whether metrics count an example as wrong if truncation has removed its whole target."""
    fields: ClassVar[Sequence[Slot]] = ()
    """The fields of a labelled record. The recipe key `NAME_field` sets the column of a field."""

    inputs: ClassVar[Sequence[Fields]] = ()
    """The fields of a record without its labels. Empty for tasks that `trivium predict` does not
    support."""

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
        """The fields of records without labels, with the column names set in the recipe."""
        schema, names = self.record_schema, {name for each in self.inputs for name in each.names}
        chosen = {name: column for name, column in schema.chosen.items() if name in names}
        return replace(schema, slots=self.inputs, chosen=chosen)

    def read_unlabelled(self, record: Record, lm: LanguageModel) -> Any:
        """Read an example without labels from a record, so that the model can predict the labels.

        `record.columns` has one column for each field in `inputs`. Raises DataError, with file and
        line, if the model cannot process the record.
        """
        raise NotImplementedError

    def predicted_columns(self, lm: LanguageModel) -> Sequence[str]:
        """Return the names of the columns that `trivium predict` adds to the records."""
        return "prediction", "score"

    def predicted(self, answer: Any, *, in_cell: bool = False) -> tuple[Any, ...]:
        """Return the values of `predicted_columns` for one prediction of the model.

        If `in_cell`, several labels are joined into one string for a table cell.
        """
        raise NotImplementedError

    def read(self, paths: Sequence[str], options: RecordOptions | None = None) -> Iterator[Any]:
        """Return an iterator over the examples in files.

        Raises DataError for a bad record, unless `options` are set to skip and count bad records.
        """
        options = options or RecordOptions()
        return self.examples(self.records(paths, options), options)

    def examples(self, records: Iterable[Any], options: RecordOptions) -> Iterator[Any]:
        """Yield the example of each record. The record schema defines which columns are read.

        Items that are not records are already examples and are yielded unchanged.
        """
        schema = self.record_schema
        for record in records:
            with options.skip_invalid_records():
                if isinstance(record, Record):
                    schema.resolve(record, options.report)
                    record = self.example(record)
                yield record

    def records(self, paths: Sequence[str], options: RecordOptions) -> Iterator[Any]:
        """Return an iterator over the records (or finished examples) in files."""
        return read_records(paths, options)

    @abstractmethod
    def example(self, record: Record) -> Any:
        """Read an example from a record. `record.columns` maps each field to its column.

        Raises DataError, with file and line, for a bad record.
        """

    def input_text(self, example: Any) -> str:
        """Return the input text of an example. Examples with equal input texts are duplicates."""
        return example.group

    def findings(self, examples: Sequence[Any]) -> list[Finding]:
        """Return the findings of checks that are specific to this task, for `trivium check`."""
        return []

    def supports_class_weights(self, examples: Sequence[Any]) -> bool:
        """Return whether rare labels can get more weight with `objective.class_weights`."""
        return False

    def labels_by_example(self, examples: Sequence[Any]) -> list[Sequence[str]]:
        """Return the labels of each example, by default none.

        The labels are used to stratify the split into training and validation examples.
        """
        return [() for _ in examples]

    def adapt_to_model(self, settings: Settings, examples: Sequence[Any]) -> Self:
        """Return the objective adapted to a model that was already fine-tuned for the same task.

        `settings` are the settings of this model. By default the objective is unchanged.
        """
        return self

    def with_labels(self, labels: Sequence[str], examples: Sequence[Any]) -> Self:
        """Return the objective with keys that depend on the model's labels, such as class weights.

        By default the objective is unchanged.
        """
        return self

    def with_label_statistics(self, settings: Settings, train: Sequence[Any]) -> Settings:
        """Add statistics of the training examples to the settings. By default none are added."""
        return settings

    def resolve(self, spec: Spec, examples: Sequence[Any]) -> Self:
        """Return the objective with keys inferred from the examples, such as the kind of labels.

        Tasks also check the examples here. By default the objective is unchanged.
        """
        return self

    def label_names(self, examples: Sequence[Any]) -> tuple[str, ...]:
        """Return the label names in the examples, in the order of the outputs of the head.

        Returns an empty tuple for tasks without labels.
        """
        return ()

    def settings(self, settings: Settings, examples: Sequence[Any]) -> Settings:
        """Add what the model needs for this task to its settings, such as label names and options.

        The settings are saved with the model. By default only the name of the task is added.
        """
        return settings.with_task(self.kind)

    @abstractmethod
    def encode(self, examples: Sequence[Any], lm: LanguageModel) -> EncodedExamples:
        """Encode examples as token ids and labels, truncated to the maximum length of `lm`.

        `EncodedExamples.truncations` contains the number of tokens removed from each example.
        """

    def source_texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Return an iterator over the encoder's input texts, or all texts for other models."""
        return map(self.input_text, examples)

    def target_texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Yield the texts that an encoder-decoder should generate, by default none."""
        yield from ()

    def texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Yield all input and target texts of the examples, for example to train a tokenizer."""
        yield from self.source_texts(examples)
        yield from self.target_texts(examples)

    def metrics(self, lm: LanguageModel, examples: Sequence[Any]) -> Metrics:
        """Predict all examples and compute the metrics of the predictions."""
        return self.compute_metrics(self.predict(lm, examples), examples, lm)

    @abstractmethod
    def predict(self, lm: LanguageModel, examples: Sequence[Any]) -> list[Any]:
        """Return one prediction per example, in order, as users would see it.

        In distributed evaluation each process predicts different examples, and the lists of all
        processes are concatenated.
        """

    @abstractmethod
    def compute_metrics(
        self, answers: list[Any], examples: Sequence[Any], lm: LanguageModel
    ) -> Metrics:
        """Compute the metrics of the predictions for labelled examples."""

    def add_generations(self, lm: LanguageModel, metrics: Metrics) -> Metrics:
        """Return the metrics with generated texts added to the predictions, by default unchanged.

        This method is called once, at the end of a run. The report shows the generated texts.
        """
        return metrics

    def check_metric_libraries(self) -> None:
        """Raise MissingExtraError if a library in `metric_libraries` is not installed.

        This method is called before training.
        """
        missing = [name for name in self.metric_libraries if not importlib.util.find_spec(name)]
        if missing:
            raise MissingExtraError(f"measuring {self.kind} ({', '.join(missing)})", "metrics")

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return the rows as a batch. Encoded examples already contain labels."""
        return rows.to_batch()


def column_key(description: str, fields: Fields, name: str = "") -> Any:
    """Return the pydantic field of a recipe key that sets the column of a record field.

    The description of the key lists the default column names.

    Args:
        description: the first part of the description, such as "column of the text".
        fields: the group of record fields to which the record field belongs.
        name: the name of the record field. If empty, the first of `fields`.
    """
    name = name or fields.names[0]
    usual = ", ".join(fields.usual_of(name))
    default = f"one of {usual}" if name in fields.required else f"{usual}, if there is one"
    return Field(None, description=f"{description}; default: {default}")


def field_option(name: str) -> str:
    """Return the command-line option that sets the column of a record field, for error messages.

    `name` may be the placeholder "{}".
    """
    return f"--set objective.{name}_field=NAME"


def batches_by_length(encoded: EncodedExamples) -> Iterator[tuple[Ints, RowBatch]]:
    """Yield batches of encoded examples, the longest examples first.

    Each item contains the indices of the B examples in the batch, int64 [B], and their rows.
    """
    order = np.argsort(-encoded.lengths, kind="stable")
    for start in range(0, len(order), _BATCH):
        indices = order[start : start + _BATCH]
        yield indices, encoded.take(indices)


def encode_texts(
    lm: LanguageModel, texts: Sequence[tuple[str, str | None]]
) -> tuple[list[TextInput], dict[str, list[list[int]]]]:
    """Encode texts or text pairs in the same way as `LanguageModel.classify`.

    Returns the encoded texts, and their token ids (and token type ids) as lists by the field name
    in `RowBatch`.
    """
    inputs = encode_inputs(lm.source_tokenizer, texts, max_length=lm.max_length)
    rows = {"input_ids": [one.ids for one in inputs]}
    if lm.spec.num_token_types > 1:
        rows["token_type_ids"] = [one.type_ids for one in inputs]
    return inputs, rows


def next_token_labels(encoded: TextInput) -> list[int]:
    """Return the next token of each position as its label, for the LM loss.

    If the text is truncated, special tokens are not labels. Otherwise the model would learn to stop
    in the middle of a text.
    """
    is_label = [text is not None or not encoded.cut for text in encoded.texts]
    ids = [token if kept else IGNORE_INDEX for token, kept in zip(encoded.ids, is_label)]
    return [*ids[1:], IGNORE_INDEX]


def check_example_ids(examples: EncodedExamples, spec: Spec) -> None:
    """Raise SpecError if an example contains a token id outside the model's vocabulary."""
    check_ids([examples.largest_id("input_ids")], spec.input_vocab_size, "an example")
    check_ids([examples.largest_id("decoder_input_ids")], spec.vocab_size, "an example")
