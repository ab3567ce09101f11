"""Attention against the papers' formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import SPECS, random_ids, random_model
from transformers import Olmo2Config
from transformers.models.olmo2.modeling_olmo2 import Olmo2Attention, Olmo2RotaryEmbedding

from trivium import spec
from trivium.errors import SpecError
from trivium.nn import mask as mask_module
from trivium.nn.attend import attend, attention_probabilities
from trivium.nn.mask import Mask
from trivium.nn.mixers.attention import AttentionModule, CrossAttention
from trivium.nn.sequence_info import EncoderOutput, SequenceInfo

pytestmark = pytest.mark.usefixtures("double_precision")

ROWS, QUERIES, KEYS, HEAD_DIM, WIDTH = 2, 5, 7, 6, 11
CONTEXTS = (torch.no_grad, torch.enable_grad)


def grouped_attention(query, key, value, scale, sees=lambda row, t, s: True, bias=None):
    """Sum_s softmax(q . k_s * scale + b) v_s; head n reads key-value head n // (N / K)."""
    mixed = np.empty((*query.shape[:3], value.shape[3]))
    for row, head, t in np.ndindex(*query.shape[:3]):
        group = head // (query.shape[1] // key.shape[1])
        seen = [s for s in range(key.shape[2]) if sees(row, t, s)]
        scores = query[row, head, t] @ key[row, group, seen].T * scale
        if bias is not None:
            scores = scores + bias[row % len(bias), head, t, seen]
        weights = np.exp(scores - max(scores, default=0.0))
        mixed[row, head, t] = weights / (weights.sum() or 1.0) @ value[row, group, seen]
    return mixed


def heads_of(count, length):
    return torch.randn(ROWS, count, length, HEAD_DIM)


def mask_of(queries, keys, *, pattern=None, bias=None, **limits):
    """The mask of the first tokens of a row and all of its keys."""
    sequence = SequenceInfo.of_length(queries, **limits)

    def of(queries, keys):
        return bias[:, :, queries.columns[0]][..., keys.columns[0]]

    keys_context = sequence if queries == keys else SequenceInfo.of_length(keys)
    return Mask(sequence, keys_context, pattern, None if bias is None else of)


def assert_equal(actual, expected, tolerance=1e-10):
    np.testing.assert_allclose(actual.detach().numpy(), expected, rtol=tolerance, atol=tolerance)


def paths(monkeypatch):
    """Eager attention and the kernel, with gradients and without; masks whole and in parts.

    Yields options of `attend`; masks are to be made anew for each.
    """
    for gradient in (True, False):
        for limit in (2**26, 0):
            for block, largest in ((128, 2**22), (1, 2 * KEYS)):
                monkeypatch.setattr(mask_module, "_MIN_ROWS", block)
                monkeypatch.setattr(mask_module, "_MAX_MASK", largest)
                with torch.set_grad_enabled(gradient):
                    yield {"max_scores": limit}


def test_attend_is_the_formula_for_all_heads_lengths_biases_and_scores(monkeypatch):
    for heads, kv_heads in ((3, 3), (6, 2), (5, 1)):
        for queries in (QUERIES, 1):
            query = heads_of(heads, queries)
            key, value = heads_of(kv_heads, KEYS), heads_of(kv_heads, KEYS)
            bias = torch.randn(1, heads, queries, KEYS)
            scores = torch.randn(ROWS, heads, queries, KEYS)
            for added, own in ((None, None), (bias, None), (None, scores), (bias, scores)):
                extra = None
                if added is not None or own is not None:
                    extra = sum(x for x in (added, own) if x is not None).numpy()
                arrays = (x.numpy() for x in (query, key, value))
                expected = grouped_attention(*arrays, 0.7, bias=extra)
                for options in paths(monkeypatch):
                    mask = mask_of(queries, KEYS, bias=added)
                    mixed = attend(query, key, value, mask, scale=0.7, scores=own, **options)
                    assert_equal(mixed, expected)


