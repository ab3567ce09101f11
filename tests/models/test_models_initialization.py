"""Where training starts: deviations of every start, and the heads of the fast ones."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import ALL_SPECS, SPECS

from trivium import spec
from trivium.errors import SpecError
from trivium.models import build, with_fast_initialization
from trivium.nn.mixers.attention import AttentionModule
from trivium.nn.sequence_info import SequenceInfo
from trivium.spec import Small

pytestmark = pytest.mark.usefixtures("double_precision")

WIDTH, HEADS, HEAD_DIM, VOCABULARY, LENGTH = 96, 4, 24, 509, 47
ATTENTION = spec.Attention(num_heads=HEADS, head_dim=HEAD_DIM)
TABLES = {"tokens", "source_tokens", "positions", "token_types"}
DISTANCES = {"encoder": [-1, 1, -2, 2], "decoder": [-1, -2, -3, -4]}
MIDDLE = torch.arange(9, LENGTH - 9)
ADDING = "mixer.output.weight", "cross_attention.output.weight", "feed_forward.down.weight"


def stack(**changes):
    return spec.Stack.from_mixers(
        num_layers=3,
        mixer=ATTENTION,
        feed_forward=spec.MLP(d_ff=199, activation="gelu"),
        norm=spec.LayerNorm(),
        norm_placement="pre",
    ).with_layers(**changes)


def model_of(start, *, slots=("encoder", "decoder"), embedding=None, **changes):
    described = spec.TransformerSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        embedding=embedding or spec.Embedding(),
        initialization=start,
        heads=(spec.LMHead(tied=False),),
        **dict.fromkeys(slots, stack(**changes)),
    )
    return build(described, seed=7).eval()


def matrices_by_deviation(start, **options):
    """Matrices of a model with every kind of weight; norms start at 1, every bias at 0."""
    embedding = spec.Embedding(
        positions=spec.Learned(max_length=101),
        num_token_types=2,
        factorised=spec.Factorised(width=61, projected="tokens"),
        norm=spec.LayerNorm(),
    )
    attention = ATTENTION.replace(positions=spec.RelativeBias(), **options)
    for name, weight in model_of(start, embedding=embedding, mixer=attention).named_parameters():
        if weight.ndim > 1:
            yield name, weight.detach(), name.split(".")[-2] in TABLES
        else:
            assert (weight == float(not name.endswith("bias"))).all(), name


def assert_deviation(name, weight, expected):
    """Within five deviations of what so many independent draws give."""
    assert abs(weight.std().item() / expected - 1) < 5 / math.sqrt(2 * weight.numel()), name
    assert abs(weight.mean().item()) < 5 * expected / math.sqrt(weight.numel()), name


def test_normal_starts():
    for residual_init in ("full", "scaled", "zero"):
        start = spec.Normal(std=0.03, embedding_std=0.05, residual_init=residual_init)
        for name, weight, is_table in matrices_by_deviation(start):
            if not name.endswith(ADDING):
                assert_deviation(name, weight, 0.05 if is_table else 0.03)
            elif residual_init == "zero":
                assert not weight.any(), name
            else:
                assert_deviation(name, weight, 0.03 / (1 if residual_init == "full" else 12**0.5))


def test_small_starts():
    """Black et al. 2022, section 2.1: sqrt(2 / (d + 4 d)), and 2 / (L sqrt(d))."""
    for name, weight, _ in matrices_by_deviation(Small()):
        adds = name.endswith(ADDING)
        assert_deviation(name, weight, 2 / (6 * WIDTH**0.5) if adds else (2 / (5 * WIDTH)) ** 0.5)


def test_xavier_and_fan_in_starts():
    """Glorot and Bengio 2010, equation 16; T5 and PaLM: variance 1 / inputs, but of T5's queries,
    whose scores are not divided, 1 / (inputs * head_dim)."""
    for name, weight, is_table in matrices_by_deviation(spec.Xavier()):
        bound = math.sqrt(6 / sum(weight.shape))
        assert_deviation(name, weight, WIDTH**-0.5 if is_table else bound / math.sqrt(3))
    for scale, queries in ((1.0, (WIDTH * HEAD_DIM) ** -0.5), (None, WIDTH**-0.5)):
        for name, weight, is_table in matrices_by_deviation(spec.FanIn(), scale=scale):
            expected = weight.shape[1] ** -0.5
            if is_table:
                expected = 1.0
            elif name.endswith("query.weight"):
                expected = queries
            elif name.endswith("coder.tables.0.weight"):
                expected = WIDTH**-0.5
            assert_deviation(name, weight, expected)


@pytest.mark.parametrize(("name", "described"), ALL_SPECS.items(), ids=ALL_SPECS)
def test_a_seed_decides_every_weight(name, described):
    first = build(described, seed=5).state_dict()
    torch.rand(3)
    again, other = build(described, seed=5).state_dict(), build(described, seed=6).state_dict()
    assert all(torch.equal(weight, again[key]) for key, weight in first.items())
    assert any(not torch.equal(weight, other[key]) for key, weight in first.items())


def test_without_a_seed_weights_are_drawn_anew():
    torch.manual_seed(1)
    drawn = build(SPECS["gpt2"]).tokens.weight
    assert not torch.equal(drawn, build(SPECS["gpt2"]).tokens.weight)


def test_lstms_start_with_open_forget_gates():
    for name, weight in build(ALL_SPECS["lstm"], seed=0).named_parameters():
        if ".bias_ih_" in name:
            assert weight[13:26].eq(1).all()
            assert not weight[:13].any()


@torch.no_grad()
def scores_of(attention, x, context=None):
    query, key = (
        layer(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        for layer in (attention.query, attention.key)
    )
    if context is not None:
        prepared = attention.positions.prepare(context, context, None)
        query, key = (attention.positions.apply_rotary(each, prepared) for each in (query, key))
    return query @ key.transpose(-1, -2)


def assert_distances(scores, slot):
    if slot == "decoder":
        scores = scores.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -torch.inf)
    for head, distance in enumerate(DISTANCES[slot]):
        assert torch.equal(scores[head, MIDDLE].argmax(-1), MIDDLE + distance), (slot, head)


def test_position_offsets_look_at_fixed_distances():
    """By position alone with learned positions, whatever the tokens with rotary ones."""
    start = spec.Normal(std=WIDTH**-0.5, residual_init="zero", attention="position_offsets")
    learned = spec.Embedding(positions=spec.Learned(max_length=LENGTH), num_token_types=2)
    for slot in DISTANCES:
        model = model_of(start, slots=(slot,), embedding=learned)
        (built,) = model.stacks
        assert not built.embedding.token_types.weight.any()
        for layer in built.layers:
            x = built.embedding.positions.weight[None]
            assert_distances(scores_of(layer.mixer, x)[0], slot)
        for rotary in (spec.Rotary(), spec.Rotary(layout="interleaved")):
            attention = ATTENTION.replace(positions=rotary)
            model = model_of(start, slots=(slot,), mixer=attention)
            context = SequenceInfo.of_length(LENGTH)
            for layer in next(model.stacks).layers:
                x = torch.randn(1, LENGTH, WIDTH)
                assert_distances(scores_of(layer.mixer, x, context)[0], slot)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@torch.no_grad()
def test_diagonal_cross_attention_looks_at_its_own_position_and_its_neighbours(layout):
    positions = spec.Sinusoidal(layout=layout)
    start = spec.Xavier(attention="diagonal")
    model = model_of(start, embedding=spec.Embedding(positions=positions))
    x = model.decoder.embedding.positions(torch.arange(LENGTH)[None])
    for layer in model.decoder.layers:
        scores = scores_of(layer.cross_attention, x)[0, :, MIDDLE]
        for head, distance in enumerate([0, *DISTANCES["encoder"]][:HEADS]):
            assert torch.equal(scores[head].argmax(-1), MIDDLE + distance), (layout, head)


def copy_models():
    yield model_of(
        spec.Normal(std=0.1, embedding_std=0.1, residual_init="zero", attention="copy_heads"),
        embedding=spec.Embedding(
            positions=spec.Learned(max_length=LENGTH, offset=2), norm=spec.LayerNorm()
        ),
        norm_placement="post",
    )
    # Layers of a stack have tables of their own where their biases differ.
    t5 = ATTENTION.replace(bias=False, scale=1.0, positions=spec.RelativeBias())
    coarse = t5.replace(positions=spec.RelativeBias(num_buckets=16, max_distance=13))
    yield model_of(spec.FanIn(attention="copy_heads"), mixer=(t5, coarse))


@torch.no_grad()
def test_copy_heads_find_equal_tokens_and_add_neighbours():
    order = torch.randperm(31)
    for model in copy_models():
        across = model.decoder.layers[0].cross_attention
        assert isinstance(across, AttentionModule)
        source = torch.randn(7, 31, WIDTH)
        right = (scores_of(across, source)[:, :, order].argmax(-1) == order).float().mean((0, 2))
        assert (right > 0.9).all(), right
        for built in model.stacks:
            first = built.layers[0].mixer
            torch.testing.assert_close(
                first.output.weight @ first.value.weight, 0.7 * torch.eye(WIDTH)
            )
    for slot in DISTANCES:  # of the last model, with relative biases
        built = getattr(model, slot)
        assert len(built.tables) == 2
        for block, table in zip(built.every_layer, built.tables, strict=False):
            context = SequenceInfo.of_length(LENGTH, causal=slot == "decoder")
            bias = block.mixer.prepare(context, table=table).mask.bias(context, context)
            assert_distances(bias[0], slot)


def test_fast_starts_are_trained_from_there():
    """Every weight has a gradient after some steps, though many start at zero."""
    for model in copy_models():
        ids = torch.randint(0, VOCABULARY, (3, 13))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(4):
            optimizer.zero_grad()
            hidden = model(ids, decoder_input_ids=ids)
            model.lm_loss(hidden.flatten(0, 1), ids.flatten()).backward()
            optimizer.step()
        assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


@pytest.mark.parametrize(
    "model", [SPECS["gpt2"], SPECS["t5"].replace(decoder=None, heads=())], ids=["gpt2", "t5"]
)
def test_fast_is_for_encoders_and_encoder_decoders(model):
    with pytest.raises(SpecError, match='leave "published"'):
        with_fast_initialization(model)


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("bert", "position_offsets"),
        ("modernbert", "random"),
        ("bart", "copy_heads"),
        ("t5", "copy_heads"),
        ("transformer", "diagonal"),
    ],
)
def test_the_fast_initialization_of_a_family(name, attention):
    start = with_fast_initialization(SPECS[name]).initialization
    assert start.attention == attention
    if isinstance(start, spec.Normal):
        assert (start.residual_init, start.std) == ("zero", round(22**-0.5, 4))
    model = build(with_fast_initialization(SPECS[name]), seed=0)
    if name == "bert":
        assert torch.equal(model.heads["mlm"].dense.linear.weight, torch.eye(22))


def test_fast_starts_need_positions_that_allow_them():
    start = SPECS["gpt2"].initialization
    for name, attention, message in (
        ("llama", "position_offsets", "rotary ones in attention with biases"),
        ("gpt2", "copy_heads", "an encoder and a decoder"),
    ):
        with pytest.raises(SpecError, match=message):
            SPECS[name].replace(initialization=start.replace(attention=attention))
    with pytest.raises(SpecError, match="sinusoidal positions"):
        SPECS["bart"].replace(initialization=spec.Xavier(attention="diagonal"))


@pytest.mark.parametrize("name", SPECS)
def test_a_weight_depends_on_the_seed_and_its_name_alone(name):
    """So that processes that each have some of the weights draw those of the whole model."""
    whole = build(SPECS[name], seed=3).state_dict()
    without_heads = build(SPECS[name].with_heads(()), seed=3).state_dict()
    assert without_heads.keys() <= whole.keys()
    for key, weight in without_heads.items():
        assert weight.equal(whole[key]), key
    tables = [key for key in whole if key.endswith("tokens.weight")]
    assert not any(whole[key].equal(build(SPECS[name], seed=4).state_dict()[key]) for key in tables)
