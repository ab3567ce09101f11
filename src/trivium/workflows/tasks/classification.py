"""Classes of texts and pairs, several labels, numbers: by a head, or as a word that is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from trivium.data import NO_LOSS, Examples
from trivium.data.labelled import LabelledText, label_kind, label_names, read_texts
from trivium.errors import DataError, RecipeError
from trivium.evaluate.classification_metrics import (
    classification_metrics,
    label_indices,
    multi_label_metrics,
    regression_metrics,
)
from trivium.evaluate.metrics import Metrics
from trivium.evaluate.mistakes import worst_mistakes
from trivium.inference.classify import classified
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.objectives import Objective
from trivium.objectives.classification import Classification
from trivium.objectives.told_tokens import ToldTokens
from trivium.spec import AnySpec, ClassifierHead, Head
from trivium.text.inputs import encode_inputs
from trivium.workflows.tasks.base import Measured, Task
from trivium.workflows.tasks.head_forms import check_takes_heads, dense_forms, published_form
from trivium.workflows.tasks.targets import encode_targets

_LM_WEIGHT = 0.5


class ClassificationTask(Task[LabelledText]):
    """[CLS] for encoders, the last token for decoders, the name of the class where one writes."""

    def read(self, paths: Sequence[str], like: Sequence[LabelledText] = ()) -> list[LabelledText]:
        """Labelled texts; the kind of label is that of `like`."""
        section = self.section
        return read_texts(
            list(paths),
            text_field=section.text_field,
            pair_field=section.pair_field,
            label_field=section.label_field,
            kind=label_kind(like) if like else section.labels,
        )

    def settings(self, settings: Settings, train: Sequence[LabelledText]) -> Settings:
        """Names of the labels and their kind."""
        kind = label_kind(train)
        names: tuple[str, ...] = ("value",) if kind == "numbers" else label_names(train)
        if kind == "classes" and len(names) < 2:
            raise DataError(
                f'all {len(train)} examples have the label "{train[0].label}": classification '
                "needs two classes or more."
            )
        return settings.with_labels(names, kind).with_task(
            "classification", prefix=self.section.prefix
        )

    def heads(self, spec: AnySpec, settings: Settings) -> tuple[Head, ...]:
        """A classifier; with a mixed loss the language model's head stays; or that alone."""
        check_takes_heads(spec, "classification")
        lm = tuple(head for head in spec.heads if head.kind == "lm")
        if spec.family == "encoder-decoder":
            if settings.label_kind != "classes":
                raise RecipeError(
                    "an encoder-decoder writes the name of a class: several labels and numbers "
                    "need an encoder or a decoder."
                )
            return lm
        if self.section.prefix:
            raise RecipeError("task.prefix is for an encoder-decoder: leave it out for this model.")
        count = len(settings.labels)
        pooling = self.section.pooling or ("last" if spec.family == "decoder-only" else "first")
        if pooling == "last":
            return (*lm, ClassifierHead(num_labels=count, pooling="last", bias=False))
        # The mean needs no further layer; the first position, which was trained for other
        # things, gets one.
        dense = [None] if pooling == "mean" else dense_forms(spec)
        forms = [ClassifierHead(num_labels=count, pooling=pooling, dense=each) for each in dense]
        return (published_form(spec, forms),)

    def objective(
        self, spec: AnySpec, settings: Settings, train: Sequence[LabelledText]
    ) -> Objective:
        """Cross-entropy of the classes, mixed with that of the next token for decoders."""
        if spec.family == "encoder-decoder":
            return ToldTokens()
        weight = self.section.lm_weight
        tells = any(head.kind == "lm" for head in spec.heads)
        if weight is not None and weight and not tells:
            raise RecipeError(
                "task.lm_weight is for a model that tells the next token (a decoder): leave it "
                "out for this one."
            )
        return Classification(
            kind=label_kind(train),
            class_weights=self._class_weights(settings, train),
            lm_weight=(_LM_WEIGHT if weight is None else weight) if tells else 0.0,
        )

    def _class_weights(
        self, settings: Settings, train: Sequence[LabelledText]
    ) -> tuple[float, ...] | None:
        """N / (L n_l), so that every class counts alike, and a text once on average."""
        if self.section.class_weights == "none":
            return None
        if settings.label_kind != "classes":
            raise RecipeError("task.class_weights is for classes, of which a text has one.")
        counted = Counter(example.label for example in train)
        names = settings.labels
        return tuple(len(train) / (len(names) * counted[name]) for name in names)

    def encode(self, model: LanguageModel, examples: Sequence[LabelledText]) -> Examples:
        """Texts with their labels, and where the model tells it, the next token of each."""
        if model.spec.family == "encoder-decoder":
            prefix = self.section.prefix
            pairs = [(prefix + joined(each), str(each.label)) for each in examples]
            return encode_targets(model, pairs)
        tokenizer = model.text_tokenizer
        given = [(each.text, each.pair) for each in examples]
        inputs = encode_inputs(tokenizer, given, max_length=model.max_length)
        sequences: dict[str, Any] = {"input_ids": [each.ids for each in inputs]}
        if model.module.num_token_types > 1:
            sequences["token_type_ids"] = [each.type_ids for each in inputs]
        if any(head.kind == "lm" for head in model.spec.heads):
            sequences["labels"] = [[*each.ids[1:], NO_LOSS] for each in inputs]
        return Examples(
            sequences,
            text_labels=gold_labels(examples, model.settings),
            pad_id=tokenizer.pad_id or 0,
        )

    def measure(self, model: LanguageModel, examples: Sequence[LabelledText]) -> Measured:
        """Accuracy and F1, or those of several labels, or correlations of numbers."""
        names, kind = model.settings.labels, model.settings.label_kind
        gold = gold_labels(examples, model.settings)
        logits = model.classifier_logits([(each.text, each.pair) for each in examples]).double()
        found = classified(logits.float(), names, kind)
        said = _decided(logits.cpu().numpy(), kind)
        metrics = _metrics(gold, said, settings=model.settings)
        wrong, sure = None, [each.score for each in found]
        predicted = [each.label for each in found]
        right = [str(each.label) for each in examples]
        if kind == "multi-label":
            # In the order of the names on both sides.
            right = [_chosen(row, names) for row in gold]
            predicted = [_chosen(row, names) for row in said]
        if kind == "numbers":
            predicted = [f"{each.score:.3f}" for each in found]
            surprise = np.abs(said - gold)
            wrong, sure = [True] * len(found), (surprise / (1.0 + surprise)).tolist()
        mistakes = worst_mistakes(
            right,
            predicted,
            sure,
            texts=[joined(each) for each in examples],
            where=[each.where for each in examples],
            wrong=wrong,
        )
        answers = [
            {"text": joined(each), "label": label, "predicted": said, "score": answer.score}
            for each, label, said, answer in zip(examples, right, predicted, found)
        ]
        return Measured(metrics, mistakes, tuple(answers))

    def texts(self, examples: Sequence[LabelledText]) -> Iterator[str]:
        """Texts and second texts."""
        for example in examples:
            yield joined(example)
            if isinstance(example.label, str):
                # An encoder-decoder writes it.
                yield example.label

    def try_metrics(self, examples: Sequence[LabelledText], settings: Settings) -> None:
        """With as many right answers as correlations need."""
        gold = gold_labels([*examples] * 2, settings)
        _metrics(gold, gold, settings=settings)

    def check(self, examples: Sequence[LabelledText], settings: Settings) -> None:
        """Labels that the model does not know, and texts without their pair."""
        gold_labels(examples, settings)


