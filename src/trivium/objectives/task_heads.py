"""Heads for fine-tuning tasks, in a form that `transformers` supports for the model, if any."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.interop.convert import is_expressible
from trivium.models.base_model import Spec
from trivium.models.heads import Dense, Head
from trivium.models.heads.text import ClassifierHead, ClassifierPooling
from trivium.models.heads.tokens import SpanHead, TaggerHead
from trivium.models.heads.vocabulary import MLMHead
from trivium.objectives.labelled import LabelledObjective


class SingleStackTask(LabelledObjective):
    """Base class of tasks with a head for models with one stack (encoder-only or decoder-only)."""

    def fits(self, spec: Spec) -> bool:
        """Return whether the model has a single stack that supports task heads."""
        return spec.supports_task_heads and spec.family != "encoder-decoder"


def choose_pooling(spec: Spec) -> ClassifierPooling:
    """Choose how a classifier pools the hidden states of this model by default.

    If the model has a classifier head, its pooling is used. Otherwise the default is "mean" for
    ELMo, "last" for decoders and XLNet, and "first" for other encoders.
    """
    for head in spec.heads:
        if isinstance(head, ClassifierHead):
            return head.pooling
    if spec.is_bilm:
        return "mean"
    ends = spec.family == "decoder-only" or spec.query_stream
    return "last" if ends else "first"


def build_classifier_head(spec: Spec, num_labels: int, pooling: ClassifierPooling) -> Head:
    """Build a head that classifies a text by its pooled hidden states.

    If the model has a classifier head with this pooling, the new head has the same layers.
    """
    own = [head for head in spec.heads if isinstance(head, ClassifierHead)]
    if own and own[0].pooling == pooling:
        return own[0].replace(num_labels=num_labels)
    if pooling == "last":
        last = ClassifierHead(num_labels=num_labels, pooling="last", bias=False)
        summary = last.replace(dense=Dense(activation="tanh"), bias=True)
        return _choose_head(spec, [last, summary])
    # Mean pooling needs no dense layer. The first position was trained for another purpose.
    dense = [None] if pooling == "mean" else [*_list_dense_layers(spec), None]
    forms = [ClassifierHead(num_labels=num_labels, pooling=pooling, dense=one) for one in dense]
    return _choose_head(spec, forms)


def build_tagger_head(spec: Spec, num_labels: int) -> Head:
    """Build a head that classifies every token.

    If the model has such a head, the new head has the same layers.
    """
    own = [head for head in spec.heads if isinstance(head, TaggerHead)]
    if own:
        return own[0].replace(num_labels=num_labels)
    dense = [None, *_list_dense_layers(spec)]
    return _choose_head(spec, [TaggerHead(num_labels=num_labels, dense=one) for one in dense])


def build_span_head(spec: Spec) -> Head:
    """Build a head that predicts the first and the last token of an answer."""
    return _choose_head(spec, [SpanHead(dense=one) for one in (None, *_list_dense_layers(spec))])


def _choose_head(spec: Spec, candidates: Sequence[Head]) -> Head:
    """Return the first of several candidate heads that `transformers` supports for this model.

    If it supports none of the candidates, return the first one.
    """
    published = (one for one in candidates if is_expressible(spec.replace(heads=(one,))))
    return next(published, candidates[0])


def _list_dense_layers(spec: Spec) -> list[Dense]:
    """Return the dense layers that published heads use before the output layer."""
    own = [head.dense for head in spec.heads if isinstance(head, MLMHead) and head.dense]
    with_norm = [
        Dense(activation=activation, bias=bias, norm=True)
        for activation in ("gelu", "gelu_tanh")
        for bias in (False, True)
    ]
    plain = [Dense(activation="tanh"), Dense(activation="gelu")]
    return [*plain, *own, *(dense.replace(norm=False) for dense in own), *with_norm]
