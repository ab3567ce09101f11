"""Where training starts: deviations of every kind of start, and heads that look at distances."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch

from trivium import spec
from trivium.errors import SpecError
from trivium.models import build
from trivium.nn.positions import Rotation
from trivium.presets import presets

SMALL_PRESETS = [
    name
    for name, found in presets.items()
    if name.endswith("-tiny") and isinstance(found, spec.ModelSpec)
]
WIDTH, HEADS, HEAD_DIM, D_FF, VOCABULARY = 96, 4, 24, 199, 509
ATTENTION = spec.Attention(num_heads=HEADS, head_dim=HEAD_DIM)
BRANCHES = ("attention.output.weight", "feed_forward.down.weight")
TABLES = {"tokens", "source_tokens", "positions", "token_types"}


def stack(**changes) -> spec.Stack:
    described = spec.Stack(
        num_layers=3,
        attention=ATTENTION,
        feed_forward=spec.FeedForward(d_ff=D_FF, activation="gelu"),
        norm=spec.LayerNorm(),
        norm_order="pre",
    )
    return described.replace(**changes)


def encoder_decoder(start: spec.Initialization, **changes) -> spec.ModelSpec:
    """Every kind of weight there is, tables of other widths than the model's among them."""
    both = stack(attention=ATTENTION.replace(positions=spec.RelativeBias()))
    described = spec.ModelSpec(
        vocab_size=VOCABULARY,
        source_vocab_size=521,
        d_model=WIDTH,
        embedding=spec.Embedding(
            positions=spec.Learned(max_length=101),
            num_token_types=2,
            factorised=spec.Factorised(width=61, projected="tokens"),
            norm=spec.LayerNorm(),
        ),
        encoder=both,
        decoder=both,
        heads=(
            spec.LMHead(tied=False),
            spec.MLMHead(dense=spec.Dense(activation="gelu", norm=True), tied=False),
            spec.ReplacedTokenHead(),
        ),
        initialization=start,
    )
    return described.replace(**changes)


def is_table(name: str) -> bool:
    return name.split(".")[-2] in TABLES


def assert_deviation(name, weight, expected):
    """Within five deviations of what so many independent draws give."""
    assert abs(weight.std().item() / expected - 1) < 5 / math.sqrt(2 * weight.numel()), name
    assert abs(weight.mean().item()) < 5 * expected / math.sqrt(weight.numel()), name


def assert_vectors(model):
    """Norms begin at 1, every bias at 0; the matrices are returned."""
    matrices = {}
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            matrices[name] = weight.detach()
        elif name.endswith("bias"):
            assert not weight.any(), name
        else:
            assert (weight == 1).all(), name
    return matrices


@pytest.mark.parametrize("branches", ["full", "scaled", "zero"])
def test_normal(branches):
    start = spec.Normal(std=0.03, embedding_std=0.05, branches=branches)
    described = encoder_decoder(start, heads=(spec.LMHead(tied=False),))
    for name, weight in assert_vectors(build(described, seed=3)).items():
        if not name.endswith(BRANCHES):
            assert_deviation(name, weight, 0.05 if is_table(name) else 0.03)
        elif branches == "zero":
            assert not weight.any(), name
        else:
            assert_deviation(name, weight, 0.03 / (1 if branches == "full" else 12**0.5))


def test_xavier():
    """Glorot and Bengio 2010, equation 16; tables as the scaled embeddings of 2017 want them."""
    for name, weight in assert_vectors(build(encoder_decoder(spec.Xavier()), seed=3)).items():
        if is_table(name):
            assert_deviation(name, weight, WIDTH**-0.5)
            continue
        bound = math.sqrt(6 / sum(weight.shape))
        assert_deviation(name, weight, bound / math.sqrt(3))
        assert 0.95 * bound < weight.abs().max() <= bound, name


