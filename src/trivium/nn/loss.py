"""Cross-entropy as a sum and a label count, in chunks that limit the memory for logits.

Shape letters: M rows of features, D d_model, V vocabulary.
"""

from __future__ import annotations

import functools
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


class VocabularyShard(NamedTuple):
    """The vocabulary rows of one process in tensor parallelism.

    Args:
        first_id: the token id of the first row of this process.
        max_rows: the maximum number of rows of any process, which determines the chunk size.
        vocab_size: the number of rows of all processes together.
        gather: a function that maps a tensor [...] of this process to the tensors of all P
            processes [P, ...].
    """

    first_id: int
    max_rows: int
    vocab_size: int
    gather: Callable[[Tensor], Tensor]


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
    shard: VocabularyShard | None = None,
    compiled: bool = False,
    vocab_multiple: int | None = None,
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
        shard: the vocabulary rows of this process, if tensor parallelism divides the vocabulary
            among processes. `weight` and `bias` then have only these rows. None: all rows.
        compiled: whether the loss and the gradient of a chunk are computed by a function that
            `torch.compile` compiles. On a GPU, this function reads and writes the logits once, in
            their own precision. On a CPU, it is slower than the uncompiled operations.
        vocab_multiple: W and b are padded with zeros to a multiple of this number of rows, which
            get no probability. None: 64 on a GPU, whose matmuls are several times slower for
            other numbers, and 1 on a CPU.

    Returns:
        A float32 scalar, the sum of the losses.
    """
    dtype, num_ids = autocast_dtype(features), len(weight)
    if vocab_multiple is None:
        vocab_multiple = PAD_TO_MULTIPLE_OF if features.is_cuda else 1
    method = _Method(
        num_ids=num_ids,
        padded_ids=num_ids + -num_ids % vocab_multiple,
        vocab_size=num_ids if shard is None else shard.vocab_size,
        smoothing=smoothing,
        soft_cap=soft_cap,
        shard=shard,
        compiled=compiled,
    )
    chunks = _split_rows(features, num_ids if shard is None else shard.max_rows)
    chunks = [(start, stop) for start, stop in chunks if start < len(targets)]
    if torch.is_grad_enabled():
        return _LinearCrossEntropy.apply(  # type: ignore[return-value]
            features, weight, bias, targets, dtype, method, chunks
        )
    total = features.new_zeros((), dtype=torch.float32)
    features, matrix = features.to(dtype), _cast_and_pad(weight, dtype, method.padded_ids)
    offset = None if bias is None else _cast_and_pad(bias, dtype, method.padded_ids)
    for start, stop in chunks:
        logits = F.linear(features[start:stop], matrix, offset)
        total += method.loss_and_gradient(logits, targets[start:stop], with_gradient=False)[0]
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


class _Method(NamedTuple):
    """How `linear_cross_entropy` computes the loss of a chunk.

    Args:
        num_ids: the number of vocabulary rows of this process, without padding.
        padded_ids: the number of vocabulary rows of this process, with padding.
        vocab_size: the number of vocabulary rows of all processes.
        smoothing, soft_cap, shard, compiled: see `linear_cross_entropy`.
    """

    num_ids: int
    padded_ids: int
    vocab_size: int
    smoothing: float
    soft_cap: float | None
    shard: VocabularyShard | None
    compiled: bool

    def loss_and_gradient(
        self, logits: Tensor, targets: Tensor, *, with_gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the summed loss of a chunk and its gradient with respect to the logits.

        `logits` may be overwritten. Without `with_gradient`, the gradient may be None.

        Shape: logits [M, V padded], targets int64 [L], for the first L rows -> gradient float32
            [L, V], or [M, V padded] in the dtype of the logits if compiled.
        """
        if self.compiled:
            padding = len(logits) - len(targets)
            labels = F.pad(targets, (0, padding), value=-1) if padding else targets
            return self._compiled(logits, labels, with_gradient=with_gradient)
        logits = logits[: len(targets), : self.num_ids].float()  # frees what it replaces
        return self._in_place(logits, targets)

    def _compiled(
        self, logits: Tensor, labels: Tensor, *, with_gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the loss and its gradient by compiled functions; the label -1 means no label."""
        sizes = {"num_ids": self.num_ids, "vocab_size": self.vocab_size}
        options = {**sizes, "smoothing": self.smoothing, "soft_cap": self.soft_cap}
        if self.shard is None:
            compute = _compile(cross_entropy_and_gradient)
            return compute(logits, labels, **options, with_gradient=with_gradient)
        is_label, labels = labels >= 0, _local_labels(labels, self.shard, self.num_ids)
        statistics = _compile(row_statistics)(logits, labels, **sizes, soft_cap=self.soft_cap)
        statistics = _combine_shards(statistics, self.shard)
        loss = _sum_losses(statistics, is_label, self.smoothing)
        if not with_gradient:
            return loss, None
        compute = _compile(logit_gradient)
        return loss, compute(logits, labels, is_label, statistics[0], **options)

    def _in_place(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the loss of float32 logits [L, V]; the gradient overwrites the logits.

        On a CPU, this is faster than the compiled functions.
        """
        capped, is_local, smoothing = None, None, self.smoothing
        if self.soft_cap is not None:
            capped = apply_soft_cap(logits, self.soft_cap)
            logits = capped.clone()
        if self.shard is not None:
            labels = _local_labels(labels, self.shard, self.num_ids)
            is_local, labels = labels >= 0, labels.clamp(min=0)
        label = labels[:, None]
        label_logit, max_logit = logits.gather(1, label), logits.amax(1)
        mean_logit = logits.sum(1) / self.vocab_size if smoothing else torch.zeros_like(max_logit)
        probabilities = torch.softmax(logits, dim=1, out=logits)
        # log sum exp = max logit - log of its probability, which never underflows.
        log_total = max_logit - probabilities.amax(1).log()
        d_label = torch.full_like(label_logit, smoothing - 1.0)
        if self.shard is not None and is_local is not None:
            local = log_total, label_logit[:, 0] * is_local, mean_logit
            log_total, label_logit, mean_logit = _combine_shards(local, self.shard)
            probabilities *= (local[0] - log_total).exp()[:, None]
            d_label *= is_local[:, None]
        smoothed_logit = (1.0 - smoothing) * label_logit.sum()
        if smoothing:
            smoothed_logit += smoothing * mean_logit.sum()
        probabilities.scatter_add_(1, label, d_label)
        if smoothing:
            probabilities -= smoothing / self.vocab_size
        if capped is not None and self.soft_cap is not None:
            probabilities *= 1.0 - (capped / self.soft_cap) ** 2
        return log_total.sum() - smoothed_logit, probabilities


def cross_entropy_and_gradient(
    logits: Tensor,
    labels: Tensor,
    *,
    num_ids: int,
    vocab_size: int,
    smoothing: float = 0.0,
    soft_cap: float | None = None,
    with_gradient: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Return the summed cross-entropy and its gradient in the precision of the logits.

    The function is written for `torch.compile`: it only computes values per element and sums over
    rows, which are compiled into one kernel that keeps no float32 copy of the logits.

    Args:
        logits: [M, V padded]; columns from `num_ids` on are padding and get no probability.
        labels: int64 [M]; -1 for rows without a label, which have no loss and a gradient of 0.
        num_ids: the number of columns without padding.
        vocab_size: the number of entries over which label smoothing is spread.
        smoothing: see `linear_cross_entropy`.
        soft_cap: see `linear_cross_entropy`.
        with_gradient: if False, None is returned in place of the gradient.
    """
    is_label = labels >= 0
    sizes = {"num_ids": num_ids, "vocab_size": vocab_size}
    statistics = row_statistics(logits, labels, **sizes, soft_cap=soft_cap)
    loss = _sum_losses(statistics, is_label, smoothing)
    if not with_gradient:
        return loss, None
    options = {**sizes, "smoothing": smoothing, "soft_cap": soft_cap}
    return loss, logit_gradient(logits, labels, is_label, statistics[0], **options)


def row_statistics(
    logits: Tensor, labels: Tensor, *, num_ids: int, vocab_size: int, soft_cap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three numbers of each row of logits on which its loss depends, float32 [M].

    They are log sum exp of the logits, the logit of the label (0 if the label is -1), and the sum
    of the logits divided by `vocab_size`. The arguments are those of `cross_entropy_and_gradient`.
    """
    logits = _capped_logits(logits, soft_cap)
    is_id = torch.arange(logits.shape[1], device=logits.device) < num_ids
    label_logit = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return (
        torch.where(is_id, logits, -torch.inf).logsumexp(1),
        torch.where(labels >= 0, label_logit, 0.0),
        torch.where(is_id, logits, 0.0).sum(1) / vocab_size,
    )


def logit_gradient(
    logits: Tensor,
    labels: Tensor,
    is_label: Tensor,
    log_total: Tensor,
    *,
    num_ids: int,
    vocab_size: int,
    smoothing: float,
    soft_cap: float | None,
) -> Tensor:
    """Return the gradient of the loss with respect to the logits, in the dtype of the logits.

    Args:
        logits: [M, V padded].
        labels: int64 [M], the columns of the labels; -1 for rows without a label in this process.
        is_label: bool [M], whether a row has a label, in this process or in another.
        log_total: [M], log sum exp of the logits of all processes.
        num_ids, vocab_size, smoothing, soft_cap: see `cross_entropy_and_gradient`.
    """
    capped = _capped_logits(logits, soft_cap)
    ids = torch.arange(logits.shape[1], device=logits.device)
    gradient = (capped - log_total[:, None]).exp() - smoothing / vocab_size
    gradient = torch.where(ids == labels[:, None], gradient - (1.0 - smoothing), gradient)
    if soft_cap is not None:
        gradient = gradient * (1.0 - (capped / soft_cap) ** 2)
    return torch.where(is_label[:, None] & (ids < num_ids), gradient, 0.0).to(logits.dtype)


def _capped_logits(logits: Tensor, soft_cap: float | None) -> Tensor:
    """Return the logits in float32 (or float64), after soft-capping if there is a cap."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if soft_cap is None else apply_soft_cap(logits, soft_cap)


def _sum_losses(
    statistics: tuple[Tensor, Tensor, Tensor], is_label: Tensor, smoothing: float
) -> Tensor:
    """Return the sum of the losses of rows with a label, from their `row_statistics`."""
    log_total, label_logit, mean_logit = statistics
    losses = log_total - (1.0 - smoothing) * label_logit
    if smoothing:
        losses = losses - smoothing * mean_logit
    return torch.where(is_label, losses, 0.0).sum()


def _local_labels(labels: Tensor, shard: VocabularyShard, num_ids: int) -> Tensor:
    """Return the rows of the labels in the matrix of this process, and -1 for other labels."""
    rows = labels - shard.first_id
    return torch.where((rows >= 0) & (rows < num_ids), rows, -1)


def _combine_shards(
    statistics: tuple[Tensor, Tensor, Tensor], shard: VocabularyShard
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `row_statistics` of the whole vocabulary from those of this process."""
    log_total, label_logit, mean_logit = shard.gather(torch.stack(statistics)).unbind(1)
    return log_total.logsumexp(0), label_logit.sum(0), mean_logit.sum(0)


@functools.cache
def _compile(function: Callable[..., Any], backend: str = "inductor") -> Callable[..., Any]:
    """Return the function compiled for tensors with any number of rows, and constant options."""
    compiled = torch.compile(function, backend=backend)

    def call(*tensors: Tensor, **options: Any) -> Any:
        """Call the compiled function."""
        for tensor in tensors:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return compiled(*tensors, **options)

    return call


def _cast_and_pad(x: Tensor, dtype: torch.dtype, rows: int) -> Tensor:
    """Return `x` cast to `dtype`, followed by rows of zeros up to this number of rows."""
    if rows == len(x):
        return x.to(dtype)
    padded = x.new_zeros(rows, *x.shape[1:], dtype=dtype)
    padded[: len(x)] = x
    return padded


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
        method: _Method,
        chunks: list[tuple[int, int]],
    ) -> Tensor:
        """Return the summed loss; save the gradients of features, weight and bias for backward."""
        num_ids, padded_ids = method.num_ids, method.padded_ids
        rows, matrix = features.to(dtype), _cast_and_pad(weight, dtype, padded_ids)
        offset = None if bias is None else _cast_and_pad(bias, dtype, padded_ids)
        total = features.new_zeros((), dtype=torch.float32)
        d_features = torch.zeros_like(rows)
        # A frozen matrix (as with LoRA) needs no gradient, which saves the largest matmul.
        trained = ctx.needs_input_grad[1]
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if trained else None
        d_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for start, stop in chunks:
            loss, gradient = method.loss_and_gradient(
                F.linear(rows[start:stop], matrix, offset), targets[start:stop], with_gradient=True
            )
            assert gradient is not None
            total += loss
            if d_bias is not None:
                d_bias += gradient.sum(0, dtype=d_bias.dtype)[:num_ids]
            d_logits, few = gradient.to(dtype), stop - start - len(gradient)
            if few or d_logits.shape[1] < padded_ids:
                d_logits = F.pad(d_logits, (0, padded_ids - d_logits.shape[1], 0, few))
            torch.mm(d_logits, matrix, out=d_features[start:stop])
            if d_weight is not None:
                d_weight += (d_logits.T @ rows[start:stop])[:num_ids]
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
            *[None] * 4,
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
