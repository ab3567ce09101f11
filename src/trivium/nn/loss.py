"""Cross-entropy as a sum and a count, which micro-batches add up, without all logits at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trivium.nn.activations import soft_capped
from trivium.nn.part import autocast_dtype

# Logits held at a time, in numbers: enough for full-speed products, too few to fill memory.
_CPU_CHUNK = 2**22
_GPU_CHUNK = 2**28
ROUNDED_ROWS = 64
"""The rows of features are padded to a multiple of it, and chunks have a multiple where possible.

For every new shape of a product in bfloat16 oneDNN generates a kernel on a CPU, which takes longer
than the product.
"""

SoftmaxLoss = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""Float32 logits [M, V], targets [M], smoothing -> summed loss, gradient of the logits."""


class Loss(NamedTuple):
    """Nats summed over `count` labels. Divide once, by the count of the whole batch."""

    sum: Tensor
    count: int | Tensor  # type: ignore[assignment]

    @property
    def mean(self) -> Tensor:
        """Nats per label."""
        return self.sum / self.count


def cross_entropy(
    logits: Tensor, targets: Tensor, *, smoothing: float = 0.0, ignore_index: int = -100
) -> Loss:
    """-log softmax(logits)[target], summed over the targets that are not `ignore_index`.

    Shape: logits [..., V], targets int64 [...].
    """
    flat = targets.flatten()
    total = F.cross_entropy(
        logits.flatten(0, -2).float(),
        flat,
        reduction="sum",
        label_smoothing=smoothing,
        ignore_index=ignore_index,
    )
    return Loss(total, (flat != ignore_index).sum())


def linear_cross_entropy(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    smoothing: float = 0.0,
    soft_cap: float | None = None,
    softmax_loss: SoftmaxLoss | None = None,
    max_rows: int | None = None,
) -> Tensor:
    """Sum of -log softmax(features W^T + b)[target], in chunks of a bounded number of logits.

    With `soft_cap` c a logit z is c tanh(z / c) first. With `smoothing` e, 1 - e of every target is
    its label and e is spread evenly over the V entries (Szegedy et al. 2015, section 7).

    The gradient is computed in the forward pass, chunk by chunk, while the logits are at hand:
    d loss / d logits = softmax - onehot. Numbers are summed in float32.

    Where the vocabulary is divided among processes, `weight` and `bias` are the rows of this one,
    `softmax_loss` is of all of them, and no process has more than `max_rows`.

    Features after the last target are padding: they have no loss and no gradient.

    Shape: features [M, D], weight [V, D], bias [V] or None, targets int64 [M] -> scalar float32.
    """
    dtype, softmax_loss = autocast_dtype(features), softmax_loss or cross_entropy_and_gradient
    if soft_cap is not None:
        softmax_loss = _of_capped(softmax_loss, soft_cap)
    chunks = _chunks(features, max_rows or len(weight))
    chunks = [(start, stop) for start, stop in chunks if start < len(targets)]
    if torch.is_grad_enabled():
        return _LinearCrossEntropy.apply(  # type: ignore[return-value]
            features, weight, bias, targets, dtype, smoothing, softmax_loss, chunks
        )
    total = features.new_zeros((), dtype=torch.float32)
    features, matrix = features.to(dtype), weight.to(dtype)
    offset = None if bias is None else bias.to(dtype)
    for start, stop in chunks:
        labels = targets[start:stop]
        logits = F.linear(features[start:stop], matrix, offset)[: len(labels)].float()
        total += softmax_loss(logits, labels, smoothing)[0]
    return total


