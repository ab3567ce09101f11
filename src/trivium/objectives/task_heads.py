"""Heads for fine-tuning tasks, preferably with layers that `transformers` supports."""

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
    """Base class of tasks that put a head on a single-stack model (encoder or decoder)."""

    def fits(self, spec: Spec) -> bool:
        """Return True for models that support task heads, except encoder-decoders."""
        return spec.supports_task_heads and spec.family != "encoder-decoder"


def choose_pooling(spec: Spec) -> ClassifierPooling:
    """Return the default pooling of hidden states for a classifier on this model.

    If the model already has a classification head, the pooling of that head is used. Otherwise the
    default is "mean" for ELMo, "last" for decoders and XLNet, and "first" for other encoders.
    """
    for head in spec.heads:
        if isinstance(head, ClassifierHead):
            return head.pooling
    if spec.is_bilm:
        return "mean"
    ends = spec.family == "decoder-only" or spec.query_stream
    return "last" if ends else "first"


def build_classifier_head(spec: Spec, num_labels: int, pooling: ClassifierPooling) -> Head:
    """Build a text classification head, which classifies the pooled hidden states of a text.

    If the model already has a classification head with this pooling, the new head has the same
    layers.
    """
    own = [head for head in spec.heads if isinstance(head, ClassifierHead)]
    if own and own[0].pooling == pooling:
        return own[0].replace(num_labels=num_labels)
    if pooling == "last":
        last = ClassifierHead(num_labels=num_labels, pooling="last", bias=False)
        summary = last.replace(dense=Dense(activation="tanh"), bias=True)
        return _choose_head(spec, [last, summary])
    # Mean pooling needs no dense layer. The first position was trained for another purpose.
    dense = [None] if pooling == "mean" else [*_candidate_dense_layers(spec), None]
    forms = [ClassifierHead(num_labels=num_labels, pooling=pooling, dense=one) for one in dense]
    return _choose_head(spec, forms)


def build_tagger_head(spec: Spec, num_labels: int) -> Head:
    """Build a token classification head, which classifies the hidden state of every token.

    If the model already has such a head, the new head has the same layers.
    """
    own = [head for head in spec.heads if isinstance(head, TaggerHead)]
    if own:
        return own[0].replace(num_labels=num_labels)
    dense = [None, *_candidate_dense_layers(spec)]
    return _choose_head(spec, [TaggerHead(num_labels=num_labels, dense=one) for one in dense])


def build_span_head(spec: Spec) -> Head:
    """Build a question answering head, which predicts the first and last token of an answer."""
    return _choose_head(
        spec, [SpanHead(dense=one) for one in (None, *_candidate_dense_layers(spec))]
    )


def _choose_head(spec: Spec, candidates: Sequence[Head]) -> Head:
    """Return the first candidate head that `transformers` supports for this model.

    If `transformers` supports none of the candidates, the first candidate is returned.
    """
    published = (one for one in candidates if is_expressible(spec.replace(heads=(one,))))
    return next(published, candidates[0])


def _candidate_dense_layers(spec: Spec) -> list[Dense]:
    """Return the dense layers to try in front of the output layer of a head.

    They are the variants found in published models.
    """
    own = [head.dense for head in spec.heads if isinstance(head, MLMHead) and head.dense]
    with_norm = [
        Dense(activation=activation, bias=bias, norm=True)
        for activation in ("gelu", "gelu_tanh")
        for bias in (False, True)
    ]
    plain = [Dense(activation="tanh"), Dense(activation="gelu")]
    return [*plain, *own, *(dense.replace(norm=False) for dense in own), *with_norm]
