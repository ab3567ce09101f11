"""Estimates of memory and time per training step on many GPUs, from the spec alone.

A layout describes the parallelism of a step. Data parallelism uses whole copies of the model
("ddp"), or shards weights, gradients and optimizer state ("fsdp": Rajbhandari et al. 2020, stage 3;
Zhao et al. 2023). Tensor parallelism splits each layer among `tensor` GPUs, with sequence
parallelism (Shoeybi et al. 2019; Korthikanti et al. 2022). Activation checkpointing can be added
(Chen et al. 2016).

The time of a step is the larger of two times (a roofline model: Williams et al. 2009): the time of
the GPU, and the time to send weights and gradients over the links, which happens in parallel. The
GPU's time is the sum of:

- matmuls, `flops_per_token`, at the fraction of the peak that the GPU reaches. Checkpointing
  repeats the forward pass and takes a third more;
- memory traffic: every byte that is saved for the backward pass is moved `PASSES` times, plus the
  logits, plus the optimizer state once;
- the collectives of tensor parallelism, which block the matmuls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch

from trivium.gpus import Gpu
from trivium.messages import english
from trivium.models import flops_per_token
from trivium.models.base_model import Spec
from trivium.train.loader import equal_parts
from trivium.train.memory import Layout, ModelSizes, model_sizes, training_memory

NODE = 8
"""The number of GPUs per machine. They are connected by links, and machines by the network."""

# Assumptions. docs/plan.md compares the resulting estimates with published speeds.
PASSES = 4
"""The number of times that a saved activation is written or read: forward, backward, gradient."""
LINKS = 0.8
"""The fraction of a link's bandwidth that collectives reach."""
USABLE = 0.92
"""The fraction of a GPU's memory for training; the rest is for CUDA, NCCL and fragmentation."""

_STATE_BYTES = 12, 8  # bytes moved per trained parameter, and per moment of a parameter
_LOGIT_BYTES = 20  # bytes moved per logit: matmul, softmax, gradient, two more matmuls
_AGAIN = 4 / 3  # the FLOPs with checkpointing (forward twice, backward), relative to those without