def test_fan_in():
    """Variance 1 / inputs, queries divided by head_dim more, tables 1 (T5)."""
    for name, weight in assert_vectors(build(encoder_decoder(spec.FanIn()), seed=3)).items():
        if is_table(name):
            expected = 1.0
        elif name.endswith("query.weight"):
            expected = (WIDTH * HEAD_DIM) ** -0.5
        elif name in ("encoder.bias.weight", "decoder.bias.weight"):
            expected = WIDTH**-0.5
        else:
            expected = weight.shape[1] ** -0.5
        assert_deviation(name, weight, expected)


def test_fan_in_makes_unscaled_scores_of_deviation_one():
    """What the start is for: normed inputs give queries and keys whose product has variance 1."""
    model = build(encoder_decoder(spec.FanIn()), seed=3)
    assert model.encoder is not None
    attention = model.encoder.layers[1].get_submodule("attention")
    x = torch.randn(997, WIDTH)
    with torch.no_grad():
        query, key = (
            attention.get_submodule(name)(x).unflatten(-1, (HEADS, HEAD_DIM))
            for name in ("query", "key")
        )
        scores = torch.einsum("tnh,snh->nts", query, key)
    assert scores.std().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("name", SMALL_PRESETS)
def test_presets_start_as_described(name):
    described = presets[name].replace(vocab_size=97)
    assert isinstance(described, spec.ModelSpec)
    model, again = build(described, seed=5), build(described, seed=5)
    for (weight_name, weight), other in zip(
        model.named_parameters(), again.parameters(), strict=True
    ):
        assert torch.equal(weight, other), weight_name
        assert weight.isfinite().all(), weight_name
        turned = weight_name.endswith(("query.bias", "key.bias")) and "modernbert" in name
        if weight.ndim == 1 and not turned and not weight_name.startswith("heads.mlm.dense"):
            assert (weight == float(not weight_name.endswith("bias"))).all(), weight_name
    start = described.initialization
    if isinstance(start, spec.Normal):
        assert_deviation("tokens", model.tokens.weight, start.embedding_std)
        dense = described.heads and getattr(described.heads[0], "dense", None)
        if start.branches == "zero" and dense:
            weight = model.state_dict()["heads.mlm.dense.linear.weight"]
            assert torch.equal(weight, torch.eye(len(weight)))


@torch.no_grad()
def first_attention(model, ids: torch.Tensor) -> list[torch.Tensor]:
    """The probabilities [B, N, T, S] of every layer in the first forward pass of a run."""
    (stack,) = model.stacks
    seen: list[tuple[Any, torch.Tensor]] = []
    for layer in stack.layers:
        layer.attention.register_forward_pre_hook(
            lambda module, inputs: seen.append((module, inputs[0]))
        )
    model(ids)
    found = []
    for attention, x in seen:
        query, key = (
            projection(x).unflatten(-1, (-1, attention.head_dim))
            for projection in (attention.query, attention.key)
        )
        scores = torch.einsum("btnh,bsnh->bnts", query, key) * attention.scale
        if stack.causal:
            later = torch.ones(scores.shape[-2:]).triu(1).bool()
            scores = scores.masked_fill(later, -torch.inf)
        found.append(scores.softmax(-1))
    return found


OFFSETS = {"encoder": [-1, 1, -2, 2], "decoder": [-1, -2, -3, -4]}
LENGTH = 47


