"""Axes and lines of the charts."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.report.charts import (
    Level,
    LineChart,
    Series,
    bars,
    short,
    thinned,
    tick_labels,
    ticks,
)

NUMBERS = st.floats(-1e9, 1e9, allow_nan=False)


@given(NUMBERS, st.floats(1e-6, 1e9), st.integers(2, 9))
def test_ticks_are_round_inside_and_neither_few_nor_many(low: float, span: float, count: int):
    high = low + span
    if high - low < 1e-6 * abs(low):
        return
    found = ticks(low, high, count)
    assert count / 2.6 - 1 <= len(found) <= count + 1.01
    slack = 1e-6 * max(abs(low), abs(high), high - low)
    assert all(low - slack <= value <= high + slack for value in found)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (5e-5, "5e-5"), (0.25, "0.25"), (12_500, "12.5k"), (5_325_000, "5.325M")],
)
def test_short_numbers(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.0, 0.0005, 0.001], ["0", "0.0005", "0.0010"]),
        ([0.0, 5000.0, 10_000.0], ["0", "5k", "10k"]),
        ([0.0, 1e-5, 2e-5], ["0", "1e-5", "2e-5"]),
        ([4.0, 6.0, 8.0], ["4", "6", "8"]),
        ([7.0], ["7"]),
    ],
)
def test_labels_of_an_axis_are_alike(values: list[float], texts: list[str]) -> None:
    assert tick_labels(values) == texts


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=500), st.integers(3, 60))
def test_thinning_keeps_the_ends_and_the_limit(points: list, most: int) -> None:
    found = thinned(points, most)
    assert len(found) <= most
    if points:
        assert found[0] == points[0]
        assert found[-1] == points[-1]


def test_a_chart_of_one_point_or_of_equal_values_can_be_drawn() -> None:
    for points in ([(3.0, 0.0)], [(1.0, 2.0), (2.0, 2.0)]):
        chart = LineChart("Loss", "step", (Series("training", points),), (Level("line", 2.0),))
        figure = ElementTree.fromstring(chart.render())
        assert len(figure.findall("svg")) == 2
        assert "nan" not in chart.render()


def test_a_larger_value_lies_higher_and_further() -> None:
    chart = LineChart("Loss", "step", (Series("s", [(0.0, 1.0), (10.0, 3.0)], dots=True),))
    svg = ElementTree.fromstring(chart.render()).findall("svg")[0]
    dots = [mark for mark in svg.iter("circle") if mark.get("class") == "dot c0"]
    first, second = ((float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in dots)
    assert second[0] > first[0]
    assert second[1] < first[1]


def test_names_are_escaped() -> None:
    chart = LineChart("<i>", "a&b", (Series('"x"<', [(0.0, 1.0)]), Series("y", [(0.0, 2.0)])))
    ElementTree.fromstring(chart.render())
    assert "<i>" not in chart.render().replace('<i class="key', "")
    assert "&lt;th&gt;" in bars([("<th>", 1.0, "1")])


def test_nothing_to_draw() -> None:
    assert "No data" in LineChart("Loss", "step", (Series("training", []),)).render()
