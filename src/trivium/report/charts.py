"""Line and bar charts as inline SVG: no scripts, no requests, colours from the page's style.

Every chart is drawn twice, wide and narrow, and the page's style shows the one that fits: text in
a drawing that is scaled down to a phone could not be read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]

_MOST_POINTS = 300
_MOST_TITLES = 120


@dataclass(frozen=True)
class Series:
    """One line. `color` is 0 to 7; few points are also drawn as dots."""

    name: str
    points: Points
    color: int = 0
    dots: bool = False


@dataclass(frozen=True)
class Level:
    """A labelled horizontal line that the others are compared with."""

    name: str
    value: float


@dataclass(frozen=True)
class LineChart:
    """Lines over a common axis. `title` names the vertical axis with its unit."""

    title: str
    x_label: str
    series: tuple[Series, ...]
    levels: tuple[Level, ...] = ()
    from_zero: bool = False

    def render(self) -> str:
        """A figure with legend, or a line that says there is nothing to draw."""
        drawn = [series for series in self.series if series.points]
        if not drawn:
            return f"<figure><figcaption>{escape(self.title)}</figcaption><p>No data.</p></figure>"
        legend = ""
        if len(drawn) > 1:
            keys = (
                f'<span><i class="key c{series.color}"></i>{escape(series.name)}</span>'
                for series in drawn
            )
            legend = f'<div class="legend">{"".join(keys)}</div>'
        wide = _Drawing(self, drawn, width=760, height=300).svg("wide")
        narrow = _Drawing(self, drawn, width=360, height=250).svg("narrow")
        title = escape(self.title)
        return f"<figure><figcaption>{title}</figcaption>{legend}{wide}{narrow}</figure>"


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars as a table: (label, length, what is written at its end)."""
    longest = max((length for _, length, _ in rows), default=0.0) or 1.0
    lines = (
        f'<tr><th scope="row">{escape(label)}</th><td class="bar">'
        f'<i style="width:{100 * length / longest:.1f}%"></i></td>'
        f'<td class="number">{escape(text)}</td></tr>'
        for label, length, text in rows
    )
    return f'<table class="bars">{"".join(lines)}</table>'


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) that lie in [low, high].

    >>> ticks(0.0, 10.0, 5)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    span = high - low
    if span <= 0:
        return [low]
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Evenly spaced numbers written alike.

    >>> tick_labels([0.0, 0.0005, 0.001]), tick_labels([5000.0, 10000.0])
    (['0', '0.0005', '0.0010'], ['5k', '10k'])
    """
    largest = max((abs(value) for value in values), default=0.0)
    step = abs(values[1] - values[0]) if len(values) > 1 else 0.0
    if 0 < step < 9e-5 or step == 0:
        return [short(value) for value in values]
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= max(unit, 1e4):
            return [f"{value / unit:g}{name}" if value else "0" for value in values]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{value:.{decimals}f}" if value else "0" for value in values]


def short(value: float) -> str:
    """A number for an axis or a table: 0.0003 as 3e-04, 12500 as 12.5k, 2.50 as 2.5."""
    size = abs(value)
    if size == 0:
        return "0"
    for limit, divisor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= limit:
            return f"{value / divisor:.4g}{unit}"
    if size < 1e-3:
        digits, exponent = f"{value:.2e}".split("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.4g}"


def thinned(points: Points, most: int = _MOST_POINTS) -> list[tuple[float, float]]:
    """At most about `most` points: means over equal runs of them; both ends are kept as they are.

    >>> thinned([(0, 1), (1, 2), (2, 4), (3, 5)], 3)
    [(0, 1), (1.5, 3.0), (3, 5)]
    """
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    size = math.ceil(len(inner) / (most - 2))
    runs = [inner[start : start + size] for start in range(0, len(inner), size)]
    means = [(sum(x for x, _ in run) / len(run), sum(y for _, y in run) / len(run)) for run in runs]
    return [points[0], *means, points[-1]]


class _Drawing:
    """One size of a chart: where numbers fall on the paper, and the marks there."""

    def __init__(self, chart: LineChart, series: list[Series], *, width: int, height: int) -> None:
        self.chart, self.series = chart, series
        self.width, self.height = width, height
        self.left, self.right, self.top, self.bottom = 54, 12, 10, 38
        xs = [x for one in series for x, _ in one.points]
        ys = [y for one in series for _, y in one.points] + [one.value for one in chart.levels]
        self.x0, self.x1 = _widened(min(xs), max(xs), 0.0)
        self.y0, self.y1 = _widened(0.0 if chart.from_zero else min(ys), max(ys), 0.06)
        if chart.from_zero:
            self.y0 = 0.0

    def svg(self, size: str) -> str:
        marks = [*self._axes(), *self._levels(), *self._lines()]
        label = escape(f"{self.chart.title} over {self.chart.x_label}", quote=True)
        return (
            f'<svg class="chart {size}" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{label}">{"".join(marks)}</svg>'
        )

    def _x(self, value: float) -> float:
        share = (value - self.x0) / (self.x1 - self.x0)
        return self.left + share * (self.width - self.left - self.right)

    def _y(self, value: float) -> float:
        share = (value - self.y0) / (self.y1 - self.y0)
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)

    def _axes(self) -> list[str]:
        marks, floor, end = [], self.height - self.bottom, self.width - self.right
        rows = ticks(self.y0, self.y1, 5)
        for value, label in zip(rows, tick_labels(rows), strict=True):
            y = self._y(value)
            marks.append(f'<path class="grid" d="M{self.left} {y:.1f}H{end}"/>')
            marks.append(_text(self.left - 6, y + 4, label, anchor="end"))
        columns = ticks(self.x0, self.x1, 8 if self.width > 500 else 4)
        for value, label in zip(columns, tick_labels(columns), strict=True):
            x = self._x(value)
            marks.append(f'<path class="grid" d="M{x:.1f} {self.top}V{floor}"/>')
            marks.append(_text(x, floor + 16, label, anchor="middle"))
        marks.append(f'<path class="axis" d="M{self.left} {self.top}V{floor}H{end}"/>')
        middle = (self.left + self.width - self.right) / 2
        marks.append(_text(middle, self.height - 5, self.chart.x_label, anchor="middle"))
        return marks

    def _levels(self) -> list[str]:
        marks, end = [], self.width - self.right
        for level in self.chart.levels:
            y = self._y(level.value)
            name = f"{level.name} {level.value:.2f}"
            marks.append(f'<path class="level" d="M{self.left} {y:.1f}H{end}"/>')
            marks.append(_text(end - 4, y - 5, name, anchor="end", kind="label"))
        return marks

    def _lines(self) -> list[str]:
        marks = []
        for series in self.series:
            points = thinned(series.points)
            path = "L".join(f"{self._x(x):.1f} {self._y(y):.1f}" for x, y in points)
            marks.append(f'<path class="line c{series.color}" d="M{path}"/>')
            every = math.ceil(len(points) / _MOST_TITLES)
            radius = 2.6 if (series.dots and len(points) <= 60) or len(points) == 1 else 0
            for x, y in points[::every]:
                at = f'cx="{self._x(x):.1f}" cy="{self._y(y):.1f}"'
                if radius:
                    marks.append(f'<circle class="dot c{series.color}" {at} r="{radius}"/>')
                told = escape(f"{series.name}: {y:.5g} at {self.chart.x_label} {x:,.6g}")
                marks.append(f'<circle class="hover" {at} r="7"><title>{told}</title></circle>')
        return marks


def _text(x: float, y: float, text: str, *, anchor: str, kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _widened(low: float, high: float, share: float) -> tuple[float, float]:
    """A little room around a range; a range of one value gets some width."""
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        room = abs(low) / 2 or 1.0
        return low - room, high + room
    room = (high - low) * share
    return low - room, high + room
