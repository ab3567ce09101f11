"""The picture of a confusion matrix: what is drawn where, and that it stays small."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from trivium.report.confusion import confusion_figure

RIGHT, WRONG = "c0", "c1"


def drawings(figure: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(figure).findall("svg")


def cells(svg: ElementTree.Element) -> dict[tuple[float, float], tuple[str, float]]:
    """Corner -> (colour, opacity) of every filled cell."""
    found = {}
    for path in svg.iter("path"):
        style = re.fullmatch(r"fill:var\(--(c\d)\);fill-opacity:([\d.]+)", path.get("style", ""))
        if style:
            for x, y in re.findall(r"M([\d.]+) ([\d.]+)h", path.get("d", "")):
                found[float(x), float(y)] = (style[1], float(style[2]))
    return found


def texts(svg: ElementTree.Element) -> list[str]:
    return ["".join(mark.itertext()) for mark in svg.iter("text")]


def test_hits_lie_on_the_diagonal_and_the_shade_is_the_share_of_the_row():
    counts = [[8, 2, 0], [0, 5, 0], [1, 1, 98]]
    for svg in drawings(confusion_figure(["a", "b", "c"], counts)):
        found = cells(svg)
        columns, rows = (sorted({place[axis] for place in found}) for axis in (0, 1))
        for right, row in enumerate(counts):
            for wrong, count in enumerate(row):
                cell = found.get((columns[wrong], rows[right]))
                assert (cell is None) == (count == 0)
                if cell:
                    assert cell[0] == (RIGHT if right == wrong else WRONG)
        share = {place: found[columns[place], rows[place]][1] for place in range(3)}
        assert share[1] == 1.0
        assert share[2] > share[0] > found[columns[1], rows[0]][1] > 0


def test_cells_say_what_they_count():
    (wide, _) = drawings(confusion_figure(["good", "bad"], [[1200, 300], [0, 7]]))
    titles = [title.text for title in wide.iter("title")]
    assert "good taken for bad: 300 of 1,500 (20.0%)" in titles
    assert len(titles) == 3
    assert {"1200", "300", "7", "good", "bad"} <= set(texts(wide))
    assert "0" not in texts(wide)


def test_colours_are_those_of_the_page_in_light_and_dark():
    figure = confusion_figure(["a", "b"], [[3, 1], [1, 3]])
    assert not re.search(r"#[0-9a-f]{3}", figure)
    assert {"--c0", "--c1", "--paper", "--ink"} <= set(re.findall(r"--\w+", figure))


@pytest.mark.parametrize("size", [1, 2, 17, 151])
def test_labels_do_not_overlap_and_everything_lies_inside(size: int):
    chance = np.random.default_rng(size)
    names = [f"a rather long name of class {number}" for number in range(size)]
    figure = confusion_figure(names, chance.integers(0, 9, (size, size)).tolist())
    assert "nan" not in figure
    for svg in drawings(figure):
        width, height = (float(number) for number in svg.get("viewBox", "").split()[2:])
        assert all(0 <= x <= width and 0 <= y <= height for x, y in cells(svg))
        labels = [mark for mark in svg.iter("text") if mark.get("text-anchor") == "end"]
        left = [float(mark.get("y", "")) for mark in labels if not mark.get("transform")]
        assert np.diff(left).min(initial=99) >= 13.5
        assert 0 < max(left) <= height
        below = [float(mark.get("x", "")) for mark in labels if mark.get("transform")]
        assert np.diff(below).min(initial=99) >= 13.5
        assert len(below) == len(left)


def test_a_full_picture_of_many_classes_stays_small():
    figure = confusion_figure(
        [f"class {n}" for n in range(150)], [[1 + n % 7] * 150 for n in range(150)]
    )
    assert len(figure) < 2_000_000
    assert "<title>" not in figure


def test_of_too_many_classes_the_most_frequent_are_drawn():
    counts = np.diag(np.arange(1, 161)).tolist()
    figure = confusion_figure([f"class {number}" for number in range(160)], counts)
    assert "the 150 most frequent of 160 classes" in figure
    assert all(len(cells(svg)) == 150 for svg in drawings(figure))
    assert "class 9 taken" not in figure
    assert "class 10 taken" in figure


def test_long_names_keep_both_ends():
    name = "x" * 50 + "end"
    (wide, _) = drawings(confusion_figure([name, "b"], [[1, 0], [0, 1]]))
    (shown, _) = (text for text in texts(wide) if text.startswith("x"))
    assert shown.endswith("end")
    assert len(shown) < 25


def test_names_are_escaped():
    figure = confusion_figure(['<b>"', "\u597d & bad"], [[1, 2], [0, 1]], title="<i>")
    ElementTree.fromstring(figure)
    assert "<b>" not in figure
    assert "<i>" not in figure


def test_nothing_to_draw():
    assert "No data" in confusion_figure([], [])
    assert "No data" in confusion_figure(["a", "b"], [[0, 0], [0, 0]])


def test_a_class_that_never_occurs_has_an_empty_row():
    for svg in drawings(confusion_figure(["a", "b"], [[3, 1], [0, 0]])):
        assert len(cells(svg)) == 2
