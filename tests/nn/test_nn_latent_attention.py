"""Latent attention against DeepSeek-V2 and DeepSeek-V3 of `transformers`, in float64."""

from __future__ import annotations

import pytest
import torch
import transformers
from double import relative_error
from hugging_face import normal, randomize
from small_models import random_ids, random_model

from trivium import spec
from trivium.adapt.quantize import pack
from trivium.errors import SpecError
from trivium.models import build
from trivium.nn.attend import attend
from trivium.nn.mask import Mask
from trivium.nn.sequence_info import SequenceInfo
from trivium.spec import LatentAttention, Rotary

pytestmark = pytest.mark.usefixtures("double_precision")

HEADS, HEAD_DIM, ROTARY_DIM, VALUE_DIM, KV_RANK, QUERY_RANK = 2, 8, 6, 5, 12, 17
KEY_DIM = HEAD_DIM + ROTARY_DIM  # even, as the complex numbers of DeepSeek-V2 need it
VOCABULARY, WIDTH, LAYERS, LENGTH = 43, 22, 2, 19
PART = LatentAttention(
    num_heads=HEADS,
    head_dim=HEAD_DIM,
    rotary_dim=ROTARY_DIM,
    value_dim=VALUE_DIM,
    kv_rank=KV_RANK,
    query_rank=QUERY_RANK,
    positions=Rotary(layout="interleaved", base=100.0),
)
OPTIONS = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 29,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "first_k_dense_replace": LAYERS,
    "kv_lora_rank": KV_RANK,
    "q_lora_rank": QUERY_RANK,
    "qk_nope_head_dim": HEAD_DIM,
    "qk_rope_head_dim": ROTARY_DIM,
    "v_head_dim": VALUE_DIM,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}
V2 = (transformers.DeepseekV2Config, transformers.DeepseekV2Model)
V3 = (transformers.DeepseekV3Config, transformers.DeepseekV3Model)
HALVES = Rotary(layout="halves", base=100.0)
# A model, its other options, and what is different in the same mixer here.
MODELS = {
    "v2": (V2, {}, {}),
    "v2-lite": (V2, {"q_lora_rank": None}, {"query_rank": None}),
    "v3": (V3, {"num_mtp_layers": 0}, {}),
    "v3-halves": (V3, {"num_mtp_layers": 0, "rope_interleave": False}, {"positions": HALVES}),
}
NAMES = {
    "self_attn.q_proj": "mixer.query",
    "self_attn.q_a_proj": "mixer.query_down",
    "self_attn.q_a_layernorm": "mixer.query_norm",
    "self_attn.q_b_proj": "mixer.query",
    "self_attn.kv_a_proj_with_mqa": "mixer.key_value_down",
    "self_attn.kv_a_layernorm": "mixer.key_value_norm",
    "self_attn.kv_b_proj": "mixer.key_value_up",
    "self_attn.o_proj": "mixer.output",
    "input_layernorm": "mixer_residual.pre_norm",
    "post_attention_layernorm": "feed_forward_residual.pre_norm",
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.up",
    "mlp.down_proj": "feed_forward.down",
}


def model_spec(mixer: LatentAttention) -> spec.TransformerSpec:
    """A small decoder that is LLaMA's except for its mixer."""
    stack = spec.Stack.from_mixers(
        num_layers=LAYERS,
        mixer=mixer,
        feed_forward=spec.MLP(d_ff=29, activation="silu", gated=True, bias=False),
        norm=spec.RMSNorm(),
        norm_placement="pre",
    )
    heads = (spec.LMHead(tied=True),)
    return spec.TransformerSpec(
        vocab_size=VOCABULARY, d_model=WIDTH, embedding=spec.Embedding(), decoder=stack, heads=heads
    )


