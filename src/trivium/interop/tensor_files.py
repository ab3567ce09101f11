"""Read weight files memory-mapped, and write them in shards.

In a Hugging Face folder, the first of these that exists is read: `model.safetensors`, the shards in
its index, `pytorch_model.bin`, the shards in its index. Only tensors are unpickled; a pickle that
contains code is refused. In a checkpoint, the shards of several processes are joined.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from trivium.errors import CheckpointError, shorten
from trivium.files import is_file_name, reject_lfs_pointer, sync, temporary_path, write_json
from trivium.interop.hf_config import read_json_object
from trivium.lazy_tensors import LazyTensors

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
MAX_SHARD_BYTES = 5_000_000_000

_INDEX = ".index.json"
_METADATA = {"format": "pt"}  # without it `transformers` refuses a file
# The metadata of a file in which `torch.distributed.checkpoint` stores the offsets of its shards.
_SHARD_OFFSETS = "DCP_SHARDING_INFO"
_UNREADABLE = ("tf_model.h5", "flax_model.msgpack", "model.ckpt.index", "adapter_model.safetensors")


def read_tensors(folder: Path, *, on_meta: bool = False) -> dict[str, Tensor]:
    """Return name -> tensor for all weights in a folder, memory-mapped if the format allows it.

    Only a `pytorch_model.bin` in the format used before PyTorch 1.6 is read fully into memory.

    Args:
        folder: a folder with weight files.
        on_meta: return tensors on the meta device, with shapes and dtypes but no values.

    Raises:
        CheckpointError: no weights, a missing shard, a damaged file, or a pickle with code.
    """
    tensors: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        read = read_safetensors(file) if file.suffix == ".safetensors" else _read_pickle(file)
        tensors |= {name: tensor.to("meta" if on_meta else "cpu") for name, tensor in read.items()}
    return {_rename_gamma_beta(name): tensor for name, tensor in tensors.items()}


def write_tensors(
    folder: Path, tensors: Mapping[str, Tensor], *, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Write tensors to one safetensors file or, if they are too large, to shards with an index."""
    split = split_torch_state_dict_into_shards(dict(tensors), max_shard_size=max_shard_bytes)
    for name, keys in split.filename_to_tensors.items():
        write_safetensors(folder / name, {key: tensors[key] for key in keys}, _METADATA)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(folder / f"{SAFETENSORS}{_INDEX}", index)