def offsets_model(slot: str, order: Literal["pre", "post"]):
    described = spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        embedding=spec.Embedding(
            positions=spec.Learned(max_length=LENGTH),
            num_token_types=2 if slot == "encoder" else 0,
            norm=spec.LayerNorm() if order == "post" else None,
        ),
        initialization=spec.Normal(std=WIDTH**-0.5, branches="zero", attention="offsets"),
        encoder=stack(norm_order=order) if slot == "encoder" else None,
        decoder=stack(norm_order=order) if slot == "decoder" else None,
    )
    return build(described, seed=7).eval()


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("slot", OFFSETS)
def test_heads_that_start_at_offsets_look_there_by_position_alone(slot, order):
    """Without tokens every query of the middle of a row favours its distance, in every layer."""
    model = offsets_model(slot, order)
    torch.nn.init.zeros_(model.tokens.weight)
    places = torch.arange(9, LENGTH - 9)
    for attention in first_attention(model, torch.zeros(1, LENGTH, dtype=torch.int64)):
        for head, distance in enumerate(OFFSETS[slot]):
            favourite = attention[0, head, places].argmax(-1)
            assert torch.equal(favourite, places + distance), head


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("slot", OFFSETS)
def test_heads_that_start_at_offsets_attend_most_to_their_distance(slot, order):
    """Among real tokens too; a query's own token, which is its own likeness, is left aside."""
    model, generator = offsets_model(slot, order), torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCABULARY, (31, LENGTH), generator=generator)
    places = torch.arange(9, LENGTH - 9)
    others = [d for d in range(-9, 10 if slot == "encoder" else 1) if d != 0]
    for attention in first_attention(model, ids):
        for head, distance in enumerate(OFFSETS[slot]):
            around = torch.stack([attention[:, head, places, places + d].mean() for d in others])
            assert others[int(around.argmax())] == distance, head
            assert around.max() > 5 / LENGTH, head


@pytest.mark.parametrize("slot", OFFSETS)
def test_rotary_heads_that_start_at_offsets_look_there_whatever_the_tokens(slot):
    attention = stack().attention_of(0).replace(positions=spec.Rotary())
    blocks = stack(attention=attention)
    described = spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        embedding=spec.Embedding(),
        initialization=spec.Normal(attention="offsets"),
        encoder=blocks if slot == "encoder" else None,
        decoder=blocks if slot == "decoder" else None,
    )
    model = build(described, seed=7)
    (built,) = model.stacks
    rotation = Rotation(spec.Rotary(), attention.head_dim, torch.arange(LENGTH)[None])
    places = torch.arange(9, LENGTH - 9)
    for layer in built.layers:
        found = layer.get_submodule("attention")
        x = torch.randn(1, LENGTH, WIDTH)
        query, key = (
            rotation(found.get_submodule(name)(x).unflatten(-1, (HEADS, -1)).transpose(1, 2))
            for name in ("query", "key")
        )
        scores = query @ key.transpose(-1, -2)
        if slot == "decoder":
            scores = scores + torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
        for head, distance in enumerate(OFFSETS[slot]):
            assert torch.equal(scores[0, head, places].argmax(-1), places + distance), head


def test_offsets_need_positions_that_can_turn():
    attention = stack().attention_of(0).replace(bias=False, positions=spec.Rotary())
    with pytest.raises(SpecError, match="rotary ones in attention with biases"):
        spec.ModelSpec(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            embedding=spec.Embedding(),
            initialization=spec.Normal(attention="offsets"),
            decoder=stack(attention=attention),
        )


LOOKUP = {
    "learned": spec.Normal(std=0.1, embedding_std=0.1, branches="zero", attention="lookup"),
    "relative": spec.FanIn(attention="lookup"),
}


def lookup_model(kind: str):
    attention = ATTENTION.replace(bias=kind == "learned", scale=1.0 if kind == "relative" else None)
    if kind == "relative":
        attention = attention.replace(positions=spec.RelativeBias())
    both = stack(attention=attention, norm_order="post" if kind == "learned" else "pre")
    positions = spec.Learned(max_length=LENGTH, offset=2) if kind == "learned" else None
    described = spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        embedding=spec.Embedding(positions=positions, norm=spec.LayerNorm() if positions else None),
        encoder=both,
        decoder=both,
        heads=(spec.LMHead(tied=True),),
        initialization=LOOKUP[kind],
    )
    return build(described, seed=7).eval()


