"""Explanation of a Transformer block: residual connections and norms, and what depth does to them.

Shape letters: B texts, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import TriviumError
from trivium.explain.page import Curves, Formula, Grid, Heading, Label, Page, Table, get_text
from trivium.nn.blocks import Block, Layer, NormPlacement
from trivium.nn.feed_forwards.mlp import MLP
from trivium.nn.mixers.attention import Attention
from trivium.nn.norm import LayerNorm
from trivium.nn.sequence_info import SequenceInfo

_X = [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
_TOKEN = 2  # the index of the vector whose steps are shown, x_3
_TEXTS, _TOKENS, _WIDTH, _HEADS = 4, 16, 64, 4
_STACKS: dict[str, tuple[Literal["norm", "add", "post", "pre"] | None, str]] = {
    "none": (None, "f(x)"),
    "norm": ("norm", "LN(f(x))"),
    "residual": ("add", "x + f(x)"),
    "post": ("post", "LN(x + f(x))"),
    "pre": ("pre", "x + f(LN(x))"),
}


def explain(depth: int = 48, *, seed: int = 0) -> Page:
    """Compute a Transformer block step by step, and measure what residuals and norms do in depth.

    Args:
        depth: Number of blocks in the stacks whose gradients are measured, at least 2.
        seed: Random seed of the weights and inputs.
    """
    if not 2 <= depth <= 200:
        raise TriviumError(f"depth is {depth}: give a number of blocks from 2 to 200.")
    steps = {
        "post": _compute_intermediates("post", seed),
        "pre": _compute_intermediates("pre", seed),
    }
    titles = {"post": get_text("block.post_norm"), "pre": get_text("block.pre_norm")}
    tables = [
        Table([titles[placement], "x_3"], [[name, row] for name, row in rows])
        for placement, rows in steps.items()
    ]
    gradients, similarities = {}, {}
    for name, (_, formula) in _STACKS.items():
        gradients[formula], similarities[formula] = _measure_stack(name, depth, seed)
    blocks = list(range(depth + 1))
    norms: dict[Label, list[float]] = {
        formula: [value.log10().item() for value in values] for formula, values in gradients.items()
    }
    cosines: dict[Label, list[float]] = dict(similarities)
    return Page(
        get_text("block.transformer_block"),
        [
            Formula(
                "AddNorm(f, x) = LN(x + f(x))\n"
                "post-norm:  a = AddNorm(SelfAttention, x)    y = AddNorm(FFN, a)\n"
                "pre-norm:   a = x + SelfAttention(LN(x))     y = a + FFN(LN(a))"
            ),
            Grid(_X, [f"x_{i}" for i in range(1, 5)], caption=get_text("block.vectors")),
            *tables,
            get_text("block.steps_note"),
            Heading(get_text("block.gradient_by_depth")),
            Formula("|| d loss / d h_(L-k) ||  /  || d loss / d h_L ||"),
            Curves(
                blocks,
                norms,
                get_text("block.blocks_below"),
                get_text("block.log_gradient", depth=depth, width=_WIDTH),
            ),
            get_text("block.gradient_note"),
            Heading(get_text("block.similarity")),
            Curves(blocks, cosines, get_text("block.blocks_above"), get_text("block.mean_cosine")),
            get_text("block.similarity_note"),
        ],
        {
            "steps": {name: dict(rows) for name, rows in steps.items()},
            "gradient_norms": {name: value.tolist() for name, value in gradients.items()},
            "cosines": similarities,
        },
    )


def _compute_intermediates(
    norm_placement: NormPlacement, seed: int
) -> list[tuple[str, list[float]]]:
    """Return the named intermediate vectors of one token in a causal Transformer block.

    The last vector is the output of the block itself.
    """
    block = _build_blocks(norm_placement, 1, 4, 2, torch.Generator().manual_seed(seed))[0]
    info = SequenceInfo.of_length(len(_X), causal=True)
    assert block.feed_forward is not None
    with torch.no_grad():
        x = torch.tensor([_X], dtype=torch.float64)
        norm = block.mixer_residual.normalize
        attended = block.mixer(norm(x), info)
        a = block.mixer_residual(x, attended)
        of_ffn = block.feed_forward_residual.normalize
        fed = block.feed_forward(of_ffn(a), info)[0]
        y, _ = block(x, info)
        named = {"x": x}
        if norm_placement == "pre":
            named |= {"LN(x)": norm(x), "f = SelfAttention(LN(x))": attended, "a = x + f": a}
            named |= {"LN(a)": of_ffn(a), "g = FFN(LN(a))": fed, "y = a + g": y}
        else:
            named |= {"f = SelfAttention(x)": attended, "x + f": x + attended, "a = LN(x + f)": a}
            named |= {"g = FFN(a)": fed, "a + g": a + fed, "y = LN(a + g)": y}
    return [(name, value[0, _TOKEN].tolist()) for name, value in named.items()]


def _build_blocks(
    placement: NormPlacement, count: int, width: int, heads: int, generator: torch.Generator
) -> list[Block]:
    """Build untrained blocks in float64, with Xavier matrices and without biases of matrices."""
    layer = Layer(
        mixer=Attention(num_heads=heads, head_dim=width // heads, bias=False),
        feed_forward=MLP(d_ff=4 * width, activation="relu", gated=False, bias=False),
        norm=LayerNorm(),
        norm_placement=placement,
    )
    blocks = [layer.build(width).double() for _ in range(count)]
    for block in blocks:
        for weight in block.parameters():
            if weight.ndim > 1:
                nn.init.xavier_uniform_(weight, generator=generator)
    return blocks


def _measure_stack(name: str, depth: int, seed: int) -> tuple[Tensor, list[float]]:
    """Measure a stack of `depth` causal blocks: gradients, and how similar tokens become.

    Args:
        name: a key of `_STACKS`.
        depth: L, the number of blocks.
        seed: the seed of the weights and of the inputs.

    Returns:
        The norm of the gradient k blocks below the top, relative to the top, float64 [L + 1], and
        the mean cosine between different tokens of a text after k blocks, for k = 0 to L.
    """
    how = _STACKS[name][0]
    generator = torch.Generator().manual_seed(seed)
    placement: NormPlacement = how if how in ("post", "pre") else "none"
    blocks = _build_blocks(placement, depth, _WIDTH, _HEADS, generator)
    shape = _TEXTS, _TOKENS, _WIDTH
    x = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    w = torch.randn(shape, generator=generator, dtype=torch.float64)
    info = SequenceInfo.of_length(_TOKENS, causal=True)
    norm: Callable[[Tensor], Tensor] = _layer_norm if how == "norm" else _identity
    hidden = [x]
    for block in blocks:
        assert block.feed_forward is not None
        if how in (None, "norm"):
            x = norm(block.mixer(x, info))
            x = norm(block.feed_forward(x, info)[0])
        else:
            x = block(x, info)[0]
        hidden.append(x)
    loss = ((_layer_norm(x) if how == "pre" else x) * w).sum()
    gradients = torch.stack([each.norm() for each in torch.autograd.grad(loss, hidden)]).flip(0)
    return gradients / gradients[0], [_mean_cosine(each.detach()) for each in hidden]


def _layer_norm(x: Tensor) -> Tensor:
    """Normalize the last axis without weights: [..., D] -> [..., D]."""
    return F.layer_norm(x, x.shape[-1:])


def _identity(x: Tensor) -> Tensor:
    """Return x unchanged."""
    return x


def _mean_cosine(x: Tensor) -> float:
    """Return the mean cosine between the vectors of different tokens of a text: [B, T, D]."""
    unit = F.normalize(x, dim=-1, eps=1e-300)
    cosines = unit @ unit.mT
    tokens = x.shape[1]
    return ((cosines.sum((1, 2)) - tokens) / (tokens * (tokens - 1))).mean().item()