def _decided(logits: np.ndarray, kind: str) -> np.ndarray:
    """What a model answers: numbers [N], 0 or 1 for each of several labels [N, L], classes [N]."""
    match kind:
        case "numbers":
            return logits[:, 0]
        case "multi-label":
            return (logits > 0).astype(np.int64)
    return logits.argmax(-1)


def _chosen(several: np.ndarray, names: Sequence[str]) -> str:
    return ", ".join(name for name, chosen in zip(names, several) if chosen)


def _metrics(gold: np.ndarray, predicted: np.ndarray, *, settings: Settings) -> Metrics:
    match settings.label_kind:
        case "numbers":
            return regression_metrics(gold, predicted)
        case "multi-label":
            return multi_label_metrics(gold, predicted, settings.labels)
    return classification_metrics(gold, predicted, settings.labels)


def joined(example: LabelledText) -> str:
    """The text, with its pair behind a space."""
    return example.text if example.pair is None else f"{example.text} {example.pair}"


def gold_labels(examples: Sequence[LabelledText], settings: Settings) -> np.ndarray:
    """The labels as numbers: classes [N], several [N, L], numbers [N].

    Raises DataError, with file and line, at a label that the model does not know.
    """
    labels, names = [each.label for each in examples], settings.labels
    where = [each.where for each in examples]
    match settings.label_kind:
        case "numbers":
            return np.array(labels, dtype=np.float64)
        case "multi-label":
            found = np.zeros((len(examples), len(names)), dtype=np.int64)
            for row, (several, place) in enumerate(zip(labels, where)):
                assert isinstance(several, tuple)
                found[row, label_indices(several, names, where=[place] * len(several))] = 1
            return found
    return np.array(label_indices([str(label) for label in labels], names, where=where))
