"""Hypothesis strategies that damage what is inside binary files, whose envelope stays whole."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import io
import pickletools
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from hypothesis import assume
from hypothesis import strategies as st

Damaged = Callable[..., st.SearchStrategy[Any]]
"""Makes the strategy that damages what is inside."""

_OPCODES = (
    *(
        b"creaders\nran_code\n(tR",
        b"\x8c\x07readers\x8c\x08ran_code\x93)R",
        b"creaders\nran_code\n",
    ),
    *(
        b"cposix\nsystem\n(S'true'\ntR",
        b"cbuiltins\neval\n",
        b"ctorch\nload\n",
        b"ctorch\nTensor\n",
    ),
    *(b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n", b"ctorch\nSize\n"),
    *(b"ctorch._utils\n_rebuild_parameter\n", b"ctorch\nFloatStorage\n", b"ctorch\nfloat32\n"),
    *(b"}", b"]", b")", b"(", b"N", b"K\x01", b"K\x00", b"M\xff\xff", b"J\xff\xff\xff\xff", b"."),
    *(
        b"\x85",
        b"\x86",
        b"\x87",
        b"t",
        b"R",
        b"b",
        b"s",
        b"u",
        b"a",
        b"e",
        b"0",
        b"2",
        b"Q",
        b"\x81",
    ),
    *(b"h\x00", b"h\xff", b"q\x00", b"q\xff", b"j\xff\xff\xff\xff", b"r\xff\xff\xff\xff", b"P1\n"),
    *(
        b"\x88",
        b"G\x7f\xf0\0\0\0\0\0\0",
        b"\x8a\x08" + b"\x7f" * 8,
        b"\x8b\xff\xff\xff\x7f",
        b"Fx\n",
    ),
    *(
        b"X\x01\0\0\0a",
        b"X\xff\xff\xff\x7f",
        b"X\x03\0\0\0\xed\xa0\x80",
        b"T\xff\xff\xff\x7f",
        b"I9\n",
    ),
)
_COLUMNS: tuple[tuple[Any, pyarrow.DataType], ...] = (
    *((None, pyarrow.null()), (True, pyarrow.bool_()), (1, pyarrow.int8()), (1, pyarrow.uint64())),
    *((1.5, pyarrow.float64()), (np.float16(1.5), pyarrow.float16()), (b"\xff", pyarrow.binary())),
    *((b"ab", pyarrow.binary(2)), ("a", pyarrow.large_string()), ("\0", pyarrow.string())),
    *((datetime.date(1, 1, 1), pyarrow.date32()), (1, pyarrow.time64("ns"))),
    *((-(2**62), pyarrow.timestamp("s")), (2**62, pyarrow.timestamp("us", "UTC"))),
    *((1, pyarrow.timestamp("ns", "Mars/City")), (2**62, pyarrow.duration("us"))),
    *((decimal.Decimal("1.5"), pyarrow.decimal128(9, 2)), ([], pyarrow.list_(pyarrow.null()))),
    *((["a", None], pyarrow.list_(pyarrow.string())), ([1], pyarrow.list_(pyarrow.int64(), 1))),
    *(({"text": "a"}, pyarrow.struct({"text": pyarrow.string()})), ({}, pyarrow.struct([]))),
    ([("a", 1)], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    ("a", pyarrow.dictionary(pyarrow.int8(), pyarrow.string())),
)
_NAMES = ("text", "label", "", "\0", "a.b", "translation")
_NUMBERS = (0, 1, -1, 2, 3, 100, 65_535, 2**31 - 1, 2**62, -(2**63))
_TYPES = (
    "u1",
    "<i4",
    ">i8",
    "<u8",
    "f4",
    "f8",
    "c16",
    "?",
    "S3",
    "U2",
    "M8[ns]",
    "i8,f4",
    "(2,)i8",
)


@st.composite
def damaged_parquet(draw: st.DrawFn, content: bytes, damaged_trees: Damaged) -> bytes:
    """A good parquet file of other rows, or with a column of another type or name."""
    table = pyarrow.parquet.read_table(io.BytesIO(content))
    file = io.BytesIO()
    try:
        if draw(st.booleans()):
            table = pyarrow.Table.from_pylist(draw(damaged_trees(table.to_pylist())))
        else:
            value, kind = draw(st.sampled_from(_COLUMNS))
            at = draw(st.integers(0, table.num_columns - 1))
            name = draw(st.sampled_from((table.column_names[at], *_NAMES)))
            column = pyarrow.array([value] * len(table), kind)
            change = table.add_column if draw(st.booleans()) else table.set_column
            table = change(at, name, column)
        compression = draw(st.sampled_from(("none", "snappy", "gzip", "zstd")))
        size = draw(st.sampled_from((None, 1)))
        pyarrow.parquet.write_table(table, file, compression=compression, row_group_size=size)
    except Exception:  # no such table, which Arrow says in many ways
        assume(False)
    return file.getvalue()


@st.composite
def damaged_array(draw: st.DrawFn, content: bytes) -> bytes:
    """A `.npy` file with other numbers, of another type or shape."""
    array, file = np.load(io.BytesIO(content)), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match draw(st.integers(0, 3)):
            case 0:
                array = array.astype(draw(st.sampled_from(_TYPES)))
            case 1:
                array = array[: draw(st.integers(0, len(array)))]
            case 2:
                shapes = ((-1, 1), (1, -1), (1, -1, 1, 1))
                array = array.reshape(draw(st.sampled_from(shapes)))
            case _ if array.size:
                number = np.array(draw(st.sampled_from(_NUMBERS)))
                array[draw(st.integers(0, len(array) - 1))] = number.astype(array.dtype)
            case _:
                array = np.array(1)
    np.save(file, array)
    return file.getvalue()


@st.composite
def damaged_archive(draw: st.DrawFn, content: bytes, damaged: Damaged) -> bytes:
    """A zip archive of which one entry is damaged, renamed, repeated or missing."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    at = draw(st.integers(0, len(entries) - 1))
    name, data = entries[at]
    match draw(st.integers(0, 9)):
        case 0:
            del entries[at]
        case 1:
            entries[at] = (draw(st.sampled_from((f"{name}_", "x", "../x", "a/b/c"))), data)
        case 2:
            entries[at] = (name, entries[draw(st.integers(0, len(entries) - 1))][1])
        case _:
            entries[at] = (name, draw(damaged(name, data)))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in entries:
            archive.writestr(zipfile.ZipInfo(name), data)
    return file.getvalue()


