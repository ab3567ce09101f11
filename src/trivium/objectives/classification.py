"""Classification of texts and text pairs: single-label, multi-label or regression."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shlex
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch.nn import functional as F

from trivium.data.batch import Batch
from trivium.data.encoded import EncodedExamples
from trivium.data.records import RECORD_SUFFIXES, Record, RecordOptions, json_type, read_records
from trivium.data.schema import Fields, Slot
from trivium.data.sources import file_format, walk_files
from trivium.data.stored_examples import read_field
from trivium.errors import DataError, RecipeError, shorten
from trivium.files import open_text
from trivium.inference.classify import Classification, label_count
from trivium.interop.settings import LabelKind, Settings
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.models.heads import Head
from trivium.models.heads.text import ClassifierPooling
from trivium.objectives.calibration import compute_calibration
from trivium.objectives.labelled import column_key, encode_texts, field_option, next_token_labels
from trivium.objectives.seq2seq import encode_pairs
from trivium.objectives.task_heads import SingleStackTask, build_classifier_head, choose_pooling
from trivium.objectives.task_metrics import (
    Metrics,
    Mistake,
    compute_class_metrics,
    compute_multi_label_metrics,
    compute_regression_metrics,
    find_label_id,
    find_unknown_labels,
    quote_names,
    read_prediction,
)
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, forward_hidden, token_losses

TEXT = Fields(
    "text pair?",
    (
        *("text", ("text", "pair"), ("text", "text_pair")),
        *(("premise", "hypothesis"), ("sentence1", "sentence2"), ("question1", "question2")),
        *(("text1", "text2"), ("text_a", "text_b")),
        *(("question", "passage"), ("question", "sentence"), ("query", "passage")),
    ),
    ("sentence", "review", "content", "document"),
)
LABEL = Fields(
    "label",
    ("label",),
    ("labels", "gold_label", "score", "class", "category", "intent", "sentiment"),
)
_WHOLE = re.compile(r"([+-]?\d+)\.0+")
_MISSING = {"na", "n/a", "#n/a", "nan", "null", "none", "nil", "missing", "unknown", "?", "-"}
_UNLABELLED = "unsup"  # the folder of unlabelled texts in IMDB
_LM_WEIGHT = 0.5  # Radford et al. 2018, section 4.1


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text or text pair, with its label or labels.

    `label` is a string, or a tuple of strings if there are several labels. Numbers are also stored
    as strings, and whole numbers have no decimal point: "3" and "2.5".
    """

    text: str
    pair: str | None
    label: str | tuple[str, ...]
    where: str

    @property
    def group_key(self) -> str:
        """The key by which examples are grouped when the data is split.

        It is the text, or the first text of a pair. Groups are never divided between splits.
        """
        return self.text

    @property
    def texts(self) -> dict[str, str]:
        """A dict with the text (key `text`) and, for a text pair, the second text (key `pair`)."""
        return {"text": self.text} | ({} if self.pair is None else {"pair": self.pair})

    @property
    def as_text(self) -> str:
        """The text or, for a text pair, both texts joined with a space."""
        return self.text if self.pair is None else f"{self.text} {self.pair}"


