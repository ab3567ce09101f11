"""The protocol of objectives: rows -> `Batch` on the host, `Batch` -> sums of losses on the device.

An objective is a configuration class: its fields are its recipe keys. To add one, write one module
with one class that has a `kind`.
"""

from __future__ import annotations

import importlib.util
import math
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trivium.choice import Choice
from trivium.config import Config
from trivium.data.batch import IGNORE_INDEX, Batch, Bools, Floats, Ints, RowBatch
from trivium.data.checks import Finding
from trivium.data.encoded import EncodedExamples
from trivium.data.records import Record, RecordOptions, read_records
from trivium.data.row_order import RowRandom, derived_seed
from trivium.data.rows import Rows
from trivium.data.schema import Fields, Schema, Slot
from trivium.errors import MissingExtraError, RecipeError
from trivium.inference.forward import check_ids
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule, build
from trivium.models.base_model import Spec
from trivium.models.heads import Head
from trivium.objectives.excerpt import beginning, mask_middle
from trivium.objectives.monitor import Monitor
from trivium.objectives.task_metrics import Metrics
from trivium.text.inputs import TextInput, encode_inputs
from trivium.text.roles import SENTINELS, role_of
from trivium.text.vocabulary import Vocabulary

_BATCH = 16  # examples that pass through a model together for metrics

LossTerms = dict[str, Tensor]
"""The terms of a loss by name, summed over labels; the only one of most objectives is "loss"."""


class Cut(NamedTuple):
    """Rows that pass through the model together, where the rows of a step are not one batch.

    Args:
        number: in the step.
        start, stop: the first row, and the last row + 1.
        width: columns of the longest one.
        weight: 1, or 0 where another process computes them, too.
    """

    number: int
    start: int
    stop: int
    width: int
    weight: float = 1.0


@dataclass(frozen=True)
class TensorBatch:
    """A `Batch` on the device, its labels as flat positions and targets.

    Positions [M] index [B * T] and targets are [M]; both are computed on the host, so that
    gathering the labelled hidden states never waits for the device. `inputs` are keyword arguments
    of the model, the cache of an objective that carries state among them. `sequence_labels` are as
    in the batch. Of a step whose rows are each other's negatives `cuts` are what this process
    computes, and `group` are the processes that compute all, None where it is alone.
    """

    inputs: dict[str, Any]
    label_positions: Tensor
    targets: Tensor
    sequence_labels: Tensor | None = None
    cuts: tuple[Cut, ...] = ()
    group: Any = None

    def parts(self) -> Iterator[tuple[Cut, dict[str, Any]]]:
        """Yield every part that this process computes, with its inputs [B, T]."""
        for cut in self.cuts or (Cut(0, 0, *self.inputs["input_ids"].shape),):
            rows, columns = slice(cut.start, cut.stop), slice(cut.width)
            yield cut, {name: one[rows, columns] for name, one in self.inputs.items()}

    def compute_rows(
        self, compute: Callable[[Any], tuple[Tensor, LossTerms]], parts: Iterable[tuple[Cut, Any]]
    ) -> tuple[Tensor, LossTerms]:
        """Compute numbers for every row of the step, part by part, each process some of the parts.

        Activations are not kept: every part is computed again for its gradient, with the same
        dropout.

        Args:
            compute: numbers [B, N] of the rows of a part, and terms that layers add to the loss.
            parts: what this process computes: where each part is, and the argument of `compute`.

        Returns the numbers of all rows, [R, N], and the terms of all parts.
        """
        assert self.sequence_labels is not None
        seed, count = torch.initial_seed(), len(self.sequence_labels)
        rows, terms = torch.zeros((), device=self.targets.device), {}
        for cut, part in parts:
            torch.manual_seed(derived_seed(seed, cut.number))  # dropout is that of the part
            own, added = checkpoint(compute, part, use_reentrant=False)  # type: ignore[misc]
            rows = rows + F.pad(cut.weight * own, (0, 0, cut.start, count - cut.stop))
            terms = {name: cut.weight * one + terms.get(name, 0.0) for name, one in added.items()}
        return self._sum_of_all(rows), {name: self._sum_of_all(one) for name, one in terms.items()}

    def _sum_of_all(self, x: Tensor) -> Tensor:
        """Return the sum over the processes of the step, whose gradients are also summed."""
        return x if self.group is None else _SumOfAll.apply(x, self.group)  # type: ignore[return-value]


