"""Move the label mean and deviation of a regression model between its settings and its head."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch import Tensor

from trivium.interop.settings import Settings

Scale = tuple[float, float]
"""Mean and standard deviation of the labels: prediction = mean + deviation * head output."""

_HEAD, _NORM = "heads.classifier.classifier", "decoder.norm.bias"


def rescale_numbers(
    weights: Mapping[str, Tensor], before: Scale, after: Scale
) -> tuple[dict[str, Tensor], Scale]:
    """Replace a regression model's label scale, and adapt its head so that predictions stay equal.

    Returns the weights with the adapted head, and the scale to use with these weights. This is the
    scale `after`. However, a head without bias cannot absorb a change of the mean, so its scale
    keeps the mean of `before`.
    """
    (mean, deviation), (new_mean, new_deviation) = before, after
    weight, bias = weights[f"{_HEAD}.weight"], weights.get(f"{_HEAD}.bias")
    ratio = deviation / new_deviation
    changed = {**weights, f"{_HEAD}.weight": (weight.double() * ratio).to(weight.dtype)}
    if bias is None:
        return changed, (mean, new_deviation)
    moved = bias.double() * ratio + (mean - new_mean) / new_deviation
    return changed | {f"{_HEAD}.bias": moved.to(bias.dtype)}, after


def fold_numbers(
    weights: Mapping[str, Tensor], settings: Settings
) -> tuple[Mapping[str, Tensor], Settings]:
    """Fold a regression model's label scale into its weights, so that logits equal predictions.

    If the head has no bias, the bias of the final norm absorbs the mean (GPT-2). If the final norm
    has no bias either (LLaMA), the mean stays in the settings, with a warning.
    """
    if settings.label_scale == (0.0, 1.0):
        return weights, settings
    weights, (mean, _) = rescale_numbers(weights, settings.label_scale, (0.0, 1.0))
    direction, norm = weights[f"{_HEAD}.weight"][0].double(), weights.get(_NORM)
    if mean and norm is not None and direction.count_nonzero():
        shift = mean * direction / (direction @ direction)
        weights, mean = weights | {_NORM: (norm.double() + shift).to(norm.dtype)}, 0.0
    if mean:
        warnings.warn(
            f"no Hugging Face class of this family has a bias in its classifier: add {mean:g}, the "
            "mean of the training labels, to the numbers that transformers gives.",
            stacklevel=2,
        )
    return weights, settings.with_label_scale(mean, 1.0)