class TextClassification(SingleStackTask):
    """Text classification: L = L_label + lambda L_LM.

    The language modelling loss L_LM is used only for decoders with an LM head. The label loss
    L_label depends on the kind of labels. For B texts and N label names it is:

        input_ids        [CLS] a dull film [SEP]
        sequence_labels  0            classes [B]: softmax cross-entropy
                         [1, 0, 1]    multi-label [B, N]: mean of N binary cross-entropies
                         2.5          regression [B]: squared error of the standardised number

    An encoder-decoder generates the name of the class instead:

        input_ids  a dull film </s>      labels  negative </s>

    Source: Devlin et al. 2018, section 4.1; Radford et al. 2018, equations 3 to 5; Raffel et al.
    2019, section 2.4.
    """

    metric_libraries: ClassVar[Sequence[str]] = ("sklearn", "scipy")
    example_type: ClassVar[type | None] = LabelledText
    kind: Literal["classification"] = "classification"
    fields: ClassVar[Sequence[Slot]] = (TEXT, LABEL)
    inputs: ClassVar[Sequence[Fields]] = (TEXT,)
    text_field: str | None = column_key("column of the text", TEXT)
    pair_field: str | None = Field(
        None,
        description="column of a second text; default: usual pairs such as premise, hypothesis",
    )
    label_field: str | None = column_key("column of the label", LABEL)
    label_kind: LabelKind | None = Field(
        None, description="classes, multi-label or regression; default: derived from the data"
    )
    label_separator: str = Field(
        ",", min_length=1, description="separator of several labels in one table cell"
    )
    pooling: ClassifierPooling | None = Field(
        None,
        description="pooling of the hidden states; concat: last, max and mean (ULMFiT); default: "
        "first, for decoders and XLNet last, for ELMo mean",
    )
    lm_weight: float | None = Field(
        None, ge=0, le=1, description="weight lambda of the LM loss of a decoder; default: 0.5"
    )
    class_weights: Literal["none", "balanced"] | tuple[float, ...] = Field(
        "none",
        description="loss weight of each class: balanced (inverse class frequency) or a list",
    )
    prefix: str = Field("", description="task prefix before each input of an encoder-decoder")

    def records(self, paths: Sequence[str], options: RecordOptions) -> Iterator[Record]:
        """Yield the records of JSON Lines, CSV, TSV or Parquet files, or of folders of text files.

        In a folder of text files, each class has a subfolder with .txt files.
        """
        folders = [path for path in paths if _is_class_folder(Path(path))]
        names = self.text_field or "text", self.label_field or "label"
        for folder in folders:
            for path, *values in _read_class_folders(Path(folder), options):
                yield Record(dict(zip(names, values)), path)
        files = [path for path in paths if path not in folders]
        if files:
            yield from read_records(files, options)

    def read_example(self, record: Record) -> LabelledText:
        """Read a text or text pair and its label from a record.

        Raises DataError if a text or the label is missing or blank. If `label_kind` is
        "multi-label", the label may be missing or empty.
        """
        columns = record.columns
        is_number = self.label_kind == "regression"
        value = (record.value if is_number else record.value_with_class_names)(columns["label"])
        has_no_label = self.label_kind == "multi-label" and value in (None, "")
        return LabelledText(
            record.text(columns["text"]),
            record.text(columns["pair"]) if "pair" in columns else None,
            () if has_no_label else normalize_label(value, record.where),
            record.where,
        )

    def read_unlabelled(self, record: Record, lm: LanguageModel) -> LabelledText:
        """Read a text or text pair without a label from a record, to classify it.

        Raises DataError if a text is blank. Also raises DataError if the model was trained on text
        pairs and the record has only one text, or vice versa.
        """
        columns, is_pair = record.columns, "pair" in record.columns
        if lm.settings.reads_pairs not in (None, is_pair):
            raise DataError(
                f"{record.where} has {'a pair' if is_pair else 'one text'}, unlike the examples of "
                f"the model. Choose columns with {field_option('text')} {field_option('pair')}."
            )
        pair = record.text(columns["pair"]) if is_pair else None
        return LabelledText(record.text(columns["text"]), pair, "", record.where)

    def predicted_columns(self, lm: LanguageModel) -> Sequence[str]:
        """Return the names of the columns that `trivium predict` adds to the records.

        The columns contain the two most probable labels and their probabilities. For regression,
        and for models with only one label, there is a single column, `prediction`.
        """
        if lm.settings.label_kind == "regression" or label_count(lm.spec, "classifier") == 1:
            return ("prediction",)
        return "prediction", "score", "runner_up", "runner_up_score"

    def to_columns(self, prediction: Classification, *, in_cell: bool = False) -> tuple[Any, ...]:
        """Return the values of the output columns (`predicted_columns`) for one prediction.

        The values are the predicted label or labels, their probability, the most probable other
        label and its probability. For regression, the only value is the predicted number. If
        `in_cell`, several labels are joined into one string for a table cell.
        """
        if not prediction.scores:
            return (prediction.score,)
        labels = (prediction.label,) if isinstance(prediction.label, str) else prediction.label
        others = (pair for pair in prediction.scores.items() if pair[0] not in labels)
        several = self.label_separator.join(labels) if in_cell else list(labels)
        label = prediction.label if isinstance(prediction.label, str) else several
        return label, prediction.score, *next(others, (None, None))

    def infer_keys(self, spec: Spec, examples: Sequence[LabelledText]) -> Self:
        """Return the objective with default values for `label_kind` and `lm_weight` filled in.

        `label_kind` is inferred from the examples. `lm_weight` is set only if the model keeps its
        LM head. Warns if the inferred kind is "classes" but the labels look like ratings or missing
        values. Raises RecipeError if a recipe key does not suit the model or the kind of labels.
        """
        kind = self.label_kind or infer_label_kind(examples)
        if kind == "classes" and self.label_kind is None:
            for problem in find_label_problems(self.label_names(examples)):
                warnings.warn(problem, stacklevel=2)
        weights = self.class_weights
        if spec.family == "encoder-decoder" and kind != "classes":
            raise RecipeError(
                f'an encoder-decoder generates the name of one class, not labels of kind "{kind}": '
                "use an encoder or a decoder."
            )
        if weights != "none" and (kind != "classes" or spec.family == "encoder-decoder"):
            raise RecipeError(
                "objective.class_weights needs one class per text and a model with a classifier "
                "head: leave it out."
            )
        lm_weight = self.lm_weight
        kinds = {head.kind for head in self.heads(spec, ("A", "B"))}
        if lm_weight is None and {"lm", "classifier"} <= kinds:  # the LM head is kept
            lm_weight = _LM_WEIGHT
        return self.replace(label_kind=kind, lm_weight=lm_weight)

    def adapt_to_model(self, settings: Settings, examples: Sequence[LabelledText]) -> Self:
        """Adopt the label kind of a classifier that is fine-tuned again, if the new labels fit it.

        `settings` are the settings of this classifier. The label kind is changed only if the
        classifier is multi-label or regression, and the new labels look like classes but can also
        be read as labels of its kind. Returns the new objective, or else the objective unchanged.
        """
        known, kind = settings.labels, settings.label_kind
        if not known or self.label_kind or settings.task not in (None, self.kind):
            return self
        if kind == "classes" or infer_label_kind(examples) != "classes":
            return self
        multi_label = self.replace(label_kind="multi-label")
        fits = all(_parse_number(label) is not None for label in _find_labels(examples))
        if kind == "multi-label":
            fits = not {*multi_label.label_names(examples)}.isdisjoint(known)
        return self.replace(label_kind=kind) if fits else self

    def with_labels(self, labels: Sequence[str], examples: Sequence[LabelledText]) -> Self:
        """Return the objective with `class_weights` as numbers, in the order of `labels`.

        If `class_weights` is "balanced", classes without examples have weight 1. If it is "none",
        it remains unchanged. Raises RecipeError if the number of weights differs from the number of
        classes.
        """
        weights = self.class_weights
        if weights == "balanced":
            labels_of_all = read_field(examples, "label")
            counts = Counter(label for label in labels_of_all if isinstance(label, str))
            mean = len(examples) / len(counts)
            weights = tuple(mean / counts[name] if counts[name] else 1.0 for name in labels)
        if isinstance(weights, tuple) and len(weights) != len(labels):
            raise RecipeError(
                f"objective.class_weights has {len(weights)} numbers for {len(labels)} classes: "
                f"{quote_names(labels)}."
            )
        return self.replace(class_weights=weights)

    def with_label_statistics(self, settings: Settings, train: Sequence[LabelledText]) -> Settings:
        """Return the settings with the mean and standard deviation of the regression labels.

        These statistics are used to standardise the labels. For other kinds of labels, the settings
        are returned unchanged.
        """
        if settings.label_kind != "regression":
            return settings
        numbers = self._encode_labels(train, settings)
        mean = float(numbers.mean())
        deviation = float(numbers.std()) if np.ptp(numbers) > 0 else abs(mean) or 1.0
        return settings.with_label_scale(mean, deviation)

    def label_names(self, examples: Sequence[LabelledText]) -> tuple[str, ...]:
        """Return the distinct label names in the examples, sorted; ("value",) for regression."""
        kind = self.label_kind or infer_label_kind(examples)
        if kind == "regression":
            return ("value",)
        firsts = (examples[index] for index in _find_labels(examples).values())
        return sort_naturally(name for one in firsts for name in self._split_labels(one, kind))

    def supports_class_weights(self, examples: Sequence[LabelledText]) -> bool:
        """Return whether the labels are classes (one per text), as `class_weights` requires."""
        return (self.label_kind or infer_label_kind(examples)) == "classes"

    def input_text(self, example: LabelledText) -> str:
        """Return the text of an example, or both texts of a pair joined with a space."""
        return example.as_text

    def labels_by_example(self, examples: Sequence[LabelledText]) -> Iterator[Sequence[str]]:
        """Yield a sequence of labels for each example. For regression, the sequences are empty."""
        kind = self.label_kind or infer_label_kind(examples)
        for one in examples:
            yield () if kind == "regression" else self._split_labels(one, kind)

    def add_settings(self, settings: Settings, examples: Sequence[LabelledText]) -> Settings:
        """Add the label names, the label kind and the options of the task to the settings.

        Raises DataError if there is only one class, or if there are implausibly many classes for
        the number of examples.
        """
        kind, names = self.label_kind or infer_label_kind(examples), self.label_names(examples)
        if kind == "classes" and len(names) < 2:
            raise DataError(
                f"all {len(examples)} examples have the label {quote_names(names)}: classification "
                "needs two classes or more."
            )
        most = max(100, len(examples) / 2)
        if kind == "classes" and len(names) > min(most, _count_texts(examples, len(names))):
            num_texts = _count_texts(examples, len(examples))
            raise DataError(
                f"{len(examples)} examples have {len(names)} different labels, such as "
                f"{quote_names(names[:3])}, and {num_texts} different texts, such as "
                f'"{shorten(examples[0].text)}": are the columns of text and label swapped? Name '
                f"them with {field_option('text')} {field_option('label')}. Numbers are predicted "
                "with --set objective.label_kind=regression."
            )
        are_pairs = {pair is not None for pair in read_field(examples, "pair")}
        options = {
            "prefix": self.prefix,
            "label_separator": self.label_separator,
            "pairs": are_pairs.pop() if len(are_pairs) == 1 else None,
        }
        return settings.with_labels(names, kind).with_task("classification", **options)

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return the heads of the model.

        An encoder-decoder has only its LM head. All other models have a classification head with
        one output per label. With the pooling "last", they also keep the LM head if they have one.

        Raises RecipeError if the model has no hidden states for a classification head, or if a
        recipe key does not suit the model.
        """
        self.require_fit(spec)
        lm = tuple(head for head in spec.heads if head.kind == "lm" and not spec.is_bilm)
        if spec.family == "encoder-decoder":
            return lm
        if self.prefix:
            raise RecipeError("objective.prefix is for an encoder-decoder: leave it out.")
        if self.lm_weight and not lm:
            raise RecipeError("objective.lm_weight is for a decoder with an LM head: leave it out.")
        pooling = self.pooling or choose_pooling(spec)
        lm = lm if pooling == "last" else ()
        return *lm, build_classifier_head(spec, len(labels), pooling)

    def fits(self, spec: Spec) -> bool:
        """Return whether a classification head (or another task head) can be added to the model."""
        return spec.supports_task_heads

    def encode(self, examples: Sequence[LabelledText], lm: LanguageModel) -> EncodedExamples:
        """Encode the texts and their labels for training.

        If a decoder keeps its LM head, each token also has the next token as its label. The target
        text of an encoder-decoder is the class name.
        """
        labels = self._encode_labels(examples, lm.settings)
        if lm.settings.label_kind == "regression":
            mean, deviation = lm.settings.label_scale
            labels = ((labels - mean) / deviation).astype(np.float32)
        if lm.spec.family == "encoder-decoder":
            names = lm.settings.labels
            pairs = [(self.prefix + one.as_text, names[i]) for one, i in zip(examples, labels)]
            return encode_pairs(lm, pairs)
        inputs, sequences = encode_texts(lm, [(one.text, one.pair) for one in examples])
        if any(head.kind == "lm" for head in lm.spec.heads):
            sequences["labels"] = [next_token_labels(one) for one in inputs]
        truncations, pad_id = [(one.cut, 1, 0) for one in inputs], lm.source_tokenizer.pad_id
        return EncodedExamples(
            sequences, sequence_labels=labels, truncations=truncations, pad_id=pad_id
        )

    def loss_denominators(self, batch: Batch) -> dict[str, int]:
        """Return the number of labels per loss term.

        If there is a label loss and an LM loss, "task" is the number of texts and "lm" the number
        of next-token labels. Otherwise the only term is "loss": the number of target tokens for an
        encoder-decoder, and the number of texts for other models.
        """
        if batch.sequence_labels is None or batch.labels is None:
            return super().loss_denominators(batch)
        return {"task": batch.num_rows, "lm": batch.num_labels}

    def term_weights(self) -> dict[str, float]:
        """Return the weights of the loss terms, by name: lambda for the LM loss (see the class)."""
        return {"lm": _LM_WEIGHT if self.lm_weight is None else self.lm_weight}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return the loss terms, each summed over the labels of the batch.

        If a decoder keeps its LM head, the terms are "task" (label loss) and "lm" (LM loss).
        Otherwise the only term is "loss". The auxiliary loss of the model is added as a separate
        term. Cross-entropies are in nats.
        """
        labels = batch.sequence_labels
        if labels is None:
            return token_losses(model, batch)
        hidden, terms = forward_hidden(model, batch.inputs)
        mask = batch.inputs.get("attention_mask")
        logits = model.logits(hidden, head="classifier", attention_mask=mask).float()
        if labels.ndim == 2:
            losses = F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none")
            total = losses.mean(-1).sum()
        elif labels.is_floating_point():
            total = F.mse_loss(logits[:, 0], labels.float(), reduction="sum")
        else:
            weight = None
            if isinstance(self.class_weights, tuple):
                weight = torch.tensor(self.class_weights, device=logits.device)
            total = F.cross_entropy(logits, labels, weight=weight, reduction="sum")
        if "lm" not in model.heads:
            return {"loss": total, **terms}
        positions = hidden.flatten(0, 1).index_select(0, batch.label_positions)
        nats = model.lm_loss(positions, batch.targets)
        return {"task": total, "lm": nats, **terms}

    def source_texts(self, examples: Sequence[LabelledText]) -> Iterator[str]:
        """Return an iterator over the input texts, each with the task prefix prepended."""
        return (self.prefix + one.as_text for one in examples)

    def target_texts(self, examples: Sequence[LabelledText]) -> Iterator[str]:
        """Return an iterator over the class name of each example, for encoder-decoders."""
        return (one.label for one in examples if isinstance(one.label, str))

    def predict(self, lm: LanguageModel, examples: Sequence[LabelledText]) -> list[Classification]:
        """Return the classification of each text or text pair by `lm.classify`."""
        return lm.classify([(one.text, one.pair) for one in examples])

    def compute_metrics(
        self, predictions: list[Classification], examples: Sequence[LabelledText], lm: LanguageModel
    ) -> Metrics:
        """Compute metrics for the kind of labels, and collect the predictions and the mistakes.

        The metrics of classes include accuracy, F1 and Matthews correlation. The metrics of
        multi-label examples include F1 scores, and the metrics of regression include correlations.
        """
        names, kind = lm.settings.labels, lm.settings.label_kind
        if kind == "regression":
            gold = self._encode_labels(examples, lm.settings)
            return _compute_regression_metrics(
                examples, gold, [answer.score for answer in predictions]
            )
        probabilities = np.array(
            [[answer.scores[name] for name in names] for answer in predictions]
        )
        more, notes = find_unknown_labels(
            [self._split_labels(one, kind) for one in examples], names
        )
        names = (*names, *more)
        probabilities = np.pad(
            probabilities.reshape(len(predictions), -1), ((0, 0), (0, len(more)))
        )
        gold = self._encode_labels(examples, lm.settings.with_labels(names, kind))
        if kind == "multi-label":
            chosen = probabilities > 0.5
            metrics = compute_multi_label_metrics(gold, chosen, names)
            expected, predicted = (
                [[name for name, applies in zip(names, row) if applies] for row in rows]
                for rows in (gold, chosen)
            )
        else:
            best = probabilities.argmax(-1)
            metrics = compute_class_metrics(gold, best, names)
            scores = np.array([answer.score for answer in predictions])
            if np.isfinite(scores).all():
                calibration = compute_calibration(gold == best, scores)
                metrics = dataclasses.replace(metrics, calibration=calibration)
            expected, predicted = ([names[i] for i in indices] for indices in (gold, best))
        rows = [
            {**one.texts, "label": right, "predicted": label, "score": answer.score}
            for one, right, label, answer in zip(examples, expected, predicted, predictions)
        ]
        mistakes = (
            Mistake(one.where, one.as_text, _join_labels(right), _join_labels(label), answer.score)
            for one, right, label, answer in zip(examples, expected, predicted, predictions)
            if right != label
        )
        return dataclasses.replace(metrics, notes=notes).with_examples(rows, mistakes)

    def suggest_command(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return a `classify` command with a validation example, without the leading `trivium`."""
        example = read_prediction(run)
        pair = f" --pair {shlex.quote(str(example['pair']))}" if "pair" in example else ""
        return f"classify {run} {shlex.quote(str(example.get('text', 'a text of yours')))}{pair}"

    def _split_labels(self, example: LabelledText, kind: str) -> Sequence[str]:
        """Return the label names of an example. If `kind` is "classes", there is only one.

        For multi-label examples, a string is split at `label_separator`. Raises DataError if a name
        occurs twice, or if `kind` is "classes" and the example has a list of labels.
        """
        if kind == "classes" and isinstance(example.label, str):
            return (example.label,)
        names = example.label
        if isinstance(names, str):
            parts = names.split(self.label_separator)
            names = tuple(_normalize_label(part, example.where) for part in parts if part.strip())
        if kind == "classes" or len(set(names)) < len(names):
            raise DataError(
                f"{example.where} has the labels {', '.join(names)}: name each class that applies "
                "once, not 0 or 1 for each class."
            )
        return names

    def _encode_labels(self, examples: Sequence[LabelledText], settings: Settings) -> NDArray[Any]:
        """Encode the labels of N examples as an array, for a model with L label names.

        The array depends on the kind of labels:

        - classes: the class indices, int64 [N].
        - multi-label: 1 for each label of the example and 0 for all others, float32 [N, L].
        - regression: the numbers, float64 [N].

        Raises DataError, with file and line, if the model does not know a label or, for regression,
        if a label is not a number.
        """
        kind = settings.label_kind
        if kind == "regression":
            values = [_parse_number(one.label) for one in examples]
            for one, value in zip(examples, values):
                if value is None:
                    raise DataError(f'the label of {one.where} is "{one.label}", not a number.')
            return np.array(values, dtype=np.float64)
        ids = {name: i for i, name in enumerate(settings.labels)}
        indices = [
            [find_label_id(name, ids, one.where) for name in self._split_labels(one, kind)]
            for one in examples
        ]
        if kind == "classes":
            return np.array([row[0] for row in indices], dtype=np.int64)
        array = np.zeros((len(examples), len(ids)), dtype=np.float32)
        for row, columns in zip(array, indices):
            row[columns] = 1.0
        return array


def _find_labels(examples: Sequence[LabelledText]) -> dict[str | tuple[str, ...], int]:
    """Return the distinct labels, each with the index of the first example that has it."""
    indices: dict[str | tuple[str, ...], int] = {}
    for index, label in enumerate(read_field(examples, "label")):
        if label not in indices:
            indices[label] = index
    return indices


def _count_texts(examples: Sequence[LabelledText], limit: int) -> int:
    """Return the number of different texts, counted only up to `limit`."""
    texts = set[str]()
    for one in examples:
        texts.add(one.text)
        if len(texts) >= limit:
            break
    return len(texts)


def _join_labels(label: str | list[str]) -> str:
    """Return a label unchanged, or a list of labels as one string, separated by commas."""
    return label if isinstance(label, str) else ", ".join(label)


def _compute_regression_metrics(
    examples: Sequence[LabelledText], references: NDArray[np.float64], predictions: Sequence[float]
) -> Metrics:
    """Compute the regression metrics. All examples are listed as mistakes, largest error first."""
    rows = [
        {**one.texts, "label": label, "predicted": number}
        for one, label, number in zip(examples, references.tolist(), predictions)
    ]
    by_error = sorted(
        zip(examples, rows), key=lambda pair: -abs(pair[1]["label"] - pair[1]["predicted"])
    )
    mistakes = [
        Mistake(one.where, one.as_text, f"{row['label']:g}", f"{row['predicted']:.3f}")
        for one, row in by_error
    ]
    return compute_regression_metrics(references, np.array(predictions)).with_examples(
        rows, mistakes
    )


def infer_label_kind(examples: Sequence[LabelledText]) -> LabelKind:
    """Infer the kind of labels from the labels of the examples.

    The kind is "multi-label" if the labels are lists. It is "regression" if they are numbers and at
    least one of them is not a whole number. Otherwise it is "classes".

    Raises:
        DataError: there are no examples, only some of the labels are lists, all labels are numbers
            except some that are missing or not finite, or numbers have a decimal comma.
    """
    if not examples:
        raise DataError("there is no labelled example.")
    places = {label: examples[index].where for label, index in _find_labels(examples).items()}
    lists = [label for label in places if isinstance(label, tuple)]
    if lists:
        other = next((label for label in places if not isinstance(label, tuple)), None)
        if other is not None:
            raise DataError(
                f"{places[other]} has one label, {places[lists[0]]} has a list. All labels are "
                "classes, lists of classes, or numbers."
            )
        return "multi-label"
    numbers = {label: _parse_number(label) for label in places}
    fractions = any(number is not None and number % 1 for number in numbers.values())
    others = [str(label) for label, number in numbers.items() if number is None]
    names = {label.lower() for label in others}
    not_finite = {name for name in names if name.strip("+-") in ("nan", "inf", "infinity")}
    if len(others) < len(numbers) and names <= (_MISSING if fractions else set()) | not_finite:
        for label in others:
            raise DataError(
                f'the label of {places[label]} is "{label}" among numbers. Fill it in, or remove '
                "the example; where it is a class, set objective.label_kind=classes."
            )
    commas = [label for label in others if re.fullmatch(r"[+-]?\d+,\d+", label)]
    if commas and len(commas) == len(others):
        raise DataError(
            f'the label of {places[commas[0]]} is "{commas[0]}". Write numbers with a point '
            "(3.5); for several labels in a cell set objective.label_kind=multi-label."
        )
    return "regression" if fractions and not others else "classes"


def find_label_problems(names: Sequence[str]) -> list[str]:
    """Return warnings about class names that may not be classes.

    Names such as "n/a" may be missing labels. Whole numbers may be ratings or amounts.
    """
    problems = []
    missing = [name for name in names if name.lower() in _MISSING]
    if missing:
        problems.append(
            f"the label {quote_names(missing)} is a class like the others. If it means that the "
            "label is missing, remove these examples."
        )
    numbers = [_parse_number(name) for name in names]
    known = [number for number in numbers if number is not None]
    # 0, 1, 2 and long ranges from 0 on are usually class ids.
    are_ids = known == list(range(len(known))) and not 3 < len(known) < 12
    if len(known) == len(names) > 2 and not are_ids:
        problems.append(
            f"the labels are {len(names)} whole numbers from {names[0]} to {names[-1]}, read as "
            "classes without an order. If they are a rating or an amount, "
            "objective.label_kind=regression (regression) predicts it as a number."
        )
    return problems


def sort_naturally(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names, sorted in natural order: "a9" comes before "a10".

    >>> sort_naturally(["a10", "b", "a9", "b"]), sort_naturally(["10", "9", "-1"])
    (('a9', 'a10', 'b'), ('-1', '9', '10'))
    """

    def sort_key(name: str) -> tuple[float, str, str]:
        """Return a sort key: numbers come first, by value; numbers inside names are padded."""
        number = _parse_number(name)
        padded = re.sub("[0-9]+", lambda digits: digits[0].zfill(20), name)
        return (-math.inf, padded, name) if number is None else (number, "", name)

    return tuple(sorted(set(names), key=sort_key))


def normalize_label(value: Any, location: str) -> str | tuple[str, ...]:
    """Normalise a label from a file. Returns its name, or a tuple of names for a list of labels.

    `location` is the file and the line, for error messages. Raises DataError if a value cannot be a
    label, for example null or an object.
    """
    if isinstance(value, list):
        return tuple(_normalize_label(item, location) for item in value)
    return _normalize_label(value, location)


def _normalize_label(value: Any, location: str) -> str:
    """Normalise a single label from a file. Returns its name.

    Different spellings of the same value have the same name: true and True become "true", and 1 and
    1.0 become "1". Raises DataError, with the file and line `location`, if the value is not a
    string, a number or a boolean.
    """
    value = float(value) if isinstance(value, Decimal) else value
    kind = json_type(value)
    if kind not in ("a string", "a number", "true or false"):
        raise DataError(f"the label of {location} is {kind}. Fill it in, or remove the example.")
    name = unicodedata.normalize("NFC", str(value).strip())
    if name.lower() in ("true", "false"):
        return name.lower()
    whole = _WHOLE.fullmatch(name)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(int(whole[1])) if whole else name


def _parse_number(label: object) -> float | None:
    """Parse a label as a number. Returns None if the label is not a finite number."""
    try:
        number = float(label) if isinstance(label, str) and "_" not in label else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _is_class_folder(folder: Path) -> bool:
    """Return whether a folder and its subfolders contain .txt files, but no record files."""
    formats = {file_format(path.name) for path in (*folder.glob("*"), *folder.glob("*/*"))}
    return ".txt" in formats and not formats & {*RECORD_SUFFIXES}


def _read_class_folders(folder: Path, options: RecordOptions) -> Iterator[tuple[str, str, str]]:
    """Yield the path, text and label of each .txt file. The label is the name of its folder.

    If subfolders contain .txt files, those directly in `folder` are skipped, such as `urls_pos.txt`
    of IMDB. Folders named `unsup` are also skipped: in IMDB this folder has unlabelled texts.
    Raises DataError if a file is more than one folder below `folder`.
    """
    paths = [Path(path) for path in walk_files(folder) if path.endswith(".txt")]
    for path in [path for path in paths if path.parent != folder] or paths:
        if folder not in (path.parent, path.parent.parent):
            raise DataError(
                f"{path} is more than one folder below {folder}. Name the folder whose sub-folders "
                "are the classes."
            )
        if path.parent.name != _UNLABELLED:
            with open_text(path, errors=options.errors, encoding=options.encoding) as file:
                label = os.path.basename(os.path.abspath(path.parent))
                yield str(path), file.read().strip(), label
