"""Parameter groups, steps and saved state of optimizers; schedules that reach their peak."""

from __future__ import annotations

import math
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import SPECS, random_ids, small_model
from torch._dynamo.utils import counters

from trivium.adapt import count_parameters
from trivium.presets import presets
from trivium.train.defaults import embedding_lr_scale, pretraining_learning_rate
from trivium.train.memory import training_memory
from trivium.train.optimizers import (
    Optimizer,
    fit_weight_decay_to_epoch,
    get_state_tensors,
    load_state_tensors,
    set_learning_rate,
)
from trivium.train.optimizers.adadelta import Adadelta
from trivium.train.optimizers.adafactor import Adafactor
from trivium.train.optimizers.adagrad import Adagrad
from trivium.train.optimizers.adamw import AdamW
from trivium.train.optimizers.lamb import LAMB
from trivium.train.optimizers.muon import MatrixMuon, Muon, orthogonalize
from trivium.train.optimizers.sgd import SGD
from trivium.train.schedules import (
    Cosine,
    InverseSqrt,
    Linear,
    Schedule,
    SlantedTriangle,
    StableDecay,
)
from trivium.train.train_config import TrainConfig
from trivium.train.trainer import Trainer, TrainState

MATRICES = ("query", "key", "value", "output", "up", "down", "gate")
KINDS = (
    AdamW(lr=3e-3, weight_decay=0.1),
    Muon(lr=3e-3, embedding_lr=0.02, weight_decay=0.1),
    Adafactor(lr=3e-3, weight_decay=0.1),
    LAMB(lr=3e-3, weight_decay=0.1),
    Adadelta(lr=1.0, weight_decay=0.1),
    Adagrad(lr=3e-3, weight_decay=0.1),
    SGD(lr=3e-3, momentum=0.9, weight_decay=0.1),
)


def kind_of(config):
    return config.kind


def train_step(model, built, number):
    ids = random_ids(3, 13, seed=number)
    model.lm_loss(model(ids).flatten(0, 1), ids.flatten()).backward()
    for optimizer in built:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def test_every_optimizer_is_tested_here():
    assert {type(config) for config in KINDS} == set(Optimizer.kinds.values())


@pytest.mark.parametrize("config", KINDS, ids=kind_of)
def test_memory_counts_the_numbers_that_an_optimizer_keeps(config):
    model = small_model("llama")
    built = config.build(model)
    train_step(model, built, 0)
    kept = [value for name, value in get_state_tensors(built, model).items() if "/step" not in name]
    size = config.state_size(model)
    assert size == sum(value.numel() for value in kept)
    parameters = count_parameters(model)
    if isinstance(config, Muon):
        assert size < 2 * sum(parameters)
    forecasts = [training_memory(model.spec, rows=1, length=8, precision=torch.float32, moments=m)
                 for m in (1.0, 2.0)]  # fmt: skip
    assert forecasts[0]["optimizer"] == forecasts[1]["optimizer"] / 2


@pytest.mark.parametrize("config", KINDS, ids=kind_of)
@pytest.mark.parametrize("name", SPECS)
def test_every_weight_is_in_one_group_and_vectors_do_not_decay(name, config):
    model = small_model(name)
    names = {id(weight): n for n, weight in model.named_parameters()}
    grouped = []
    for optimizer in config.build(model):
        for group in optimizer.param_groups:
            for weight in group["params"]:
                grouped.append(names[id(weight)])
                assert group["weight_decay"] == (0.1 if weight.ndim > 1 else 0.0)
    assert sorted(grouped) == sorted(names.values())


