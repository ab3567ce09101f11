"""What a description says of its model's cost, against the model itself."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trivium import spec
from trivium.models import build
from trivium.presets import presets
from trivium.spec import ModelSpec

NAMES = ["albert-mini", "opt-mini", "t5-mini", "t5-v1.1-mini", "bart-mini", "transformer-mini"]


@pytest.mark.parametrize("name", NAMES)
def test_flops_are_those_that_pytorch_counts(name):
    """Within 4 %: the head's own dense layer and half of causal attention are approximations."""
    described = presets[name].replace(vocab_size=4001)
    assert isinstance(described, ModelSpec)
    model, rows, length = build(described), 2, 64
    ids, labels = torch.zeros(rows, length, dtype=torch.int64), torch.arange(rows * length)
    target = {"decoder_input_ids": ids} if described.family == "encoder-decoder" else {}
    with FlopCounterMode(display=False) as counter:
        hidden = model(ids, **target, select=labels)
        model.vocabulary_loss(hidden, torch.zeros_like(labels)).backward()
    found = counter.get_total_flops() / (rows * length)
    assert described.flops_per_token(length) == pytest.approx(found, rel=0.04)


def test_flops_of_attention_between_two_stacks():
    """Growth with length is that of three products: half of one is causal, but counted whole."""
    described = presets["t5-tiny"].replace(vocab_size=31)
    counts = []
    for length in (32, 96):
        model, ids = build(described), torch.zeros(1, length, dtype=torch.int64)
        labels = torch.arange(length)
        with FlopCounterMode(display=False) as counter:
            hidden = model(ids, decoder_input_ids=ids, select=labels)
            model.vocabulary_loss(hidden, torch.zeros_like(labels)).backward()
        counts.append(counter.get_total_flops() / length)
    expected = described.flops_per_token(96) - described.flops_per_token(32)
    assert counts[1] - counts[0] == pytest.approx(expected * 3.0 / 2.5, rel=1e-9)


@pytest.mark.parametrize("name", ["t5-mini", "bart-mini"])
def test_flops_of_a_pair_of_unequal_lengths(name):
    described = presets[name].replace(vocab_size=4001)
    assert isinstance(described, ModelSpec)
    assert described.flops_of_pair(64, 64) == pytest.approx(64 * described.flops_per_token(64))
    model = build(described)
    source, target = (torch.zeros(2, length, dtype=torch.int64) for length in (97, 23))
    labels = torch.arange(2 * 23)
    with FlopCounterMode(display=False) as counter:
        hidden = model(source, decoder_input_ids=target, select=labels)
        model.vocabulary_loss(hidden, torch.zeros_like(labels)).backward()
    found = counter.get_total_flops() / 2
    assert described.flops_of_pair(97, 23) == pytest.approx(found, rel=0.04)


NORMS = [spec.LayerNorm(), spec.LayerNorm(bias=False), spec.RMSNorm()]
POSITIONS = [None, spec.Learned(max_length=37, offset=2), spec.Sinusoidal()]
RELATIVE = [None, spec.Rotary(), spec.RelativeBias(num_buckets=8), spec.ALiBi()]
FACTORISED = [
    None,
    spec.Factorised(width=11),
    spec.Factorised(width=11, bias=False, projected="tokens"),
]
HEADS: list[tuple[spec.Head, ...]] = [
    (spec.LMHead(tied=True, bias=True), spec.PoolerHead()),
    (spec.LMHead(tied=False), spec.SpanHead(dense=spec.Dense(activation="tanh", norm=True))),
    (spec.MLMHead(tied=False), spec.NSPHead(), spec.TaggerHead(num_labels=5)),
    (spec.MLMHead(dense=None), spec.ReplacedTokenHead()),
    (spec.ClassifierHead(num_labels=3, pooling="mean", bias=False),),
]


def every_kind() -> list[ModelSpec]:
    """Every part with every slot; of the full product, every 61st."""
    choices = itertools.product(
        [("encoder",), ("decoder",), ("encoder", "decoder")],
        NORMS,
        [("pre", True), ("pre", False), ("post", True)],
        POSITIONS,
        RELATIVE,
        FACTORISED,
        HEADS,
        [True, False],
    )
    return [described(*choice) for choice in itertools.islice(choices, 0, None, 61)]


def described(slots, norm, order, absolute, relative, factorised, heads, plain) -> ModelSpec:
    attention = spec.Attention(
        num_heads=6,
        num_kv_heads=6 if plain else 2,
        head_dim=4,
        bias=plain,
        output_bias=None if plain else True,
        positions=relative,
    )
    stack = spec.Stack(
        num_layers=3,
        num_distinct=2 if plain else None,
        attention=attention if plain else (attention, attention.replace(pattern=spec.Full())),
        feed_forward=spec.FeedForward(d_ff=29, activation="silu", gated=not plain, bias=plain),
        norm=norm,
        norm_order=order[0],
        first_norm=order[1],
    )
    return ModelSpec(
        vocab_size=43,
        source_vocab_size=53 if len(slots) == 2 and not plain else None,
        d_model=22,
        embedding=spec.Embedding(
            factorised=factorised,
            positions=absolute,
            num_token_types=0 if plain else 2,
            norm=norm if plain else None,
        ),
        heads=heads,
        **dict.fromkeys(slots, stack),
    )


def test_num_parameters_of_every_combination_of_parts():
    specs = every_kind()
    assert len(specs) > 150
    for one in specs:
        built = sum(weight.numel() for weight in build(one, device="meta").parameters())
        assert one.num_parameters == built, one