def pair(name: str):
    """A random model of `transformers`, and the same model here."""
    (config, kind), options, changes = MODELS[name]
    theirs = randomize(kind(config(**{**OPTIONS, **options})), seed=3)
    ours = build(model_spec(PART.replace(**changes)), device="meta").to_empty(device="cpu")
    weights = {}
    for full_name, tensor in theirs.state_dict().items():
        path, _, last = full_name.rpartition(".")
        if path.startswith("layers."):
            _, layer, local = path.split(".", 2)
            path = f"decoder.layers.{layer}.{NAMES[local]}"
        else:
            path = {"embed_tokens": "tokens", "norm": "decoder.norm"}[path]
        weights[f"{path}.{last}"] = tensor
    ours.load_state_dict(weights)
    return theirs, ours.eval()


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_and_gradients_are_those_of_transformers(name):
    """With padding, and without it; by eager attention with gradients, by the kernel without."""
    theirs, ours = pair(name)
    ids, real = random_ids(3, LENGTH), torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [1]])
    for mask in (None, real.long()):
        expected = theirs(ids, attention_mask=mask).last_hidden_state
        kept = real if mask is not None else torch.ones_like(real)
        for sequence in (torch.no_grad, torch.enable_grad):
            with sequence():
                actual = ours(ids) if mask is None else ours(ids, attention_mask=mask)
            close(actual[kept], expected[kept])
        noise = normal(expected.shape, torch.Generator().manual_seed(0)) * kept[..., None]
        for model, states in ((theirs, expected), (ours, actual)):
            model.zero_grad()
            (states * noise).sum().backward()
        close(ours.tokens.weight.grad, theirs.embed_tokens.weight.grad)
        down = theirs.layers[0].self_attn.kv_a_proj_with_mqa.weight.grad
        close(ours.decoder.layers[0].mixer.key_value_down.weight.grad, down)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_decoding_step_by_step_is_that_of_transformers(name):
    """A prefill, a chunk of several tokens, and single tokens; both models keep equal vectors."""
    theirs, ours = pair(name)
    ids, cache, past = random_ids(3, LENGTH), ours.new_cache(3, LENGTH), transformers.DynamicCache()
    whole = ours(ids)
    for part in ids.split([7, 4, *[1] * 8], 1):
        expected = theirs(part, past_key_values=past, use_cache=True).last_hidden_state
        close(ours(part, cache=cache), expected)
        end = past.get_seq_length()
        close(expected, whole[:, end - part.shape[1] : end])
    for layer, state in enumerate(cache.states):
        theirs_kept = past.layers[layer].keys, past.layers[layer].values
        for mine, other in zip(state.tensors, theirs_kept, strict=True):
            if name == "v3" and mine.shape[-1] == ROTARY_DIM:  # theirs keeps the pairs apart
                other = other.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
            close(mine[:, :, :LENGTH], other)


def test_the_scale_of_scores_is_a_choice():
    theirs, ours = pair("v2")
    for layer in theirs.layers:
        layer.self_attn.scaling = 0.7
    scaled = random_model(model_spec(PART.replace(scale=0.7)))
    scaled.load_state_dict(ours.state_dict())
    ids = random_ids(2, LENGTH)
    close(scaled(ids), theirs(ids).last_hidden_state)
    assert (scaled(ids) - ours(ids)).abs().max() > 1e-3