def test_muon_trains_the_matrices_of_the_blocks_and_token_vectors_have_their_rate():
    model = small_model("llama")
    first, rest = KINDS[1].build(model)
    assert isinstance(first, MatrixMuon)
    names = {id(weight): n for n, weight in model.named_parameters()}
    trained = {names[id(w)] for group in first.param_groups for w in group["params"]}
    assert trained == {
        n for n, w in model.named_parameters()
        if w.ndim == 2 and ".layers." in n and n.split(".")[-2] in MATRICES
    }  # fmt: skip
    assert names[id(rest.param_groups[-1]["params"][0])] == "tokens.weight"
    assert rest.param_groups[-1]["lr"] == 0.02
    pair = torch.nn.ModuleDict({"discriminator": small_model("bert")})  # as ELECTRA is trained
    (both,) = AdamW(lr=1e-3, embedding_lr=0.02).build(pair)
    assert [w.shape[0] for w in both.param_groups[-1]["params"]] == [SPECS["bert"].vocab_size]
    # Queries that are not divided by sqrt(head_dim) take smaller steps (T5).
    rates = {group["lr"] for group in KINDS[1].build(small_model("t5"))[0].param_groups}
    assert sorted(rates) == pytest.approx([0.01 / math.sqrt(10), 0.01])
    for weight in model.parameters():
        weight.requires_grad_(False)
    model.tokens.weight.requires_grad_(True)
    (alone,) = KINDS[1].build(model)
    assert isinstance(alone, torch.optim.AdamW)


@pytest.mark.parametrize("config", KINDS, ids=kind_of)
@pytest.mark.parametrize("name", ["lstm", "bilstm", "elmo", "bert", "t5"])
def test_rates_fall_from_layer_to_layer(name, config):
    """The rate of a layer is decay times that of the layer above (Howard and Ruder 2018, 3.1)."""
    model = small_model(name)
    plain, decayed = (
        {id(w): (group["lr"], group["weight_decay"])
         for optimizer in each.build(model) for group in optimizer.param_groups
         for w in group["params"]}
        for each in (config, config.replace(layer_decay=0.4))
    )  # fmt: skip
    for weight_name, weight in model.named_parameters():
        rate, decay = plain[id(weight)]
        expected = rate * 0.4 ** height(name, weight_name), decay
        assert decayed[id(weight)] == pytest.approx(expected), (name, weight_name)


def height(model, name):
    """Layers from the heads down to a weight; a small decoder of T5 has three, the rest two."""
    deepest = 3 if model == "t5" else 2
    if name.startswith("heads."):
        return 0
    if found := re.search(r"(?:layers|cells)\.(\d+)\.|_l(\d+)", name):
        return (2 if name.startswith("encoder.") else deepest) - int(found[1] or found[2])
    return 1 if re.search(r"coder\.norm|rnn\.project\.", name) else deepest + 1


def test_muon_steps_like_that_of_pytorch(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)  # its only precision
    monkeypatch.setattr("trivium.train.optimizers.muon._STACKED", 2 * 5 * 7)
    shapes = ((5, 7), (7, 5), (5, 7), (11, 3), (5, 7), (13, 13))
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    ours, theirs = ([torch.nn.Parameter(w.clone()) for w in start] for _ in range(2))
    mine, peer = (
        make([{"params": w[:2], "lr": 0.1}, {"params": w[2:]}], lr=0.02, momentum=0.9,
             weight_decay=0.3, **options)
        for make, w, options in (
            (MatrixMuon, ours, {"precision": torch.float64}),
            (torch.optim.Muon, theirs, {"adjust_lr_fn": "original"}),
        )
    )  # fmt: skip
    for _ in range(4):
        for one, other in zip(ours[:-1], theirs[:-1], strict=True):
            one.grad = other.grad = torch.randn(one.shape, generator=generator).double()
        mine.step()
        peer.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert torch.equal(ours[-1], start[-1])  # it has no gradient


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
def test_muon_makes_steps_orthogonal_in_every_precision(precision):
    """As small gradients are, which float16 cannot hold, compared with U V^T by an SVD."""
    for shape in ((5, 31, 67), (2, 67, 31)):
        gradients = 1e-8 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
        left, _, right = torch.linalg.svd(gradients, full_matrices=False)
        weights = [torch.nn.Parameter(torch.zeros(shape[1:])) for _ in gradients]
        muon = MatrixMuon(
            [{"params": weights}], lr=1.0, momentum=0.0, weight_decay=0.0, precision=precision
        )
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.float()
        muon.step()
        steps = -torch.stack([weight.detach() for weight in weights]).double()
        steps /= max(1.0, shape[1] / shape[2]) ** 0.5
        expected = left @ right
        assert (steps - expected).norm() < 0.25 * expected.norm()


