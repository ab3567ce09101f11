"""Two processes train as one: gradient norms, steps and weights, in float64."""

from __future__ import annotations

import copy
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from batches import CPU, Records, example_stream, row_stream
from small_models import small_model
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.profiler import ProfilerActivity, profile

from trivium import model_folder
from trivium.errors import RecipeError
from trivium.files import has_sha256, read_json
from trivium.interop.tensor_files import read_shards, write_safetensors
from trivium.language_model import LanguageModel
from trivium.model_folder import write_checksums
from trivium.objectives.causal import Causal
from trivium.progress import ProgressLine
from trivium.train import checkpoint, hardware
from trivium.train.checkpoint import Checkpoints, verify_checkpoint
from trivium.train.distributed import SINGLE_PROCESS, Parallel, join_processes, parallelize_step
from trivium.train.loader import Loader
from trivium.train.loss_scale import LossScale
from trivium.train.optimizers.muon import MatrixMuon, Muon, gather_full_tensor
from trivium.train.recipe_loading import load_recipe
from trivium.train.train_config import ParallelConfig
from trivium.train.trainer import Trainer, TrainState, TrainStep
from trivium.train.unfreezing import GradualUnfreezing
from trivium.train.whole_model import WholeModel
from trivium.workflows import run_evaluation
from trivium.workflows.run_evaluation import RunEvaluation

Build = Callable[[nn.Module], list[torch.optim.Optimizer]]
LAYOUTS: list[dict[str, Any]] = [
    {"data": "ddp"},
    {"data": "fsdp"},
    {"data": "fsdp", "reduce_once": True},
    {"data": "fsdp", "replicas": 2},
]


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    spawn(work, (2, free_port(), str(tmp_path)), nprocs=2)


@pytest.mark.slow
def test_four_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    """Of which two replicas have two shards each."""
    spawn(work, (4, free_port(), str(tmp_path)), nprocs=4)


