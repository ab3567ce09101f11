"""The form of a head: that of Hugging Face's class for the model's family, so that it exports."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.errors import RecipeError
from trivium.interop.convert import FAMILIES
from trivium.spec import AnySpec, Dense, Head, MLMHead, ModelSpec, NGramSpec, RNNSpec


def check_takes_heads(spec: AnySpec, task: str) -> None:
    """Refuse models whose form has a vocabulary's head alone. Raises RecipeError."""
    if isinstance(spec, NGramSpec):
        what = "a model of n-grams, which sees a few tokens of a text"
    elif isinstance(spec, RNNSpec) and spec.direction == "two-way":
        what = "an RNN of two directions that share the head over the vocabulary"
    else:
        return
    raise RecipeError(
        f"{task} needs a head of its own, and this is {what}: take an encoder (bert-mini), a "
        "decoder (llama-mini) or an RNN (lstm-mini, bilstm-mini)."
    )


def published_form(spec: AnySpec, candidates: Sequence[Head]) -> Head:
    """The first candidate that a family of `transformers` has on a model like this one.

    The first of all where none has, as on a model of our own.
    """
    if isinstance(spec, ModelSpec):
        for head in candidates:
            alone = spec.replace(heads=(head,))
            if any(family.describes(alone) for family in FAMILIES.values()):
                return head
    return candidates[0]


def dense_forms(spec: AnySpec) -> list[Dense | None]:
    """Dense layers that heads have before their last matrix, in some family."""
    found: list[Dense | None] = [Dense(activation="tanh"), Dense(activation="gelu")]
    found += [head.dense for head in spec.heads if isinstance(head, MLMHead) and head.dense]
    found += [
        Dense(activation=activation, bias=bias, norm=True)
        for activation in ("gelu", "gelu_tanh")
        for bias in (False, True)
    ]
    return [*found, None]
