"""Memory and time of a training step on many GPUs, in every layout, from the spec alone.

A layout says how a step is divided: data parallel with whole copies of the model ("ddp"), or with
weights, gradients and optimizer state sharded ("fsdp": Rajbhandari et al. 2020, stage 3; Zhao et
al. 2023), and then also with `tensor` GPUs for each layer and sequence parallelism (Shoeybi et al.
2019; Korthikanti et al. 2022); with or without activation checkpointing (Chen et al. 2016).

A step takes the larger of two times (a roofline: Williams et al. 2009): that of the GPU, and that
of the links for weights and gradients, which are sent meanwhile. The GPU's time is a sum:

- matrix products, `flops_per_token`, at the share of the peak that the GPU reaches; a third more
  with checkpointing, which repeats the forward pass;
- what moves through its memory: every byte that is kept for the backward pass `PASSES` times, the
  logits, and the optimizer's state once;
- the collectives of tensor parallelism, which the products wait for.
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
"""GPUs of one machine, joined by links; machines are joined by the network."""

# Assumptions; docs/plan.md compares what follows from them with published rates.
PASSES = 4
"""How often a kept activation is written or read: forward, backward, and its gradient."""
LINKS = 0.8
"""Share of a link's bandwidth that collectives reach."""
USABLE = 0.92
"""Share of a GPU's memory for training; the rest is for CUDA, NCCL and fragmentation."""

_STATE_BYTES = 12, 8  # read and written for each trained parameter, and for each moment of it
_LOGIT_BYTES = 20  # read and written for each logit: product, softmax, gradient, two more products
_AGAIN = 4 / 3  # checkpointing: forward, forward again, backward


@dataclass(frozen=True)
class Workload:
    """What is trained, and on what.

    Args:
        spec: the model.
        length: tokens of a row.
        batch_tokens: tokens of a step.
        gpu: the kind of GPU.
        gpus: their number.
        trained: fraction of the parameters that are trained, which have gradients and optimizer
            state. Products are counted as if all were.
        moments: numbers that the optimizer keeps of each trained parameter; AdamW's two.
        references: frozen copies of the model.
        samples: rows that the model draws together itself, at most. Their time is not counted, and
            such a run has whole copies of the model on all GPUs.
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
        """Of matrix products."""
        return torch.bfloat16 if self.gpu.has_bf16 else torch.float16

    @property
    def sizes(self) -> ModelSizes:
        """Numbers of parameters."""
        return model_sizes(self.spec)  # type: ignore[arg-type]

    @property
    def flops_per_token(self) -> float:
        """To train on a token, without what checkpointing repeats."""
        return flops_per_token(self.spec, self.length)  # type: ignore[arg-type]

    def steps(self) -> list[Step]:
        """A step in every layout that makes sense, simple ones first."""
        return [Step(self, layout) for layout in self._layouts()]

    def _layouts(self) -> Iterator[Layout]:
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
    """One step in one layout: what each GPU holds, and how long it takes."""

    work: Workload
    layout: Layout

    @property
    def groups(self) -> int:
        """Groups of GPUs that work on different rows."""
        return self.work.gpus // self.layout.tensor

    @property
    def rows(self) -> int:
        """Rows of each group, where the batch is rounded to equal ones; 0: too few rows."""
        return round(self.work.batch_tokens / self.work.length / self.groups)

    @cached_property
    def micro_rows(self) -> int:
        """Rows of a micro-batch: as many of `rows` as fit, in equal parts; 1 at least."""

        def memory(rows: int) -> float:
            return sum(self._memory_with(rows).values())

        usable = USABLE * self.work.gpu.memory
        fitting = bisect_right(range(1, self.rows + 1), usable, key=memory)
        return equal_parts(self.rows, fitting) if fitting else 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step."""
        return -(-self.rows // self.micro_rows)

    @cached_property
    def memory(self) -> dict[str, float]:
        """Bytes of each GPU, by what they are for."""
        return self._memory_with(self.micro_rows)

    @property
    def memory_bytes(self) -> float:
        """Bytes of each GPU in all."""
        return sum(self.memory.values())

    @property
    def problem(self) -> str | None:
        """Why it cannot run, or None."""
        if self.rows == 0:
            return english("reason.too_few_rows")
        fits = self.memory_bytes <= USABLE * self.work.gpu.memory
        return None if fits else english("reason.does_not_fit")

    @property
    def explanation(self) -> str:
        """The problem in numbers."""
        if self.rows == 0:
            return english("reason.more_groups_than_rows", layout=self.layout, groups=self.groups)
        need, have = self.memory_bytes / 2**30, USABLE * self.work.gpu.memory / 2**30
        return english("reason.too_little_memory", layout=self.layout, needed=need, have=have)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; rates and times only where the layout can run."""
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
        """Seconds of the parts of a step: the first three in turn, "data links" meanwhile."""
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
        """Bytes that each GPU sends in a step: within layers, and of weights and gradients."""
        return {"tensor": self._tensor_bytes, "data": self._data_bytes}

    @property
    def tokens_per_second(self) -> float:
        """Of each GPU."""
        *own, data = self.seconds.values()
        return self.rows * self.work.length / self.layout.tensor / max(sum(own), data)

    def utilization(self, tokens_per_second: float) -> float:
        """Model FLOPs utilization at a rate of each GPU (Chowdhery et al. 2022, appendix B)."""
        return tokens_per_second * self.work.flops_per_token / self.work.gpu.peak_flops

    def _memory_with(self, micro_rows: int) -> dict[str, float]:
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
        """Of a step's collectives inside of layers (Korthikanti et al. 2022, section 4.2.2).

        Around attention and feed-forward each an all-gather and a reduce-scatter of the residual
        stream, in the forward pass, in the backward pass, and where forward is repeated.
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
        """Of a step's weights and gradients.

        "ddp" sums float32 gradients once: an all-reduce, which sends them twice. "fsdp" gathers
        weights for forward and for backward (those outside of blocks once, in float32) and
        scatters sums of float32 gradients, every micro-batch (Rajbhandari et al. 2020, section 7).
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
        """Bytes per second of a ring through all groups.

        Between machines it crosses the network once for all its GPUs in a machine, each of which
        has a share of the network.
        """
        if self.work.gpus <= NODE:
            return self.work.gpu.link_bandwidth
        ring_in_node = max(1, NODE // self.layout.tensor)
        return min(self.work.gpu.link_bandwidth, self.work.gpu.network_bandwidth * ring_in_node)