def free_port() -> int:
    """A port where the processes can meet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def work(rank: int, size: int, port: int, folder: str) -> None:
    """What one of the processes does."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for layout in LAYOUTS:
        config = ParallelConfig(**layout)
        parallel = join_processes(config, CPU)
        assert_waits_no_day(parallel)
        assert parallel.all_reduce_sum(rank, 1) == [size * (size - 1) // 2, size]
        assert_same_steps(parallel, config, sgd)
        assert_same_steps(parallel, config, muon, unfreezes=True)
        assert_trains_in_float16(parallel, config)
        if config.reduce_once:
            assert_reduces_once(parallel, config)
    assert_matrices_are_divided(parallel)
    for number, (kind, on_cpu) in enumerate(((torch.optim.AdamW, False), (torch.optim.SGD, True))):
        with mock.patch.object(checkpoint, "_is_on_cpu", lambda _, value=on_cpu: value):
            assert_one_number_is_restored(parallel, Path(folder) / str(number), kind)


def assert_waits_no_day(parallel: Parallel) -> None:
    """Collectives of a step end within the hour, those of the host may wait for a corpus."""
    assert parallel.data is not None
    groups = dist.group.WORLD, parallel.data.get_group(), parallel.host_group
    waits = [group._get_backend(CPU).options._timeout for group in groups]  # type: ignore
    assert max(waits[:2]) <= timedelta(hours=1) < timedelta(days=1) <= waits[2]


def sgd(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Its steps, unlike AdamW's, have the size of the gradient."""
    return [torch.optim.SGD(model.parameters(), lr=0.1)]


def muon(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Whose products are float64, too."""
    return (
        Muon(lr=1e-3, layer_decay=0.5)
        .with_default_learning_rates(1e-3, 1.0)
        .build(model, torch.float64)
    )


def assert_same_steps(
    parallel: Parallel, config: ParallelConfig, build: Build, *, unfreezes: bool = False
) -> None:
    model: Any = small_model("llama").double()
    single = copy.deepcopy(model)
    expected = records_of(single, SINGLE_PROCESS, ParallelConfig(), build, unfreezes=unfreezes)
    records = records_of(model, parallel, config, build, unfreezes=unfreezes)
    assert len(records) == len(expected) == 3
    for record, one in zip(records, expected, strict=True):
        assert record["tokens"] == one["tokens"]
        assert record["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-9), config
        # Sums of losses are float32.
        assert record["train_loss"] == pytest.approx(one["train_loss"], rel=1e-6), config
    for name, weight in model.state_dict().items():
        expected_weight = single.state_dict()[name]
        torch.testing.assert_close(
            gather_full_tensor(weight), expected_weight, rtol=1e-9, atol=1e-12
        )


def assert_trains_in_float16(parallel: Parallel, config: ParallelConfig) -> None:
    """The weights are nearly those of a single process; all processes skip the same steps."""
    model: Any = small_model("llama")
    single, half, start = copy.deepcopy(model), torch.float16, copy.deepcopy(model).state_dict()
    records_of(single, SINGLE_PROCESS, ParallelConfig(), sgd, precision=half)
    records = records_of(model, parallel, config, sgd, precision=half)
    assert [one["skipped_steps"] for one in records] == [0, 0, 0]
    for name, weight in single.state_dict().items():
        moved = (weight - start[name]).norm()
        assert (gather_full_tensor(model.state_dict()[name]) - weight).norm() < 0.03 * moved, name
    model = small_model("llama")
    scale = LossScale(2.0**19)  # overflows in some processes and some steps
    records = records_of(model, parallel, config, sgd, precision=half, scale=scale)
    skipped = [float(one["skipped_steps"]) for one in records]
    assert skipped[-1] > 0
    assert parallel.all_reduce_max(*skipped, scale.factor, -scale.factor) == [
        *skipped, scale.factor, -scale.factor
    ]  # fmt: skip


def records_of(
    model: Any,
    parallel: Parallel,
    config: ParallelConfig,
    build: Build,
    *,
    unfreezes: bool = False,
    precision: torch.dtype = torch.float32,
    scale: LossScale | None = None,
) -> list[dict[str, Any]]:
    """The log of three steps; one that `unfreezes` trains a layer more in each of them."""
    streams = [row_stream(Causal(), name="a"), example_stream(Causal())]
    loader = Loader(streams, [1.0, 1.0], seed=1, micro_batch_tokens=33, parallel=parallel)
    assert {loader._draw_source(n, 0)[0] for n in range(3)} == {0, 1}
    step = parallelize_step(TrainStep(model), parallel, config, precision=precision, device=CPU)
    train = {"steps": 3, "log_every": 1, "eval_every": 9, "save_every": 9, "clip": 0.7}
    schedule = {"kind": "constant", "warmup": 0}
    recipe = load_recipe(
        "gpt2-tiny", {"train": train, "schedule": schedule, "optimizer": {"lr": 0.1}}
    ).replace(parallel=config)
    records = Records()
    unfreezing = GradualUnfreezing(model, 0.6) if unfreezes else None
    trainer = Trainer(
        recipe, step, loader, build(model), CPU, precision, 0.0, parallel, [records],
        unfreezing=unfreezing,
    )  # fmt: skip
    trainer.train(TrainState(loss_scale=scale))
    return records.records


def assert_reduces_once(parallel: Parallel, config: ParallelConfig) -> None:
    """Once per step and FSDP module, in place of once per micro-batch."""
    counts: list[int] = []
    for reduce_once in (True, False):
        model: Any = small_model("llama")
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            records = records_of(model, parallel, config.replace(reduce_once=reduce_once), sgd)
        events = profiler.key_averages()
        counts.append(sum(one.count for one in events if "_reduce_scatter_base_" in one.key))
    modules = 1 + len(list(model.blocks))  # the root has what is outside of the blocks
    assert counts[0] == len(records) * modules < counts[1]


def assert_matrices_are_divided(parallel: Parallel) -> None:
    """Each process makes the steps of its part of the matrices orthogonal."""
    model: Any = small_model("llama")
    matrices, _ = Muon(lr=1e-3).with_default_learning_rates(1e-3, 1.0).build(model)
    assert isinstance(matrices, MatrixMuon)
    original, counts = matrices.orthogonalize, []
    matrices.orthogonalize = lambda x: counts.append(len(x)) or original(x)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    matrices.step()
    [total] = parallel.all_reduce_sum(sum(counts))
    assert total == sum(len(group["params"]) for group in matrices.param_groups)
    assert sum(counts) < total


def assert_one_number_is_restored(
    parallel: Parallel, folder: Path, kind: type[torch.optim.AdamW | torch.optim.SGD]
) -> None:
    """A parameter of one element, as ELECTRA's head has, and the state of its optimizer."""

    def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Linear(3, 1)
        assert parallel.mesh is not None
        fully_shard(model, mesh=parallel.mesh["shard"])
        optimizer = kind(model.parameters(), lr=0.1)
        for _ in range(steps):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    checkpoints = Checkpoints(folder / "checkpoints", parallel)
    model, optimizer = trained(3)
    scale = LossScale(8.0)
    checkpoints.save(model, [optimizer], TrainState(step=3, loss_scale=scale))
    scale.update(overflowed=True)  # while the checkpoint is written
    for _ in range(9):
        parallel.barrier()
    checkpoints.wait()
    parallel.barrier()
    whole = gather_weights(model)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    after = gather_weights(model)
    newest = checkpoints.path(TrainState(step=3))
    for is_joined in (False, True):
        names = {file.name for file in newest.glob("model*")}
        shards = {f"model-{number:05}.safetensors" for number in range(1, parallel.size + 1)}
        assert names == {"model.safetensors"} if is_joined else names <= shards
        stored = read_shards(newest, "model*.safetensors")
        torch.testing.assert_close(stored, whole, rtol=0.0, atol=0.0)
        fresh, restored = trained(0)
        state = checkpoints.restore(fresh, [restored], warn=print)
        assert (state.step, state.loss_scale) == (3, LossScale(8.0))
        fresh(torch.ones(2, 3)).sum().backward()
        restored.step()
        torch.testing.assert_close(gather_weights(fresh), after, rtol=0.0, atol=0.0)
        parallel.barrier()
        check_verification(newest, parallel)
        if parallel.is_main:
            join_files(newest)
        parallel.barrier()


def check_verification(checkpoint: Path, parallel: Parallel) -> None:
    """Every file is read by one process, and all processes learn of the damage."""
    names = list(read_json(checkpoint / "checksums.json"))
    with mock.patch.object(model_folder, "has_sha256", wraps=has_sha256) as compared:
        assert verify_checkpoint(checkpoint, parallel) is None
    assert sum(parallel.gather_results([compared.call_count])) == len(names)
    assert compared.call_count <= -(-len(names) // parallel.size)
    for name in names:
        content = (checkpoint / name).read_bytes()
        parallel.barrier()
        if parallel.is_main:
            (checkpoint / name).write_bytes(content + b"x")
        parallel.barrier()
        problem = f"{name} does not match its checksum"
        assert verify_checkpoint(checkpoint, parallel) == problem
        if parallel.is_main:
            (checkpoint / name).write_bytes(content)
        parallel.barrier()


def gather_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the weights of all processes."""
    weights = model.state_dict().items()
    return {name: gather_full_tensor(weight).clone() for name, weight in weights}


def join_files(folder: Path) -> None:
    """Join the shards as earlier versions did, with vectors in place of scalars."""
    for kind in ("model", "optimizer"):
        tensors = read_shards(folder, f"{kind}*.safetensors")
        for file in folder.glob(f"{kind}*.safetensors"):
            file.unlink()
        tensors = {name: one if one.ndim else one[None] for name, one in tensors.items()}
        write_safetensors(folder / f"{kind}.safetensors", tensors)
    write_checksums(folder, [one.name for one in folder.iterdir() if one.name != "checksums.json"])


def test_the_gathered_model_goes_to_the_gpu_only_where_it_fits(monkeypatch) -> None:
    device = torch.device("meta")  # stands for a GPU

    def model_of(is_sharded: bool) -> WholeModel:
        module = small_model("gpt2")
        lm = LanguageModel(module.spec, module, None)
        models = lambda one: {"": cast(Any, one)}  # noqa: E731
        return WholeModel(module, lm, models, SINGLE_PROCESS, device, is_sharded=is_sharded)

    for free, expected in ((0, "cpu"), (1 << 40, "meta")):
        monkeypatch.setattr(hardware, "available_memory", lambda _, free=free: free)
        model = model_of(is_sharded=True)
        model.gather()
        assert {weight.device.type for weight in model.whole.parameters()} == {expected}
        assert model.lm.module is model.whole
    # Without metrics it is for callbacks, and takes no memory of the GPU.
    monkeypatch.setattr(run_evaluation, "compute_validation_losses", lambda *_: {})
    model = model_of(is_sharded=True)
    held_out: Any = SimpleNamespace(sources=[], limit=None)
    kept: Any = SimpleNamespace(model=model)
    evaluation = RunEvaluation(ProgressLine(), held_out, [], kept, callbacks_read=True)
    without_samples = SimpleNamespace(train=SimpleNamespace(samples=False))
    trainer: Any = SimpleNamespace(recipe=without_samples)
    assert evaluation(trainer, TrainState()) == {}
    for name, weight in model.module.state_dict().items():
        assert torch.equal(model.whole.state_dict()[name], weight)
    whole = model_of(is_sharded=False)
    whole.gather()
    assert whole.whole is whole.module


def test_replicas_divide_the_processes(monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "6")
    with pytest.raises(RecipeError, match=r"replicas = 4 .* does not divide 6 processes"):
        join_processes(ParallelConfig(replicas=4), CPU)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(RecipeError, match=r"replicas = 4 .* does not divide 1 process:"):
        join_processes(ParallelConfig(replicas=4), CPU)
    with pytest.raises(ValueError, match="replicas > 1 goes with"):
        ParallelConfig(replicas=2, data="ddp")