@st.composite
def damaged_pickle(draw: st.DrawFn, content: bytes) -> bytes:
    """A pickle or several with opcodes inserted, deleted or repeated, some of which run code."""
    stream, starts = io.BytesIO(content), list[int]()
    with contextlib.suppress(ValueError):  # what follows is no further pickle
        while stream.tell() < len(content):
            starts += [place or 0 for _, _, place in pickletools.genops(stream)]
    end = starts[-1] + 1
    parts = [content[start:stop] for start, stop in zip(starts, [*starts[1:], end])]
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(parts) - 1))
        match draw(st.integers(0, 3)):
            case 0 if len(parts) > 1:
                del parts[at]
            case 1:
                parts.insert(at, parts[draw(st.integers(0, len(parts) - 1))])
            case 2:
                parts[at] = draw(st.sampled_from(_OPCODES))
            case _:
                parts.insert(at, draw(st.sampled_from(_OPCODES)))
    return b"".join(parts) + content[end:]


@st.composite
def damaged_protobuf(draw: st.DrawFn, content: bytes, damaged_bytes: Damaged) -> bytes:
    """A protocol buffer with a field that is damaged, missing, repeated or of another number."""
    fields = _fields(content)
    at = draw(st.integers(0, len(fields) - 1))
    key, value = fields[at]
    match draw(st.integers(0, 7)):
        case 0:
            del fields[at]
        case 1:
            fields.insert(at, fields[draw(st.integers(0, len(fields) - 1))])
        case 2:
            fields[at] = (draw(st.integers(0, 255)), value)
        case 3 if key & 7 == 0:
            fields[at] = (key, _varint(draw(st.sampled_from((0, 1, 2, 3, 4, 6, 2**31, 2**64)))))
        case _ if key & 7 == 2:
            _, start = _read_varint(value, 0)
            inside = value[start:]
            try:
                has_fields = bool(_fields(inside))
            except (IndexError, ValueError):
                has_fields = False
            if has_fields and draw(st.booleans()):
                inside = draw(damaged_protobuf(inside, damaged_bytes))
            else:
                inside = draw(damaged_bytes(inside))
            fields[at] = (key, _varint(len(inside)) + inside)
        case _:
            fields[at] = (key, draw(damaged_bytes(value)))
    return b"".join(_varint(key) + value for key, value in fields)


def _fields(data: bytes) -> list[tuple[int, bytes]]:
    """The fields of a message as pairs (key, value as it is stored)."""
    fields, start = [], 0
    while start < len(data):
        key, begin = _read_varint(data, start)
        match key & 7:
            case 0:
                _, start = _read_varint(data, begin)
            case 1 | 5 as wire:
                start = begin + (8 if wire == 1 else 4)
            case 2:
                length, start = _read_varint(data, begin)
                start += length
            case _:
                raise ValueError("no protocol buffer")
        if start > len(data):
            raise ValueError("no protocol buffer")
        fields.append((key, data[begin:start]))
    return fields


def _read_varint(data: bytes, start: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[start] & 0x7F) << shift
        shift, start = shift + 7, start + 1
        if data[start - 1] < 0x80:
            return value, start


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
