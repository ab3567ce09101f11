"""Explanation of position encodings: sinusoidal, rotary (RoPE), T5 buckets and ALiBi."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from trivium.errors import TriviumError
from trivium.explain.page import Curves, Formula, Grid, Heading, Page, Part, Table, get_text
from trivium.nn.mixers.attention import Attention
from trivium.nn.positions.alibi import ALiBi, LinearBias, alibi_slopes
from trivium.nn.positions.relative_bias import RelativeBias, relative_buckets
from trivium.nn.positions.rotary import Rotary, RotaryPositions
from trivium.nn.positions.sinusoidal import frequencies, sinusoids
from trivium.nn.sequence_info import SequenceInfo

_DISTANCES = (0, 1, 7, 8, 9, 11, 12, 15, 16, 23, 32, 46, 64, 91, 127, 128, 1000)
_FIRST, _FAR = 8, 200  # the numbers of positions in the table and in curves


def explain(width: int = 32, *, base: float = 10_000.0, heads: int = 8) -> Page:
    """Explain four position encodings: sinusoidal, rotary (RoPE), T5 buckets and ALiBi.

    Args:
        width: Dimension of a vector or a head; an even number from 8 to 256.
        base: Base of the wavelengths of sinusoidal and rotary positions (LLaMA 3: 500000).
        heads: Number of heads, for the slopes of ALiBi.
    """
    if width % 2 or not _FIRST <= width <= 256:
        raise TriviumError(f"width is {width}: give an even number from {_FIRST} to 256.")
    kinds = [
        _explain_sinusoids(width, base),
        _explain_rotary(width, base),
        _explain_buckets(),
        _explain_alibi(heads),
    ]
    parts = [part for kind, _ in kinds for part in kind]
    data = {name: value for _, values in kinds for name, value in values.items()}
    return Page(get_text("positions.positions"), parts, data)


def _explain_sinusoids(width: int, base: float) -> tuple[list[Part], dict[str, Any]]:
    """Return the page parts and the data that explain sinusoidal position encodings."""
    table = sinusoids(torch.arange(32), base, width)
    first = table[:_FIRST, :_FIRST].tolist()
    return [
        Heading(get_text("positions.sines_cosines_added_token")),
        Formula("PE(p, 2i)     = sin(p / base^(2i / d))\nPE(p, 2i + 1) = cos(p / base^(2i / d))"),
        Grid(
            first,
            [f"p = {p}" for p in range(_FIRST)],
            [f"d{i}" for i in range(_FIRST)],
            get_text("positions.first_numbers_d", width=width),
        ),
        Grid(
            table.tolist(),
            range(32),
            range(width),
            get_text("positions.32_positions_rows_all"),
            digits=False,
        ),
    ], {"sinusoids": first}


def _explain_rotary(width: int, base: float) -> tuple[list[Part], dict[str, Any]]:
    """Return the page parts and the data that explain rotary position embeddings (RoPE)."""
    positions = Rotary(base=base)
    part = Attention(num_heads=1, head_dim=width, positions=positions)
    rotary, sequence = RotaryPositions(part, width), SequenceInfo.of_length(_FAR + 1)
    ones = torch.ones(1, 1, _FAR + 1, width, dtype=torch.float64)
    rotated = rotary.apply_rotary(ones, rotary.prepare(sequence, sequence, None))[0, 0]
    scores, theta = (rotated @ rotated[0] / width).tolist(), frequencies(base, width).tolist()
    angles = [
        [i, theta[i], *(math.degrees(k * theta[i]) for k in (1, 100)), 2 * math.pi / theta[i]]
        for i in sorted({0, 1, 2, width // 4, width // 2 - 1})
    ]
    pairs = [[m, n, (rotated[m] @ rotated[n]).item()] for m, n in ((3, 0), (13, 10), (103, 100))]
    return [
        Heading(get_text("positions.rotary_queries_keys")),
        Formula(
            "theta_i = base^(-2i / d)\n"
            "f(q, m) = q e^(i m theta)\n"
            "f(q, m) . f(k, n) = g(q, k, m - n)"
        ),
        Table(
            [
                get_text("positions.pair_i"),
                "theta_i",
                get_text("positions.degrees_at_distance_1"),
                get_text("positions.at_distance_100"),
                get_text("positions.tokens_full_turn"),
            ],
            angles,
        ),
        Table(
            ["m", "n", "f(q, m) . f(k, n)"], pairs, get_text("positions.only_distance_counts_q_k")
        ),
        Curves(
            list(range(_FAR + 1)),
            {get_text("positions.score_distance_0"): scores},
            get_text("positions.distance_m_n"),
            get_text("positions.score_over_distance"),
        ),
    ], {"rotary_theta": theta, "rotary_scores": scores}


def _explain_buckets() -> tuple[list[Part], dict[str, Any]]:
    """Return the page parts and the data that explain the relative position buckets of T5."""

    def compute_t5_buckets(distances: Sequence[int], side: str) -> list[int]:
        """Return T5's relative position bucket of each distance, in the encoder or decoder."""
        before = -torch.tensor(distances)
        return relative_buckets(before, RelativeBias(), bidirectional=side == "encoder").tolist()

    near = range(_FAR + 1)
    t5 = {side: compute_t5_buckets(_DISTANCES, side) for side in ("encoder", "decoder")}
    book = [_compute_textbook_bucket(distance) for distance in _DISTANCES]
    names = get_text("positions.t5_encoder"), get_text("positions.book")
    return [
        Heading(get_text("positions.t5_trained_bias_for")),
        Formula(
            "bucket(d) = d                                                    d < k\n"
            "T5:       = min(2k - 1, k + floor(k ln(d / k) / ln(128 / k)))    d >= k\n"
            "book:     = k + floor(ln(d / k) / ln(1.02))                      d >= k"
        ),
        Table(
            [
                "d",
                get_text("positions.t5_encoder_k_8"),
                get_text("positions.t5_decoder_k_16"),
                get_text("positions.book_k_8"),
            ],
            list(zip(_DISTANCES, *t5.values(), book)),
        ),
        Curves(
            list(near),
            dict(
                zip(
                    names,
                    (
                        compute_t5_buckets(near, "encoder"),
                        [_compute_textbook_bucket(d) for d in near],
                    ),
                )
            ),
            get_text("positions.distance_d"),
            get_text("positions.bucket_distance"),
        ),
        get_text("positions.buckets_note"),
    ], {"t5_distances": _DISTANCES, "t5_buckets": t5, "book_buckets": book}