class _SumOfAll(torch.autograd.Function):
    """Sums a tensor over the processes of a group, and in the backward pass its gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        context.group, total = group, x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _SumOfAll.forward(context, gradient, context.group), None


def to_device(batch: Batch, device: torch.device) -> TensorBatch:
    """Copy a batch to a device, all integers in one copy."""
    arrays = batch.arrays()
    labels = arrays.pop("labels", np.empty(0, dtype=np.int64)).ravel()
    positions = np.flatnonzero(labels != IGNORE_INDEX)
    sequence_labels = arrays.pop("sequence_labels", None)
    arrays |= {"label_positions": positions, "targets": labels[positions]}
    flat = copy_to_device(np.concatenate([array.ravel() for array in arrays.values()]), device)
    pieces = flat.split([array.size for array in arrays.values()])
    tensors = {
        name: piece.view(array.shape)
        for (name, array), piece in zip(arrays.items(), pieces, strict=True)
    }
    return TensorBatch(
        label_positions=tensors.pop("label_positions"),
        targets=tensors.pop("targets"),
        sequence_labels=None
        if sequence_labels is None
        else copy_to_device(sequence_labels, device),
        inputs=tensors,
    )


def copy_to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device; neither the host nor the computation of a GPU waits for it.

    The host is a step ahead of a GPU. On a stream of its own, the copy from pinned memory runs
    while the GPU still computes the previous step.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor
    stream, current = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        copied = tensor.pin_memory().to(device, non_blocking=True)
    current.wait_stream(stream)
    copied.record_stream(current)  # its memory is free when the computation has used it
    return copied


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which batches are copied to a GPU."""
    return torch.cuda.Stream(device)


BALANCE = "balance"
"""The term of what layers add to a loss, such as the balance of experts: a mean per token.

Of a step it is the mean of what its micro-batches add, each weighted by its real tokens.
"""


def read(
    model: LanguageModule, inputs: Mapping[str, Tensor], *, gather_positions: Tensor | None = None
) -> tuple[Tensor, LossTerms]:
    """Return the hidden states, and the term that layers add to the loss, if they add one.

    Shape: [B, T, D], or of flat positions `gather_positions`, int64 [M], [M, D].
    """
    hidden, loss = model.read(**inputs, gather_positions=gather_positions)
    if loss is None:
        return hidden, {}
    real = inputs.get("attention_mask", inputs.get("document_ids"))
    tokens = inputs["input_ids"].numel() if real is None else real.count_nonzero()
    return hidden, {BALANCE: loss * tokens}


def token_losses(model: LanguageModule, batch: TensorBatch, *, smoothing: float = 0.0) -> LossTerms:
    """Return the nats of the labelled positions by the head over the vocabulary, summed."""
    hidden, terms = read(model, batch.inputs, gather_positions=batch.label_positions)
    return {"loss": model.lm_loss(hidden, batch.targets, smoothing=smoothing), **terms}


