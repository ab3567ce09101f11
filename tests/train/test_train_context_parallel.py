"""Context parallelism: losses and gradients are those of one process."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from process_groups import joined_processes, naming
from small_models import ALL_SPECS, SPECS, random_ids, random_model
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.multiprocessing.spawn import spawn
from torch.utils.checkpoint import checkpoint

from trivium.models import Transformer
from trivium.objectives.causal import Causal
from trivium.objectives.classification import TextClassification
from trivium.objectives.masked import Masked
from trivium.objectives.prefix_lm import PrefixLM
from trivium.objectives.tensor_batch import TensorBatch
from trivium.train.context_parallel import divide_rows, find_unsupported
from trivium.train.train_config import ParallelConfig
from trivium.train.trainer import TrainStep

pytestmark = pytest.mark.usefixtures("double_precision")

ROWS, BERT = 3, SPECS["bert"]
PADDED = ["bert", "modernbert", "albert"]
# Learned positions, RoPE with grouped keys, scaled RoPE, sliding windows, parallel blocks, query
# norms, soft caps, attention sinks, two-dimensional positions, and encoders.
FAMILIES = ["gpt2", "opt", "llama", "llama31", "mistral", "sliding", "gpt-neox", "palm", "qwen3"]
FAMILIES += ["gemma2", "gpt-oss", "chatglm", *PADDED]


class Case(NamedTuple):
    """A model and its rows."""

    name: str
    length: int = 13
    packed: bool = False
    checkpointed: bool = False
    prefix: bool = False
    kernel: bool = False


@pytest.mark.slow
def test_every_family_on_two_processes(tmp_path: Path) -> None:
    """Of rows with an odd number of positions."""
    cases = [Case(name) for name in FAMILIES]
    cases += [Case(name, packed=True) for name in FAMILIES if name != "chatglm"]
    cases += [Case(name, checkpointed=True) for name in ("gpt2", "llama", "modernbert")]
    cases += [Case(name, length, kernel=True) for name in ("gpt2", "llama") for length in (13, 16)]
    run(2, tmp_path, [*cases, Case("llama", prefix=True)])


@pytest.mark.slow
def test_four_processes(tmp_path: Path) -> None:
    """Also of rows whose last processes have no position, or that have fewer than processes."""
    names = ["gpt2", "llama", "sliding", "bert"]
    cases = [Case(name, length) for name in names for length in (2, 4, 5, 16, 29)]
    run(4, tmp_path, [*cases, *(Case(name, 29, packed=True) for name in names)])


def test_what_is_not_supported_is_refused_by_name() -> None:
    refused = {
        "marian": r'models of kind "transformer", encoder-decoder',
        "lstm": r'models of kind "rnn", decoder-only',
        "Mamba": r'mixers of kind "mamba"',
        "GlobalAttention": r'mixers of kind "global-attention"',
        "alibi": r'positions of kind "alibi"',
        "DynamicScaling": r'scaling of kind "dynamic"',
        "ChannelMixing": r'feed-forward networks of kind "channel-mixing"',
        "Experts": r'feed-forward networks of kind "experts"',
        "XLNetPositions": r'positions of kind "xlnet"',
    }
    for name, words in refused.items():
        assert find_unsupported(ALL_SPECS[name]) == [words]
    streams = BERT.replace(embedding=BERT.embedding.replace(query_stream=True))
    assert find_unsupported(streams) == ["a query stream"]
    assert not find_unsupported(SPECS["llama"], [Causal(), PrefixLM()])
    tasks = [Masked(), TextClassification()]
    assert find_unsupported(BERT, tasks) == ['objective.kind = "classification"']
    for name in FAMILIES:
        assert not find_unsupported(SPECS[name])
    with pytest.raises(ValueError, match="context > 1 cannot be combined with tensor > 1"):
        ParallelConfig(context=2, tensor=2)


def run(size: int, folder: Path, cases: list[Case]) -> None:
    """Start `size` processes that share the rows of every case."""
    spawn(work, (size, str(folder), cases), nprocs=size)


def work(rank: int, size: int, folder: str, cases: list[Case]) -> None:
    with joined_processes(rank, size, folder):
        mesh = init_device_mesh("cpu", (size,))
        for case in cases:
            with naming(case):
                assert_same_gradients(case, mesh)
                assert_activations_are_divided(case, mesh)


def assert_same_gradients(case: Case, mesh: DeviceMesh) -> None:
    model = random_model(SPECS[case.name])
    if case.kernel:  # PyTorch's kernel, as on a GPU
        for block in model.blocks:
            block.mixer.max_scores = 0  # type: ignore[union-attr]
    single, batch = copy.deepcopy(model), batch_of(case)
    expected = loss_of(TrainStep(single), batch)
    step = TrainStep(model)
    divide_rows(step, mesh)
    if case.checkpointed:
        for block in model.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    loss = loss_of(step, batch)
    dist.all_reduce(loss)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0.0)
    largest = max(p.grad.abs().max().item() for p in single.parameters() if p.grad is not None)
    for (name, weight), one in zip(model.named_parameters(), single.parameters(), strict=True):
        assert (weight.grad is None) == (one.grad is None), name
        if weight.grad is not None and one.grad is not None:
            dist.all_reduce(weight.grad)
            difference = (weight.grad - one.grad).abs().max()
            assert difference <= 1e-6 * largest, (name, difference)
    # Outside of the step, a process can use the model alone.
    hidden = model(**batch.inputs)
    torch.testing.assert_close(hidden, single(**batch.inputs))


def assert_activations_are_divided(case: Case, mesh: DeviceMesh) -> None:
    """Every block has the positions of one process, and dropout differs between the processes."""
    model = random_model(SPECS[case.name].with_dropout(0.5)).train()
    assert isinstance(model, Transformer)
    step, inputs = TrainStep(model), []
    divide_rows(step, mesh)
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    torch.manual_seed(5)
    step(Causal(), batch_of(case))
    assert {x.shape[1] for x in inputs} == {-(-case.length // mesh.size())}
    draws = [torch.empty(()) for _ in range(mesh.size())]
    dist.all_gather(draws, torch.rand(()))
    assert len(set(map(float, draws))) == mesh.size()


def loss_of(step: TrainStep, batch: TensorBatch) -> Tensor:
    loss = step(Causal(), batch)["loss"]
    loss.backward()
    return loss.detach()


def batch_of(case: Case) -> TensorBatch:
    """Rows with padding or of packed documents, of which every second position has a label."""
    ids, length = random_ids(ROWS, case.length), case.length
    inputs: dict[str, Any] = {"input_ids": ids}
    columns = torch.arange(length).expand(ROWS, -1)
    if case.packed:
        inputs["document_ids"] = 1 + columns // 5
        inputs["position_ids"] = columns % 5
    elif case.name in PADDED:
        lengths = torch.tensor([[length], [max(1, length - 4)], [1]])
        inputs["attention_mask"] = (columns < lengths).long()
    if case.name in PADDED and SPECS[case.name].reads_token_types:
        inputs["token_type_ids"] = (columns > length // 2).long()
    if case.prefix:
        inputs["prefix_lengths"] = torch.tensor([1, 3, 7])
    positions = torch.arange(0, ROWS * length, 2)
    return TensorBatch(inputs, positions, random_ids(1, len(positions))[0])
