"""Heads of fine-tuning tasks, in the form that the model's Hugging Face family has."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.interop.convert import is_expressible
from trivium.models.base_model import Spec
from trivium.models.heads import Dense, Head
from trivium.models.heads.text import ClassifierHead, ClassifierPooling
from trivium.models.heads.tokens import SpanHead, TaggerHead
from trivium.models.heads.vocabulary import MLMHead
from trivium.objectives.labelled import LabelledObjective


class ReadsStates(LabelledObjective):
    """A task whose own head, or whose loss, reads the hidden states of a text."""

    def fits(self, spec: Spec) -> bool:
        """Return whether one stack reads a text, and has hidden states that a head can read."""
        return spec.supports_task_heads and spec.family != "encoder-decoder"


def default_pooling(spec: Spec) -> ClassifierPooling:
    """The vector of a text that is classified: that of the head that the model has already, else
    one that has read all of the text, or the mean.
    """
    for head in spec.heads:
        if isinstance(head, ClassifierHead):
            return head.pooling
    if spec.is_bilm:
        return "mean"
    ends = spec.family == "decoder-only" or spec.query_stream
    return "last" if ends else "first"


def classifier_head(spec: Spec, num_labels: int, pooling: ClassifierPooling) -> Head:
    """A classifier of one vector of a text, in the form that the model already has."""
    own = [head for head in spec.heads if isinstance(head, ClassifierHead)]
    if own and own[0].pooling == pooling:
        return own[0].replace(num_labels=num_labels)
    if pooling == "last":
        last = ClassifierHead(num_labels=num_labels, pooling="last", bias=False)
        summary = last.replace(dense=Dense(activation="tanh"), bias=True)
        return _published(spec, [last, summary])
    # The mean needs no further layer; the first position was trained for something else.
    dense = [None] if pooling == "mean" else [*_dense_layers(spec), None]
    forms = [ClassifierHead(num_labels=num_labels, pooling=pooling, dense=one) for one in dense]
    return _published(spec, forms)


def tagger_head(spec: Spec, num_labels: int) -> Head:
    """Return a classifier of every position, in the form that the model already has."""
    own = [head for head in spec.heads if isinstance(head, TaggerHead)]
    if own:
        return own[0].replace(num_labels=num_labels)
    dense = [None, *_dense_layers(spec)]
    return _published(spec, [TaggerHead(num_labels=num_labels, dense=one) for one in dense])


def span_head(spec: Spec) -> Head:
    """Return the head that finds the first and the last token of an answer."""
    return _published(spec, [SpanHead(dense=one) for one in (None, *_dense_layers(spec))])


def _published(spec: Spec, forms: Sequence[Head]) -> Head:
    """The first form that a family of `transformers` has on such a model, else the first of all."""
    published = (one for one in forms if is_expressible(spec.replace(heads=(one,))))
    return next(published, forms[0])


def _dense_layers(spec: Spec) -> list[Dense]:
    """Return dense layers before the last matrix, as heads of some family have them."""
    own = [head.dense for head in spec.heads if isinstance(head, MLMHead) and head.dense]
    with_norm = [
        Dense(activation=activation, bias=bias, norm=True)
        for activation in ("gelu", "gelu_tanh")
        for bias in (False, True)
    ]
    plain = [Dense(activation="tanh"), Dense(activation="gelu")]
    return [*plain, *own, *(dense.replace(norm=False) for dense in own), *with_norm]