@pytest.mark.parametrize("kind", LOOKUP)
@torch.no_grad()
def test_a_lookup_finds_equal_tokens_in_the_source(kind):
    """In the first layer a decoder's token asks for itself, wherever the encoder has it."""
    model, generator = lookup_model(kind), torch.Generator().manual_seed(0)
    source = torch.stack([torch.randperm(VOCABULARY, generator=generator)[:31] for _ in range(7)])
    order = torch.randperm(31, generator=generator)
    assert model.decoder is not None
    across = model.decoder.layers[0].get_submodule("cross_attention")
    seen: dict[str, torch.Tensor] = {}

    def note(module, inputs, options):
        seen.update(query=module.query(inputs[0]), key=module.key(options["memory"]))

    across.register_forward_pre_hook(note, with_kwargs=True)
    model(source, decoder_input_ids=source[:, order])
    query, key = (seen[name].unflatten(-1, (HEADS, HEAD_DIM)) for name in ("query", "key"))
    scores = torch.einsum("btnh,bsnh->bnts", query, key)
    right = (scores.argmax(-1) == order).float().mean((0, 2))
    # With learned positions the first head's slice is full of them.
    assert (right[1:] > 0.4).all(), right


@pytest.mark.parametrize("slot", OFFSETS)
def test_relative_biases_of_a_lookup_stand_out_at_the_heads_distances(slot):
    model = lookup_model("relative")
    built = getattr(model, slot)
    bias = built.get_submodule("bias")(torch.arange(LENGTH)[None], LENGTH)[0]
    places = torch.arange(9, LENGTH - 9)
    if slot == "decoder":
        bias = bias.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -torch.inf)
    for head, distance in enumerate(OFFSETS[slot]):
        assert torch.equal(bias[head, places].argmax(-1), places + distance)


@pytest.mark.parametrize("kind", LOOKUP)
def test_a_lookup_adds_neighbours_to_tokens_in_the_first_layer_alone(kind):
    model = lookup_model(kind)
    for built in model.stacks:
        first, second = (built.layers[n].get_submodule("attention") for n in (0, 1))
        written, read = first.get_parameter("output.weight"), first.get_parameter("value.weight")
        product = written @ read
        torch.testing.assert_close(product, 0.7 * torch.eye(WIDTH))
        assert bool(second.get_parameter("output.weight").any()) == (kind == "relative")


@pytest.mark.parametrize("kind", LOOKUP)
def test_a_lookup_is_trained_from_there(kind):
    """After some steps what starts at zero has moved, and so has all behind it."""
    model, ids = lookup_model(kind), torch.randint(0, VOCABULARY, (3, 13))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        optimizer.zero_grad()
        hidden = model(ids, decoder_input_ids=ids)
        model.vocabulary_loss(hidden.flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.any() or name.endswith("key.bias"), name


def test_a_lookup_needs_both_stacks():
    with pytest.raises(SpecError, match="needs an encoder and a decoder"):
        spec.ModelSpec(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            embedding=spec.Embedding(positions=spec.Learned(max_length=31)),
            decoder=stack(),
            initialization=spec.Normal(attention="lookup"),
        )
    with pytest.raises(SpecError, match="learned positions or relative biases"):
        spec.ModelSpec(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            embedding=spec.Embedding(positions=spec.Sinusoidal()),
            encoder=stack(),
            decoder=stack(),
            initialization=spec.Normal(attention="lookup"),
        )


def test_offsets_are_trained_from_there():
    described = spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        embedding=spec.Embedding(positions=spec.Learned(max_length=31)),
        decoder=stack(),
        heads=(spec.LMHead(tied=True),),
        initialization=spec.Normal(attention="offsets"),
    )
    model, ids = build(described), torch.randint(0, VOCABULARY, (2, 13))
    model.vocabulary_loss(model(ids).flatten(0, 1), ids.flatten()).backward()
    for name, weight in model.named_parameters():
        assert weight.requires_grad, name
        assert weight.grad is not None, name
        assert weight.grad.any() or name.endswith("key.bias"), name
