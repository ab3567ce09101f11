"""How a model knows where tokens are: sinusoids, rotary, T5's buckets, ALiBi."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from trivium import spec
from trivium.errors import TriviumError
from trivium.explain.page import Bilingual, Curves, Formula, Grid, Heading, Page, Part, Table
from trivium.nn.context import Context
from trivium.nn.positions.alibi import LinearBias, alibi_slopes
from trivium.nn.positions.relative_bias import relative_buckets
from trivium.nn.positions.rotary import RotaryPositions
from trivium.nn.sinusoids import frequencies, sinusoids

SUMMARY = Bilingual(
    "sinusoids, rotary, T5's buckets, ALiBi", "位置编码：正弦、旋转、T5 分桶、ALiBi"
)

_DISTANCES = (0, 1, 7, 8, 9, 11, 12, 15, 16, 23, 32, 46, 64, 91, 127, 128, 1000)
_FIRST, _FAR = 8, 200  # positions in the table, and of curves


def explain(width: int = 32, *, base: float = 10_000.0, heads: int = 8) -> Page:
    """Show what attention knows of positions, four ways.

    Args:
        width: Numbers of a vector, or of a head; even, 8 at least.
        base: Of the wavelengths of sinusoids and rotary positions (LLaMA 3: 500000).
        heads: Heads that ALiBi has slopes for.
    """
    if width % 2 or not _FIRST <= width <= 256:
        raise TriviumError(f"width is {width}: give an even number from {_FIRST} to 256.")
    kinds = [_sinusoids(width, base), _rotary(width, base), _buckets(), _alibi(heads)]
    parts = [part for kind, _ in kinds for part in kind]
    facts = {name: fact for _, some in kinds for name, fact in some.items()}
    return Page(Bilingual("Positions", "位置编码"), parts, facts)


def _sinusoids(width: int, base: float) -> tuple[list[Part], dict[str, Any]]:
    table = sinusoids(torch.arange(32), base, width)
    first = table[:_FIRST, :_FIRST].tolist()
    return [
        Heading(
            Bilingual("Sines and cosines, added to token vectors", "正弦位置编码：加到词向量上")
        ),
        Formula("PE(p, 2i)     = sin(p / base^(2i / d))\nPE(p, 2i + 1) = cos(p / base^(2i / d))"),
        Grid(
            first,
            [f"p = {p}" for p in range(_FIRST)],
            [f"d{i}" for i in range(_FIRST)],
            Bilingual(f"The first numbers, d = {width}", f"左上角的数值，d = {width}"),
        ),
        Grid(
            table.tolist(),
            range(32),
            range(width),
            Bilingual("32 positions (rows) in all dimensions", "32 个位置（行）的所有维度（列）"),
            digits=False,
        ),
    ], {"sinusoids": first}


def _rotary(width: int, base: float) -> tuple[list[Part], dict[str, Any]]:
    positions = spec.Rotary(base=base)
    part = spec.Attention(num_heads=1, head_dim=width, positions=positions)
    rotary, context = RotaryPositions(part, width), Context.of_length(_FAR + 1)
    ones = torch.ones(1, 1, _FAR + 1, width, dtype=torch.float64)
    turned = rotary.turn(ones, rotary.prepare(context, context, None))[0, 0]
    scores, theta = (turned @ turned[0] / width).tolist(), frequencies(base, width).tolist()
    angles = [
        [i, theta[i], *(math.degrees(k * theta[i]) for k in (1, 100)), 2 * math.pi / theta[i]]
        for i in sorted({0, 1, 2, width // 4, width // 2 - 1})
    ]
    pairs = [[m, n, (turned[m] @ turned[n]).item()] for m, n in ((3, 0), (13, 10), (103, 100))]
    return [
        Heading(
            Bilingual("Rotary: queries and keys are turned", "旋转位置嵌入（RoPE）：旋转查询与键")
        ),
        Formula(
            "theta_i = base^(-2i / d)\n"
            "f(q, m) = q e^(i m theta)\n"
            "f(q, m) . f(k, n) = g(q, k, m - n)"
        ),
        Table(
            [
                Bilingual("pair i", "第 i 对维度"),
                "theta_i",
                Bilingual("degrees at distance 1", "相距 1 时的转角（度）"),
                Bilingual("at distance 100", "相距 100 时（度）"),
                Bilingual("tokens of a full turn", "转一整圈的词元数"),
            ],
            angles,
        ),
        Table(
            ["m", "n", "f(q, m) . f(k, n)"],
            pairs,
            Bilingual(
                "Only the distance counts: q = k = 1 1 ... 1",
                "内积只取决于相对位置（q、k 各维均为 1）",
            ),
        ),
        Curves(
            list(range(_FAR + 1)),
            {Bilingual("score / that of distance 0", "内积（相距 0 时为 1）"): scores},
            Bilingual("distance m - n", "相对距离 m - n"),
            Bilingual("The score over distance", "内积随相对距离的变化"),
        ),
    ], {"rotary_theta": theta, "rotary_scores": scores}


def _buckets() -> tuple[list[Part], dict[str, Any]]:
    def of_t5(distances: Sequence[int], side: str) -> list[int]:
        before = -torch.tensor(distances)
        return relative_buckets(
            before, spec.RelativeBias(), bidirectional=side == "encoder"
        ).tolist()

    near = range(_FAR + 1)
    t5 = {side: of_t5(_DISTANCES, side) for side in ("encoder", "decoder")}
    book = [_bucket_of_book(distance) for distance in _DISTANCES]
    names = Bilingual("T5, encoder", "T5 编码器"), Bilingual("book", "教材公式")
    return [
        Heading(
            Bilingual("T5: a trained bias for a bucket of distances", "T5：相对位置偏置与距离分桶")
        ),
        Formula(
            "bucket(d) = d                                                    d < k\n"
            "T5:       = min(2k - 1, k + floor(k ln(d / k) / ln(128 / k)))    d >= k\n"
            "book:     = k + floor(ln(d / k) / ln(1.02))                      d >= k"
        ),
        Table(
            [
                "d",
                Bilingual("T5, encoder (k = 8)", "T5 编码器（k = 8）"),
                Bilingual("T5, decoder (k = 16)", "T5 解码器（k = 16）"),
                Bilingual("book (k = 8)", "教材公式（k = 8）"),
            ],
            list(zip(_DISTANCES, *t5.values(), book)),
        ),
        Curves(
            list(near),
            dict(zip(names, (of_t5(near, "encoder"), [_bucket_of_book(d) for d in near]))),
            Bilingual("distance d", "距离 d"),
            Bilingual("Bucket of a distance", "距离所在的桶"),
        ),
        Bilingual(
            "T5 has 32 buckets. In an encoder 16 are for each direction, and 16^(1/8) = 1.41 is "
            "the factor from one to the next; in a decoder it is 8^(1/16) = 1.14. With 1.02 the "
            "distance 128 would be in bucket 148, which no table has.",
            "T5 一共只有 32 个桶。编码器中每个方向 16 个，相邻两桶的距离之比为 16^(1/8) = 1.41；"
            "解码器中为 8^(1/16) = 1.14。若像教材公式那样取 1.02，距离 128 会落入第 148 号桶，"
            "偏置表中并没有这一行。",
        ),
    ], {"t5_distances": _DISTANCES, "t5_buckets": t5, "book_buckets": book}


def _bucket_of_book(distance: int, single: int = 8) -> int:
    """The formula that a textbook prints for T5."""
    if distance < single:
        return distance
    return single + math.floor(math.log(distance / single) / math.log(1.02))


def _alibi(heads: int) -> tuple[list[Part], dict[str, Any]]:
    slopes, six = alibi_slopes(heads).tolist(), Context.of_length(6, causal=True)
    bias = LinearBias(spec.Attention(num_heads=heads, head_dim=2), 2).prepare(six, six, None)
    return [
        Heading(Bilingual("ALiBi: scores fall with distance", "ALiBi：分数随距离线性下降")),
        Formula(
            "score(i, j) = q_i . k_j / sqrt(d) - slope * (i - j)\nslope of head n = 2^(-8 n / N)"
        ),
        Table(
            [Bilingual("head n", "第 n 个头"), Bilingual("slope", "斜率"), "1 / slope"],
            [[n, slope, 1 / slope] for n, slope in enumerate(slopes, start=1)],
        ),
        Grid(
            bias[0, 0].tril().tolist(),
            [f"q{i}" for i in range(6)],
            [f"k{i}" for i in range(6)],
            Bilingual("Added to the scores of head 1", "加到第 1 个头的分数上的偏置"),
        ),
    ], {"alibi_slopes": slopes}
