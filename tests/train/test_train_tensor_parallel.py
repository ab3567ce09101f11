"""Tensor parallelism: losses, gradients and weights are those of one process."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from process_groups import joined_processes, naming
from small_models import ALL_SPECS, SPECS, inputs_for, random_ids, random_model, small_model
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn

from trivium import spec
from trivium.adapt.lora import LoRA, adapted_layers, add_lora
from trivium.errors import RecipeError
from trivium.models import Transformer
from trivium.nn import loss as loss_module
from trivium.train.tensor_parallel import parallelize

pytestmark = pytest.mark.usefixtures("double_precision")

ROWS = 3
compile_loss = loss_module._compile


class Case(NamedTuple):
    """A model and how it is divided."""

    name: str
    sequence_parallel: bool = False
    lora: bool = False
    length: int = 7
    compiled_loss: bool = False


@pytest.mark.slow
def test_losses_and_gradients_are_those_of_one_process(tmp_path: Path) -> None:
    """Of an odd vocabulary and an odd number of positions."""
    cases = [Case("gpt2", True), Case("bert"), Case("llama", True), Case("t5"), Case("marian")]
    cases += [Case("gpt2", compiled_loss=True), Case("bert", compiled_loss=True)]
    run(2, tmp_path, cases)


@pytest.mark.slow
def test_every_family(tmp_path: Path) -> None:
    names = [
        name for name, each in SPECS.items() if all(stack.sharded_fields for stack in each.stacks)
    ]
    cases = [Case(name) for name in names]
    cases += [Case(name, True) for name in names if name != "albert"]
    cases += [Case(name, both, lora=True) for name in ("llama", "t5") for both in (False, True)]
    run(2, tmp_path, cases)


@pytest.mark.slow
def test_rows_with_fewer_positions_than_processes(tmp_path: Path) -> None:
    run(4, tmp_path, [Case(name, True, length=n) for name in ("bert", "llama") for n in (2, 5)])


@pytest.mark.slow
def test_with_fully_sharded_data_parallelism(tmp_path: Path) -> None:
    cases = [Case("gpt2"), Case("llama", True), Case("t5", True), Case("llama", True, lora=True)]
    run(4, tmp_path, cases, data_parallel=2)


def test_models_that_cannot_be_divided() -> None:
    two: Any = SimpleNamespace(size=lambda: 2)
    three: Any = SimpleNamespace(size=lambda: 3)
    with pytest.raises(RecipeError, match=r"here is a RecurrentModel: set parallel\.tensor = 1"):
        parallelize(random_model(ALL_SPECS["lstm"]), two)
    with pytest.raises(RecipeError, match=r"= 2 does not divide num_heads = 3 .* one of 1, 3\."):
        parallelize(small_model("gpt2"), two)
    with pytest.raises(RecipeError, match=r"num_kv_heads = 2 .* one of 1, 2\."):
        parallelize(small_model("llama"), three)
    with pytest.raises(RecipeError, match="d_ff = 29"):
        parallelize(small_model("gpt2"), three)
    with pytest.raises(RecipeError, match="made of attention, mlp, sequential, transformer-xl"):
        parallelize(small_model("TransformerXLPositions"), two)
    with pytest.raises(RecipeError, match="made of attention"):
        parallelize(small_model("gpt-oss"), two)
    with pytest.raises(RecipeError, match="num_layer_groups"):
        parallelize(random_model(divisible(SPECS["albert"])), two, sequence_parallel=True)
    few = divisible(SPECS["gpt2"]).replace(vocab_size=3)
    with pytest.raises(RecipeError, match="vocabulary of 3 entries"):
        parallelize(random_model(few), two)


def run(size: int, folder: Path, cases: list[Case], data_parallel: int = 1) -> None:
    """Start so many processes, of which `data_parallel` groups each divide the models."""
    spawn(work, (size, str(folder), cases, data_parallel), nprocs=size)


def work(rank: int, size: int, folder: str, cases: list[Case], data_parallel: int) -> None:
    with joined_processes(rank, size, folder):
        shape = data_parallel, size // data_parallel
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
        for case in cases:
            with naming(case):
                assert_same_gradients(case, mesh)
                assert_dropout_agrees(case, mesh)


def assert_same_gradients(case: Case, mesh: DeviceMesh) -> None:
    model = built(case)
    single = copy.deepcopy(model)
    expected = loss_of(single, case)
    expected.backward()
    divide(model, case, mesh)
    loss = loss_of(model, case)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0.0)
    parameters = dict(model.named_parameters())
    largest = max(p.grad.abs().max().item() for p in single.parameters() if p.grad is not None)
    for name, parameter in single.named_parameters():
        parallel = parameters[name]
        assert isinstance(parallel, DTensor), name
        assert torch.equal(parallel.full_tensor(), parameter), name
        assert (parallel.grad is None) == (parameter.grad is None), name
        if isinstance(parallel.grad, DTensor) and parameter.grad is not None:
            assert parallel.grad.placements == parallel.placements, name
            difference = (parallel.grad.full_tensor() - parameter.grad).abs().max()
            assert difference <= 1e-5 * largest, (name, difference)


def assert_dropout_agrees(case: Case, mesh: DeviceMesh) -> None:
    """What is not divided loses the same numbers on every process."""
    model = built(case, dropout=0.2).train()
    divide(model, case, mesh)
    torch.manual_seed(5)
    state = torch.stack((loss_of(model, case).detach(), torch.rand(())))
    first = state.clone()
    dist.broadcast(first, 0)
    assert torch.equal(state, first)


def built(case: Case, dropout: float = 0.0) -> Transformer:
    model = random_model(divisible(SPECS[case.name]).with_dropout(dropout))
    assert isinstance(model, Transformer)
    if case.lora:
        add_lora(model, LoRA(rank=3, targets=("all-linear",)))
        generator = torch.Generator().manual_seed(1)
        for layer in adapted_layers(model).values():
            torch.nn.init.normal_(layer.lora_b, std=0.1, generator=generator)
    return model


def divisible(described: spec.TransformerSpec) -> spec.TransformerSpec:
    """The spec with 8 heads, in grouped-query attention 4 of keys, and a d_ff of 28."""

    def attention(each: spec.Attention) -> spec.Attention:
        return each.replace(num_heads=8, num_kv_heads=each.num_kv_heads and 4, head_dim=12)

    def stack(each: spec.Stack | None) -> spec.Stack | None:
        if each is None:
            return None
        return each.map_layers(
            lambda layer: layer.replace(
                mixer=attention(layer.mixer), feed_forward=layer.feed_forward.replace(d_ff=28)
            )
        )

    return described.replace(encoder=stack(described.encoder), decoder=stack(described.decoder))


def divide(model: Transformer, case: Case, mesh: DeviceMesh) -> None:
    parallelize(model, mesh["tensor"], sequence_parallel=case.sequence_parallel)
    if case.compiled_loss:  # as on a GPU, without its compiler
        forced, loss = {"compiled": True, "vocab_multiple": 16}, model.linear_cross_entropy
        model.linear_cross_entropy = lambda *inputs, **options: loss(*inputs, **options | forced)
        loss_module._compile = partial(compile_loss, backend="eager")
    if mesh["data"].size() > 1:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])


def loss_of(model: Transformer, case: Case) -> Tensor:
    """A loss through every head, of rows with padding."""
    real = torch.arange(case.length) < torch.tensor([[9], [case.length - 1], [1]])
    inputs = inputs_for(case.name, random_ids(ROWS, case.length), real=real)
    gather_positions = torch.arange(0, ROWS * case.length, 2)
    targets = random_ids(1, len(gather_positions))[0]
    loss = model.lm_loss(model(**inputs, gather_positions=gather_positions), targets, smoothing=0.1)
    for kind in model.heads.keys() - {"lm", "mlm"}:
        loss = loss + model.logits(model(**inputs), head=kind).square().sum()
    return loss