def _compute_textbook_bucket(distance: int, num_exact: int = 8) -> int:
    """Return the relative position bucket of a distance, by a textbook's formula for T5.

    Each distance below `num_exact` has its own bucket.
    """
    if distance < num_exact:
        return distance
    return num_exact + math.floor(math.log(distance / num_exact) / math.log(1.02))


def _explain_alibi(heads: int) -> tuple[list[Part], dict[str, Any]]:
    """Return the page parts and the data that explain ALiBi."""
    slopes, six = alibi_slopes(heads).tolist(), SequenceInfo.of_length(6, causal=True)
    attention = Attention(num_heads=heads, head_dim=2, positions=ALiBi())
    bias = LinearBias(attention, 2).bias(None)(six, six)
    return [
        Heading(get_text("positions.alibi_scores_fall_with")),
        Formula(
            "score(i, j) = q_i . k_j / sqrt(d) - slope * (i - j)\nslope of head n = 2^(-8 n / N)"
        ),
        Table(
            [get_text("positions.head_n"), get_text("positions.slope"), "1 / slope"],
            [[n, slope, 1 / slope] for n, slope in enumerate(slopes, start=1)],
        ),
        Grid(
            bias[0, 0].tril().tolist(),
            [f"q{i}" for i in range(6)],
            [f"k{i}" for i in range(6)],
            get_text("positions.added_scores_head_1"),
        ),
    ], {"alibi_slopes": slopes}
