"""The functions that the tests of a public course call, made of public names of Trivium.

The course is Stanford's CS336, its first assignment (`stanford-cs336/assignment1-basics`).
`test_course.py` says how its tests are run.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import trivium
from trivium import spec
from trivium.data import RowBatch, RowRandom
from trivium.nn import (
    ACTIVATIONS,
    AttentionMixer,
    Block,
    Context,
    Mask,
    attend,
    build_norm,
    cross_entropy,
)
from trivium.nn.feed_forwards.feed_forward import FeedForwardNetwork
from trivium.nn.positions.rotary import RotaryPositions
from trivium.objectives import to_device
from trivium.objectives.causal import Causal
from trivium.text import Vocabulary
from trivium.train import Cosine, TrainState, restore, save_checkpoint

Merges = list[tuple[bytes, bytes]]
# The course's name of a weight -> ours.
_NAMES = {
    "attn.q_proj": "mixer.query",
    "attn.k_proj": "mixer.key",
    "attn.v_proj": "mixer.value",
    "attn.output_proj": "mixer.output",
    "ln1": "mixer_residual.before",
    "ln2": "feed_forward_residual.before",
    "ffn.w1": "feed_forward.gate",
    "ffn.w2": "feed_forward.down",
    "ffn.w3": "feed_forward.up",
    "token_embeddings": "tokens",
    "layers": "decoder.layers",
    "ln_final": "decoder.norm",
    "lm_head": "heads.lm",
}


def our_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for name, weight in weights.items():
        for theirs, ours in _NAMES.items():
            name = name.replace(theirs, ours)
        renamed[name] = weight
    return renamed


# Layers


def run_linear(d_in: int, d_out: int, weights: Tensor, in_features: Tensor) -> Tensor:
    """A linear layer is PyTorch's."""
    return torch.nn.functional.linear(in_features, weights)


def run_embedding(vocab_size: int, d_model: int, weights: Tensor, token_ids: Tensor) -> Tensor:
    """An embedding is PyTorch's."""
    return torch.nn.functional.embedding(token_ids, weights)


def run_silu(in_features: Tensor) -> Tensor:
    return ACTIVATIONS["silu"](in_features)


def run_softmax(in_features: Tensor, dim: int) -> Tensor:
    """A softmax is PyTorch's."""
    return in_features.softmax(dim)


def run_rmsnorm(d_model: int, eps: float, weights: Tensor, in_features: Tensor) -> Tensor:
    norm = build_norm(spec.RMSNorm(eps=eps), d_model)
    norm.load_state_dict({"weight": weights})
    return norm(in_features)


def swiglu(d_ff: int) -> spec.FeedForward:
    return spec.FeedForward(d_ff=d_ff, activation="silu", gated=True, bias=False)


def run_swiglu(
    d_model: int,
    d_ff: int,
    w1_weight: Tensor,
    w2_weight: Tensor,
    w3_weight: Tensor,
    in_features: Tensor,
) -> Tensor:
    network = FeedForwardNetwork(swiglu(d_ff), d_model)
    weights = {"gate.weight": w1_weight, "down.weight": w2_weight, "up.weight": w3_weight}
    network.load_state_dict(weights)
    return network(in_features)[0]


