"""The base class of fine-tuning tasks, which are objectives on labelled examples."""

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
    """A fine-tuning task: an objective on labelled examples, with the usual metrics of the task.

    Each task defines a small dataclass for its examples.
    """

    labelled: ClassVar[bool] = True
    metric_libraries: ClassVar[Sequence[str]] = ()
    """The names of optional Python modules that are needed for the metrics."""
    generates: ClassVar[bool] = False
    """Whether metrics need generated text. Since generation is slow, evaluations during training
    use fewer examples."""
    measures_cut_answers: ClassVar[bool] = False
    """Whether metrics count an example as wrong if truncation has removed its whole target."""
    fields: ClassVar[Sequence[Slot]] = ()
    """The fields of a record. The recipe key `NAME_field` sets the column of the field NAME."""

    inputs: ClassVar[Sequence[Fields]] = ()
    """The fields of a record except labels. Empty for tasks that `trivium predict` does not
    support."""

    @property
    def record_schema(self) -> Schema:
        """The fields of labelled records, with the columns that recipe keys set."""
        keys = {
            name.removesuffix("_field"): getattr(self, name)
            for name in type(self).model_fields
            if name.endswith("_field")
        }
        chosen = {name: str(column) for name, column in keys.items() if column is not None}
        return Schema(self.fields, chosen, frozenset(keys), field_option("{}"))

    @property
    def input_schema(self) -> Schema:
        """The fields of records without labels, with the columns that recipe keys set."""
        schema, names = self.record_schema, {name for each in self.inputs for name in each.names}
        chosen = {name: column for name, column in schema.chosen.items() if name in names}
        return replace(schema, slots=self.inputs, chosen=chosen)

    def unlabelled(self, record: Record, lm: LanguageModel) -> Any:
        """Read an example without labels from a record, to make a prediction for it.

        `record.columns` contains the columns of the fields in `inputs`. Raises DataError, with file
        and line, if the record does not fit the model.
        """
        raise NotImplementedError

    def predicted_columns(self, lm: LanguageModel) -> Sequence[str]:
        """Return the names of the columns that `trivium predict` adds to the records."""
        return "prediction", "score"

    def predicted(self, answer: Any, *, in_cell: bool = False) -> tuple[Any, ...]:
        """Return the values of `predicted_columns` for one prediction of the model.

        `in_cell`: whether to join several labels into one string for a table cell.
        """
        raise NotImplementedError

    def read(self, paths: Sequence[str], options: RecordOptions | None = None) -> Iterator[Any]:
        """Return an iterator over the examples in files.

        Raises DataError for a bad record, unless `options` are set to skip and count bad records.
        """
        options = options or RecordOptions()
        return self.examples(self.records(paths, options), options)

    def examples(self, records: Iterable[Any], options: RecordOptions) -> Iterator[Any]:
        """Yield the examples of records. The record schema defines which columns are read.

        Items that are not records are already examples and are yielded unchanged.
        """
        schema = self.record_schema
        for record in records:
            with options.skipping():
                if isinstance(record, Record):
                    schema.resolve(record, options.report)
                    record = self.example(record)
                yield record

    def records(self, paths: Sequence[str], options: RecordOptions) -> Iterator[Any]:
        """Return an iterator over the records in files. A task may also yield finished examples."""
        return read_records(paths, options)

    @abstractmethod
    def example(self, record: Record) -> Any:
        """Read an example from a record. `record.columns` contains the column of each field.

        Raises DataError, with file and line, for a bad record.
        """

    def input_text(self, example: Any) -> str:
        """Return the input text of an example. Examples with equal inputs are duplicates."""
        return example.group

    def findings(self, examples: Sequence[Any]) -> list[Finding]:
        """Return the findings of additional checks for this task (`trivium check`)."""
        return []

    def supports_class_weights(self, examples: Sequence[Any]) -> bool:
        """Return whether `objective.class_weights` can be set to give rare labels more weight."""
        return False

    def labels_of(self, examples: Sequence[Any]) -> list[Sequence[str]]:
        """Return the labels of each example, by default none.

        They stratify the split into training and validation examples.
        """
        return [() for _ in examples]

    def adapt_to_model(self, settings: Settings, examples: Sequence[Any]) -> Self:
        """Return the objective adapted to a model that was already fine-tuned for the same task.

        `settings` are the settings of the model. By default the objective is unchanged.
        """
        return self

    def with_labels(self, labels: Sequence[str], examples: Sequence[Any]) -> Self:
        """Return the objective with the keys that depend on the labels of the model.

        By default the objective is unchanged.
        """
        return self

    def with_statistics(self, settings: Settings, train: Sequence[Any]) -> Settings:
        """Return the settings with statistics of the training examples, by default unchanged."""
        return settings

    def resolve(self, spec: Spec, examples: Sequence[Any]) -> Self:
        """Return the objective with keys that depend on the examples, such as the kind of labels.

        By default the objective is unchanged.
        """
        return self

    def label_names(self, examples: Sequence[Any]) -> tuple[str, ...]:
        """Return the label names of examples, in the order of the outputs of the head.

        Returns an empty tuple for tasks without labels.
        """
        return ()

    def settings(self, settings: Settings, examples: Sequence[Any]) -> Settings:
        """Return the settings that are saved with the model, such as label names and task options.

        By default only the name of the task is added.
        """
        return settings.with_task(self.kind)

    @abstractmethod
    def encode(self, examples: Sequence[Any], lm: LanguageModel) -> EncodedExamples:
        """Return the token ids and labels of examples, truncated to the maximum length of `lm`.

        `EncodedExamples.truncations` contains the number of removed tokens.
        """

    def source_texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Return the texts that the encoder reads. For other models, returns all texts."""
        return map(self.input_text, examples)

    def target_texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Yield the target texts of the decoder of an encoder-decoder, by default none."""
        yield from ()

    def texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Yield all texts of the examples, on which a tokenizer can be trained."""
        yield from self.source_texts(examples)
        yield from self.target_texts(examples)

    def metrics(self, lm: LanguageModel, examples: Sequence[Any]) -> Metrics:
        """Predict all examples and return the metrics of the predictions."""
        return self.compute_metrics(self.predict(lm, examples), examples, lm)

    @abstractmethod
    def predict(self, lm: LanguageModel, examples: Sequence[Any]) -> list[Any]:
        """Return the prediction for each example, in order, as users would see it.

        Distributed processes predict different examples. Their lists are concatenated afterwards.
        """

    @abstractmethod
    def compute_metrics(
        self, answers: list[Any], examples: Sequence[Any], lm: LanguageModel
    ) -> Metrics:
        """Return the metrics of the predictions (`answers`) for examples."""

    def add_generations(self, lm: LanguageModel, metrics: Metrics) -> Metrics:
        """Return the metrics with generated texts added to the predictions, by default unchanged.

        This is called once, at the end of a run. The generated texts are shown in the report.
        """
        return metrics

    def check_metrics(self) -> None:
        """Raise MissingExtraError if a library in `metric_libraries` is not installed.

        This is called before training.
        """
        missing = [name for name in self.metric_libraries if not importlib.util.find_spec(name)]
        if missing:
            raise MissingExtraError(f"measuring {self.kind} ({', '.join(missing)})", "metrics")

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return the batch of encoded examples, which already contain labels."""
        return rows.to_batch()


