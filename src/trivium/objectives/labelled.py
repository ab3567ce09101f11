"""The protocol of fine-tuning tasks: objectives on labelled examples."""

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

_BATCH = 16  # examples that pass through a model together for metrics


class LabelledObjective(Objective):
    """A fine-tuning task: an objective on labelled examples, with the metric of its field.

    Examples are the task's own small dataclass.
    """

    labelled: ClassVar[bool] = True
    metric_libraries: ClassVar[Sequence[str]] = ()
    """Optional modules that compute the metrics."""
    generates: ClassVar[bool] = False
    """Metrics need generated text, which is slow: evaluations in training use fewer examples."""
    measures_cut_answers: ClassVar[bool] = False
    """Whether examples count in metrics of whose target nothing is left: as wrong answers."""
    fields: ClassVar[Sequence[Slot]] = ()
    """What is read of a record. The key `NAME_field`, if any, sets the column of NAME."""

    inputs: ClassVar[Sequence[Fields]] = ()
    """The fields of a record without its labels; empty for tasks that `predict` does not do."""

    @property
    def record_schema(self) -> Schema:
        """Return the fields of the task, with the columns that keys of the recipe set."""
        keys = {
            name.removesuffix("_field"): getattr(self, name)
            for name in type(self).model_fields
            if name.endswith("_field")
        }
        chosen = {name: str(column) for name, column in keys.items() if column is not None}
        return Schema(self.fields, chosen, frozenset(keys), field_option("{}"))

    @property
    def input_schema(self) -> Schema:
        """Return the fields of records without labels, with the columns that keys set."""
        whole, names = self.record_schema, {name for one in self.inputs for name in one.names}
        chosen = {name: column for name, column in whole.chosen.items() if name in names}
        return replace(whole, slots=self.inputs, chosen=chosen)

    def unlabelled(self, record: Record, lm: LanguageModel) -> Any:
        """Return the example of a record, whose labels are not read, for `answers`.

        The fields of `inputs` are in `record.columns`. Raises DataError, with file and line, where
        the model cannot read the record.
        """
        raise NotImplementedError

    def predicted_columns(self, lm: LanguageModel) -> Sequence[str]:
        """Return the columns that `predict` adds, whose values `predicted` returns."""
        return "prediction", "score"

    def predicted(self, answer: Any, *, in_cell: bool = False) -> tuple[Any, ...]:
        """Return the values of `predicted_columns` for one of the `answers`.

        `in_cell`: several labels are one string, as a cell of a table has them.
        """
        raise NotImplementedError

    def read(self, paths: Sequence[str], options: RecordOptions | None = None) -> Iterator[Any]:
        """Return the examples of some files.

        Raises DataError at a bad one, unless `options` count it.
        """
        options = options or RecordOptions()
        return self.examples(self.records(paths, options), options)

    def examples(self, records: Iterable[Any], options: RecordOptions) -> Iterator[Any]:
        """Return the examples of records, whose columns the schema decides.

        Items that are not records are examples already.
        """
        schema = self.record_schema
        for record in records:
            with options.skipping():
                if isinstance(record, Record):
                    schema.resolve(record, options.report)
                    record = self.example(record)
                yield record

    def records(self, paths: Sequence[str], options: RecordOptions) -> Iterator[Any]:
        """Yield the records of some files, to be made into examples, or examples themselves."""
        return read_records(paths, options)

    @abstractmethod
    def example(self, record: Record) -> Any:
        """Return the example of a record, whose fields are in `record.columns`.

        Raises DataError, with file and line, for a bad one.
        """

    def input_of(self, example: Any) -> str:
        """Return the input of an example. Examples with equal inputs are duplicates (`check`)."""
        return example.group

    def findings(self, examples: Sequence[Any]) -> list[Finding]:
        """Return the findings of `check` that only this task has."""
        return []

    def weighs_classes(self, examples: Sequence[Any]) -> bool:
        """Return whether `objective.class_weights` helps labels of few examples."""
        return False

    def labels_of(self, examples: Sequence[Any]) -> list[Sequence[str]]:
        """Return the labels of every example, by which the split is stratified; mostly none."""
        return [() for _ in examples]

    def continuing(self, settings: Settings, examples: Sequence[Any]) -> Self:
        """Return the objective with what it takes over from a model trained for the same task."""
        return self

    def with_labels(self, labels: Sequence[str], examples: Sequence[Any]) -> Self:
        """Return the objective with keys that follow from the labels of the model."""
        return self

    def with_statistics(self, settings: Settings, train: Sequence[Any]) -> Settings:
        """Return the settings with statistics of the training examples."""
        return settings

    def resolve(self, spec: Spec, examples: Sequence[Any]) -> Self:
        """The objective with keys that follow from the examples of a run (kind of labels)."""
        return self

    def label_names(self, examples: Sequence[Any]) -> tuple[str, ...]:
        """The labels of some examples in the order of the head; none for tasks without labels."""
        return ()

    def settings(self, settings: Settings, examples: Sequence[Any]) -> Settings:
        """Return what is saved with the model to perform the task: label names, task options.

        By default that is only the name of the task.
        """
        return settings.with_task(self.kind)

    @abstractmethod
    def encode(self, examples: Sequence[Any], lm: LanguageModel) -> EncodedExamples:
        """Examples as token ids and labels, truncated to what `lm` reads.

        `EncodedExamples.truncations` says what is cut.
        """

    def source_texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Return the texts that an encoder reads; for models without an encoder, all texts."""
        return map(self.input_of, examples)

    def target_texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Yield the texts that the decoder of an encoder-decoder generates."""
        yield from ()

    def texts(self, examples: Sequence[Any]) -> Iterator[str]:
        """Yield all texts of the examples, to train a tokenizer on."""
        yield from self.source_texts(examples)
        yield from self.target_texts(examples)

    def metrics(self, lm: LanguageModel, examples: Sequence[Any]) -> Metrics:
        """Return the metrics of the model's answers."""
        return self.compute_metrics(self.predict(lm, examples), examples, lm)

    @abstractmethod
    def predict(self, lm: LanguageModel, examples: Sequence[Any]) -> list[Any]:
        """The model's answers in order, as users get them; those of processes are joined."""

    @abstractmethod
    def compute_metrics(
        self, answers: list[Any], examples: Sequence[Any], lm: LanguageModel
    ) -> Metrics:
        """Return the metrics of the answers to examples."""

    def add_generations(self, lm: LanguageModel, metrics: Metrics) -> Metrics:
        """The metrics at the end of a run, with answers of the model that they do not need."""
        return metrics

    def check_metrics(self) -> None:
        """Raise MissingExtraError where a library of the metrics is missing, before training."""
        missing = [name for name in self.metric_libraries if not importlib.util.find_spec(name)]
        if missing:
            raise MissingExtraError(f"measuring {self.kind} ({', '.join(missing)})", "metrics")

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Encoded examples have their labels already."""
        return rows.to_batch()


def column_key(description: str, fields: Fields, name: str = "") -> Any:
    """Return a key that sets the column of a field: of `name`, or of the first of the fields.

    Unless the key is set, the column is looked for by its usual names.
    """
    name = name or fields.names[0]
    usual = ", ".join(fields.usual_of(name))
    default = f"one of {usual}" if name in fields.required else f"{usual}, if there is one"
    return Field(None, description=f"{description}; default: {default}")


def field_option(name: str) -> str:
    """The option that chooses a column, for messages; "{}" for that of anything."""
    return f"--set objective.{name}_field=NAME"


def batches_by_length(encoded: EncodedExamples) -> Iterator[tuple[Ints, RowBatch]]:
    """Yield the rows of some examples at a time, the longest first, after their numbers [B]."""
    order = np.argsort(-encoded.lengths, kind="stable")
    for start in range(0, len(order), _BATCH):
        some = order[start : start + _BATCH]
        yield some, encoded.take(some)


def encode_texts(
    lm: LanguageModel, texts: Sequence[tuple[str, str | None]]
) -> tuple[list[TextInput], dict[str, list[list[int]]]]:
    """Encode texts, or pairs of texts, as `classify` reads them.

    Returns the encoded texts, and their rows by the field of `RowBatch`.
    """
    inputs = encode_inputs(lm.source_tokenizer, texts, max_length=lm.max_length)
    rows = {"input_ids": [one.ids for one in inputs]}
    if lm.spec.num_token_types > 1:
        rows["token_type_ids"] = [one.type_ids for one in inputs]
    return inputs, rows


def next_tokens(one: TextInput) -> list[int]:
    """Return the next token of every position as its label.

    If the text is cut, special tokens are not labels: the model would learn to stop in mid-text.
    """
    is_text = [text is not None or not one.cut for text in one.texts]
    ids = [token if kept else IGNORE_INDEX for token, kept in zip(one.ids, is_text)]
    return [*ids[1:], IGNORE_INDEX]


def check_example_ids(examples: EncodedExamples, spec: Spec) -> None:
    """Raise SpecError for an example with an id that the model does not have."""
    check_ids([examples.largest_id("input_ids")], spec.input_vocab_size, "an example")
    check_ids([examples.largest_id("decoder_input_ids")], spec.vocab_size, "an example")