def test_attend_with_every_limit_at_once(monkeypatch):
    """Some queries may attend to nothing, their own position included: their output is 0."""
    real = torch.arange(KEYS) < torch.tensor([[7], [4]])
    documents = torch.arange(KEYS)[None].expand(ROWS, -1) // 4
    custom = torch.rand(ROWS, 1, KEYS, KEYS) < 0.7

    def sees(row, t, s, reach=None):
        near = t - (reach or 2) <= s <= t and t // 4 == s // 4
        return near and bool(real[row, s]) and bool(custom[row, 0, t, s])

    limits = {"causal": True, "is_token": real, "documents": documents, "custom": custom}
    for heads, kv_heads in ((3, 3), (6, 2)):
        inputs = [heads_of(count, KEYS) for count in (heads, kv_heads, kv_heads)]
        bias, scores = torch.randn(1, heads, KEYS, KEYS), torch.randn(ROWS, heads, KEYS, KEYS)
        for added, own in ((None, None), (bias, None), (None, scores), (bias, scores)):
            total = (0.0 if added is None else added) + (0.0 if own is None else own)
            extra = total.numpy() if isinstance(total, torch.Tensor) else None
            for reach in (2, 1):
                expected = grouped_attention(
                    *(x.numpy() for x in inputs),
                    0.7,
                    lambda row, t, s, reach=reach: sees(row, t, s, reach),
                    extra,
                )
                assert (expected == 0.0).all(-1).any()
                for options in paths(monkeypatch):
                    for x in inputs:
                        x.requires_grad_(torch.is_grad_enabled()).grad = None
                    pattern = spec.Sliding(window=reach)
                    mask = mask_of(KEYS, KEYS, pattern=pattern, bias=added, **limits)
                    mixed = attend(*inputs, mask, scale=0.7, scores=own, **options)
                    assert_equal(mixed, expected)
                    if mixed.requires_grad:
                        mixed.square().sum().backward()
                        assert all(x.grad.isfinite().all() for x in inputs)
                    query, key, value = (x.detach() for x in inputs)
                    weights = attention_probabilities(query, key, mask, 0.7, own)
                    value = value.repeat_interleave(heads // kv_heads, 1)
                    assert_equal(weights @ value, expected)


def test_one_query_without_any_key_is_0(monkeypatch):
    """In a decode step heads that share keys become queries of one head."""
    custom = torch.rand(ROWS, 6, 1, KEYS) < 0.5
    custom[1, 4] = False
    query, key, value = heads_of(6, 1), heads_of(2, KEYS), heads_of(2, KEYS)
    bias = torch.randn(1, 6, 1, KEYS)
    for added in (None, bias):
        extra = None if added is None else added.numpy()
        for allowed in (custom, custom[..., :1]):  # by key, or the same for all of them
            wide = allowed.expand(-1, -1, -1, KEYS)

            expected = np.stack(
                [
                    grouped_attention(
                        query[:, n : n + 1].numpy(),
                        key[:, n // 3, None].numpy(),
                        value[:, n // 3, None].numpy(),
                        0.7,
                        lambda row, t, s, n=n, wide=wide: bool(wide[row, n, t, s]),
                        None if extra is None else extra[:, n : n + 1],
                    )[:, 0]
                    for n in range(6)
                ],
                axis=1,
            )
            for options in paths(monkeypatch):
                mask = mask_of(1, KEYS, bias=added, custom=allowed)
                assert_equal(attend(query, key, value, mask, scale=0.7, **options), expected)


def test_eager_attention_and_the_kernel_have_equal_gradients():
    documents = torch.arange(17)[None].expand(2, -1) // 6
    cases = [
        ({}, None),
        ({"causal": True}, None),
        ({"causal": True}, spec.Sliding(window=3)),
        ({"causal": True, "documents": documents}, None),
    ]
    for limits, pattern in cases:
        for kv_heads in (6, 3):
            shapes = [(2, heads, 17, 8) for heads in (6, kv_heads, kv_heads)]
            inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
            results = []
            for limit in (2**26, 0):
                mask = mask_of(17, 17, pattern=pattern, **limits)
                mixed = attend(*inputs, mask, scale=0.3, max_scores=limit)
                results.append((mixed, *torch.autograd.grad(mixed.square().sum(), inputs)))
            for eager, kernel in zip(*results, strict=True):
                torch.testing.assert_close(eager, kernel, rtol=1e-9, atol=1e-9)


def linear(layer, x, heads):
    y = x.numpy() @ layer.weight.detach().numpy().T
    if layer.bias is not None:
        y = y + layer.bias.detach().numpy()
    return y.reshape(ROWS, -1, heads, HEAD_DIM).transpose(0, 2, 1, 3)


def rotated(x, base):
    """Multiply pairs of the two halves by exp(i p theta_j) (Su et al. 2021, equation 12)."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[-2])[:, None] * base ** (-2.0 * np.arange(half) / x.shape[-1])
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate((turned.real, turned.imag), axis=-1)


def test_the_module_is_multi_head_attention():
    """Concat(head_1 ... head_N) W_O with grouped keys and rotations, and cross-attention.

    Both with a mask of one's own, which is different for every head.
    """
    described = spec.Attention(
        num_heads=6, num_kv_heads=2, head_dim=HEAD_DIM, scale=0.7, positions=spec.Rotary(base=50.0)
    )
    module = AttentionModule(described, WIDTH)
    x, source = torch.randn(ROWS, QUERIES, WIDTH), torch.randn(ROWS, KEYS, WIDTH)

    def output(module, mixed):
        joined = mixed.transpose(0, 2, 1, 3).reshape(ROWS, QUERIES, 6 * HEAD_DIM)
        return (
            joined @ module.output.weight.detach().numpy().T + module.output.bias.detach().numpy()
        )

    query, key = rotated(linear(module.query, x, 6), 50.0), rotated(linear(module.key, x, 2), 50.0)
    value = linear(module.value, x, 2)
    custom = torch.rand(ROWS, 1, QUERIES, QUERIES) < 0.6
    mixed = grouped_attention(
        query, key, value, 0.7, lambda row, t, s: s <= t and bool(custom[row, 0, t, s])
    )
    sequence = SequenceInfo.of_length(QUERIES, causal=True, custom=custom)
    assert_equal(module(x, sequence), output(module, mixed))

    across = CrossAttention(described.cross, WIDTH)
    custom, real = torch.rand(QUERIES, KEYS) < 0.6, torch.arange(KEYS) < torch.tensor([[7], [4]])
    mixed = grouped_attention(
        linear(across.query, x, 6),
        linear(across.key, source, 2),
        linear(across.value, source, 2),
        0.7,
        lambda row, t, s: bool(real[row, s] and custom[t, s]),
    )
    encoder = EncoderOutput(source, is_token=real, custom=custom)
    sequence = SequenceInfo.of_length(QUERIES, causal=True, encoder=encoder)
    assert_equal(across(x, sequence), output(across, mixed))
    weights = across.probabilities(x, sequence)
    assert weights.shape == (ROWS, 6, QUERIES, KEYS)
    assert torch.equal(weights[1, 3] > 0, real[1] & custom)


def test_dropout_only_while_training():
    module = AttentionModule(spec.Attention(num_heads=3, head_dim=4), 13, 0.5)
    x, sequence = torch.randn(2, 7, 13), SequenceInfo.of_length(7)
    assert not torch.equal(module(x, sequence), module(x, sequence))
    module.eval()
    assert torch.equal(module(x, sequence), module(x, sequence))


def test_without_gradients_masks_are_made_for_some_queries_at_a_time(monkeypatch):
    largest = []
    made = mask_module.attention_mask

    def counted(*arguments):
        permitted = made(*arguments)
        largest.append(permitted[0, 0].numel())
        return permitted

    monkeypatch.setattr(mask_module, "attention_mask", counted)
    monkeypatch.setattr(mask_module, "_MAX_MASK", 2 * KEYS + 1)
    query, key, value = heads_of(6, KEYS), heads_of(2, KEYS), heads_of(2, KEYS)
    with torch.no_grad():
        attend(query, key, value, mask_of(KEYS, KEYS, causal=True, is_token=torch.ones(2, KEYS)))
    assert len(largest) == 4
    assert max(largest) == 2 * KEYS


def test_a_context_of_another_length_is_refused():
    module = AttentionModule(spec.Attention(num_heads=3, head_dim=4), 13)
    for length in (1, 9):
        with pytest.raises(SpecError, match=f"x has 7 tokens, and its sequence is of {length}"):
            module(torch.zeros(2, 7, 13), SequenceInfo.of_length(length))


def normed_heads(x, weight, heads, over, eps=1e-5):
    """[B, T, N H] -> [B, N, T, H] with RMSNorm of every head, or of all of them together."""
    x = x if over == "all-heads" else x.unflatten(-1, (heads, HEAD_DIM))
    x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight
    x = x if over is None else x.unflatten(-1, (heads, HEAD_DIM))
    return x.transpose(1, 2)


def turned_heads(x, base=50.0):
    return torch.from_numpy(rotated(x.numpy(), base))


@torch.no_grad()
@pytest.mark.parametrize("place", [None, "after-rotary"])
@pytest.mark.parametrize("over", [None, "all-heads"])
def test_norms_of_queries_and_keys(over, place):
    """Of every head or of all, before or after rotary positions; also in a step of decoding."""
    described = spec.Attention(
        num_heads=6,
        num_kv_heads=2,
        head_dim=HEAD_DIM,
        qk_norm=spec.RMSNorm(eps=1e-5),
        qk_norm_over=over,
        qk_norm_place=place,
        positions=spec.Rotary(base=50.0),
    )
    module = AttentionModule(described, WIDTH)
    for norm in (module.query_norm, module.key_norm):
        norm.weight.copy_(torch.rand_like(norm.weight) + 0.5)
    x = torch.randn(ROWS, QUERIES, WIDTH)
    heads = []
    for layer, norm, count in (
        (module.query, module.query_norm, 6),
        (module.key, module.key_norm, 2),
    ):
        if place is None:
            heads.append(turned_heads(normed_heads(layer(x), norm.weight, count, over)))
        else:
            turned = turned_heads(layer(x).unflatten(-1, (count, HEAD_DIM)).transpose(1, 2))
            flat = turned.transpose(1, 2).flatten(2)
            heads.append(normed_heads(flat, norm.weight, count, over))
    query, key = heads
    value = module.value(x).unflatten(-1, (2, HEAD_DIM)).transpose(1, 2)
    mixed = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )
    expected = module.output(mixed.transpose(1, 2).flatten(2))
    found = module(x, SequenceInfo.of_length(QUERIES, causal=True))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # angles are float32

    decoder = SPECS["llama"].decoder.with_layers(mixer=described)
    model, ids = random_model(SPECS["llama"].replace(decoder=decoder)), random_ids(2, 9)
    cache = model.new_cache(2, 9)
    parts = [model(part, cache=cache) for part in ids.split([7, 1, 1], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(ids), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_norms_of_all_heads_are_those_of_olmo_2():
    """With weights of the width of all queries, and of all keys."""
    config = Olmo2Config(
        hidden_size=WIDTH,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD_DIM,
        rope_parameters={"rope_type": "default", "rope_theta": 50.0},
    )
    config._attn_implementation = "eager"
    theirs = Olmo2Attention(config, 0).double()
    described = spec.Attention(
        num_heads=4,
        num_kv_heads=2,
        head_dim=HEAD_DIM,
        bias=False,
        qk_norm=spec.RMSNorm(eps=config.rms_norm_eps),
        qk_norm_over="all-heads",
        positions=spec.Rotary(base=50.0),
    )
    module, weights = AttentionModule(described, WIDTH), {}
    for name, own in zip("qkvo", ("query", "key", "value", "output"), strict=True):
        weights[f"{own}.weight"] = getattr(theirs, f"{name}_proj").weight
    for name, own in (("q_norm", "query_norm"), ("k_norm", "key_norm")):
        weights[f"{own}.weight"] = getattr(theirs, name).weight.uniform_(0.5, 1.5)
    module.load_state_dict(weights)
    x = torch.randn(ROWS, QUERIES, WIDTH)
    places = torch.arange(QUERIES)[None]
    above = torch.ones(QUERIES, QUERIES).triu(1).bool()
    mask = torch.zeros(QUERIES, QUERIES).masked_fill(above, -torch.inf)[None, None]
    cosines = Olmo2RotaryEmbedding(config)(x, places)
    expected, _ = theirs(x, cosines, mask)
    found = module(x, SequenceInfo.of_length(QUERIES, causal=True))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
