"""Which classes are taken for which others, as a picture: inline SVG in the colours of the page."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from html import escape

from trivium.report.charts import short

_MOST_CLASSES = 150
_MOST_TITLES = 1600  # Cells that say what they count when pointed at.
_LONGEST_LABEL = 130.0
_LARGEST_CELL = 56.0
_SHADES = 10
_LINE = 14.0  # The height of a line of text.


def confusion_figure(
    names: Sequence[str], counts: Sequence[Sequence[int]], *, title: str = "Confusion matrix"
) -> str:
    """A figure, wide and narrow: what is right downwards, what was predicted to the right.

    The darker a cell, the larger its share of the row; hits lie on the diagonal. Of more than 150
    classes the most frequent are drawn, and where names do not fit, some of them.

    Args:
        names: of the classes.
        counts: counts[g][p] texts of class g were predicted to be of class p.
    """
    assert len(counts) == len(names), "a row for each class"
    assert all(len(row) == len(names) for row in counts), "a column for each class"
    caption = escape(title)
    if not any(map(any, counts)):
        return f"<figure><figcaption>{caption}</figcaption><p>No data.</p></figure>"
    chosen = _most_frequent(counts)
    kept = ""
    if len(chosen) < len(names):
        kept = f"; the {len(chosen)} most frequent of {len(names)} classes"
    names = [names[place] for place in chosen]
    counts = [[counts[right][found] for found in chosen] for right in chosen]
    legend = (
        f'<div class="legend"><span>{_swatch(0)}right</span><span>{_swatch(1)}wrong</span>'
        f"<span>rows: right class; columns: predicted class; shade: share of the row{kept}</span>"
        "</div>"
    )
    drawn = "".join(
        _Matrix(names, counts, width).svg(size, title)
        for size, width in (("wide", 760.0), ("narrow", 360.0))
    )
    return f"<figure><figcaption>{caption}</figcaption>{legend}{drawn}</figure>"


class _Matrix:
    """One size of the picture: where cells and labels fall, and what they look like."""

    def __init__(self, names: Sequence[str], counts: Sequence[Sequence[int]], width: float) -> None:
        self.names, self.counts, self.width = names, counts, width
        self.totals = [sum(row) for row in counts]
        longest = min(_LONGEST_LABEL, width / 4)
        self.labels = [_cut(name, longest) for name in names]
        self.left = max(map(_text_width, self.labels)) + 8
        self.cell = min(_LARGEST_CELL, (width - self.left - 4) / len(names))
        # Names of columns lie flat where they fit, and stand upright elsewhere.
        self.flat = max(map(_text_width, self.labels)) <= self.cell - 4
        self.side = self.cell * len(names)
        self.every = math.ceil(_LINE / self.cell)
        # Half a line, where cells are lower than the label of the first.
        self.top = max(2.0, (_LINE - self.cell) / 2)
        self.height = self.top + self.side + (_LINE + 8 if self.flat else self.left) + 4

    def svg(self, size: str, title: str) -> str:
        marks = [*self._cells(), *self._frame(), *self._names(), *self._numbers()]
        label = escape(f"{title} of {len(self.names)} classes", quote=True)
        return (
            f'<svg class="chart {size}" viewBox="0 0 {self.width:.0f} {self.height:.0f}" '
            f'role="img" aria-label="{label}">{"".join(marks)}</svg>'
        )

    def _shade(self, right: int, found: int) -> int:
        """1 to _SHADES of a cell that counts something, else 0."""
        count = self.counts[right][found]
        return math.ceil(_SHADES * count / self.totals[right]) if count else 0

    def _at(self, right: int, found: int) -> tuple[float, float]:
        return self.left + found * self.cell, self.top + right * self.cell

    def _cells(self) -> list[str]:
        """All cells of one colour and shade as one path: a picture of 150 classes stays small."""
        paths: dict[tuple[int, int], list[str]] = {}
        titles = []
        filled = 0
        cell = f"{self.cell:.2f}"
        for right, row in enumerate(self.counts):
            for found, count in enumerate(row):
                shade = self._shade(right, found)
                if not shade:
                    continue
                filled += 1
                x, y = self._at(right, found)
                color = int(right != found)
                square = f"M{x:.2f} {y:.2f}h{cell}v{cell}h-{cell}z"
                paths.setdefault((color, shade), []).append(square)
                told = escape(
                    f"{self.names[right]} taken for {self.names[found]}: {count:,} of "
                    f"{self.totals[right]:,} ({count / self.totals[right]:.1%})"
                )
                titles.append(f'<path class="hover" d="{square}"><title>{told}</title></path>')
        marks = [
            f'<path style="fill:var(--c{color});fill-opacity:{0.1 + 0.9 * shade / _SHADES:.2f}" '
            f'd="{"".join(squares)}"/>'
            for (color, shade), squares in sorted(paths.items())
        ]
        return marks + (titles if filled <= _MOST_TITLES else [])

    def _frame(self) -> list[str]:
        right, bottom, top = self.left + self.side, self.top + self.side, f"{self.top:.1f}"
        lines = [f"M{self.left:.1f} {top}H{right:.1f}V{bottom:.1f}H{self.left:.1f}Z"]
        if self.cell >= 8:
            for number in range(1, len(self.names)):
                x, y = self._at(number, number)
                lines.append(f"M{x:.1f} {top}V{bottom:.1f}M{self.left:.1f} {y:.1f}H{right:.1f}")
        return [f'<path class="grid" pointer-events="none" d="{"".join(lines)}"/>']

    def _names(self) -> list[str]:
        marks = []
        for number in range(0, len(self.names), self.every):
            x, y = self._at(number, number)
            middle_x, middle_y = x + self.cell / 2, y + self.cell / 2
            name, bottom = self.labels[number], self.top + self.side
            marks.append(_text(self.left - 6, middle_y + 4, name, "end"))
            if self.flat:
                marks.append(_text(middle_x, bottom + _LINE, name, "middle"))
            else:
                turned = f' transform="rotate(-90 {middle_x + 4:.1f} {bottom + 6:.1f})"'
                marks.append(_text(middle_x + 4, bottom + 6, name, "end", turned))
        return marks

    def _numbers(self) -> list[str]:
        """Counts in the cells that have room; light on dark shades and the other way round."""
        marks = []
        for right, row in enumerate(self.counts):
            for found, count in enumerate(row):
                shade, number = self._shade(right, found), short(count)
                if not shade or self.cell < _LINE + 2 or _text_width(number) > self.cell - 2:
                    continue
                x, y = self._at(right, found)
                color = "--paper" if shade > _SHADES // 2 else "--ink"
                style = f' style="fill:var({color})" pointer-events="none"'
                middle = y + self.cell / 2 + 4
                marks.append(_text(x + self.cell / 2, middle, number, "middle", style))
        return marks


def _most_frequent(counts: Sequence[Sequence[int]]) -> list[int]:
    """The classes that are drawn, in their own order."""
    if len(counts) <= _MOST_CLASSES:
        return list(range(len(counts)))
    sizes = [sum(row) + sum(other[place] for other in counts) for place, row in enumerate(counts)]
    return sorted(sorted(range(len(counts)), key=lambda place: -sizes[place])[:_MOST_CLASSES])


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _swatch(color: int) -> str:
    return f'<i class="key c{color}"></i>'


def _text_width(text: str) -> float:
    """About how wide a text of the page's charts is, in pixels."""
    return sum(
        13.0 if unicodedata.east_asian_width(sign) in "WF" else 8.8 if sign.isupper() else 7.0
        for sign in text
    )


def _cut(name: str, longest: float) -> str:
    """As much of both ends of a name as fits: names often begin alike."""
    shown, kept = name, len(name)
    while kept > 2 and _text_width(shown) > longest:
        kept -= 1
        shown = f"{name[: (kept + 1) // 2].rstrip()}\u2026{name[-(kept // 2) :].lstrip()}"
    return shown
