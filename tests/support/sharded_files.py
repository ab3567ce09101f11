"""Files of shards, as `torch.distributed.checkpoint` writes them in several processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def write_shards(folder: Path, kind: str, tensors: Mapping[str, Tensor], processes: int) -> None:
    """Write `KIND-00001.safetensors` and so on. Tensors are split along their last dimension.

    The first processes have scalars, and all of a dimension that is too short.
    """
    for process in range(processes):
        shards, offsets = {}, {}
        for name, tensor in tensors.items():
            if tensor.ndim == 0:
                if process == 0:
                    shards[name], offsets[name] = tensor.clone(), {"saved_offsets": []}
                continue
            size = tensor.shape[-1]
            step = -(-size // processes)
            start, end = (min(size, step * number) for number in (process, process + 1))
            shards[name] = tensor[..., start:end].clone()
            offsets[name] = {"saved_offsets": [0] * (tensor.ndim - 1) + [start]}
        metadata = {"DCP_SHARDING_INFO": json.dumps(offsets), "format": "pt"}
        save_file(shards, folder / f"{kind}-{process + 1:05}.safetensors", metadata)