def column_key(description: str, fields: Fields, name: str = "") -> Any:
    """Return the pydantic field of a recipe key that sets the column of a record field.

    The description of the key lists the usual names of the column, which are used by default.

    Args:
        description: the beginning of the description, such as "column of the text".
        fields: the group of record fields to which the field belongs.
        name: the name of the record field; empty: the first of `fields`.
    """
    name = name or fields.names[0]
    usual = ", ".join(fields.usual_of(name))
    default = f"one of {usual}" if name in fields.required else f"{usual}, if there is one"
    return Field(None, description=f"{description}; default: {default}")


def field_option(name: str) -> str:
    """Return the command-line option that sets the column of a field, for messages.

    The name may be the placeholder "{}".
    """
    return f"--set objective.{name}_field=NAME"


def batches_by_length(encoded: EncodedExamples) -> Iterator[tuple[Ints, RowBatch]]:
    """Yield batches of encoded examples, the longest examples first.

    Each batch consists of the indices of its B examples, int64 [B], and their rows.
    """
    order = np.argsort(-encoded.lengths, kind="stable")
    for start in range(0, len(order), _BATCH):
        indices = order[start : start + _BATCH]
        yield indices, encoded.take(indices)


def encode_texts(
    lm: LanguageModel, texts: Sequence[tuple[str, str | None]]
) -> tuple[list[TextInput], dict[str, list[list[int]]]]:
    """Encode texts or text pairs in the same way as `LanguageModel.classify`.

    Returns the encoded texts, and lists of their token ids (and token type ids) by the field name
    in `RowBatch`.
    """
    inputs = encode_inputs(lm.source_tokenizer, texts, max_length=lm.max_length)
    rows = {"input_ids": [one.ids for one in inputs]}
    if lm.spec.num_token_types > 1:
        rows["token_type_ids"] = [one.type_ids for one in inputs]
    return inputs, rows


def next_tokens(encoded: TextInput) -> list[int]:
    """Return the next token of each position as its label.

    If the text is truncated, special tokens are not labels. Otherwise the model would learn to stop
    in the middle of a text.
    """
    is_label = [text is not None or not encoded.cut for text in encoded.texts]
    ids = [token if kept else IGNORE_INDEX for token, kept in zip(encoded.ids, is_label)]
    return [*ids[1:], IGNORE_INDEX]


def check_example_ids(examples: EncodedExamples, spec: Spec) -> None:
    """Raise SpecError if examples contain a token id outside the vocabulary of the model."""
    check_ids([examples.largest_id("input_ids")], spec.input_vocab_size, "an example")
    check_ids([examples.largest_id("decoder_input_ids")], spec.vocab_size, "an example")