def test_packed_documents_stay_apart_and_rows_too():
    model, lengths = random_model(model_spec(PART)), [3, 7, 1, 8]
    documents = torch.repeat_interleave(torch.arange(1, 5), torch.tensor(lengths))[None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    ids = random_ids(2, LENGTH)
    packed = model(ids, document_ids=documents.expand(2, -1), position_ids=positions.expand(2, -1))
    for row in range(2):
        one = ids[row : row + 1]
        close(packed[row], torch.cat([model(part)[0] for part in one.split(lengths, 1)]))


@torch.no_grad()
def test_a_quantised_model_decodes_as_it_reads():
    """Keys and values of earlier tokens are computed by layers that have no matrix of their own."""
    model, ids = random_model(model_spec(PART)), random_ids(2, LENGTH)
    exact = model(ids)
    whole = pack(model, "int8")(ids)
    assert 1e-6 < relative_error(whole, exact) < 0.1
    cache = model.new_cache(2, LENGTH)
    close(torch.cat([model(part, cache=cache) for part in ids.split([11, *[1] * 8], 1)], 1), whole)


def test_a_cache_keeps_the_compressed_vector_and_the_rotary_key():
    """The point of the paper: the size does not depend on the number of heads."""
    for part in (PART, PART.replace(num_heads=11)):
        cache = build(model_spec(part), seed=0).new_cache(3, LENGTH)
        for state in cache.states:
            shapes = [tuple(kept.shape) for kept in state.tensors]
            assert shapes == [(3, 1, LENGTH + 1, KV_RANK), (3, 1, LENGTH + 1, ROTARY_DIM)]
        assert cache.max_crop == LENGTH


def test_parameters_and_flops_are_counted_from_the_sizes():
    for query_rank, queries in (
        (None, WIDTH * HEADS * KEY_DIM),
        (QUERY_RANK, WIDTH * QUERY_RANK + QUERY_RANK * HEADS * KEY_DIM),
    ):
        model = build(model_spec(PART.replace(query_rank=query_rank)), device="meta")
        down = WIDTH * (KV_RANK + ROTARY_DIM)
        up = KV_RANK * HEADS * (HEAD_DIM + VALUE_DIM)
        matrices = queries + down + up + HEADS * VALUE_DIM * WIDTH
        mixer = model.decoder.layers[0].mixer
        numbers = sum(weight.numel() for weight in mixer.parameters())
        assert numbers == matrices + KV_RANK + (query_rank or 0)  # and the weights of the norms
        weights = VOCABULARY * WIDTH + LAYERS * (matrices + 3 * WIDTH * 29)
        # A multiplication and an addition for each dimension of a key and of a value, three times
        # with the backward pass. A token attends to half of the others.
        attending = LAYERS * HEADS * (KEY_DIM + VALUE_DIM) * 2 * 3 * LENGTH / 2
        assert model.flops_per_token(LENGTH) == 6 * weights + attending


def test_rotary_dimensions_must_be_pairs():
    with pytest.raises(SpecError, match=r"rotary_dim=5: .*even"):
        PART.replace(rotary_dim=5)
    described = model_spec(PART)
    assert spec.Spec.from_dict(described.to_dict()) == described


def test_the_decoder_of_an_encoder_decoder_cannot_have_it():
    described = model_spec(PART)
    with pytest.raises(SpecError, match='"latent-attention" has no cross-attention'):
        described.replace(encoder=described.decoder)
    encoder = described.replace(encoder=described.decoder, decoder=None, heads=(spec.MLMHead(),))
    assert random_model(encoder)(random_ids(2, 7)).shape == (2, 7, WIDTH)


@pytest.mark.parametrize(("heads", "kv_heads", "queries"), [(6, 6, 5), (6, 2, 5), (6, 2, 1)])
def test_values_may_have_other_dimensions_than_keys(heads, kv_heads, queries, monkeypatch):
    """On every path of `attend`: eager attention and the kernel, whole masks and parts of them."""
    query, key = torch.randn(2, heads, queries, 7), torch.randn(2, kv_heads, 11, 7)
    value, real = torch.randn(2, kv_heads, 11, 3), torch.arange(11) < torch.tensor([[11], [4]])
    group = torch.arange(heads) // (heads // kv_heads)
    scores = query @ key[:, group].mT * 0.3
    expected = scores.masked_fill(~real[:, None, None], -torch.inf).softmax(-1) @ value[:, group]
    for gradient in (True, False):
        for max_scores in (2**26, 0):
            for max_mask in (2**22, 1):
                monkeypatch.setattr("trivium.nn.mask._MAX_MASK", max_mask)
                with torch.set_grad_enabled(gradient):
                    mask = Mask(
                        SequenceInfo.of_length(queries), SequenceInfo.of_length(11, is_token=real)
                    )
                    mixed = attend(query, key, value, mask, scale=0.3, max_scores=max_scores)
                close(mixed, expected)
    capped = attend(query, key, value, mask, scale=0.3, soft_cap=1e6)
    torch.testing.assert_close(capped, expected, rtol=1e-6, atol=1e-6)
