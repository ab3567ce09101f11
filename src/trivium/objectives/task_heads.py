"""Heads of fine-tuning tasks, in the form that the model's Hugging Face family has."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.errors import RecipeError
from trivium.interop.convert import is_expressible
from trivium.spec import (
    AnySpec,
    ClassifierHead,
    Dense,
    Head,
    MLMHead,
    ModelSpec,
    NGramSpec,
    Pooling,
    RNNSpec,
    SpanHead,
    TaggerHead,
)


def require_encoding(spec: AnySpec, task: str) -> None:
    """Raise RecipeError for models that have no hidden states a head of their own can read."""
    if isinstance(spec, NGramSpec):
        what = "an n-gram model, which sees a few tokens of a text"
    elif isinstance(spec, RNNSpec) and spec.direction == "two-way":
        what = "a bidirectional LM, whose two directions share the head over the vocabulary"
    else:
        return
    raise RecipeError(
        f"{task} needs a head of its own, and this is {what}: take an encoder (bert-mini), a "
        "decoder (llama-mini) or an RNN (lstm-mini, bilstm-mini)."
    )


def classifier_head(spec: AnySpec, num_labels: int, pooling: Pooling) -> Head:
    """A classifier of one vector of a text."""
    if pooling == "last":
        return ClassifierHead(num_labels=num_labels, pooling="last", bias=False)
    # The mean needs no further layer; the first position was trained for something else.
    dense = [None] if pooling == "mean" else [*_dense_layers(spec), None]
    forms = [ClassifierHead(num_labels=num_labels, pooling=pooling, dense=one) for one in dense]
    return _published(spec, forms)


def tagger_head(spec: AnySpec, num_labels: int) -> Head:
    """A classifier of every position."""
    dense = [None, *_dense_layers(spec)]
    return _published(spec, [TaggerHead(num_labels=num_labels, dense=one) for one in dense])


def span_head(spec: AnySpec) -> Head:
    """The logits of the first and the last token of an answer."""
    return _published(spec, [SpanHead(dense=one) for one in (None, *_dense_layers(spec))])


def _published(spec: AnySpec, forms: Sequence[Head]) -> Head:
    """The first form that a family of `transformers` has on such a model, else the first of all."""
    if isinstance(spec, ModelSpec):
        for head in forms:
            if is_expressible(spec.replace(heads=(head,))):
                return head
    return forms[0]


def _dense_layers(spec: AnySpec) -> list[Dense]:
    """Dense layers before the last matrix, as heads of some family have them."""
    own = [head.dense for head in spec.heads if isinstance(head, MLMHead) and head.dense]
    with_norm = [
        Dense(activation=activation, bias=bias, norm=True)
        for activation in ("gelu", "gelu_tanh")
        for bias in (False, True)
    ]
    return [Dense(activation="tanh"), Dense(activation="gelu"), *own, *with_norm]
