"""LoRA: it starts as the base, is the paper's formula, merges without loss and trains alone."""

from __future__ import annotations

import copy

import pytest
import torch
from shaken_models import shaken
from small_models import SPECS, VOCABULARY, inputs_for, random_ids, small_model

from trivium import spec
from trivium.adapt import (
    LoRA,
    LoRALinear,
    ParameterCounts,
    adapter_state,
    add_lora,
    merge_lora,
    merged_state,
)
from trivium.errors import SpecError
from trivium.models import build
from trivium.optim.optimizers import adamw

RANK, ALPHA = 3, 7.0
ALL = LoRA(rank=RANK, alpha=ALPHA, targets=("all",))


def answers(model, name, rows=2, length=13):
    return model(**inputs_for(name, random_ids(rows, length, seed=5)))


def shake(model, deviation=0.1):
    """Give the thin matrices numbers that matter."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.empty(weight.shape).normal_(0, deviation, generator=generator))


def adapted(model):
    return {name: m for name, m in model.named_modules() if isinstance(m, LoRALinear)}


@pytest.mark.parametrize("targets", [("query", "value"), ("all",)])
@pytest.mark.parametrize("name", SPECS)
def test_the_start_is_the_base_to_the_last_bit(name, targets):
    model = small_model(name)
    with torch.no_grad():
        before = answers(model, name)
        add_lora(model, LoRA(rank=RANK, targets=targets))
        assert torch.equal(answers(model, name), before)
        shake(model)
        assert not torch.allclose(answers(model, name), before, atol=1e-3)


@pytest.mark.parametrize("name", SPECS)
def test_merged_equals_unmerged(name):
    model = small_model(name)
    names = list(model.state_dict())
    add_lora(model, ALL)
    shake(model)
    merged = copy.deepcopy(model)
    merge_lora(merged)
    assert not adapted(merged)
    assert list(merged.state_dict()) == names
    assert all(weight.requires_grad for weight in merged.parameters())
    with torch.no_grad():
        expected, found = answers(model, name), answers(merged, name)
    # T5 does not scale its scores, so that rounding errors of any kind grow in it.
    bound = 5e-6 if name.startswith("t5") else 1e-6
    assert float((found - expected).norm() / expected.norm()) < bound
    state = merged_state(model)
    assert state.keys() == merged.state_dict().keys()
    assert all(torch.equal(state[n], w) for n, w in merged.state_dict().items())
    assert adapted(model)


def test_merging_nothing_changes_nothing():
    model = small_model("bert")
    model.tokens.requires_grad_(False)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    merge_lora(model)
    assert not model.tokens.weight.requires_grad
    assert all(torch.equal(before[name], w) for name, w in merged_state(model).items())


def test_the_formula_of_the_paper():
    """Hu et al. 2021, equation 3, in float64: W x + b + alpha / r * B A x."""
    base = torch.nn.Linear(13, 7)
    layer = LoRALinear(base, LoRA(rank=RANK, alpha=ALPHA), torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.lora_b.normal_()
    x = torch.randn(2, 5, 13)
    w, b, a, thin = (t.detach().double() for t in (base.weight, base.bias, *thin_of(layer)))
    expected = x.double() @ (w + ALPHA / RANK * thin @ a).T + b
    torch.testing.assert_close(layer(x).double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        layer.merged().double(), w + ALPHA / RANK * thin @ a, rtol=1e-6, atol=1e-6
    )


def thin_of(layer):
    return layer.lora_a, layer.lora_b


def test_the_start_follows_from_the_seed_alone():
    states = []
    for seed in (3, 3, 4):
        model = small_model("llama")
        torch.rand(17)  # the global state has no say
        add_lora(model, ALL, seed=seed)
        states.append(adapter_state(model, ALL))
    first = next(name for name in states[0] if name.endswith("lora_a"))
    assert torch.equal(states[0][first], states[1][first])
    assert not torch.equal(states[0][first], states[2][first])
    bound = dict(small_model("llama").named_modules())[first[: -len(".lora_a")]].in_features ** -0.5
    assert 0.8 * bound < float(states[0][first].abs().max()) <= bound
    assert all(not w.any() for name, w in states[0].items() if name.endswith("lora_b"))


@pytest.mark.parametrize("name", SPECS)
def test_merged_equals_unmerged_in_float64(name):
    model = small_model(name).double()
    add_lora(model, ALL)
    shake(model)
    with torch.no_grad():
        expected = answers(model, name)
        merge_lora(model)
        torch.testing.assert_close(answers(model, name), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", SPECS)
def test_names_of_the_base_stay_and_the_count_is_the_formulas(name):
    model = small_model(name)
    names, total = list(model.state_dict()), model.spec.num_parameters
    layers = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    layers = {n: m for n, m in layers.items() if ".layers." in n}
    lora = ALL.replace(trained=())
    counts = add_lora(model, lora)
    added = sum(RANK * (layer.in_features + layer.out_features) for layer in layers.values())
    assert counts == ParameterCounts(trained=added, frozen=total)
    thin = [f"{n}.{part}" for n in layers for part in ("lora_a", "lora_b")]
    assert sorted(model.state_dict()) == sorted([*names, *thin])
    assert sorted(adapter_state(model, lora)) == sorted(thin)


@pytest.mark.parametrize(
    ("name", "targets", "expected"),
    [
        ("bert", ("query", "value"), {"attention.query", "attention.value"}),
        ("llama", ("gate",), {"feed_forward.gate"}),
        ("gpt2", ("feed-forward",), {"feed_forward.up", "feed_forward.down"}),
        ("t5", ("cross_attention.key",), {"cross_attention.key"}),
        ("bart", ("attention.output",), {"attention.output"}),
        ("bart", ("output",), {"attention.output", "cross_attention.output"}),
    ],
)
def test_targets_by_name(name, targets, expected):
    model = small_model(name)
    add_lora(model, LoRA(targets=targets))
    found = {".".join(path.split(".")[-2:]) for path in adapted(model)}
    assert found == expected


def test_a_target_may_be_one_layer_alone():
    model = small_model("bert")
    add_lora(model, LoRA(targets=("layers.1.attention.query", "encoder.layers.0.attention.key")))
    assert set(adapted(model)) == {
        "encoder.layers.1.attention.query",
        "encoder.layers.0.attention.key",
    }


def test_layers_that_share_weights_share_the_adapter():
    model = small_model("albert")
    assert add_lora(model, LoRA(rank=RANK, trained=())).trained == 2 * RANK * (22 + 30)


def test_the_tanh_layer_of_an_n_gram_model():
    model = build(spec.NGramSpec(vocab_size=VOCABULARY, d_model=7, order=3, d_hidden=11))
    with pytest.raises(SpecError, match=r'target "query"; targets: hidden, all'):
        add_lora(model, LoRA())
    counts = add_lora(model, LoRA(rank=2, targets=("hidden",)))
    assert set(adapted(model)) == {"hidden"}
    assert counts.trained == 2 * (model.spec.d_context + 11)


def test_what_is_no_target_is_refused_with_the_names_there_are():
    model = small_model("llama")
    before = {name: (w.requires_grad, w.data_ptr()) for name, w in model.named_parameters()}
    with pytest.raises(SpecError, match=r'"q_proj".*query, key.*feed-forward, all'):
        add_lora(model, LoRA(targets=("q_proj",)))
    with pytest.raises(SpecError, match='Did you mean "query"'):
        add_lora(model, LoRA(targets=("value", "querry")))
    with pytest.raises(SpecError, match=r'"heads.classifer".*task-heads.*'):
        add_lora(model, LoRA(trained=("heads.classifer",)))
    after = {name: (w.requires_grad, w.data_ptr()) for name, w in model.named_parameters()}
    assert after == before
    add_lora(model, LoRA())
    with pytest.raises(SpecError, match="already"):
        add_lora(model, LoRA(targets=("key",)))


def test_recurrent_models_are_refused():
    model = build(spec.RNNSpec(vocab_size=VOCABULARY, d_model=7, cell="gru", d_hidden=5,
                               num_layers=2, heads=(spec.LMHead(tied=True),)))  # fmt: skip
    with pytest.raises(SpecError, match="recurrent"):
        add_lora(model, LoRA(targets=("all",)))


@pytest.mark.parametrize(
    "wrong", [{"rank": 0}, {"alpha": 0.0}, {"dropout": 1.0}, {"targets": ()}, {"ranks": 3}]
)
def test_descriptions_that_make_no_sense(wrong):
    with pytest.raises(SpecError, match=next(iter(wrong))):
        LoRA(**wrong)


def test_heads_of_the_task_stay_trained_and_those_over_the_vocabulary_do_not():
    heads = (*SPECS["bert"].heads, spec.ClassifierHead(num_labels=5, pooling="first"))
    model = build(SPECS["bert"].replace(heads=heads))
    add_lora(model, LoRA())
    trained = {name for name, w in model.named_parameters() if w.requires_grad}
    assert {name for name in trained if "lora_" not in name} == {
        "heads.classifier.classifier.weight",
        "heads.classifier.classifier.bias",
        "heads.nsp.pooler.linear.weight",
        "heads.nsp.pooler.linear.bias",
        "heads.nsp.classifier.weight",
        "heads.nsp.classifier.bias",
    }
    assert set(adapter_state(model, LoRA())) == trained


def test_what_is_named_is_trained_too():
    model = small_model("bert")
    lora = LoRA(trained=("encoder.layers.0.feed_forward_residual.norm", "heads.mlm.bias"))
    add_lora(model, lora)
    trained = {n for n, w in model.named_parameters() if w.requires_grad and "lora_" not in n}
    assert trained == {
        "encoder.layers.0.feed_forward_residual.norm.weight",
        "encoder.layers.0.feed_forward_residual.norm.bias",
        "heads.mlm.bias",
    }


def test_dropout_is_of_the_update_alone_and_only_while_training():
    base = torch.nn.Linear(13, 7)
    layer = LoRALinear(base, LoRA(rank=RANK, dropout=0.5), torch.Generator())
    x = torch.randn(5, 13)
    assert torch.equal(layer.train()(x), base(x))
    with torch.no_grad():
        layer.lora_b.normal_()
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_base_in_another_precision(dtype):
    model = small_model("llama").to(dtype)
    add_lora(model, ALL)
    shake(model)
    layer = next(iter(adapted(model).values()))
    assert layer.lora_a.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    hidden = answers(model, "llama")
    assert hidden.dtype == dtype
    hidden.float().square().sum().backward()
    assert layer.lora_b.grad is not None
    merge_lora(model)
    assert all(weight.dtype == dtype for weight in model.parameters())


# Families of one batch to learn by heart: the model's name, and what is trained besides.
LEARNERS = {"bert": LoRA(rank=8, alpha=32.0, targets=("all",)),
            "llama": LoRA(rank=8, alpha=32.0, targets=("all",)),
            "bart": LoRA(rank=8, alpha=32.0, targets=("all",))}  # fmt: skip


def learner(name):
    described = SPECS[name]
    stacks = {
        slot: stack.replace(dropout=0.0)
        for slot in ("encoder", "decoder")
        if (stack := getattr(described, slot)) is not None
    }
    heads = described.heads
    if name == "bert":
        heads = (spec.ClassifierHead(num_labels=5, pooling="first"),)
    model = shaken(described.replace(heads=heads, **stacks))
    with torch.no_grad():
        # A frozen table must be able to say something with certainty.
        for table in model.vocabulary_tables:
            table.mul_(4.0)
    return model


def batch_loss(model, name):
    """Mean loss of one batch: a label a text for the encoder, next tokens for the others."""
    ids = random_ids(7, 11, seed=2)
    ids[:, 0] = torch.arange(7) + 1
    hidden = model(**inputs_for(name, ids))
    if name == "bert":
        return torch.nn.functional.cross_entropy(
            model.logits(hidden, head="classifier"), torch.arange(7) % 5
        )
    targets = ids[:, 1:].flatten()
    return model.vocabulary_loss(hidden[:, :-1].flatten(0, 1), targets) / len(targets)


@pytest.mark.parametrize("name", LEARNERS)
def test_one_batch_is_learnt_and_the_base_stays_bit_for_bit(name):
    model = learner(name)
    before = {n: weight.clone() for n, weight in model.named_parameters()}
    add_lora(model, LEARNERS[name])
    changed = set(adapter_state(model, LEARNERS[name]))
    start = {n: weight.clone() for n, weight in model.named_parameters()}
    optimizers = adamw(model.train(), lr=1e-2, weight_decay=0.1)
    first = float(batch_loss(model, name).detach())
    for _ in range(100):
        loss = batch_loss(model, name)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for n, weight in model.named_parameters():
            assert (weight.grad is not None) == (n in changed), n
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    assert float(loss.detach()) < 0.02 * first
    for n, weight in model.named_parameters():
        assert torch.equal(weight, start[n]) == (n not in changed), n
        assert n in changed or torch.equal(weight, before[n])


@pytest.mark.parametrize("name", LEARNERS)
def test_bf16_autocast(name):
    model = learner(name).train()
    add_lora(model, LEARNERS[name].replace(dropout=0.1))
    for thin in adapted(model).values():
        torch.nn.init.normal_(thin.lora_b, std=0.01)
    with torch.autocast("cpu", torch.bfloat16):
        loss = batch_loss(model, name)
    loss.backward()
    gradients = [w.grad for w in model.parameters() if w.requires_grad]
    assert all(g is not None and g.isfinite().all() and g.any() for g in gradients)
    assert all(g.dtype == torch.float32 for g in gradients if g is not None)


def test_gradients_are_those_of_the_merged_matrix():
    """dL/dB = scale dL/dW A^T and dL/dA = scale B^T dL/dW, through a whole model."""
    model = learner("llama")
    lora = LEARNERS["llama"]
    add_lora(model, lora)
    shake(model)
    merged = copy.deepcopy(model)
    merge_lora(merged)
    batch_loss(model, "llama").backward()
    batch_loss(merged, "llama").backward()
    for name, layer in adapted(model).items():
        whole = merged.get_parameter(f"{name}.weight").grad
        torch.testing.assert_close(
            layer.lora_b.grad, lora.scale * whole @ layer.lora_a.T, rtol=1e-3, atol=1e-5
        )
        torch.testing.assert_close(
            layer.lora_a.grad, lora.scale * layer.lora_b.T @ whole, rtol=1e-3, atol=1e-5
        )
