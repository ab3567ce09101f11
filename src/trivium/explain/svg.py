"""Draws grids and curves as SVG images. Text and lines inherit the text colour of the page."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from html import escape

_COLOURS = ("#2b8ad6", "#e0662b", "#12a37a", "#c65fa0", "#b8860b", "#3fb0e0", "#8d6be0", "#808080")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 480, 300, 46, 40
_FEW, _MANY = 12, 30  # max columns with wide cells, max columns that show numbers


def _make_svg_image(name: str, width: float, height: float, body: list[str], shown: float) -> str:
    """Return an SVG image.

    Args:
        name: the accessible name of the image.
        width: the width of the drawing.
        height: the height of the drawing.
        body: the elements of the image.
        shown: the displayed width in pixels.
    """
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{shown:g}" role="img" aria-label="{escape(name)}" '
        f'fill="currentColor" font-size="12" font-family="system-ui, sans-serif">'
        f"{''.join(body)}</svg>"
    )


def _make_svg_text(
    x: float, y: float, text: str, anchor: str = "middle", attributes: str = ""
) -> str:
    """Return an SVG text element. `attributes` are further XML attributes of the element."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{attributes}>{escape(text)}</text>'


def _estimate_width(text: str) -> int:
    """Estimate the displayed width of a text in pixels."""
    return sum(13 if unicodedata.east_asian_width(one) in "WF" else 8 for one in text)


def draw_grid(
    name: str,
    values: Sequence[Sequence[float]],
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    cells: Sequence[Sequence[str]],
) -> str:
    """Draw a matrix as shaded cells. Returns an SVG image.

    Long column names are rotated by 90 degrees. If there are many columns, a number appears only
    while the pointer is on its cell.

    Args:
        name: the accessible name of the image, for screen readers.
        values: the matrix [rows, columns], which determines the shades.
        row_labels: the names of the rows.
        column_labels: the names of the columns.
        cells: the text in each cell.
    """
    digits, longest = any(map(any, cells)), max(map(_estimate_width, column_labels), default=0)
    width = (
        38 if digits and len(column_labels) <= _FEW else 27 if len(column_labels) <= _MANY else 14
    )
    height = min(width, 26)
    upright = longest > width
    size = 12 if height > 14 else 9
    left, top = (
        max(map(_estimate_width, row_labels), default=0) + 8,
        (longest if upright else 14) + 8,
    )
    largest = max((abs(value) for row in values for value in row), default=0.0) or 1.0
    more = f' font-size="{size}"'
    body = [
        _make_svg_text(left - 6, top + height * (i + 0.5) + 4, row_name, "end", more)
        for i, row_name in enumerate(row_labels)
    ]
    for j, column in enumerate(column_labels):
        x, y = left + width * (j + 0.5), top - 6
        turn = f'{more} transform="rotate(-90 {x + 4:g} {y:g})"'
        body.append(
            _make_svg_text(x + 4, y, column, "start", turn)
            if upright
            else _make_svg_text(x, y, column, attributes=more)
        )
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            x, y = left + width * j, top + height * i
            colour, share = _COLOURS[value < 0], 0.8 * abs(value) / largest
            body.append(
                f'<rect x="{x:g}" y="{y:g}" width="{width - 1}" height="{height - 1}" '
                f'fill="{colour}" fill-opacity="{share:.3f}" stroke="currentColor" '
                f'stroke-opacity=".2"><title>{value:.4g}</title></rect>'
            )
            if len(column_labels) <= _MANY and cells[i][j]:
                small = f' font-size="{11 if width > 30 else 9}"'
                body.append(
                    _make_svg_text(x + width / 2, y + height / 2 + 4, cells[i][j], attributes=small)
                )
    wide, high = left + width * len(column_labels) + 4, top + height * len(row_labels) + 4
    return _make_svg_image(name, wide, high, body, wide)


def _compute_ticks(low: float, high: float) -> list[float]:
    """Return the tick positions of an axis: four to nine round numbers between `low` and `high`."""
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * one for one in (1, 2, 5, 10) if power * one >= rough * 0.99)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * index for index in range(first, last + 1)]


def draw_curves(
    name: str, x: Sequence[float], series: Mapping[str, Sequence[float]], x_label: str
) -> str:
    """Plot functions of x as lines, with two axes and a legend. Returns an SVG image.

    Args:
        name: the accessible name of the image, for screen readers.
        x: the x values.
        series: name of a line -> its value at each x.
        x_label: the label of the x axis.
    """
    values = [value for line in series.values() for value in line]
    low, high, first, last = min(values), max(values), min(x), max(x)
    names, x_at, y_at = [], _LEFT, 14
    for index, line_name in enumerate(series):
        if x_at > _LEFT and x_at + 26 + _estimate_width(line_name) > _WIDTH:
            x_at, y_at = _LEFT, y_at + 18
        colour = _COLOURS[index % len(_COLOURS)]
        names.append(
            f'<line x1="{x_at}" x2="{x_at + 16}" y1="{y_at - 4}" y2="{y_at - 4}" '
            f'stroke="{colour}" stroke-width="3"/>'
            + _make_svg_text(x_at + 21, y_at, line_name, "start")
        )
        x_at += 40 + _estimate_width(line_name)
    top, right = y_at + 14, _WIDTH - 14
    across, up = (right - _LEFT) / ((last - first) or 1), (_HEIGHT - top - _BOTTOM)

    def to_pixels(x_value: float, y_value: float) -> tuple[float, float]:
        """Convert a data point to pixel coordinates in the image."""
        return _LEFT + (x_value - first) * across, top + (high - y_value) / ((high - low) or 1) * up

    body = names
    for value in _compute_ticks(low, high):
        y = to_pixels(first, value)[1]
        body += [
            f'<line x1="{_LEFT}" x2="{right}" y1="{y:g}" y2="{y:g}" stroke="currentColor" '
            'stroke-opacity=".15"/>',
            _make_svg_text(_LEFT - 6, y + 4, f"{value:.4g}", "end"),
        ]
    body += [
        _make_svg_text(to_pixels(number, low)[0], _HEIGHT - _BOTTOM + 18, f"{number:.4g}")
        for number in _compute_ticks(first, last)
    ]
    body.append(_make_svg_text((_LEFT + right) / 2, _HEIGHT - 6, x_label))
    for index, line in enumerate(series.values()):
        points = " ".join("{:.1f},{:.1f}".format(*to_pixels(*point)) for point in zip(x, line))
        colour = _COLOURS[index % len(_COLOURS)]
        body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return _make_svg_image(name, _WIDTH, _HEIGHT, body, 1.25 * _WIDTH)
