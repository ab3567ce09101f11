"""Move the mean and standard deviation of regression labels between settings and head."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch import Tensor

from trivium.interop.settings import Settings

Scale = tuple[float, float]
"""Mean and standard deviation of labels: prediction = mean + deviation * output of the head."""

CLASSIFIER, _FINAL_NORM_BIAS = "heads.classifier.classifier", "decoder.norm.bias"


def change_label_scale(
    weights: Mapping[str, Tensor], before: Scale, after: Scale
) -> tuple[dict[str, Tensor], Scale]:
    """Change the scale of regression labels and adjust the head so that predictions do not change.

    Returns the weights with the adjusted head, and the new scale. The new scale is `after`; if the
    head has no bias, only the deviation changes and the mean is that of `before`.
    """
    (mean, deviation), (new_mean, new_deviation) = before, after
    weight, bias = weights[f"{CLASSIFIER}.weight"], weights.get(f"{CLASSIFIER}.bias")
    ratio = deviation / new_deviation
    changed = {**weights, f"{CLASSIFIER}.weight": (weight.double() * ratio).to(weight.dtype)}
    if bias is None:
        return changed, (mean, new_deviation)
    moved = bias.double() * ratio + (mean - new_mean) / new_deviation
    return changed | {f"{CLASSIFIER}.bias": moved.to(bias.dtype)}, after


def fold_label_scale(
    weights: Mapping[str, Tensor], settings: Settings
) -> tuple[Mapping[str, Tensor], Settings]:
    """Fold the label scale into the weights, so that the logit is the predicted label.

    If the head has no bias, the bias of the final norm absorbs the mean (GPT-2). If the final norm
    has no bias either (LLaMA), the mean stays in the settings, with a warning.
    """
    if settings.label_scale == (0.0, 1.0):
        return weights, settings
    weights, (mean, _) = change_label_scale(weights, settings.label_scale, (0.0, 1.0))
    direction, norm = weights[f"{CLASSIFIER}.weight"][0].double(), weights.get(_FINAL_NORM_BIAS)
    if mean and norm is not None and direction.count_nonzero():
        shift = mean * direction / (direction @ direction)
        weights, mean = weights | {_FINAL_NORM_BIAS: (norm.double() + shift).to(norm.dtype)}, 0.0
    if mean:
        warnings.warn(
            f"no Hugging Face class of this family has a bias in its classifier: add {mean:g}, the "
            "mean of the training labels, to the numbers that transformers gives.",
            stacklevel=2,
        )
    return weights, settings.with_label_scale(mean, 1.0)