@dataclass(frozen=True)
class Workload:
    """The model, the batch and the GPUs of a training run.

    Args:
        spec: the model.
        length: the number of tokens per row.
        batch_tokens: the number of tokens per step.
        gpu: the kind of GPU.
        gpus: the number of GPUs.
        trained: the fraction of the parameters that are trained, with gradients and optimizer
            state. Matmuls are counted as if all parameters were trained.
        moments: the number of values that the optimizer stores per trained parameter; 2 for AdamW.
        references: the number of frozen copies of the model.
        samples: the maximum number of rows that the model generates together for its own training.
            The time of generation is not counted, and such a run has a whole copy of the model on
            each GPU.
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

    @property
    def precision(self) -> torch.dtype:
        """The dtype of matmuls."""
        return torch.bfloat16 if self.gpu.has_bf16 else torch.float16

    @property
    def sizes(self) -> ModelSizes:
        """The numbers of parameters of the model and its parts."""
        return model_sizes(self.spec)  # type: ignore[arg-type]

    @property
    def flops_per_token(self) -> float:
        """The FLOPs to train on a token, without recomputation by activation checkpointing."""
        return flops_per_token(self.spec, self.length)  # type: ignore[arg-type]

    def steps(self) -> list[Step]:
        """Return the step in every layout that makes sense, from simple to complex."""
        return [Step(self, layout) for layout in self._layouts()]

    def _layouts(self) -> Iterator[Layout]:
        """Yield the layouts that make sense for the model and number of GPUs, simple ones first."""
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
    def groups(self) -> int:
        """The number of groups of GPUs that process different rows."""
        return self.work.gpus // self.layout.tensor

    @property
    def rows(self) -> int:
        """The number of rows per group, rounded so that it is equal for all groups.

        It is 0 if the batch has too few rows.
        """
        return round(self.work.batch_tokens / self.work.length / self.groups)

    @cached_property
    def micro_rows(self) -> int:
        """The number of rows per micro-batch, at least 1.

        It is the largest number that fits into memory and divides `rows` into nearly equal parts.
        """

        def total_memory(rows: int) -> float:
            """Return the bytes per GPU for micro-batches of `rows` rows."""
            return sum(self._memory_for_rows(rows).values())

        usable = USABLE * self.work.gpu.memory
        fitting = bisect_right(range(1, self.rows + 1), usable, key=total_memory)
        return equal_parts(self.rows, fitting) if fitting else 1

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches per step."""
        return -(-self.rows // self.micro_rows)

    @cached_property
    def memory(self) -> dict[str, float]:
        """The bytes per GPU, by use ("weights", "gradients", ...)."""
        return self._memory_for_rows(self.micro_rows)

    @property
    def memory_bytes(self) -> float:
        """The total number of bytes per GPU."""
        return sum(self.memory.values())

    @property
    def problem(self) -> str | None:
        """The reason why the step cannot run in this layout, or None."""
        if self.rows == 0:
            return english("reason.too_few_rows")
        fits = self.memory_bytes <= USABLE * self.work.gpu.memory
        return None if fits else english("reason.does_not_fit")

    @property
    def explanation(self) -> str:
        """The reason why the step cannot run in this layout, with numbers."""
        if self.rows == 0:
            return english("reason.more_groups_than_rows", layout=self.layout, groups=self.groups)
        need, have = self.memory_bytes / 2**30, USABLE * self.work.gpu.memory / 2**30
        return english("reason.too_little_memory", layout=self.layout, needed=need, have=have)

    def to_dict(self) -> dict[str, Any]:
        """Return the step as plain values. Speed and times are omitted if it cannot run."""
        facts: dict[str, Any] = {
            **asdict(self.layout),
            "sequence": self.layout.tensor > 1,
            "problem": self.problem,
            "memory_bytes": self.memory,
        }
        if self.rows:
            facts["micro_batch_tokens"] = self.micro_rows * self.work.length
            facts["micro_batches"] = self.micro_batches
        if self.problem is None:
            facts["tokens_per_second_per_gpu"] = self.tokens_per_second
            facts["seconds_per_step"] = self.seconds
            facts["bytes_sent_per_step"] = self.communication
        return facts

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The seconds of each part of a step.

        The first three parts run one after another. "data links" runs in parallel to them.
        """
        work, layout, gpu = self.work, self.layout, self.work.gpu
        parameters = work.sizes.parameters
        again = _AGAIN if layout.activation_checkpointing else 1.0
        tokens = self.rows * work.length
        flops = work.flops_per_token * tokens * again
        kept = work.spec.activation_bytes(work.length, work.precision.itemsize, on_cpu=False)
        moved = tokens * (PASSES * again * kept + _LOGIT_BYTES * work.spec.vocab_size)
        shards = layout.tensor if layout.data == "ddp" else work.gpus
        state_bytes = _STATE_BYTES[0] + _STATE_BYTES[1] * work.moments
        state = state_bytes * work.trained * parameters / shards
        return {
            "products": flops / layout.tensor / (gpu.matmul_efficiency * gpu.peak_flops),
            "memory": (moved / layout.tensor + state) / gpu.memory_bandwidth,
            "tensor links": self._tensor_bytes / (LINKS * gpu.link_bandwidth),
            "data links": self._data_bytes / (LINKS * self._data_bandwidth),
        }

    @property
    def communication(self) -> dict[str, float]:
        """The bytes that each GPU sends per step: within layers, and for weights and gradients."""
        return {"tensor": self._tensor_bytes, "data": self._data_bytes}

    @property
    def tokens_per_second(self) -> float:
        """The number of tokens per second and GPU."""
        *own, data = self.seconds.values()
        return self.rows * self.work.length / self.layout.tensor / max(sum(own), data)

    def utilization(self, tokens_per_second: float) -> float:
        """Return the model FLOPs utilization (MFU) at a speed in tokens per second and GPU.

        Source: Chowdhery et al. 2022, appendix B.
        """
        return tokens_per_second * self.work.flops_per_token / self.work.gpu.peak_flops

    def _memory_for_rows(self, micro_rows: int) -> dict[str, float]:
        """Return the bytes per GPU by use, for micro-batches of `micro_rows` rows."""
        work = self.work
        return training_memory(
            work.spec,
            rows=micro_rows,
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
    def _tensor_bytes(self) -> float:
        """The bytes of a step's collectives within layers (tensor and sequence parallelism).

        Attention and feed-forward network each need an all-gather and a reduce-scatter of the
        residual stream, in the forward pass, in the backward pass and, with checkpointing, in the
        repeated forward pass. Source: Korthikanti et al. 2022, section 4.2.2.
        """
        spec, tensor = self.work.spec, self.layout.tensor
        if not spec.stacks or tensor == 1:
            return 0.0
        layers = 2 * sum(stack.num_layers for stack in spec.stacks)
        if spec.family == "encoder-decoder":  # cross-attention
            layers += spec.stacks[-1].num_layers
        passes = 3 if self.layout.activation_checkpointing else 2
        stream = self.rows * self.work.length * spec.d_model * self.work.precision.itemsize
        return 2 * passes * layers * stream * (tensor - 1) / tensor

    @property
    def _data_bytes(self) -> float:
        """The bytes that a GPU sends per step for weights and gradients.

        "ddp" all-reduces float32 gradients once per step, which sends them twice. "fsdp"
        all-gathers the weights for the forward and for the backward pass (those outside of blocks
        once, in float32) and reduce-scatters float32 gradients, for every micro-batch (Rajbhandari
        et al. 2020, section 7).
        """
        sizes, trained = self.work.sizes, self.work.trained
        share = (self.groups - 1) / self.groups / self.layout.tensor
        if self.layout.data == "ddp":
            return 8 * trained * sizes.parameters * share
        in_blocks = sizes.parameters - sizes.outside
        gathered = 4 * sizes.outside + 2 * self.work.precision.itemsize * in_blocks
        return (gathered + 4 * trained * sizes.parameters) * share * self.micro_batches

    @property
    def _data_bandwidth(self) -> float:
        """The bytes per second of a ring through all groups of GPUs.

        Between machines, all GPUs of a machine that are in the ring contribute their share of the
        network bandwidth, since the ring crosses the network only once per machine.
        """
        if self.work.gpus <= NODE:
            return self.work.gpu.link_bandwidth
        ring_in_node = max(1, NODE // self.layout.tensor)
        return min(self.work.gpu.link_bandwidth, self.work.gpu.network_bandwidth * ring_in_node)
