"""Cross-entropy as a sum and a label count, in chunks that limit the memory for logits.

Shape letters: M rows of features, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trivium.nn.activations import apply_soft_cap
from trivium.nn.part import autocast_dtype

# The maximum numel of the logits of a chunk: enough for matmuls at full speed, with little memory.
_CPU_CHUNK = 2**22
_GPU_CHUNK = 2**28
PAD_TO_MULTIPLE_OF = 64
"""Features are padded to a multiple of this number of rows. Chunk sizes are multiples if possible.

The reason: on a CPU, oneDNN generates a kernel for every new shape of a bfloat16 matmul, which
takes longer than the matmul.
"""

SoftmaxLoss = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""Maps float32 logits [M, V], targets [M] and label smoothing to the summed loss and gradient."""


class Loss(NamedTuple):
    """A sum of losses, in nats, over `count` labels.

    To combine micro-batches, add up their sums and divide once by the count of the whole batch.
    """

    sum: Tensor
    count: int | Tensor  # type: ignore[assignment]

    @property
    def mean(self) -> Tensor:
        """The mean loss in nats per label."""
        return self.sum / self.count


def cross_entropy(
    logits: Tensor, targets: Tensor, *, smoothing: float = 0.0, ignore_index: int = -100
) -> Loss:
    """Return the summed cross-entropy and the number of targets other than `ignore_index`.

    `smoothing` is the label smoothing of `F.cross_entropy`. Shape: logits [..., V], targets int64
    [...].
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
    max_vocab_rows: int | None = None,
) -> Tensor:
    """Return the summed cross-entropy of logits = features W^T + b, computed in chunks of rows.

    The logits of all rows are never in memory at once. The gradient is computed in the forward
    pass, chunk by chunk: d loss / d logits = softmax - onehot. Sums are in float32.

    Args:
        features: [M, D], the hidden states. Rows after the last target are padding: they have no
            loss and a gradient of 0.
        weight: [V, D], the output matrix W.
        bias: [V], the bias b, or None.
        targets: int64 [M], or fewer if `features` are padded.
        smoothing: label smoothing e. A target distribution has probability 1 - e at its label, and
            e is spread evenly over the V entries (Szegedy et al. 2015, section 7).
        soft_cap: the cap c of logit soft-capping, which replaces a logit z by c tanh(z / c).
        softmax_loss: the function that computes the loss and its gradient with respect to the
            logits; None: `cross_entropy_and_gradient`. If tensor parallelism divides the vocabulary
            among processes, `weight` and `bias` are the rows of this process, and `softmax_loss`
            combines all processes.
        max_vocab_rows: the maximum number of vocabulary rows of any process, which determines the
            chunk size; None: the number of rows of `weight`.

    Returns:
        A float32 scalar, the sum of the losses.
    """
    dtype, softmax_loss = autocast_dtype(features), softmax_loss or cross_entropy_and_gradient
    if soft_cap is not None:
        softmax_loss = _add_soft_cap(softmax_loss, soft_cap)
    chunks = _split_rows(features, max_vocab_rows or len(weight))
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
    """Return the cross-entropy of each target, computed in chunks of rows.

    The function `logits` maps features to logits. Unlike the sum of `linear_cross_entropy`, the
    losses can be weighted per target. The backward pass recomputes the logits (activation
    checkpointing).

    Shape: features [M, D], targets int64 [M] -> float32 [M], or float64 [M] for float64 logits.
    """

    def chunk_losses(rows: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of each target in one chunk of rows."""
        scores = logits(rows)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return F.cross_entropy(scores, labels, reduction="none")

    chunks = _split_rows(features, vocab_size) or [(0, 0)]
    parts: list[Any] = [
        checkpoint(chunk_losses, features[start:stop], targets[start:stop], use_reentrant=False)
        for start, stop in chunks
    ]
    return torch.cat(parts)


def cross_entropy_and_gradient(
    logits: Tensor, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy and its gradient with respect to the logits.

    The gradient overwrites `logits`, float32 [M, V]. `smoothing` is the label smoothing.
    """
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


def _add_soft_cap(softmax_loss: SoftmaxLoss, cap: float) -> SoftmaxLoss:
    """Return a function that soft-caps the logits z and then calls `softmax_loss`.

    By the chain rule, the gradient is multiplied by d capped / d z = 1 - (capped / cap)^2.
    """

    def loss_and_gradient(
        logits: Tensor, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of soft-capped logits, and its gradient for the uncapped logits."""
        capped = apply_soft_cap(logits, cap)
        loss, gradient = softmax_loss(capped.clone(), targets, smoothing)
        return loss, gradient.mul_(1.0 - (capped / cap) ** 2)

    return loss_and_gradient


class _LinearCrossEntropy(torch.autograd.Function):
    """Autograd function of `linear_cross_entropy`, with gradients computed in the forward pass."""

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
        """Return the summed loss; save the gradients of features, weight and bias for backward."""
        rows, matrix = features.to(dtype), weight.to(dtype)
        offset = None if bias is None else bias.to(dtype)
        total = features.new_zeros((), dtype=torch.float32)
        d_features = torch.zeros_like(rows)
        # A frozen matrix (as with LoRA) needs no gradient, which saves the largest matmul.
        trained = ctx.needs_input_grad[1]
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if trained else None
        d_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for start, stop in chunks:
            logits, labels = F.linear(rows[start:stop], matrix, offset).float(), targets[start:stop]
            loss, d_label_logits = softmax_loss(logits[: len(labels)], labels, smoothing)
            total += loss
            if d_bias is not None:
                d_bias += d_label_logits.sum(0)
            d_logits = d_label_logits.to(dtype)
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
        """Return the saved gradients multiplied by `scale`, the incoming gradient of the loss."""
        d_features, d_weight, d_bias = ctx.saved_tensors
        features_dtype, weight_dtype = ctx.dtypes
        # The factor by which a loss is scaled in float16 is larger than its largest number.
        exact = torch.float32 if d_features.dtype is torch.float16 else d_features.dtype
        return (
            (d_features.to(exact) * scale.to(exact)).to(features_dtype),
            None if d_weight is None else (d_weight * scale).to(weight_dtype),
            None if d_bias is None else (d_bias * scale).to(weight_dtype),
            *[None] * 5,
        )


def _split_rows(features: Tensor, vocab_size: int) -> list[tuple[int, int]]:
    """Split the rows of `features` into chunks, each given as (start, stop).

    The logits of a chunk have at most `_CPU_CHUNK` or `_GPU_CHUNK` elements, unless one row has
    more.
    """
    size = (_CPU_CHUNK if features.device.type == "cpu" else _GPU_CHUNK) // vocab_size
    if size > PAD_TO_MULTIPLE_OF:
        size -= size % PAD_TO_MULTIPLE_OF
    rows, size = len(features), max(1, size)
    return [(start, min(start + size, rows)) for start in range(0, rows, size)]
