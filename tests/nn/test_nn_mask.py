"""Masks against their definition, one pair of positions at a time."""

from __future__ import annotations

import itertools

import pytest
import torch

from trivium import spec
from trivium.errors import SpecError
from trivium.nn.mask import Mask

pytestmark = pytest.mark.usefixtures("double_precision")

CPU = torch.device("cpu")
LENGTH = 11
REAL = torch.arange(LENGTH) < torch.tensor([[11], [7], [1]])
DOCUMENTS = torch.tensor(
    [
        [1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 5],
        [1, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    ]
)
PREFIX = torch.tensor([6, 1, 11])
CUSTOM = (torch.arange(LENGTH)[:, None] * torch.arange(LENGTH) % 3 < 2)[None, None]


def sees(row, t, s, *, causal, padding, documents, prefix, custom, window):
    allowed = not causal or s <= t or (prefix is not None and s < int(prefix[row]))
    allowed = allowed and (window is None or abs(t - s) <= window)
    allowed = allowed and (documents is None or bool(documents[row, t] == documents[row, s]))
    allowed = allowed and (custom is None or bool(custom[0, 0, t, s]))
    return allowed and (padding is None or bool(padding[row, s]))


def test_every_combination_of_limits_is_its_definition():
    options = {
        "causal": (True, False),
        "padding": (None, REAL),
        "documents": (None, DOCUMENTS),
        "prefix": (None, PREFIX),
        "custom": (None, CUSTOM),
        "window": (None, 3),
    }
    for values in itertools.product(*options.values()):
        limits = dict(zip(options, values, strict=True))
        pattern = spec.Sliding(window=3) if limits["window"] else spec.Full()
        mask = Mask(**{name: value for name, value in limits.items() if name != "window"})
        expected = torch.tensor(
            [
                [[sees(row, t, s, **limits) for s in range(LENGTH)] for t in range(LENGTH)]
                for row in range(3)
            ]
        )
        allowed = mask.allowed(pattern, LENGTH, LENGTH, CPU)
        if allowed is None:
            assert not limits["causal"]
            assert expected.all()
            continue
        assert mask.allowed(pattern, LENGTH, LENGTH, CPU) is allowed
        allowed = allowed.expand(3, 1, LENGTH, LENGTH)[:, 0]
        assert torch.equal(allowed, expected), limits


def test_queries_behind_cached_keys():
    """Rows with different numbers of earlier tokens, and one query per row."""
    whole = Mask(causal=True).allowed(spec.Sliding(window=4), LENGTH, LENGTH, CPU)
    assert whole is not None
    for start in (0, 4, torch.tensor([8, 2, 0])):
        starts = [start] * 3 if isinstance(start, int) else start.tolist()
        mask = Mask(causal=True, start=start)
        allowed = mask.allowed(spec.Sliding(window=4), 3, LENGTH, CPU)
        assert allowed is not None
        for row, first in enumerate(starts):
            assert torch.equal(
                allowed.expand(3, -1, -1, -1)[row, 0], whole[0, 0, first : first + 3]
            )
    last = Mask(causal=True, start=torch.tensor([3, 5])).allowed(spec.Full(), 1, 6, CPU)
    assert last is not None
    assert last[:, 0, 0].tolist() == [[True] * 4 + [False] * 2, [True] * 6]


def test_some_of_the_queries_see_what_they_see_among_all():
    """Also behind earlier tokens: of rows with as many, and with different numbers of them."""
    for start in (0, 4, torch.tensor([6, 3, 0])):
        mask = Mask(causal=True, padding=REAL, custom=CUSTOM[:, :, :5], start=start)
        for pattern in (spec.Full(), spec.Sliding(window=2)):
            whole = mask.allowed(pattern, 5, LENGTH, CPU)
            some = mask.of_queries(2, 4).allowed(pattern, 2, LENGTH, CPU)
            assert whole is not None
            assert some is not None
            assert torch.equal(some, whole[:, :, 2:4])


def test_plain_causality_and_no_limit_need_no_tensor():
    full, sliding = spec.Full(), spec.Sliding(window=2)
    assert Mask(causal=True).is_plain_causal(full, 5)
    for mask, pattern in (
        (Mask(causal=True), sliding),
        (Mask(causal=True, start=2), full),
        (Mask(causal=True, start=torch.tensor([0, 0])), full),
        (Mask(causal=True, padding=REAL), full),
        (Mask(causal=True, documents=DOCUMENTS), full),
        (Mask(causal=True, custom=CUSTOM), full),
        (Mask(), full),
    ):
        assert not mask.is_plain_causal(pattern, 5)
    assert Mask().allowed(full, 5, 5, CPU) is None
    assert Mask(causal=True, start=6).allowed(full, 1, 7, CPU) is None


def test_a_mask_of_ones_own_is_bool_and_its_axes_are_known():
    square = CUSTOM[0, 0]
    allowed = Mask(custom=square).allowed(spec.Full(), LENGTH, LENGTH, CPU)
    assert allowed is not None
    assert torch.equal(allowed, CUSTOM)
    for wrong in (square.float(), square[None]):
        with pytest.raises(SpecError, match=r"bool tensor \[T, S\] or"):
            Mask(custom=wrong)
