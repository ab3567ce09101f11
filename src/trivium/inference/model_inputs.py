"""Validation of the inputs that a user passes to a model, and transfer to the model's device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trivium.errors import SpecError
from trivium.models import LanguageModule

Numbers = Tensor | npt.NDArray[np.integer] | Sequence[Sequence[int]]


class ExtraInputs(TypedDict, total=False):
    """The inputs of a model besides `input_ids` and `attention_mask`, each [B, T]."""

    token_type_ids: Numbers | None
    position_ids: Numbers | None
    decoder_input_ids: Numbers | None
    decoder_attention_mask: Numbers | None


def model_inputs(module: LanguageModule, **values: Any) -> dict[str, Any]:
    """Validate the inputs of a model. Returns those not None, int64 [B, T] on the model's device.

    Raises:
        SpecError: an input is missing, has the wrong shape or type, or does not fit the model's
            family, or an id is out of range.
    """
    spec, num_types = module.spec, module.spec.num_token_types
    missing = values.get("decoder_input_ids") is None
    if missing == (spec.family == "encoder-decoder"):
        have = "needs" if missing else "takes no"
        raise SpecError(f"this model is {spec.family} and {have} decoder_input_ids.")
    if values.get("token_type_ids") is not None and not num_types:
        raise SpecError("this model has no token types: leave token_type_ids out.")
    if values.get("position_ids") is not None and not spec.stacks:
        raise SpecError("this model has no positions: leave position_ids out.")
    limits = {
        "input_ids": spec.input_vocab_size,
        "token_type_ids": num_types,
        "position_ids": spec.max_length or 2**31,
        "decoder_input_ids": spec.vocab_size,
    }
    inputs = {
        name: _to_tensor(name, value, limits.get(name), module.device)
        for name, value in values.items()
        if value is not None
    }
    for name, ids in inputs.items():
        like = "decoder_input_ids" if name.startswith("decoder") else "input_ids"
        if ids.shape != inputs[like].shape:
            raise SpecError(
                f"{name} is {list(ids.shape)}, but {like} is {list(inputs[like].shape)}: "
                "give one number per token."
            )
    return inputs


def _to_tensor(name: str, values: Numbers, limit: int | None, device: torch.device) -> Tensor:
    """Return an input as int64 [B, T]. Raises SpecError unless it has integers below `limit`."""
    try:
        ids = torch.as_tensor(np.asarray(values) if isinstance(values, list) else values)
    except (TypeError, ValueError, RuntimeError):
        raise SpecError(f"{name} must be whole numbers in rows of equal length.") from None
    if ids.is_floating_point() or ids.is_complex():
        raise SpecError(f"{name} must be whole numbers, not {ids.dtype}.")
    if ids.ndim != 2 or not ids.numel():
        raise SpecError(f"{name} must be [B, T] and not empty, not {list(ids.shape)}.")
    ids = ids.to(device, torch.int64)
    smallest, largest = int(ids.min()), int(ids.max())
    if limit is not None and (smallest < 0 or largest >= limit):
        wrong = smallest if smallest < 0 else largest
        raise SpecError(f"{name} has {wrong}, but this model takes 0 to {limit - 1}.")
    return ids