def test_compiled_muon_takes_the_same_steps_and_does_not_compile_every_shape(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    counters.clear()
    found, shapes = [], ((5, 7), (7, 5), (11, 3), (5, 7), (13, 17), (6, 8), (9, 5), (3, 5))
    start = [torch.randn(s, generator=torch.Generator().manual_seed(0)) for s in shapes]
    weights, compiled = ([torch.nn.Parameter(w.clone()) for w in start] for _ in range(2))
    optimizers = [
        MatrixMuon([{"params": some, "lr": 0.1}], lr=0.1, momentum=0.9, weight_decay=0.3,
                   precision=torch.float32, compiled=some is compiled)
        for some in (weights, compiled)
    ]  # fmt: skip
    for step in range(3):
        for one, other in zip(weights, compiled, strict=True):
            one.grad = other.grad = torch.randn(one.shape)
        for optimizer in optimizers:
            set_learning_rate([optimizer], 1.0 / (1 + step))
            optimizer.step()
        found.append(counters["stats"]["unique_graphs"])
        assert not counters["graph_break"]
    assert 0 < found[0] == found[-1] < len(set(shapes))
    for one, other in zip(weights, compiled, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_muon_makes_steps_orthogonal():
    for shape in ((3, 5, 11), (2, 11, 5), (1, 7, 7)):
        matrices = torch.randn(shape, dtype=torch.float64)
        left, _, right = torch.linalg.svd(matrices, full_matrices=False)
        singular = torch.linalg.svdvals(orthogonalize(matrices))
        assert ((singular > 0.6) & (singular < 1.3)).all()
        # The same singular vectors, of which only the values change.
        turned = left.mT @ orthogonalize(matrices) @ right.mT
        assert torch.allclose(turned, torch.diag_embed(turned.diagonal(dim1=1, dim2=2)), atol=1e-9)


@pytest.mark.parametrize("config", KINDS, ids=kind_of)
def test_state_goes_through_a_file_and_training_continues_exactly(config, tmp_path):
    whole, model = small_model("llama"), small_model("llama")
    built, again = config.build(whole), config.build(model)
    for number in range(4):
        train_step(whole, built, number)
    for number in range(2):
        train_step(model, again, number)
    save_file(model.state_dict(), tmp_path / "model")
    save_file(get_state_tensors(again, model), tmp_path / "state")
    fresh = small_model("llama", seed=5)
    fresh.load_state_dict(load_file(tmp_path / "model"))
    restored = config.build(fresh)
    load_state_tensors(restored, fresh, load_file(tmp_path / "state"))
    for number in range(2, 4):
        train_step(fresh, restored, number)
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, fresh.state_dict()[name]), name
    with pytest.raises(KeyError):
        load_state_tensors(restored, fresh, {"nothing/step": torch.zeros(1)})


def test_open_learning_rates_follow_from_the_rate_of_adamw():
    assert AdamW().with_default_learning_rates(0.0012345, 1.0).lr == 0.00123
    assert AdamW(lr=3e-3).with_default_learning_rates(1.0, 1.0) == AdamW(lr=3e-3)
    assert Muon().with_default_learning_rates(1e-3, 1.0) == Muon(
        lr=1e-3
    ).with_default_learning_rates(1.0, 1.0)
    assert (
        Muon(lr=1e-3, embedding_lr=0.02).with_default_learning_rates(1.0, 1.0).embedding_lr == 0.02
    )


@pytest.mark.parametrize("width", [64, 256, 4096])
def test_token_embeddings_beside_muon_take_the_same_steps_at_every_width(width):
    spec = presets["llama-7b"].replace(d_model=width)
    muon = Muon().with_default_learning_rates(
        pretraining_learning_rate(spec), embedding_lr_scale(spec)
    )
    assert muon.embedding_lr == pytest.approx(0.032, rel=0.01)


def test_the_schedule_scales_every_group():
    built = KINDS[1].build(small_model("llama"))
    set_learning_rate(built, 0.5)
    assert built[0].param_groups[0]["lr"] == pytest.approx(0.005)
    set_learning_rate(built, 1.0)
    assert built[0].param_groups[0]["lr"] == pytest.approx(0.01)


@pytest.mark.parametrize("kind", [AdamW, Muon])
def test_a_decay_by_passes_leaves_a_share_of_1_in_e_of_the_weights_of_a_pass_before(kind):
    """The mean of decoupled decay is over 1 / (rate * decay) steps (Wang and Aitchison 2024)."""
    model = small_model("llama").double()
    built = kind(lr=3e-3, embedding_lr=0.02).build(model, torch.float64)
    set_learning_rate(built, 1.0)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    fit_weight_decay_to_epoch(built, 1e9)  # of a long text the first decay stays
    assert {g["weight_decay"] for o in built for g in o.param_groups} == {0.01, 0.0}
    for _ in range(120):
        set_learning_rate(built, 1.0)
        fit_weight_decay_to_epoch(built, 120)
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        for optimizer in built:
            optimizer.step()
    for name, weight in model.named_parameters():
        share = 1.0 if weight.ndim == 1 else math.exp(-1)
        torch.testing.assert_close(weight, before[name] * share, rtol=0.01, atol=0)


@pytest.mark.parametrize("warmup", [4, 0.2])
@pytest.mark.parametrize("kind", Schedule.kinds.values(), ids=Schedule.kinds)
def test_warm_up_reaches_the_peak(kind, warmup):
    steps = 20
    schedule = kind(warmup=warmup)
    factors = [schedule.factor(step, step / steps) for step in range(steps + 1)]
    assert all(np.diff(factors[:4]) > 0), kind
    assert factors[0] > 0, kind
    assert factors[4] == 1.0, kind
    assert all(0.0 <= factor <= 1.0 for factor in factors), kind
    # A share of a step of a long run.
    assert 0 < kind(warmup=5e-4).factor(0, 0.0) <= 1, kind


@pytest.mark.parametrize("warmup", [4, 0.2])
def test_the_decay_begins_at_the_peak(warmup):
    assert Linear(warmup=warmup).factor(12, 0.6) == pytest.approx(0.5)
    assert Linear(warmup=warmup).factor(20, 1.0) == pytest.approx(0.0)
    assert Cosine(warmup=warmup, final=0.1).factor(12, 0.6) == pytest.approx(0.55)
    assert InverseSqrt(warmup=warmup).factor(16, 0.8) == pytest.approx(0.5)
    assert StableDecay(warmup=warmup, decay=0.4).factor(16, 0.8) == pytest.approx(0.525)
    assert Linear(warmup=0).factor(0, 0.0) == 1.0


@pytest.mark.parametrize("kind", Schedule.kinds)
@pytest.mark.parametrize("budget", [{"steps": 4}, {"epochs": 4.0}, {"tokens": 40}])
def test_each_step_of_a_warm_up_takes_the_rate_at_its_end(kind, budget):
    """So a run of one step trains at its peak, and one of four steps begins at half of it."""
    loader = SimpleNamespace(steps_per_epoch=lambda: 1.0, phases=(None,))
    for warmup, steps, expected in ((0.1, 1, [1.0]), (0.5, 4, [0.5, 1.0])):
        (name, size), schedule = next(iter(budget.items())), Schedule.kinds[kind](warmup=warmup)
        train = TrainConfig.from_tree({name: type(size)(size * steps / 4)})
        trainer = object.__new__(Trainer)
        trainer.recipe, trainer.loader = SimpleNamespace(train=train, phases=()), loader
        for step, factor in enumerate(expected):
            state = TrainState(step=step, tokens=10 * step)
            share = trainer._step_fraction(state, 10)
            found = schedule.factor(step, trainer.progress(state), share)
            if kind == "slanted-triangle":
                found = (found * schedule.ratio - 1.0) / (schedule.ratio - 1.0)
            assert found == pytest.approx(factor), (warmup, step)


def test_the_slanted_triangle_is_that_of_ulmfit():
    """Equation 3 of Howard and Ruder 2018."""
    total, cut_frac, ratio = 200, 0.1, 32
    cut = int(total * cut_frac)
    for t in range(1, total):
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
        expected = (1 + p * (ratio - 1)) / ratio
        assert SlantedTriangle().factor(t, t / total) == pytest.approx(expected, rel=1e-9)
