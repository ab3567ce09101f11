"""Shards of several processes are joined as PyTorch joins them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from sharded_files import write_shards
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

from trivium.errors import CheckpointError
from trivium.interop.tensor_files import read_shards

TENSORS = {
    "matrix": torch.randn(5, 7),
    "bias": torch.randn(2),  # three processes, so that one has no part of it
    "step": torch.tensor(11.0),
    "table": torch.arange(30).reshape(2, 3, 5),
    "flags": torch.tensor([True, False, True, True]),
    "half": torch.randn(3, 4).to(torch.bfloat16),
}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_shards_are_joined_as_pytorch_joins_them(processes, tmp_path):
    write_shards(tmp_path, "model", TENSORS, processes)
    theirs = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    load(theirs, storage_reader=HuggingFaceStorageReader(str(tmp_path)))
    write_shards(tmp_path, "optimizer", {"other": torch.ones(3)}, processes)
    ours = read_shards(tmp_path, "model*.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in TENSORS.items():
        assert ours[name].dtype == tensor.dtype
        assert torch.equal(theirs[name], tensor), name
        assert torch.equal(ours[name], tensor), name


def test_missing_and_damaged_shards_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no model\*\.safetensors"):
        read_shards(tmp_path, "model*.safetensors")
    write_shards(tmp_path, "model", {"matrix": torch.randn(5, 7)}, 3)
    second = tmp_path / "model-00002.safetensors"
    [shard] = load_file(second).values()
    for offsets in ([0], [0, -3], [0, "x"], [0, 1e400], None, {}):
        content = {"matrix": {"saved_offsets": offsets}}
        save_file({"matrix": shard}, second, {"DCP_SHARDING_INFO": json.dumps(content)})
        with pytest.raises(CheckpointError, match=r"model-00002.* offsets of its shards"):
            read_shards(tmp_path, "model*.safetensors")
    for information in ("{", "[" * 9999, "{}", '{"matrix": 3}'):
        save_file({"matrix": shard}, second, {"DCP_SHARDING_INFO": information})
        with pytest.raises(CheckpointError, match=r"model-00002.* offsets of its shards"):
            read_shards(tmp_path, "model*.safetensors")
    second.unlink()
    with pytest.raises(CheckpointError, match="shards of the tensor matrix are missing"):
        read_shards(tmp_path, "model*.safetensors")
