"""Explanation of position encodings: sinusoidal, rotary (RoPE), T5 buckets and ALiBi."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from trivium.errors import TriviumError
from trivium.explain.page import Curves, Formula, Grid, Heading, Page, Part, Table, bilingual
from trivium.nn.mixers.attention import Attention
from trivium.nn.positions.alibi import LinearBias, alibi_slopes
from trivium.nn.positions.relative_bias import RelativeBias, relative_buckets
from trivium.nn.positions.rotary import Rotary, RotaryPositions
from trivium.nn.positions.sinusoidal import frequencies, sinusoids
from trivium.nn.sequence_info import SequenceInfo

_DISTANCES = (0, 1, 7, 8, 9, 11, 12, 15, 16, 23, 32, 46, 64, 91, 127, 128, 1000)
_FIRST, _FAR = 8, 200  # the numbers of positions in the table and in curves


def explain(width: int = 32, *, base: float = 10_000.0, heads: int = 8) -> Page:
    """Show four ways in which attention uses positions.

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
    return Page(bilingual("positions.positions"), parts, data)


def _explain_sinusoids(width: int, base: float) -> tuple[list[Part], dict[str, Any]]:
    """Return the parts and the data for sinusoidal positions."""
    table = sinusoids(torch.arange(32), base, width)
    first = table[:_FIRST, :_FIRST].tolist()
    return [
        Heading(bilingual("positions.sines_cosines_added_token")),
        Formula("PE(p, 2i)     = sin(p / base^(2i / d))\nPE(p, 2i + 1) = cos(p / base^(2i / d))"),
        Grid(
            first,
            [f"p = {p}" for p in range(_FIRST)],
            [f"d{i}" for i in range(_FIRST)],
            bilingual("positions.first_numbers_d", width=width),
        ),
        Grid(
            table.tolist(),
            range(32),
            range(width),
            bilingual("positions.32_positions_rows_all"),
            digits=False,
        ),
    ], {"sinusoids": first}


def _explain_rotary(width: int, base: float) -> tuple[list[Part], dict[str, Any]]:
    """Return the parts and the data for rotary positions (RoPE)."""
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
        Heading(bilingual("positions.rotary_queries_keys")),
        Formula(
            "theta_i = base^(-2i / d)\n"
            "f(q, m) = q e^(i m theta)\n"
            "f(q, m) . f(k, n) = g(q, k, m - n)"
        ),
        Table(
            [
                bilingual("positions.pair_i"),
                "theta_i",
                bilingual("positions.degrees_at_distance_1"),
                bilingual("positions.at_distance_100"),
                bilingual("positions.tokens_full_turn"),
            ],
            angles,
        ),
        Table(
            ["m", "n", "f(q, m) . f(k, n)"], pairs, bilingual("positions.only_distance_counts_q_k")
        ),
        Curves(
            list(range(_FAR + 1)),
            {bilingual("positions.score_distance_0"): scores},
            bilingual("positions.distance_m_n"),
            bilingual("positions.score_over_distance"),
        ),
    ], {"rotary_theta": theta, "rotary_scores": scores}


def _explain_buckets() -> tuple[list[Part], dict[str, Any]]:
    """Return the parts and the data for the relative position buckets of T5."""

    def t5_buckets(distances: Sequence[int], side: str) -> list[int]:
        """Return the bucket of each distance in the encoder or decoder of T5."""
        before = -torch.tensor(distances)
        return relative_buckets(before, RelativeBias(), bidirectional=side == "encoder").tolist()

    near = range(_FAR + 1)
    t5 = {side: t5_buckets(_DISTANCES, side) for side in ("encoder", "decoder")}
    book = [_textbook_bucket(distance) for distance in _DISTANCES]
    names = bilingual("positions.t5_encoder"), bilingual("positions.book")
    return [
        Heading(bilingual("positions.t5_trained_bias_for")),
        Formula(
            "bucket(d) = d                                                    d < k\n"
            "T5:       = min(2k - 1, k + floor(k ln(d / k) / ln(128 / k)))    d >= k\n"
            "book:     = k + floor(ln(d / k) / ln(1.02))                      d >= k"
        ),
        Table(
            [
                "d",
                bilingual("positions.t5_encoder_k_8"),
                bilingual("positions.t5_decoder_k_16"),
                bilingual("positions.book_k_8"),
            ],
            list(zip(_DISTANCES, *t5.values(), book)),
        ),
        Curves(
            list(near),
            dict(zip(names, (t5_buckets(near, "encoder"), [_textbook_bucket(d) for d in near]))),
            bilingual("positions.distance_d"),
            bilingual("positions.bucket_distance"),
        ),
        bilingual("positions.buckets_note"),
    ], {"t5_distances": _DISTANCES, "t5_buckets": t5, "book_buckets": book}


def _textbook_bucket(distance: int, single: int = 8) -> int:
    """Return the bucket of a distance by the formula that a textbook gives for T5."""
    if distance < single:
        return distance
    return single + math.floor(math.log(distance / single) / math.log(1.02))


def _explain_alibi(heads: int) -> tuple[list[Part], dict[str, Any]]:
    """Return the parts and the data for ALiBi."""
    slopes, six = alibi_slopes(heads).tolist(), SequenceInfo.of_length(6, causal=True)
    bias = LinearBias(Attention(num_heads=heads, head_dim=2), 2).bias(None)(six, six)
    return [
        Heading(bilingual("positions.alibi_scores_fall_with")),
        Formula(
            "score(i, j) = q_i . k_j / sqrt(d) - slope * (i - j)\nslope of head n = 2^(-8 n / N)"
        ),
        Table(
            [bilingual("positions.head_n"), bilingual("positions.slope"), "1 / slope"],
            [[n, slope, 1 / slope] for n, slope in enumerate(slopes, start=1)],
        ),
        Grid(
            bias[0, 0].tril().tolist(),
            [f"q{i}" for i in range(6)],
            [f"k{i}" for i in range(6)],
            bilingual("positions.added_scores_head_1"),
        ),
    ], {"alibi_slopes": slopes}