def write_safetensors(
    file: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file atomically, with the file permissions of the umask."""
    partial = temporary_path(file)
    try:
        partial.touch()
        mode = partial.stat().st_mode
        save_file({k: v.detach().contiguous() for k, v in tensors.items()}, partial, metadata)
        partial.chmod(mode)  # safetensors makes files that only the owner reads
        sync(partial)
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def _weight_files(folder: Path) -> list[Path]:
    """Return the weight files to read in a folder. Raises CheckpointError if there are none."""
    for name in (SAFETENSORS, PICKLED):
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}{_INDEX}"
        if index.is_file():
            return list(_list_shards(index))
    other = next((name for name in _UNREADABLE if (folder / name).is_file()), None)
    also = f" ({other} is in a format that is not read)" if other else ""
    raise CheckpointError(
        f"{folder}: no weights: neither {SAFETENSORS} nor {PICKLED}, nor an index of shards{also}."
    )


def _list_shards(index: Path) -> Iterator[Path]:
    """Yield the shards that an index lists. Raises CheckpointError for a bad or missing file."""
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f'{index}: no "weight_map" of tensors to files.')
    for name in sorted({str(name) for name in weight_map.values()}):
        file = index.parent / name
        if not is_file_name(name):
            raise CheckpointError(
                f"{index}: {shorten(name)!r} is not the name of a file beside it."
            )
        if not file.is_file():
            raise CheckpointError(f"{file}: this shard is missing, which {index.name} names.")
        yield file


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """Return the memory-mapped tensors of a file. Raises CheckpointError if it is damaged."""
    try:
        reject_lfs_pointer(file)
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: cannot be read as safetensors: {error}.") from None


def read_shards(folder: Path, pattern: str, *, on_meta: bool = False) -> LazyTensors:
    """Return the tensors of all safetensors files in a folder whose names match a pattern.

    A tensor that `torch.distributed.checkpoint` (DCP) wrote in several shards is joined in memory
    when it is looked up. All other tensors are memory-mapped. With `on_meta`, the tensors are on
    the meta device, with shapes and dtypes but no values.

    Raises:
        CheckpointError: there is no such file, a file is damaged, or shards are missing.
    """
    files = sorted(folder.glob(pattern))
    if not files:
        raise CheckpointError(f"{folder}: there is no {pattern}.")
    shards: dict[str, list[_Shard]] = defaultdict(list)
    for file in files:
        for name, tensor, offsets in _read_with_offsets(file):
            place = tuple(
                slice(start, start + size)
                for start, size in zip(offsets, tensor.shape, strict=True)
            )
            shards[name].append(_Shard(tensor.to("meta") if on_meta else tensor, place))
    joined: dict[str, Callable[[], Tensor]] = {}
    for name, parts in shards.items():
        dimensions = zip(*(part.place for part in parts), strict=True)
        shape = [max(place.stop for place in places) for places in dimensions]
        if sum(part.tensor.numel() for part in parts) != math.prod(shape):
            raise CheckpointError(f"{folder}: shards of the tensor {name} are missing.")
        joined[name] = partial(_join_shards, parts, shape)
    return LazyTensors(joined)


@dataclass(frozen=True)
class _Shard:
    """A shard of a tensor, and its place in the whole tensor."""

    tensor: Tensor
    place: tuple[slice, ...]


def _join_shards(shards: list[_Shard], shape: list[int]) -> Tensor:
    """Join the shards of a tensor. A single shard is returned as it is."""
    first = shards[0].tensor
    if len(shards) == 1:
        return first
    whole = first.new_empty(shape)
    for shard in shards:
        whole[shard.place] = shard.tensor
    return whole


def _read_with_offsets(file: Path) -> list[tuple[str, Tensor, list[int]]]:
    """Return the name of every tensor in a file, its shard, and the offsets of the shard.

    The offsets are 0 in a file of whole tensors. Raises CheckpointError if the file is damaged.
    """
    tensors, shards = read_safetensors(file), []
    try:
        with safe_open(file, "pt") as stored:
            entries = json.loads((stored.metadata() or {}).get(_SHARD_OFFSETS, "null"))
        for name, tensor in tensors.items():
            offsets = [0] * tensor.ndim
            if entries is not None:
                offsets = [*map(int, entries[name]["saved_offsets"])]
            if len(offsets) != tensor.ndim or min(offsets, default=0) < 0:
                raise ValueError(f"{offsets} for the shape {list(tensor.shape)}")
            shards.append((name, tensor, offsets))
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: the offsets of its shards are invalid: {error}.") from None
    return shards


def _read_pickle(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a pickled file. Raises CheckpointError for anything but tensors."""
    # Not to the meta device: PyTorch 2.13 then divides by a number in the file, which may be 0.
    reject_lfs_pointer(file)
    try:
        # Files in the format before PyTorch 1.6 are not zip archives and cannot be mapped.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old protocols, which are read or refused
            tensors = torch.load(
                file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
            )
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL ([\w.]+)", str(error))
        code = f" ({shorten(name[1])})" if name else ""
        raise CheckpointError(
            f"{file}: refused: it does not hold tensors alone but asks to run code{code}. "
            f"None of it was run; use a {SAFETENSORS} of this model."
        ) from None
    except Exception as error:  # a damaged pickle fails in its reader in many ways
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{file}: cannot be read as PyTorch weights: {shorten(reason, 200)}"
        ) from None
    if not isinstance(tensors, dict):
        raise CheckpointError(f"{file}: not tensors by name, but a {type(tensors).__name__}.")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(
                f"{file}: {shorten(repr(name))} is not a tensor, but a {type(tensor).__name__}: "
                "this is not a file of weights alone."
            )
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _rename_gamma_beta(name: str) -> str:
    """Rename LayerNorm's gamma to weight and its beta to bias (names from TensorFlow)."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )
