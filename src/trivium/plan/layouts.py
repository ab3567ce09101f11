"""Estimates of memory and time per training step on many GPUs, from the model's spec alone.

A layout describes how a training step is parallelized. Data parallelism has two variants. With
"ddp", each GPU has a copy of the model. With "fsdp", the weights, gradients and optimizer state are
sharded (Rajbhandari et al. 2020, stage 3; Zhao et al. 2023). Tensor parallelism splits each layer
across several GPUs, and is combined with sequence parallelism (Shoeybi et al. 2019; Korthikanti et
al. 2022). Context parallelism divides the positions of every row (Dubey et al. 2024). It is
considered only if no other layout can keep the activations of a row. Activation checkpointing can
be added (Chen et al. 2016).

Step time is estimated with a roofline model (Williams et al. 2009). The communication of weights
and gradients overlaps with the other work of a GPU, so the step takes as long as the slower of the
two. The time of the other work is the sum of:

- matmuls: the FLOPs of the step (`flops_per_token`), divided by the FLOPS that the GPU reaches.
  Activation checkpointing repeats the forward pass, which adds a third;
- memory traffic: every activation saved for the backward pass is moved `PASSES` times. The traffic
  of the logits and the optimizer state is added;
- the collectives of tensor or context parallelism, which do not overlap with the matmuls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch

from trivium.gpus import Gpu
from trivium.messages import english
from trivium.models import flops_per_token
from trivium.models.base_model import Spec
from trivium.train.context_parallel import find_unsupported
from trivium.train.loader import equal_part_size
from trivium.train.memory import (
    Layout,
    ModelSizes,
    count_model_parameters,
    gathered_numel,
    training_memory,
)

NODE = 8
"""The number of GPUs per machine. Links connect the GPUs of a machine, a network the machines."""

# Assumptions. docs/plan.md compares the resulting estimates with published speeds.
PASSES = 4
"""The number of times that a saved activation is read or written per training step."""
LINKS = 0.8
"""The fraction of the bandwidth of links or networks that collectives reach."""
USABLE_MEMORY = 0.92
"""The usable fraction of a GPU's memory. CUDA, NCCL and fragmentation take up the rest."""

_STATE_BYTES = 12, 8  # bytes moved per trained parameter, and per moment of a parameter
_LOGIT_BYTES = 20  # bytes moved per logit: matmul, softmax, gradient, two more matmuls
_RECOMPUTE_FACTOR = 4 / 3  # FLOPs with activation checkpointing, relative to FLOPs without it


@dataclass(frozen=True)
class Workload:
    """The model, the batch and the GPUs of a training run to plan.

    Args:
        spec: the specification of the model.
        length: the number of tokens per row.
        batch_tokens: the number of tokens per step.
        gpu: the kind of GPU.
        gpus: the number of GPUs.
        trained: the fraction of the parameters that are trained. Only these have gradients and
            optimizer state. The FLOPs of matmuls are counted as if all parameters were trained.
        moments: the number of values that the optimizer stores per trained parameter, such as 2 for
            AdamW.
        references: the number of frozen copies of the model, such as the reference model of DPO.
        samples: the maximum number of rows that the model generates at a time in policy
            optimization, or 0 if nothing is generated. With generation, every GPU has a whole copy
            of the model. The time of generation is not estimated.
        divides_rows: whether the objective supports context parallelism.
    """

    spec: Spec
    length: int
    batch_tokens: float
    gpu: Gpu
    gpus: int
    trained: float = 1.0
    moments: float = 2.0
    references: int = 0
    samples: int = 0
    divides_rows: bool = True

    @property
    def precision(self) -> torch.dtype:
        """The dtype of matmuls: bfloat16 if the GPU supports it, else float16."""
        return torch.bfloat16 if self.gpu.has_bf16 else torch.float16

    @property
    def sizes(self) -> ModelSizes:
        """The parameter counts of the model and its parts."""
        return count_model_parameters(self.spec)  # type: ignore[arg-type]

    @property
    def flops_per_token(self) -> float:
        """The FLOPs per training token, without recomputation by activation checkpointing."""
        return flops_per_token(self.spec, self.length)  # type: ignore[arg-type]

    def list_steps(self) -> list[Step]:
        """Return one training step per suitable layout, from simple to complex layouts.

        Layouts with context parallelism are included only if all others are impossible, or possible
        only with activation checkpointing.
        """
        steps = [Step(self, layout) for layout in self._iter_layouts()]
        steps += [
            Step(self, replace(step.layout, reduce_once=True))
            for step in steps
            if step.is_limited_by_reductions
        ]
        keeping = [step for step in steps if not step.layout.activation_checkpointing]
        if all(step.problem for step in keeping):
            steps += [Step(self, layout) for layout in self._iter_context_layouts()]
        return steps

    def _iter_context_layouts(self) -> Iterator[Layout]:
        """Yield the layouts with context parallelism; none if model or objective prevent it."""
        supported = self.divides_rows and not self.samples and not find_unsupported(self.spec)
        for context in (2, 4, 8) if supported else ():
            if self.gpus % context == 0:
                yield Layout("fsdp", context=context)
                yield Layout("fsdp", activation_checkpointing=True, context=context)

    def _iter_layouts(self) -> Iterator[Layout]:
        """Yield the layouts that suit the model and the number of GPUs, from simple to complex."""
        tensors, checkpointings = [1], [False]
        if (stacks := self.spec.stacks) and not self.samples:
            divided = [size for stack in stacks for _, size in stack.sharded_fields]
            sizes = [self.gpus, *divided] if all(stack.sharded_fields for stack in stacks) else [1]
            divisible = (t for t in (2, 4, 8) if all(n % t == 0 for n in sizes))
            tensors, checkpointings = [1, *divisible], [False, True]
        for tensor in tensors:
            for checkpointing in checkpointings:
                if tensor == 1:
                    yield Layout("ddp", tensor, checkpointing)
                if self.gpus > 1 and not self.samples:
                    yield Layout("fsdp", tensor, checkpointing)


@dataclass(frozen=True)
class Step:
    """A training step in one layout, with its memory per GPU and its time."""

    work: Workload
    layout: Layout

    @property
    def dp_size(self) -> int:
        """The data-parallel size: the number of replicas, which process different rows."""
        return self.work.gpus // self._group_size

    @property
    def _group_size(self) -> int:
        """The number of GPUs that compute the same rows together."""
        return self.layout.tensor * self.layout.context

    @property
    def rows(self) -> int:
        """The number of rows per data-parallel replica, rounded to the nearest integer.

        All replicas have the same number of rows. The number is 0 if the batch has too few rows for
        all replicas.
        """
        return round(self.work.batch_tokens / self.work.length / self.dp_size)

    @cached_property
    def micro_batch_rows(self) -> int:
        """The number of rows per micro-batch, at least 1.

        Micro-batches are as large as memory permits, but of nearly equal size.
        """

        def compute_total_memory(rows: int) -> float:
            """Return the bytes of memory per GPU with micro-batches of `rows` rows."""
            return sum(self._compute_memory(rows).values())

        usable = USABLE_MEMORY * self.work.gpu.memory
        fitting = bisect_right(range(1, self.rows + 1), usable, key=compute_total_memory)
        return equal_part_size(self.rows, fitting) if fitting else 1

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches per step (gradient accumulation steps)."""
        return -(-self.rows // self.micro_batch_rows)

    @cached_property
    def memory(self) -> dict[str, float]:
        """A breakdown of the memory per GPU in bytes ("weights", "gradients", ...)."""
        return self._compute_memory(self.micro_batch_rows)

    @property
    def memory_bytes(self) -> float:
        """The total memory per GPU in bytes."""
        return sum(self.memory.values())

    @property
    def host_bytes(self) -> float:
        """The peak host memory per process in bytes, without PyTorch and the data.

        When a run starts, a process holds one part of the model at a time, in float32: a block, or
        the token embeddings (see `train.starting_weights`). For a checkpoint, it holds a copy of
        its weights and optimizer state.
        """
        spec, sizes = self.work.spec, self.work.sizes
        largest_part = max(sizes.largest_block, spec.vocab_size * spec.head_config.d_embedding)
        return max(4.0 * largest_part, self.memory["weights"] + self.memory["optimizer"])

    @property
    def first_host_bytes(self) -> float:
        """The peak host memory of the first process in bytes, which saves the whole model."""
        return max(self.host_bytes, 4.0 * self.work.sizes.parameters)

    @property
    def is_limited_by_reductions(self) -> bool:
        """Whether the step waits for gradients that FSDP reduces after every micro-batch."""
        if self.problem or self.layout.data != "fsdp" or self.micro_batches == 1:
            return False
        *own, data = self.seconds.values()
        return data > sum(own)

    @property
    def problem(self) -> str | None:
        """The reason why this layout is impossible, such as too little memory, or None."""
        if self.rows == 0:
            return english("reason.too_few_rows")
        fits = self.memory_bytes <= USABLE_MEMORY * self.work.gpu.memory
        return None if fits else english("reason.does_not_fit")

    @property
    def explanation(self) -> str:
        """A sentence that explains, with numbers, why this layout is impossible."""
        if self.rows == 0:
            return english("reason.more_groups_than_rows", layout=self.layout, groups=self.dp_size)
        need, have = self.memory_bytes / 2**30, USABLE_MEMORY * self.work.gpu.memory / 2**30
        return english("reason.too_little_memory", layout=self.layout, needed=need, have=have)

    def to_dict(self) -> dict[str, Any]:
        """Return the step as a dict for JSON.

        Throughput and times are left out if the layout is impossible.
        """
        values: dict[str, Any] = {
            **asdict(self.layout),
            "sequence": self.layout.tensor > 1,
            "problem": self.problem,
            "memory_bytes": self.memory,
        }
        if self.rows:
            values["micro_batch_tokens"] = self.micro_batch_rows * self.work.length
            values["micro_batches"] = self.micro_batches
        if self.problem is None:
            values["tokens_per_second_per_gpu"] = self.tokens_per_second_per_gpu
            values["seconds_per_step"] = self.seconds
            values["bytes_sent_per_step"] = self.communication
        return values

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The estimated time of each part of a step, in seconds.

        The keys are "products" (matmuls), "memory" (memory traffic), "tensor links" (tensor- or
        context-parallel communication) and "data links" (data-parallel communication). The first
        three are sequential, and "data links" overlaps with them.
        """
        work, layout, gpu = self.work, self.layout, self.work.gpu
        parameters = work.sizes.parameters
        again = _RECOMPUTE_FACTOR if layout.activation_checkpointing else 1.0
        tokens = self.rows * work.length
        flops = work.flops_per_token
        if layout.context > 1:  # the last part of a row attends to all positions
            flops += flops - flops_per_token(work.spec, 0)  # type: ignore[arg-type]
        flops *= tokens * again
        kept = work.spec.activation_bytes(work.length, work.precision.itemsize, on_cpu=False)
        moved = tokens * (PASSES * again * kept + _LOGIT_BYTES * work.spec.vocab_size)
        shards = layout.tensor if layout.data == "ddp" else work.gpus
        state_bytes = _STATE_BYTES[0] + _STATE_BYTES[1] * work.moments
        state = state_bytes * work.trained * parameters / shards
        return {
            "products": flops / self._group_size / (gpu.matmul_efficiency * gpu.peak_flops),
            "memory": (moved / self._group_size + state) / gpu.memory_bandwidth,
            "tensor links": self._tensor_parallel_traffic / (LINKS * gpu.link_bandwidth),
            "data links": self._data_parallel_traffic / (LINKS * self._data_parallel_bandwidth),
        }

    @property
    def communication(self) -> dict[str, float]:
        """The bytes that each GPU sends per step.

        The keys are "tensor" (tensor- or context-parallel) and "data" (data-parallel, for weights
        and gradients).
        """
        return {"tensor": self._tensor_parallel_traffic, "data": self._data_parallel_traffic}

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """The throughput in tokens per second per GPU."""
        *own, data = self.seconds.values()
        return self.rows * self.work.length / self._group_size / max(sum(own), data)

    def utilization(self, tokens_per_second_per_gpu: float) -> float:
        """Return the model FLOPs utilization (MFU) at a throughput in tokens per second per GPU.

        MFU is defined in Chowdhery et al. 2022, appendix B.
        """
        return tokens_per_second_per_gpu * self.work.flops_per_token / self.work.gpu.peak_flops

    def _compute_memory(self, micro_batch_rows: int) -> dict[str, float]:
        """Return a breakdown of the memory per GPU in bytes for a given micro-batch size."""
        work = self.work
        return training_memory(
            work.spec,
            rows=micro_batch_rows,
            length=work.length,
            precision=work.precision,
            layout=self.layout,
            gpus=work.gpus,
            trained=work.trained,
            moments=work.moments,
            references=work.references,
            samples=min(work.samples, self.rows),
        )

    @property
    def _tensor_parallel_traffic(self) -> float:
        """The bytes that a GPU sends per step for tensor, sequence and context parallelism.

        Context parallelism all-gathers keys and values in the forward passes, and reduce-scatters
        their gradients in the backward pass (Dubey et al. 2024, section 3.3.2). Tensor parallelism:
        Attention and the feed-forward network each need an all-gather and a reduce-scatter of the
        residual stream. These run in the forward pass, in the backward pass and, with activation
        checkpointing, in the repeated forward pass. Source: Korthikanti et al. 2022, section 4.2.2.
        """
        spec, tensor, context = self.work.spec, self.layout.tensor, self.layout.context
        passes = 3 if self.layout.activation_checkpointing else 2
        item_tokens = self.rows * self.work.length * self.work.precision.itemsize
        if context > 1:
            return passes * gathered_numel(spec) * item_tokens * (context - 1) / context
        if not spec.stacks or tensor == 1:
            return 0.0
        layers = 2 * sum(stack.num_layers for stack in spec.stacks)
        if spec.family == "encoder-decoder":  # cross-attention
            layers += spec.stacks[-1].num_layers
        stream = item_tokens * spec.d_model
        return 2 * passes * layers * stream * (tensor - 1) / tensor

    @property
    def _data_parallel_traffic(self) -> float:
        """The bytes that a GPU sends per step for weights and gradients.

        With "ddp", float32 gradients are all-reduced once per step, which sends each of them twice.
        With "fsdp", every micro-batch all-gathers the weights for the forward pass and again for
        the backward pass, and reduce-scatters float32 gradients (Rajbhandari et al. 2020, section
        7), unless they are reduced once per step. Weights outside of the blocks are gathered only
        once per micro-batch, in float32.
        """
        sizes, trained = self.work.sizes, self.work.trained
        shards = self.work.gpus // self.layout.tensor
        share = (shards - 1) / shards / self.layout.tensor
        if self.layout.data == "ddp":
            return 8 * trained * sizes.parameters * share
        in_blocks = sizes.parameters - sizes.outside
        gathered = 4 * sizes.outside + 2 * self.work.precision.itemsize * in_blocks
        reductions = 1 if self.layout.reduce_once else self.micro_batches
        reduced = 4 * trained * sizes.parameters * reductions
        return (gathered * self.micro_batches + reduced) * share

    @property
    def _data_parallel_bandwidth(self) -> float:
        """The bandwidth in bytes per second of the ring that connects data-parallel GPUs.

        On one machine, this is the bandwidth of a link. With several machines, the network may be
        slower. The ring leaves each machine only once, so it can use the network bandwidth of all
        GPUs of the machine that are part of the ring.
        """
        if self.work.gpus <= NODE:
            return self.work.gpu.link_bandwidth
        ring_in_node = max(1, NODE // self.layout.tensor)
        return min(self.work.gpu.link_bandwidth, self.work.gpu.network_bandwidth * ring_in_node)
