"""Line charts as data; `templates/charts.js` draws them with uPlot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Points = Sequence[tuple[float, float]]

_MAX_POINTS = 500


def line_chart(
    title: str,
    series: Mapping[str, Points],
    *,
    x_label: str = "step",
    levels: Mapping[str, float] | None = None,
    from_zero: bool = False,
) -> dict[str, Any] | None:
    """A chart for the template, None where there is nothing to draw.

    Args:
        title: names the vertical axis with its unit.
        series: name -> (x, y) points; empty ones are left out.
        levels: name -> y of horizontal lines to compare with.
        from_zero: begin the vertical axis at 0.
    """
    lines = []
    for color, (name, points) in enumerate(series.items()):
        if points:
            xs, ys = zip(*thin(points), strict=True)
            lines.append({"name": name, "x": xs, "y": ys, "color": color % 8})
    if not lines:
        return None
    named = [{"name": name, "value": value} for name, value in (levels or {}).items()]
    chart = {"title": title, "x_label": x_label, "series": lines, "levels": named}
    return {**chart, "from_zero": from_zero}


def thin(points: Points, most: int = _MAX_POINTS) -> list[tuple[float, float]]:
    """At most about `most` points: means over equal runs of them; both ends stay as they are.

    >>> thin([(0, 1), (1, 2), (2, 4), (3, 5)], 3)
    [(0, 1), (1.5, 3.0), (3, 5)]
    """
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    size = math.ceil(len(inner) / (most - 2))
    runs = [inner[start : start + size] for start in range(0, len(inner), size)]
    means = [(sum(x for x, _ in run) / len(run), sum(y for _, y in run) / len(run)) for run in runs]
    return [points[0], *means, points[-1]]
