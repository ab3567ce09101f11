"""Weights are loaded part by part, into whole and sharded models on the meta device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from process_groups import joined_processes
from small_models import ALL_SPECS, SPECS
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn
from torch.profiler import ProfilerActivity, profile
from training_memory import peak

from trivium.adapt import LoRA, add_lora
from trivium.interop.peft_format import save_adapter
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.models import build, with_fast_initialization
from trivium.models.electra import Sharing, build_with_generator
from trivium.presets import presets
from trivium.spec import ClassifierHead, TransformerSpec
from trivium.stored_model import StoredModel, open_model
from trivium.train.distributed import Parallel, parallelize_step
from trivium.train.starting_weights import BaseWeights, StartingWeights
from trivium.train.train_config import ParallelConfig
from trivium.train.trainer import TrainStep
from trivium.workflows.known_labels import KnownLabels
from trivium.workflows.model_setup import build_weights_of_both, match_weights

CPU = torch.device("cpu")
NO_TOKENIZER: Any = None


def test_weights_do_not_depend_on_the_order_of_parts() -> None:
    fast = [with_fast_initialization(presets[name]) for name in ("bert-tiny", "t5-tiny")]
    names = (
        "gpt2",
        "llama",
        "bert",
        "deberta",
        "t5",
        "gpt-oss",
        "albert",
        "Mamba",
        "lstm",
        "bahdanau",
    )
    for described in (*(ALL_SPECS[name] for name in names), *fast):
        module: Any = build(described, device="meta")
        StartingWeights(described, 5, NO_TOKENIZER).load_into(module, CPU)
        expected = build(described, seed=5).state_dict()
        assert module.state_dict().keys() == expected.keys()
        for name, weight in module.state_dict().items():
            assert torch.equal(weight, expected[name]), (described.kind, name)


def test_weights_of_a_base_model_and_rows_of_new_labels() -> None:
    body = SPECS["bert"]
    old, new = (ClassifierHead(pooling="first", num_labels=n) for n in (3, 5))
    base = build(body.with_heads((old,)), seed=1).bfloat16()
    described = body.with_heads((new,))
    module: Any = build(described, device="meta")
    labels = KnownLabels(("a", "b", "c"), ("a", "b", "c", "d", "e"))
    stored = StoredModel(LanguageModel(base.spec, base, None), base.state_dict())
    weights, new_heads = match_weights(stored, module, labels)
    assert new_heads == ()
    StartingWeights(described, 5, NO_TOKENIZER, weights).load_into(module, CPU)
    initial, copied = build(described, seed=5).state_dict(), base.state_dict()
    for name, weight in module.state_dict().items():
        assert weight.dtype == torch.float32
        if weight.shape == copied[name].shape:
            assert torch.equal(weight, copied[name].float()), name
        else:
            assert torch.equal(weight[:3], copied[name].float()), name
            assert torch.equal(weight[3:], initial[name][3:]), name


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["new", "hugging-face", "adapter"])
def test_no_process_holds_the_whole_model(origin: str, tmp_path: Path) -> None:
    """Also not if a file has fused or transposed matrices, or weights to which B A is added."""
    described = presets["gpt2-tiny"].replace(vocab_size=301)
    described = described.replace(decoder=described.decoder.replace(num_layers=12))
    if origin != "new":
        lm = LanguageModel(described, build(described, seed=5))
        lm.save_hf(tmp_path / "hugging-face")
    if origin == "adapter":
        config = LoRA(targets=("all-linear",))
        add_lora(lm.module, config)
        for name, weight in lm.module.named_parameters():
            if name.endswith("lora_b"):
                nn.init.normal_(weight, generator=torch.Generator().manual_seed(7))
        save_adapter(tmp_path / "adapter", lm.module, config, base=str(tmp_path / "hugging-face"))
    spawn(work, (2, str(tmp_path), origin), nprocs=2)


def work(rank: int, size: int, folder: str, origin: str) -> None:
    described = presets["gpt2-tiny"].replace(vocab_size=301)
    described = described.replace(decoder=described.decoder.replace(num_layers=12))
    with joined_processes(rank, size, folder):
        if origin == "new":
            whole, base = build(described, seed=5), BaseWeights()
        else:
            whole = load(Path(folder) / origin, device="cpu").merge_adapter().module
        bytes_of_model = sum(weight.nbytes for weight in whole.parameters())
        bytes_of_layer = sum(weight.nbytes for weight in next(whole.blocks).parameters())
        for tensor in (1, 2):
            shape = 1, size // tensor, tensor
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replica", "shard", "tensor"))
            parallel = Parallel(rank, size, size, mesh, mesh["replica", "shard"]._flatten("data"))
            module = build(described, device="meta")
            if origin != "new":  # the profiler would count the bytes of mapped files
                base, _ = match_weights(open_model(Path(folder) / origin), module)
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                step: nn.Module = parallelize_step(
                    TrainStep(module),
                    parallel,
                    ParallelConfig(data="fsdp", tensor=tensor),
                    precision=torch.float32,
                    device=CPU,
                    weights=StartingWeights(described, 5, NO_TOKENIZER, base),
                )
            assert isinstance(next(step.parameters()), DTensor)
            # Weights of a layer, their random numbers, and the shards of one of them.
            assert peak(profiler) < bytes_of_model / 2 + 3 * bytes_of_layer < bytes_of_model
            for name, weight in module.state_dict().items():
                expected = whole.state_dict()[name]
                torch.testing.assert_close(weight.full_tensor(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sharing", ["tied", "gradient-disentangled"])
def test_generator_and_discriminator_start_as_their_builder_makes_them(sharing: Sharing) -> None:
    described = cast(TransformerSpec, presets["electra-tiny"].replace(vocab_size=301))
    whole = build_with_generator(described, sharing=sharing, seed=5)
    module = build_with_generator(described, sharing=sharing, seed=5, device="meta")
    recipe, discriminator = cast(Any, None), StartingWeights(described, 5, NO_TOKENIZER)
    build_weights_of_both(recipe, module, discriminator).load_into(module, CPU)
    if sharing == "tied":
        assert module.generator.tokens is module.discriminator.tokens
    torch.testing.assert_close(module.state_dict(), whole.state_dict(), rtol=0.0, atol=0.0)


def test_a_base_without_a_generator_gives_both_its_token_embeddings(tmp_path: Path) -> None:
    described = cast(TransformerSpec, presets["electra-tiny"].replace(vocab_size=301))
    base = build(described, seed=9).state_dict()
    module = build_with_generator(described, sharing="gradient-disentangled", device="meta")
    copied = BaseWeights(base, base.keys())
    discriminator = StartingWeights(described, 5, NO_TOKENIZER, copied)
    recipe: Any = SimpleNamespace(model=SimpleNamespace(init_from=tmp_path))
    build_weights_of_both(recipe, module, discriminator).load_into(module, CPU)
    assert torch.equal(module.generator.tokens.weight, base["tokens.weight"])
    assert not module.discriminator.tokens.weight.any()
    state = module.discriminator.state_dict()
    assert all(torch.equal(state[name], base[name]) for name in base.keys() - {"tokens.weight"})
