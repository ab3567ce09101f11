"""Masks against their definition, one pair of positions at a time."""

from __future__ import annotations

import itertools

import pytest
import torch

from trivium import spec
from trivium.errors import SpecError
from trivium.nn import mask as mask_module
from trivium.nn.mask import Mask, attention_mask, masked_score
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import CacheSlice

pytestmark = pytest.mark.usefixtures("double_precision")

LENGTH, WINDOW, HEADS = 13, 2, 2
COLUMNS = torch.arange(LENGTH)[None]
REAL = torch.tensor([[13], [7], [1]]) > COLUMNS
DOCUMENTS = torch.tensor(
    [
        [1, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 4, 5],
        [1, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    ]
)
IN_DOCUMENT = torch.tensor(
    [[row[:t].count(row[t]) for t in range(LENGTH)] for row in DOCUMENTS.tolist()]
)
PREFIX = torch.tensor([6, 1, 13])
CUSTOM = (COLUMNS.T * COLUMNS % 3 < 2)[None, None]
OPTIONS = {
    "causal": (True, False),
    "is_token": (None, REAL),
    "documents": (None, DOCUMENTS),
    "prefix": (None, PREFIX),
    "custom": (None, CUSTOM),
}


def sees(row, t, s, *, causal, is_token, documents, prefix, custom, window):
    """Whether the token at column t of a row may attend to that at column s; limits are lists."""
    ok = not causal or s <= t or (prefix is not None and s < prefix[row])
    ok = ok and (window is None or abs(t - s) <= window)
    ok = ok and (documents is None or documents[row][t] == documents[row][s])
    ok = ok and (custom is None or custom[0][0][t][s])
    return ok and (is_token is None or is_token[row][s])


def together(mask: Mask, queries: int, keys: int, rows: int = 3) -> torch.Tensor:
    """What the parts of a mask allow: bool [B, T, S]."""
    whole = torch.zeros(rows, queries, keys, dtype=torch.bool)
    for part in mask:
        here = torch.ones_like(whole[:, part.queries, part.keys])
        if part.is_plain_causal:
            here = here.tril()
        if part.attention_mask is not None:
            here &= part.attention_mask.expand(rows, -1, *here.shape[1:])[:, 0]
        whole[:, part.queries, part.keys] = here
    return whole


def test_every_combination_of_limits_is_its_definition(monkeypatch):
    """As one, in blocks where there is a window, and some queries at a time."""
    pattern = spec.Sliding(window=WINDOW)
    for *values, window in itertools.product(*OPTIONS.values(), (None, WINDOW)):
        limits = dict(zip(OPTIONS, values, strict=True))
        lists = {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in limits.items()}
        pairs = itertools.product(range(3), range(LENGTH), range(LENGTH))
        expected = torch.tensor([sees(*pair, **lists, window=window) for pair in pairs])
        expected = expected.view(3, LENGTH, LENGTH)
        positions = COLUMNS if limits["documents"] is None else IN_DOCUMENT
        for num_keys, block, largest in (
            (None, 128, 2**22),
            (None, 1, 2**22),
            (None, 128, 2 * LENGTH),
            (7, 1, 2**22),
        ):
            monkeypatch.setattr(mask_module, "_MIN_ROWS", block)
            monkeypatch.setattr(mask_module, "_MAX_MASK", largest)
            sequence = SequenceInfo(positions, COLUMNS, num_keys=num_keys, **limits)
            with torch.set_grad_enabled(largest > LENGTH**2):
                mask = Mask(sequence, sequence.keys, pattern if window else None)
                parts = list(mask)
                actual = together(mask, LENGTH, num_keys or LENGTH)
            assert torch.equal(actual, expected[..., :num_keys]), (limits, window, num_keys, block)
            if window and block == 1 and num_keys is None:
                assert len(parts) > 1
                assert max(part.keys.stop - part.keys.start for part in parts) < LENGTH
            for part in parts:
                if part.has_keys is not None:
                    assert torch.equal(part.has_keys, part.attention_mask.any(-1, keepdim=True))
                else:
                    assert actual[:, part.queries].any(-1).all(), "a row has no keys"


def test_a_window_is_of_columns_whatever_positions_are(monkeypatch):
    """Also in blocks, and where the keys of a cache know their columns alone."""
    sequence = SequenceInfo(COLUMNS % 5, COLUMNS, causal=True)
    pattern, plain = spec.Sliding(window=1), SequenceInfo(COLUMNS, COLUMNS, causal=True)
    expected = attention_mask(plain, plain, pattern)
    assert expected is not None
    for keys in (sequence, plain):
        found = attention_mask(sequence, keys, pattern)
        assert found is not None
        assert torch.equal(found, expected)
    monkeypatch.setattr(mask_module, "_MIN_ROWS", 1)
    assert torch.equal(together(Mask(sequence, sequence, pattern), LENGTH, LENGTH, 1), expected[0])


def test_a_bias_has_the_limits_in_it(monkeypatch):
    monkeypatch.setattr(mask_module, "_MIN_ROWS", 1)
    bias = torch.randn(1, HEADS, LENGTH, LENGTH)
    sequence = SequenceInfo.of_length(LENGTH, causal=True, is_token=REAL)
    for pattern in (None, spec.Sliding(window=WINDOW)):
        permitted = attention_mask(sequence, sequence, pattern)
        assert permitted is not None
        expected = bias.masked_fill(~permitted, masked_score(bias.dtype))

        def of(queries, keys):
            return bias[:, :, queries.columns[0]][..., keys.columns[0]]

        for part in Mask(sequence, sequence, pattern, of):
            assert torch.equal(part.bias, expected[:, :, part.queries, part.keys])


def test_queries_behind_cached_keys(monkeypatch):
    """Rows with different numbers of earlier tokens, and one query per row."""
    pattern = spec.Sliding(window=4)
    keys = SequenceInfo(COLUMNS, COLUMNS)
    whole = attention_mask(SequenceInfo.of_length(LENGTH, causal=True), keys, pattern)
    assert whole is not None
    for start in (0, 4, torch.tensor([8, 2, 0])):
        starts = [start] * 3 if isinstance(start, int) else start.tolist()
        cache_slice = CacheSlice(slice(3), start, 3, None, LENGTH)
        columns = cache_slice.columns(torch.device("cpu"))
        custom = CUSTOM[:, :, :3]
        queries = SequenceInfo(
            columns, columns, causal=True, custom=custom, cache_slice=cache_slice
        )
        permitted = attention_mask(queries, keys, pattern)
        assert permitted is not None
        for row, first in enumerate(starts):
            expected = whole[0, 0, first : first + 3] & custom[0, 0]
            assert torch.equal(permitted.expand(3, -1, -1, -1)[row, 0], expected)
        monkeypatch.setattr(mask_module, "_MAX_MASK", LENGTH)
        with torch.no_grad():
            mask = Mask(queries, keys, pattern)
            assert len(list(mask)) == 3
            actual = together(mask, 3, LENGTH)
        assert torch.equal(actual, permitted.expand(3, -1, -1, -1)[:, 0])
    columns = torch.tensor([[3], [5]])
    last = attention_mask(SequenceInfo(columns, columns, causal=True), SequenceInfo.of_length(6))
    assert last is not None
    assert last[:, 0, 0].tolist() == [[True] * 4 + [False] * 2, [True] * 6]


@torch.no_grad()
def test_plain_causality_and_no_limit_need_no_tensor():
    def of(length=5, start=0, pattern=None, **limits):
        cache_slice = CacheSlice(slice(1), start, length, None, 7)
        columns = cache_slice.columns(torch.device("cpu"))
        keys = SequenceInfo.of_length(7 if start else length, is_token=limits.get("is_token"))
        return Mask(
            SequenceInfo(columns, columns, cache_slice=cache_slice, **limits), keys, pattern
        )

    mask = of(causal=True)
    assert mask.is_plain_causal
    assert [(part.is_plain_causal, part.attention_mask) for part in mask] == [(True, None)]
    for mask in (
        of(causal=True, pattern=spec.Sliding(window=2)),
        of(causal=True, start=2),
        of(causal=True, start=torch.tensor([0])),
        of(causal=True, is_token=REAL[:, :5]),
        of(causal=True, documents=DOCUMENTS[:, :5]),
        of(causal=True, prefix=PREFIX),
        of(causal=True, custom=CUSTOM[..., :5, :5]),
        of(),
    ):
        assert not mask.is_plain_causal
    for mask in (of(), of(length=1, start=6, causal=True)):
        assert [(part.is_plain_causal, part.attention_mask) for part in mask] == [(False, None)]


def test_a_mask_of_ones_own_is_bool_and_its_axes_are_known():
    square = CUSTOM[0, 0]
    sequence = SequenceInfo.of_length(LENGTH, custom=square)
    permitted = attention_mask(sequence, sequence)
    assert permitted is not None
    assert torch.equal(permitted, CUSTOM)
    for wrong in (square.float(), square[None]):
        with pytest.raises(SpecError, match=r"bool tensor \[T, S\] or"):
            SequenceInfo.of_length(LENGTH, custom=wrong)