class Objective(Choice, Config, ABC):
    """How a model learns from one kind of data.

    A subclass has `kind: Literal["name"] = "name"`, which recipes and commands call it by, and one
    field with a description for every recipe key.
    """

    labelled: ClassVar[bool] = False
    fast: ClassVar[Mapping[str, Any]] = {}
    """Keys whose default is another with `defaults = "fast"`."""
    special_tokens: ClassVar[tuple[str, ...]] = ()
    """Names of the special tokens that it needs, its own or those of roles: `[MASK]` also stands
    for a `<mask>`. New tokenizers have them, and `vocabulary.id_of` gives their ids in `prepare`.
    In the text of a run the names of its own ones are control tokens.
    """
    separates_documents: ClassVar[bool] = True
    """Whether `data.separate_documents` has an effect."""
    needs_documents: ClassVar[bool] = False
    """Whether rows must be taken with `document_ids`."""
    prepares_steps: ClassVar[bool] = False
    """Whether what becomes of a row depends on the other rows of its step."""
    needs_whole_step: ClassVar[bool] = False
    """Whether `loss` compares all rows of a step, such as in-batch negatives. They pass through the
    model in parts, each process some of them (`TensorBatch.compute_rows`); the longest comes first.
    """
    decays_by_passes: ClassVar[bool] = False
    """Whether small new models need faster weight decay from the second pass on."""
    rolls_out: ClassVar[bool] = False
    """Whether a step learns from the model's own samples (`PolicyGradient`)."""
    trains_one_model: ClassVar[bool] = True
    """Whether the module that it builds is one model, whose layers are one above the other."""
    tensor_parallel: ClassVar[bool] = True
    """Whether `loss` works where processes share the head over the vocabulary."""
    shown_mask: ClassVar[str | None] = None
    """What stands for a masked word in examples of models that fill masks."""
    reads_case: ClassVar[bool] = False
    """Whether upper and lower case tell what it learns."""
    family: ClassVar[str | None] = None
    """The only family of models that it trains; None: several."""
    purpose: ClassVar[str] = ""
    """What the objective is for or needs. The message on models that do not fit has it after the
    name of the objective. By default it follows from the family."""
    such_as: ClassVar[str] = ""
    """Some models that fit, and an objective for others, for messages."""
    head: ClassVar[str] = "lm"
    """The kind of the head that is trained, which the model must have."""
    unigram_offset: ClassVar[float | None] = 0.0
    """Nats to add to the unigram baseline to compare it with the loss; None: no comparison."""
    steps_to_context: ClassVar[float] = 700
    """Steps after the warm-up until a loss is clearly below the unigram baseline: about three times
    what `benchmarks/loss_bands.py` measures of the slowest, encoders and post-norm decoders."""

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Whether models of this form were published with this objective."""
        return False

    @property
    def carries_state(self) -> bool:
        """Whether rows are read in order, each with the state that the row before has left."""
        return False

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """The heads the model must have; called before any data is read.

        Raises:
            RecipeError: a model of this form cannot be trained with this objective.
        """
        self.require_fit(spec)
        return (self.require_head(spec),)

    def fits(self, spec: Spec) -> bool:
        """Return whether this objective can train models of this form, apart from their heads."""
        return self.family in (None, spec.family)

    def require_fit(self, spec: Spec) -> None:
        """Raise RecipeError for a model that does not fit."""
        if not self.fits(spec):
            purpose = self.purpose or f"trains {self.family} models"
            raise RecipeError(
                f'objective.kind = "{self.kind}" {purpose}: take {self.such_as}; this model is of '
                f'kind "{spec.kind}", {spec.family}.'
            )

    def require_head(self, spec: Spec) -> Head:
        """Return the model's head that is trained. Raises RecipeError where there is none."""
        for head in spec.heads:
            if head.kind == self.head:
                return head
        known = ", ".join(head.kind for head in spec.heads) or "none"
        raise RecipeError(
            f'objective.kind = "{self.kind}" trains a head of kind "{self.head}"; this model has: '
            f'{known}. Encoders are trained with "masked", decoders with "causal".'
        )

    def check_tokens(self, vocabulary: Vocabulary) -> None:
        """Raise RecipeError where the vocabulary lacks a special token."""
        missing = [name for name in self.special_tokens if vocabulary.find(name) is None]
        if missing:
            raise RecipeError(
                f'objective.kind = "{self.kind}" needs the special token{"s" * (len(missing) > 1)} '
                f"{', '.join(missing)}, and this {vocabulary.kind} tokenizer has none: leave "
                "tokenizer.kind and tokenizer.special_tokens out for all that are needed, or list "
                "every special token in tokenizer.special_tokens, which replaces the usual ones."
            )

    @property
    def control_tokens(self) -> list[str]:
        """The special tokens of its own, whose names in the text of a run are control tokens."""
        return [
            name for name in self.special_tokens if role_of(name) is None and name not in SENTINELS
        ]

    def check_rows(self, packing: str, separate_documents: bool, *, is_mixed: bool) -> None:
        """Raise RecipeError where it does not read rows that are made so, by keys of `[data]`.

        `is_mixed`: there are several sources.
        """
        if separate_documents and not self.separates_documents:
            raise RecipeError(
                f'data.separate_documents has no effect with objective.kind = "{self.kind}", which '
                'reads whole rows: leave it out, or set data.packing = "truncate" for one document '
                "per row."
            )

    @classmethod
    def tokenizer_defaults(cls, spec: Spec) -> dict[str, Any]:
        """Keys of `[tokenizer]` that differ from the defaults: its kind and special tokens."""
        return {}

    def specs(self, spec: Spec) -> tuple[Spec, ...]:
        """Return the specs of all models that are trained, for estimates of memory and FLOPs."""
        return (spec,)

    def build(self, spec: Spec, *, seed: int, device: torch.device) -> nn.Module:
        """Return the module to train, with random weights."""
        return build(spec, seed=seed, device=device)

    def models(self, module: nn.Module) -> dict[str, LanguageModule]:
        """What a run saves of the trained module, by folder in the run; "" is the run itself."""
        return {"": module}  # type: ignore[dict-item]

    def separate(self, module: nn.Module) -> None:
        """Make each of `models` whole, to be loaded and saved, where they share weights."""

    def join(self, module: nn.Module) -> None:
        """Let them share weights again, to be trained."""

    def decoder_start(self, vocabulary: Vocabulary) -> int | None:
        """The first decoder input of an encoder-decoder trained so; None for other models."""
        return None

    def learn(self, rows: Rows, vocabulary: Vocabulary) -> Self:
        """Return the objective fitted to the training text, before the first step."""
        return self

    @abstractmethod
    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return inputs and labels of rows of a step: a pure function of its arguments."""

    def label_counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of labels of every term of the loss, by which its sum is divided."""
        return {"loss": batch.num_labels}

    def term_weights(self) -> Mapping[str, float]:
        """The weight of every term in the loss that is minimised; 1 where a term is left out."""
        return {}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Nats summed over the labels of the batch, term by term; `label_counts` has their number.

        What layers add is one more term (`read`).

        In evaluation mode (`model.training` is False) without label smoothing.
        """
        return token_losses(model, batch)

    def monitor(self) -> Monitor | None:
        """What warns of a run that goes wrong, beside what holds for every loss of text."""
        return None

    def sample(self, lm: LanguageModel, text: str) -> tuple[str, str] | None:
        """A prompt made of a held-out text and the model's output, for the report.

        Here: the beginning of the text with its middle word masked, and predictions for it.
        """
        tokenizer = lm.tokenizer if self.shown_mask and "fill_mask" in lm.capabilities else None
        if tokenizer is None or tokenizer.mask_id is None:
            return None
        masked = mask_middle(text, tokenizer.tokens[tokenizer.mask_id])
        if masked is None:
            return None
        fills = lm.fill_mask(masked[0], top_k=5)
        words = (f'"{fill.token.strip()}" {fill.score:.0%}' for fill in fills)
        return f"{masked[0]} (hidden: {masked[1]})", ", ".join(words)

    def try_it(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """The command shown at the end of a run, after `trivium`; `text` is a held-out one."""
        if self.shown_mask is None:
            return f"generate {run} {shlex.quote(beginning(text, 6) or 'Once upon a time')}"
        prompt, _ = mask_middle(text, self.shown_mask) or (f"The {self.shown_mask} was closed.", "")
        return f"fill-mask {run} {shlex.quote(prompt)}"


class LabelledObjective(Objective):
    """A fine-tuning task: an objective on labelled examples, with the metric of its field.

    Examples are the task's own small dataclass.
    """

    labelled: ClassVar[bool] = True
    unigram_offset: ClassVar[float | None] = None
    batch_examples: ClassVar[int] = 32
    """Examples per step unless the recipe sets `train.batch_examples`."""
    rate_factor: ClassVar[float] = 1.0
    """What the learning rate of fine-tuning is multiplied by, unless the recipe sets one."""
    rate_range: ClassVar[tuple[float, float]] = 0.0, math.inf
    """The lowest and the highest default learning rate; a LoRA adapter takes ten times as much."""
    dropout: ClassVar[float] = 0.1
    """Dropout unless the recipe sets `model.dropout`."""
    epochs: ClassVar[float | None] = None
    """Epochs unless the recipe sets a budget; None: chosen by the number of examples."""
    metric_libraries: ClassVar[Sequence[str]] = ()
    """Optional modules that compute the metrics."""
    generates: ClassVar[bool] = False
    """Metrics need generated text, which is slow: evaluations in training use fewer examples."""
    measures_cut_answers: ClassVar[bool] = False
    """Whether examples count in metrics of whose target nothing is left: as wrong answers."""
    longest: ClassVar[int] = 4096
    """Tokens that are read at once at most, unless the recipe sets `data.length` or the model has
    fewer positions. A row of so many is a micro-batch on a CPU."""
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
        """What the model reads of an example; for checks: equal ones repeat each other."""
        return example.group

    def findings(self, examples: Sequence[Any]) -> list[Finding]:
        """What `check` finds in examples of this task, beside what may be wrong with any."""
        return []

    def weighs_classes(self, examples: Sequence[Any]) -> bool:
        """Return whether `objective.class_weights` helps labels of few examples."""
        return False

    def labels_of(self, examples: Sequence[Any]) -> list[Sequence[str]]:
        """The labels of every example, of which validation gets its share; none for most tasks."""
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

        `EncodedExamples.cuts` says what is cut.
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
        return self.metrics_of(self.answers(lm, examples), examples, lm)

    @abstractmethod
    def answers(self, lm: LanguageModel, examples: Sequence[Any]) -> list[Any]:
        """The model's answers in order, as users get them; those of processes are joined."""

    @abstractmethod
    def metrics_of(self, answers: list[Any], examples: Sequence[Any], lm: LanguageModel) -> Metrics:
        """Return the metrics of the answers to examples."""

    def answered(self, lm: LanguageModel, metrics: Metrics) -> Metrics:
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


