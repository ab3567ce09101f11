"""Which class of theirs a file of weights is, where `config.json` does not say or says too little.

Old configurations name neither family nor class, and published files often hold a head more than
the class in their configuration has (`bert-base-uncased`: the next sentence's).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from trivium.errors import CheckpointError, TriviumError
from trivium.interop.convert import FAMILIES, from_hugging_face
from trivium.models import Transformer

# What a family says to options that were written for another one.
_DOES_NOT_FIT = (TriviumError, KeyError, TypeError, ZeroDivisionError, AssertionError)


def recognize(options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Transformer:
    """The model of `from_hugging_face`, as the class in which every tensor has its place.

    Another class than the configuration's counts only if all options and all tensors fit it.

    Raises:
        CheckpointError: what is wrong with the model as the configuration describes it.
    """
    try:
        return from_hugging_face(options, tensors)
    except CheckpointError as error:
        for other in _alternatives(options):
            try:
                return from_hugging_face(other, tensors)
            except _DOES_NOT_FIT:
                continue
        raise error from None


def _alternatives(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The same options for other classes of the family, or of every family if none is told."""
    options = _counted_labels(options)
    kind, told = options.get("model_type"), options.get("architectures")
    for family in FAMILIES.values():
        if kind in (None, family.model_type):
            for architecture in [*(told or []), *family.architectures]:
                yield {
                    **options,
                    "model_type": family.model_type,
                    "architectures": [architecture],
                }


def _counted_labels(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without names of labels where their number is another than `num_labels`."""
    names, count = options.get("id2label"), options.get("num_labels")
    contradict = names is not None and count is not None and len(names) != count
    dropped = ("id2label", "label2id") if contradict else ()
    return {name: value for name, value in options.items() if name not in dropped}
