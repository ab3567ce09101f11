"""Explanation of grouped-query attention: query heads that share key-value heads.

Shape letters: N query heads, K key-value heads, T tokens, H head_dim.
"""

from __future__ import annotations

import torch

from trivium.errors import TriviumError
from trivium.explain.page import Formula, Grid, Heading, Label, Page, Table, get_text, render
from trivium.nn.attend import attention_probabilities
from trivium.nn.mask import Mask
from trivium.nn.mixers.attention import Attention, AttentionModule
from trivium.nn.sequence_info import SequenceInfo

_X = [[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]]
_QUERY = 2  # the index of the query vector, x_3
_HEAD_DIM = 2


def explain(heads: int = 4, *, kv_heads: int = 2, seed: int = 3) -> Page:
    """Compute grouped-query attention of four vectors, and count what it saves.

    Args:
        heads: Number of query heads, at most 16.
        kv_heads: Number of key-value heads, a divisor of the number of query heads.
        seed: Random seed of the matrices of small integers.
    """
    if not (1 <= kv_heads <= heads <= 16 and heads % kv_heads == 0):
        raise TriviumError(
            f"heads is {heads} and kv_heads is {kv_heads}: give at most 16 heads, and a number of "
            "key-value heads that divides the number of heads."
        )
    mixer = _build_attention(heads, kv_heads, seed)
    info = SequenceInfo.of_length(len(_X))
    with torch.no_grad():
        x = torch.tensor([_X], dtype=torch.float64)
        query = mixer.split_and_norm(mixer.query_norm, mixer.query(x))
        key, value = mixer.project_kv(x)
        # With shared keys, the heads of a group are computed as one attention per group.
        alpha = torch.cat(
            [
                attention_probabilities(queries, key[:, [g]], Mask(info, info), mixer.scale)
                for g, queries in enumerate(query.split(heads // kv_heads, 1))
            ],
            1,
        )[0]
        output = mixer(x, info)[0]
    groups = [n * kv_heads // heads for n in range(heads)]
    answers = torch.stack([alpha[n] @ value[0, g] for n, g in enumerate(groups)])
    mixed = render(output[_QUERY].tolist(), "en")
    names = [f"x_{i}" for i in range(1, len(_X) + 1)]
    kv_columns: list[Label] = [
        "j",
        *(f"k_j, g = {g}" for g in range(kv_heads)),
        *(f"v_j, g = {g}" for g in range(kv_heads)),
    ]
    return Page(
        get_text("grouped_query.grouped_query_attention"),
        [
            Formula(
                "head_n = softmax(Q_n K_g^T / sqrt(d_k)) V_g    g = floor(n K / N)\n"
                f"N = {heads}    K = {kv_heads}    d_k = {_HEAD_DIM}"
            ),
            Grid(_X, names, caption=get_text("grouped_query.vectors")),
            Table(
                kv_columns,
                [
                    [f"{j + 1}", *(key[0, g, j].tolist() for g in range(kv_heads))]
                    + [value[0, g, j].tolist() for g in range(kv_heads)]
                    for j in range(len(_X))
                ],
                get_text("grouped_query.keys_values"),
            ),
            Table(
                ["n", "g", "q_3", "alpha_3j", "head_n"],
                [
                    [
                        f"{n}",
                        f"{g}",
                        *(part[n, _QUERY].tolist() for part in (query[0], alpha, answers)),
                    ]
                    for n, g in enumerate(groups)
                ],
                get_text("grouped_query.queries"),
            ),
            Formula(f"Concat(head_0, ..., head_{heads - 1}) W_O = {mixed}"),
            get_text("grouped_query.shared_note"),
            Heading(get_text("grouped_query.savings")),
            Table(
                [
                    "K",
                    get_text("grouped_query.name"),
                    get_text("grouped_query.weights"),
                    get_text("grouped_query.cache"),
                ],
                [_count(heads, each) for each in range(heads, 0, -1) if heads % each == 0],
            ),
            get_text("grouped_query.savings_note"),
        ],
        {
            "q": query[0].tolist(),
            "k": key[0].tolist(),
            "v": value[0].tolist(),
            "alpha": alpha.tolist(),
            "heads": answers.tolist(),
            "output": output.tolist(),
        },
    )


def _build_attention(heads: int, kv_heads: int, seed: int) -> AttentionModule:
    """Build attention in float64 whose matrices contain integers from -1 to 1."""
    part = Attention(num_heads=heads, head_dim=_HEAD_DIM, num_kv_heads=kv_heads, bias=False)
    mixer = AttentionModule(part, len(_X[0])).double()
    generator = torch.Generator().manual_seed(seed)
    for weight in mixer.parameters():
        weight.data = torch.randint(-1, 2, weight.shape, generator=generator).double()
    return mixer


def _count(heads: int, kv_heads: int) -> list[Label | int]:
    """Return a row of the last table: K, its name, the weights of W_K and W_V, and cached numbers.

    The numbers are counted per layer, the cached ones per token.
    """
    if kv_heads == heads:
        name: Label = get_text("grouped_query.multi_head")
    else:
        grouped, single = get_text("grouped_query.grouped"), get_text("grouped_query.multi_query")
        name = single if kv_heads == 1 else grouped
    return [kv_heads, name, 2 * len(_X[0]) * kv_heads * _HEAD_DIM, 2 * kv_heads * _HEAD_DIM]