def real_tokens(rows: RowBatch) -> np.ndarray:
    """Return which positions of rows are not padding: bool [B, T]."""
    return np.arange(rows.input_ids.shape[1]) < rows.lengths[:, None]


def compact(ids: Ints, shown: Bools, fill: int) -> tuple[Ints, Ints]:
    """Move the shown ids of every row to the left, and fill the rest of the row with `fill`.

    Returns the rows, and the number of ids that are shown in each, [B].

    >>> compact(np.array([[5, 6, 7], [8, 9, 9]]), np.array([[1, 0, 1], [0, 1, 0]], dtype=bool), 0)
    (array([[5, 7],
           [9, 0]]), array([2, 1]))
    """
    sizes = shown.sum(axis=1)
    columns = np.arange(sizes.max(initial=0))
    rows = np.full((len(ids), len(columns)), fill, dtype=np.int64)
    rows[columns < sizes[:, None]] = ids[shown]
    return rows, sizes


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

    Special tokens are no labels where the text is cut: a model would learn to stop in its midst.
    """
    is_text = [text is not None or not one.cut for text in one.texts]
    ids = [token if kept else IGNORE_INDEX for token, kept in zip(one.ids, is_text)]
    return [*ids[1:], IGNORE_INDEX]


def poisson_chances(mean: float, lengths: range) -> Floats:
    """Return the Poisson probability of each of some lengths."""
    return np.exp([n * math.log(mean) - mean - math.lgamma(n + 1) for n in lengths])


def row_inputs(rows: RowBatch) -> dict[str, np.ndarray | None]:
    """What limits attention in rows: padding, or packed documents with positions of their own."""
    if rows.document_ids is None:
        return {"attention_mask": rows.attention_mask}
    positions = positions_in_documents(rows.document_ids)
    return {"document_ids": rows.document_ids, "position_ids": positions}


def positions_in_documents(document_ids: np.ndarray) -> np.ndarray:
    """Positions that start at 0 in every document: int64 [B, T].

    >>> positions_in_documents(np.array([[1, 1, 2, 2, 2]]))
    array([[0, 1, 0, 1, 2]])
    """
    column = np.arange(document_ids.shape[1])
    starts = np.diff(document_ids, axis=1, prepend=-1) != 0
    return column - np.maximum.accumulate(np.where(starts, column, 0), axis=1)


def check_example_ids(examples: EncodedExamples, spec: Spec) -> None:
    """Raise SpecError for an example with an id that the model does not have."""
    check_ids([examples.largest_id("input_ids")], spec.input_vocab_size, "an example")
    check_ids([examples.largest_id("decoder_input_ids")], spec.vocab_size, "an example")
