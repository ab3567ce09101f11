"""Grids and curves as SVG, in the colours of the page around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_CELL, _LETTER = 26, 8
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 640, 300, 60, 12, 44
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07800", "#56b4e9", "#7a4fc9", "#6b6b6b")


def _svg(width: float, height: float, body: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" role="img" fill="currentColor" font-size="12" '
        f'font-family="system-ui, sans-serif">{"".join(body)}</svg>'
    )


def _write(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def grid_svg(
    values: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str], *, digits: bool
) -> str:
    """A matrix of shaded cells; its columns are named upwards."""
    left = _LETTER * max((len(row) for row in rows), default=0) + 12
    top = _LETTER * max((len(column) for column in columns), default=0) + 12
    largest = max((abs(value) for row in values for value in row), default=0.0) or 1.0
    cell = _CELL if digits or len(columns) < 40 else 10
    size = 9 if digits else 12
    body = [_write(left - 6, top + cell * (i + 0.65), name, "end") for i, name in enumerate(rows)]
    for j, name in enumerate(columns):
        x, y = left + cell * (j + 0.65), top - 6
        body.append(_write(x, y, name, "start", f' transform="rotate(-90 {x:g} {y:g})"'))
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            x, y = left + cell * j, top + cell * i
            colour = _COLOURS[0] if value >= 0 else _COLOURS[1]
            body.append(
                f'<rect x="{x:g}" y="{y:g}" width="{cell - 1}" height="{cell - 1}" fill="{colour}" '
                f'fill-opacity="{abs(value) / largest:.3f}" stroke="currentColor" '
                f'stroke-opacity=".2"><title>{value:.4g}</title></rect>'
            )
            if digits:
                number = _write(x + cell / 2, y + cell * 0.62, f"{value:.2f}")
                body.append(number.replace("<text", f'<text font-size="{size}"'))
    return _svg(left + cell * len(columns) + 4, top + cell * len(rows) + 4, body)


def curves_svg(x: Sequence[float], series: Mapping[str, Sequence[float]], x_label: str) -> str:
    """Lines over x with two axes and a legend."""
    values = [value for line in series.values() for value in line]
    low, high = min(values), max(values)
    first, last = min(x), max(x)
    across, up = (_WIDTH - _LEFT - 10) / ((last - first) or 1), _HEIGHT - _TOP - _BOTTOM

    def at(number: float, value: float) -> tuple[float, float]:
        return _LEFT + (number - first) * across, _TOP + (high - value) / ((high - low) or 1) * up

    body = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        value, number = low + share * (high - low), first + share * (last - first)
        (left, y), (xtick, _) = at(first, value), at(number, low)
        body += [
            f'<line x1="{left:g}" x2="{_WIDTH - 10}" y1="{y:g}" y2="{y:g}" stroke="currentColor" '
            'stroke-opacity=".15"/>',
            _write(left - 6, y + 4, f"{value:.3g}", "end"),
            _write(xtick, _HEIGHT - _BOTTOM + 18, f"{number:.4g}"),
        ]
    body.append(_write(_LEFT + (_WIDTH - _LEFT) / 2, _HEIGHT - 8, x_label))
    for index, (name, line) in enumerate(series.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        points = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in zip(x, line))
        body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body.append(_write(_LEFT + 10, _TOP + 14 + 16 * index, name, "start", f' fill="{colour}"'))
    return _svg(_WIDTH, _HEIGHT, body)
