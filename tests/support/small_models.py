"""Small models of every family, with distinct primes for axes, and rows to feed them."""

from __future__ import annotations

import numpy as np
import torch

from trivium import spec
from trivium.models import Transformer, build

VOCABULARY, WIDTH, MAX_LENGTH = 43, 22, 37


def small_spec(name: str) -> spec.ModelSpec:
    """One of SPECS: small enough for thousands of passes, and no term of it is trivial."""
    return SPECS[name]


def small_model(name: str, *, seed: int = 0) -> Transformer:
    """The model of a small spec with every weight random, norms and biases included."""
    model = build(SPECS[name], seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            noise = torch.empty(weight.shape).normal_(0.0, 0.2, generator=generator)
            norm = weight.ndim == 1 and weight_name.endswith("weight")
            weight.copy_(1.0 + noise if norm else noise)
    return model.eval()


def random_ids(rows: int, length: int, *, seed: int = 0) -> torch.Tensor:
    """Int64 [B, T], none of them 0 (padding)."""
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.integers(1, VOCABULARY, (rows, length)))


def _attention(**changes) -> spec.Attention:
    return spec.Attention(num_heads=3, head_dim=10).replace(**changes)


def _rotary(**changes) -> spec.Attention:
    return _attention(bias=False, positions=spec.Rotary(base=100.0), **changes)


_SWIGLU = spec.FeedForward(d_ff=29, activation="silu", gated=True, bias=False)
_GELU = spec.FeedForward(d_ff=29, activation="gelu")

SPECS = {
    "bert": spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        embedding=spec.Embedding(
            positions=spec.Learned(max_length=MAX_LENGTH),
            num_token_types=2,
            norm=spec.LayerNorm(eps=1e-12),
        ),
        encoder=spec.Stack(
            num_layers=2,
            attention=_attention(),
            feed_forward=_GELU,
            norm=spec.LayerNorm(eps=1e-12),
            norm_order="post",
        ),
        heads=(spec.MLMHead(), spec.NSPHead()),
    ),
    "modernbert": spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        embedding=spec.Embedding(norm=spec.LayerNorm(bias=False)),
        encoder=spec.Stack(
            num_layers=3,
            attention=(_rotary(), _rotary(pattern=spec.Sliding(window=2))),
            feed_forward=spec.FeedForward(d_ff=29, activation="gelu", gated=True, bias=False),
            norm=spec.LayerNorm(bias=False),
            norm_order="pre",
        ),
        heads=(spec.MLMHead(bias=False),),
    ),
    "gpt2": spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        embedding=spec.Embedding(positions=spec.Learned(max_length=MAX_LENGTH)),
        decoder=spec.Stack(
            num_layers=2,
            attention=_attention(),
            feed_forward=_GELU,
            norm=spec.LayerNorm(),
            norm_order="pre",
        ),
        heads=(spec.LMHead(tied=True),),
    ),
    "llama": spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        embedding=spec.Embedding(),
        decoder=spec.Stack(
            num_layers=2,
            attention=_rotary(num_heads=6, num_kv_heads=2),
            feed_forward=_SWIGLU,
            norm=spec.RMSNorm(),
            norm_order="pre",
        ),
        heads=(spec.LMHead(tied=False),),
    ),
    "sliding": spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        embedding=spec.Embedding(positions=spec.Sinusoidal(), scale=WIDTH**0.5),
        decoder=spec.Stack(
            num_layers=3,
            attention=(_attention(pattern=spec.Sliding(window=2)), _rotary()),
            feed_forward=_SWIGLU,
            norm=spec.RMSNorm(),
            norm_order="post",
        ),
        heads=(spec.LMHead(tied=True),),
    ),
}
CAUSAL = [name for name, described in SPECS.items() if described.decoder]
BIDIRECTIONAL = [name for name, described in SPECS.items() if described.encoder]
