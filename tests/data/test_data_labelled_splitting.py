from __future__ import annotations

import pytest

from trivium.data.labelled import LabelledText, divide
from trivium.errors import DataError


def examples(count, repeats=1):
    return [
        LabelledText(f"text {n}", None, str(copy), f"{n}.{copy}")
        for n in range(count)
        for copy in range(repeats)
    ]


def test_every_example_is_on_one_side_in_its_order():
    given = examples(1009, repeats=3)
    train, held = divide(given, 0.2, seed=0)
    assert sorted([*train, *held], key=given.index) == given
    assert [one for one in given if one in train] == train
    assert not {one.text for one in train} & {one.text for one in held}
    # Five deviations of 1009 independent draws.
    assert abs(len(held) / 3 - 1009 * 0.2) < 5 * (1009 * 0.2 * 0.8) ** 0.5


def test_the_side_does_not_depend_on_other_examples():
    given = examples(211)
    held = set(divide(given, 0.3, seed=7)[1])
    assert set(divide(given[::-1], 0.3, seed=7)[1]) == held
    assert set(divide(given[:101], 0.3, seed=7)[1]) == held & set(given[:101])
    assert set(divide(given, 0.4, seed=7)[1]) > held
    assert set(divide(given, 0.3, seed=8)[1]) != held


def test_white_space_makes_no_other_text():
    spaced = [LabelledText(f"  text\n{n} ", None, "x", "w") for n in range(101)]
    train, held = divide([*examples(101), *spaced], 0.3, seed=0)
    sides = [{" ".join(one.text.split()) for one in side} for side in (train, held)]
    assert not sides[0] & sides[1]


@pytest.mark.parametrize("seed", range(11))
@pytest.mark.parametrize("validation", [1e-9, 0.5, 0.999999])
def test_no_side_is_empty(validation, seed):
    train, held = divide(examples(2, repeats=3), validation, seed)
    assert len(train) == len(held) == 3


def test_what_cannot_be_divided():
    assert divide(examples(3), 0, seed=0) == (examples(3), [])
    for share in (-0.1, 1.0):
        with pytest.raises(DataError, match="fraction of the examples"):
            divide(examples(3), share, seed=0)
    for given in ([], examples(1, repeats=5)):
        with pytest.raises(DataError, match="cannot be divided"):
            divide(given, 0.1, seed=0)


def test_the_division_is_part_of_the_format():
    # A division that changes moves validation examples of old runs into training.
    held = divide(examples(23), 0.3, seed=0)[1]
    assert [int(one.where[:-2]) for one in held] == [3, 4, 9, 10, 15, 18, 19, 21]