def run_scaled_dot_product_attention(
    Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Attention has an axis of heads: [B, T, H] is one head."""
    if Q.ndim == 3:
        several = mask[:, None] if mask is not None else None
        return run_scaled_dot_product_attention(Q[:, None], K[:, None], V[:, None], several)[:, 0]
    queries = Context.of_length(Q.shape[2], custom=mask)
    return attend(Q, K, V, Mask(queries, Context.of_length(K.shape[2])))


# The model


def rotary(theta: float) -> spec.Rotary:
    return spec.Rotary(base=theta, layout="interleaved")


def run_rope(
    d_k: int, theta: float, max_seq_len: int, in_query_or_key: Tensor, token_positions: Tensor
) -> Tensor:
    described = spec.Attention(num_heads=1, head_dim=d_k, positions=rotary(theta))
    positions, context = RotaryPositions(described, d_k), at_positions(token_positions)
    prepared = positions.prepare(context, context, None)
    return positions.turn(in_query_or_key[:, None], prepared)[:, 0]


def at_positions(positions: Tensor) -> Context:
    """A causal context of tokens with these positions."""
    columns = torch.arange(positions.shape[-1])[None]
    return Context(torch.atleast_2d(positions), columns, causal=True)


def self_attention(
    described: spec.Attention,
    d_model: int,
    projections: tuple[Tensor, ...],
    x: Tensor,
    positions: Tensor | None = None,
) -> Tensor:
    attention = AttentionMixer(described, d_model)
    names = ("query.weight", "key.weight", "value.weight", "output.weight")
    attention.load_state_dict(dict(zip(names, projections, strict=True)))
    columns = torch.arange(x.shape[1])
    return attention(x, at_positions(columns if positions is None else positions))


def run_multihead_self_attention(
    d_model: int,
    num_heads: int,
    q_proj_weight: Tensor,
    k_proj_weight: Tensor,
    v_proj_weight: Tensor,
    o_proj_weight: Tensor,
    in_features: Tensor,
) -> Tensor:
    described = spec.Attention(num_heads=num_heads, head_dim=d_model // num_heads, bias=False)
    projections = q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight
    return self_attention(described, d_model, projections, in_features)


def run_multihead_self_attention_with_rope(
    d_model: int,
    num_heads: int,
    max_seq_len: int,
    theta: float,
    q_proj_weight: Tensor,
    k_proj_weight: Tensor,
    v_proj_weight: Tensor,
    o_proj_weight: Tensor,
    in_features: Tensor,
    token_positions: Tensor | None = None,
) -> Tensor:
    (described,) = llama_stack(1, num_heads, d_model, 1, theta).attentions
    projections = q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight
    return self_attention(described, d_model, projections, in_features, token_positions)


def llama_stack(
    num_layers: int, num_heads: int, d_model: int, d_ff: int, theta: float
) -> spec.Stack:
    return spec.Stack(
        num_layers=num_layers,
        mixer=spec.Attention(
            num_heads=num_heads,
            head_dim=d_model // num_heads,
            bias=False,
            positions=rotary(theta),
        ),
        feed_forward=swiglu(d_ff),
        norm=spec.RMSNorm(eps=1e-5),
        norms=spec.PRE_NORM,
        dropout=0.0,
    )


def run_transformer_block(
    d_model: int,
    num_heads: int,
    d_ff: int,
    max_seq_len: int,
    theta: float,
    weights: dict[str, Tensor],
    in_features: Tensor,
) -> Tensor:
    block = Block(llama_stack(1, num_heads, d_model, d_ff, theta), 0, d_model)
    block.load_state_dict(our_names(weights))
    return block(in_features, at_positions(torch.arange(in_features.shape[1])))[0]


def run_transformer_lm(
    vocab_size: int,
    context_length: int,
    d_model: int,
    num_layers: int,
    num_heads: int,
    d_ff: int,
    rope_theta: float,
    weights: dict[str, Tensor],
    in_indices: Tensor,
) -> Tensor:
    described = trivium.ModelSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=spec.Embedding(),
        decoder=llama_stack(num_layers, num_heads, d_model, d_ff, rope_theta),
        heads=(spec.LMHead(tied=False),),
    )
    model = trivium.build(described)
    model.load_state_dict(our_names(weights))
    return model.logits(model(in_indices))


# Training


def run_get_batch(
    dataset: np.ndarray, batch_size: int, context_length: int, device: str
) -> tuple[Tensor, Tensor]:
    """Rows that begin anywhere. Trivium itself cuts a text into rows once and permutes them."""
    rng = RowRandom(seed=0, stream_indices=np.arange(batch_size) + batch_size * next(_BATCHES))
    starts = rng.integers(len(dataset) - context_length, 1, channel=0)
    ids = dataset[starts + np.arange(context_length + 1)].astype(np.int64)
    rows = RowBatch(ids, lengths=np.full(batch_size, context_length + 1))
    batch = Causal().prepare(rows, rng, Vocabulary(size=int(ids.max()) + 1))
    tensors = to_device(batch, torch.device(device))
    return tensors.inputs["input_ids"][:, :-1], tensors.targets.view(batch_size, context_length)


_BATCHES = itertools.count()


def run_cross_entropy(inputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(inputs, targets).mean


def run_gradient_clipping(parameters: Iterable[torch.nn.Parameter], max_l2_norm: float) -> None:
    """Trivium's trainer clips by PyTorch's function."""
    torch.nn.utils.clip_grad_norm_(parameters, max_l2_norm)


def get_adamw_cls() -> type[torch.optim.Optimizer]:
    """PyTorch's, which `trivium.train.AdamW(...).build(model)` gives groups of parameters."""
    return torch.optim.AdamW


def run_get_lr_cosine_schedule(
    it: int,
    max_learning_rate: float,
    min_learning_rate: float,
    warmup_iters: int,
    cosine_cycle_iters: int,
) -> float:
    """The course's first step has a learning rate of 0, ours has a step's share of the warm-up."""
    schedule = Cosine(
        warmup=warmup_iters / cosine_cycle_iters, final=min_learning_rate / max_learning_rate
    )
    return max_learning_rate * schedule.factor(it, it / cosine_cycle_iters) * (it > 0)


def run_save_checkpoint(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, iteration: int, out: str | os.PathLike
) -> None:
    save_checkpoint(out, model, [optimizer], TrainState(step=iteration))


def run_load_checkpoint(
    src: str | os.PathLike, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> int:
    return restore(src, model, [optimizer]).step


# Tokenizers


class CourseTokenizer:
    """The course's interface: lists of ids, and special tokens that are decoded, too."""

    def __init__(self, tokenizer: trivium.Tokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text).ids)

    def encode_iterable(self, texts: Iterable[str]) -> Iterator[int]:
        return self.tokenizer.encode_iterable(texts)

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)


def get_tokenizer(
    vocab: dict[int, bytes], merges: Merges, special_tokens: list[str] | None = None
) -> CourseTokenizer:
    return CourseTokenizer(trivium.Tokenizer.from_merges(vocab, merges, special_tokens or ()))


def run_train_bpe(
    input_path: str | os.PathLike, vocab_size: int, special_tokens: list[str], **_: Any
) -> tuple[dict[int, bytes], Merges]:
    """The course splits the text at special tokens before training."""
    text = Path(input_path).read_text(encoding="utf-8")
    tokenizer = trivium.Tokenizer.train(
        "byte-bpe",
        texts=re.split("|".join(map(re.escape, special_tokens)), text),
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        progress=False,
    )
    return dict(enumerate(tokenizer.token_bytes)), tokenizer.merges