def token_cross_entropy(
    logits: Callable[[Tensor], Tensor], features: Tensor, targets: Tensor, vocab_size: int
) -> Tensor:
    """-log softmax(logits(features))[target] of every target, in chunks as above.

    Logits are computed again for the gradient, which may differ from target to target.

    Shape: features [M, D], targets int64 [M] -> float32 [M], of float64 logits float64.
    """

    def losses(rows: Tensor, labels: Tensor) -> Tensor:
        scores = logits(rows)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return F.cross_entropy(scores, labels, reduction="none")

    chunks = _chunks(features, vocab_size) or [(0, 0)]
    parts: list[Any] = [
        checkpoint(losses, features[start:stop], targets[start:stop], use_reentrant=False)
        for start, stop in chunks
    ]
    return torch.cat(parts)


def cross_entropy_and_gradient(
    logits: Tensor, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """The summed loss of float32 logits [M, V], and its gradient, in place of the logits."""
    target = targets[:, None]
    target_logit, max_logit = logits.gather(1, target), logits.amax(1)
    smoothed_logit = (1.0 - smoothing) * target_logit.sum()
    if smoothing:
        smoothed_logit += smoothing * logits.mean(1).sum()
    probabilities = torch.softmax(logits, dim=1, out=logits)
    # log sum exp = max logit - log of its probability, which never underflows.
    loss = (max_logit - probabilities.amax(1).log()).sum() - smoothed_logit
    probabilities.scatter_add_(1, target, torch.full_like(target_logit, smoothing - 1.0))
    if smoothing:
        probabilities -= smoothing / logits.shape[1]
    return loss, probabilities


def _of_capped(softmax_loss: SoftmaxLoss, cap: float) -> SoftmaxLoss:
    """The loss of soft-capped logits z, and its gradient: d capped / d z = 1 - (capped / cap)^2."""

    def loss_and_gradient(
        logits: Tensor, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        capped = soft_capped(logits, cap)
        loss, gradient = softmax_loss(capped.clone(), targets, smoothing)
        return loss, gradient.mul_(1.0 - (capped / cap) ** 2)

    return loss_and_gradient


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        dtype: torch.dtype,
        smoothing: float,
        softmax_loss: SoftmaxLoss,
        chunks: list[tuple[int, int]],
    ) -> Tensor:
        rows, matrix = features.to(dtype), weight.to(dtype)
        offset = None if bias is None else bias.to(dtype)
        total = features.new_zeros((), dtype=torch.float32)
        d_features = torch.zeros_like(rows)
        # A frozen matrix, as with LoRA, needs no gradient: the largest product is saved.
        trained = ctx.needs_input_grad[1]
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if trained else None
        d_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for start, stop in chunks:
            logits, labels = F.linear(rows[start:stop], matrix, offset).float(), targets[start:stop]
            loss, d_labelled = softmax_loss(logits[: len(labels)], labels, smoothing)
            total += loss
            if d_bias is not None:
                d_bias += d_labelled.sum(0)
            d_logits = d_labelled.to(dtype)
            if len(labels) < stop - start:
                d_logits = F.pad(d_logits, (0, 0, 0, stop - start - len(labels)))
            torch.mm(d_logits, matrix, out=d_features[start:stop])
            if d_weight is not None:
                d_weight += d_logits.T @ rows[start:stop]
        ctx.save_for_backward(d_features, d_weight, d_bias)
        ctx.dtypes = features.dtype, weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        d_features, d_weight, d_bias = ctx.saved_tensors
        features_dtype, weight_dtype = ctx.dtypes
        return (
            (d_features * scale.to(d_features.dtype)).to(features_dtype),
            None if d_weight is None else (d_weight * scale).to(weight_dtype),
            None if d_bias is None else (d_bias * scale).to(weight_dtype),
            *[None] * 5,
        )


def _chunks(features: Tensor, vocab_size: int) -> list[tuple[int, int]]:
    """Row ranges whose logits fit the budget."""
    size = (_CPU_CHUNK if features.device.type == "cpu" else _GPU_CHUNK) // vocab_size
    if size > ROUNDED_ROWS:
        size -= size % ROUNDED_ROWS
    rows, size = len(features), max(1, size)
    return [(start, min(start + size, rows)) for start in range(0, rows, size)]
