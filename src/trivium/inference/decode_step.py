"""The decode step of an engine: every running text is extended by its last token and its drafts.

A GPU computes a decode step faster than Python can launch the kernels of the step. Therefore, the
kernels are recorded once in a CUDA graph, which then replays them with a single call.

Shape letters: B rows, T tokens per row, D d_model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trivium.adapt.adapter import share_weights
from trivium.inference.forward import Ids, extend
from trivium.models import LanguageModule
from trivium.nn.feed_forwards.mlp import MLPModule
from trivium.nn.mixers.attention import AttentionModule
from trivium.nn.state import Cache

# A captured step reads at least this number of positions of every slot.
_MIN_READ = 256

UNFIXED_SHAPES = (
    "the shapes of this model's decode step depend on the tokens (experts, recurrent networks), so "
    "that the step cannot be compiled or captured in a CUDA graph"
)

Run = Callable[[Tensor, Tensor], Tensor]
"""Maps token ids [B, T] and numbers of tokens [B] to hidden states [B, T, D]."""


class CUDAGraph:
    """A forward pass of fixed shapes, recorded in a CUDA graph.

    The inputs are copied into buffers, because a CUDA graph reads and writes fixed addresses. The
    passes before and during the recording contain only padding, so that they change no text in the
    cache.

    Args:
        run: the forward pass. It must not copy anything between CPU and GPU.
        rows: B.
        width: T.
        device: the GPU.
        pool: the memory pool that the graphs of a decode step share (`graph_pool_handle`).
    """

    def __init__(
        self, run: Run, rows: int, width: int, device: torch.device, pool: Any = None
    ) -> None:
        self._ids = torch.zeros(rows, width, dtype=torch.int64, device=device)
        self._lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):  # kernels are chosen, or compiled, before the recording
            for _ in range(2):
                run(self._ids, self._lengths)
        torch.cuda.current_stream(device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._hidden = run(self._ids, self._lengths)

    def __call__(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Replay the forward pass. The next replay overwrites the result [B, T, D]."""
        self._ids.copy_(ids)
        self._lengths.copy_(lengths)
        self._graph.replay()
        return self._hidden


class DecodeStep:
    """Appends tokens to the texts in the first slots of a cache.

    A compiled or captured step has fixed shapes: it asks the GPU for nothing, and rows without new
    tokens are padding. A compiled step always has one row per slot and reads whole slots. A
    captured step rounds the number of rows and the number of positions that it reads up to powers
    of two. Every shape is captured when it first occurs.

    Args:
        module: a model whose `has_fixed_shapes` is True, if the step is compiled or captured.
        cache: the cache of the model.
        compile: whether to compile the step with `torch.compile`.
        capture: the kind of graph in which the step is captured, `CUDAGraph`; None: the step is
            not captured.
        max_width: the maximum number of new tokens per text. A captured step has 1 or `max_width`
            columns.
    """

    def __init__(
        self,
        module: LanguageModule,
        cache: Cache,
        *,
        compile: bool = False,
        capture: Callable[..., Run] | None = None,
        max_width: int = 1,
    ) -> None:
        self._module, self._cache, self._max_width = module, cache, max_width
        self._compiled, self._capture = compile, capture
        self._extend: Any = (
            torch.compile(extend, dynamic=False, fullgraph=True) if compile else extend
        )
        self._graphs: dict[tuple[int, ...], Run] = {}
        self._pool = torch.cuda.graph_pool_handle() if capture is CUDAGraph else None

    def __call__(self, new: Mapping[int, Ids], longest: int) -> Tensor:
        """Append the token ids `new` (slot -> ids). Returns padded hidden states [B, T, D].

        The hidden states of a captured step are valid until the next step.

        Args:
            new: slot -> token ids, one or more per text.
            longest: the number of tokens in the longest of these texts after the step.
        """
        cache, rows, width, read = self._cache, 1 + max(new), max(map(len, new.values())), None
        if self._compiled:
            rows, read = cache.num_slots, cache.slot_length
        elif self._capture is not None:
            rows = min(_next_power_of_two(rows), cache.num_slots)
            width = 1 if width == 1 else self._max_width
            read = min(max(_MIN_READ, _next_power_of_two(longest)), cache.slot_length)
        counts = [len(new.get(slot, ())) for slot in range(rows)]
        padded = [[*new.get(slot, ()), *[0] * (width - counts[slot])] for slot in range(rows)]
        ids, lengths = torch.tensor(padded), torch.tensor(counts)
        with cache.fixed_shapes(read):
            if self._capture is not None:
                return self._replay(ids, lengths, read)
            if read is None and min(counts) == width:
                return self._run(ids, None)
            return self._run(ids, lengths)

    def _run(self, ids: Tensor, lengths: Tensor | None) -> Tensor:
        """Run the forward pass. Returns hidden states [B, T, D]."""
        device = self._module.device
        moved = None if lengths is None else lengths.to(device)
        return self._extend(self._module, self._cache, ids.to(device), lengths=moved)

    def _replay(self, ids: Tensor, lengths: Tensor, read: int | None) -> Tensor:
        """Replay the graph for these shapes, which is captured first if there is none."""
        assert self._capture is not None
        # The cross-attention cache has other addresses when it has grown.
        shape = (*ids.shape, read or 0, self._cache.source_length)
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(
                self._run, *ids.shape, self._module.device, self._pool
            )
        return self._graphs[shape](ids, lengths)


def fuse_projections(module: LanguageModule) -> LanguageModule:
    """Return a copy of a module that computes projections of the same input in one matmul.

    These are query, key and value of self-attention, and gate and up of gated MLPs, in the decoder.
    The copy shares all weights with `module`, whose weights keep their names and values.
    """
    fused = share_weights(module)
    for part in fused.modules():
        if type(part) is AttentionModule or type(part) is MLPModule:
            part.fuse_projections()
    return fused


def captures_decoding(module: LanguageModule) -> bool:
    """Return whether the decode steps of a model are captured in CUDA graphs by default.

    Warns if the model is on a GPU and its decode steps cannot be captured.
    """
    on_gpu = module.device.type == "cuda"
    if on_gpu and not module.has_fixed_shapes:
        warnings.warn(f"{UNFIXED_SHAPES}: generation is slower.", stacklevel=3)
    return on_gpu and module.has_fixed_shapes


def _next_power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()
