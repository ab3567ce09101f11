"""Hypothesis strategies that damage a small real file: its bytes, its lines or its JSON tree."""

from __future__ import annotations

import bz2
import copy
import gzip
import json
import lzma
import re
import struct
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w
import zstandard
from binary_damage import (
    damaged_archive,
    damaged_array,
    damaged_parquet,
    damaged_pickle,
    damaged_protobuf,
)
from hypothesis import strategies as st

Files = dict[str, bytes]
"""Name -> content of the files of a folder."""

_BYTES = (
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\xc3", b"\xe2\x80\xa8"),
    *(b"\n", b"\r", b"\r\n\r\n", b"\t", b" ", b"\x0b", b"\x0c", b"\x1c", b"\x85", b"\xe3\x80\x80"),
    *(b'"', b"'", b",", b";", b":", b"[", b"]", b"{", b"}", b"\\", b"\\ud800", b"\\u0000", b"="),
    *(b"null", b"NaN", b"-1", b"1e999", b"-Infinity", b"9" * 25, b"9" * 5000, b"x" * 2000),
    *(b"[" * 3000, b'{"a":' * 3000, b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7, b"\xe5\x8c\x97"),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 2**31, 2**32 + 1, 2**63, 2**64, -(2**63) - 1, 10**30),
    *(0.0, -0.0, 0.5, 1.0, -1.5, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", " ", "a", "0", "-1", "true", "\0", "\ud800", "\ufeff", "\u2028", "../x", "/", "x" * 2000),
    *("[UNK]", "<s>", "{{ x }}", "{% for", "(((", "\\", "\u2581", "##", "e\u0301", "\U0001f600"),
    *([], {}, [[]], [{}], [None], [0], [-1], ["a"], ["a", "a"], [1, 2, 3], {"a": 1}, {"0": "a"}),
    *({"": None}, {"type": "x"}, {"kind": "x"}, {"content": None}, {"a": {"a": {"a": []}}}),
)
_TEMPLATES = (
    *("{% for m in messages %}", "{% endfor %}", "{% if m %}", "{% else %}", "{% endif %}", "{# "),
    *("{% set x = namespace(a=1) %}", "{% set x.a = x %}", "{% macro f(a) %}", "{% endmacro %}"),
    *("{{ f(f) }}", "{% break %}", "{% generation %}", "{% endgeneration %}", "{% raw %}", "{% "),
    *("{% block a %}", "{% endblock %}", "{% call f() %}", "{% endcall %}", "{% include 'x' %}"),
    *("{{ m }}", "{{ m.content.x }}", "{{ messages|tojson }}", "{{ messages[9] }}", "{{ 1 / 0 }}"),
    *("{{ messages|sort }}", "{{ messages|sum }}", "{{ 'a' * 10**15 }}", "{{ loop(messages) }}"),
    *("{{ m|xmlattr }}", "{{ m|map('x')|list }}", "{{ 'a'|truncate(-1) }}", "{{ 1e999|int }}"),
    *("{{ ''.__class__ }}", "{{ cycler() }}", "{{ raise_exception(m) }}", "{{ strftime_now(m) }}"),
    *("{{ 'a'|batch(0)|list }}", "{{ '%d' % m }}", "{{ messages[::0] }}", "{{ '9' * 5000|int }}"),
)
_CHUNK, _VALUE = st.sampled_from(_BYTES), st.sampled_from(_VALUES)
_COMPRESSIONS: Mapping[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    ".gz": (lambda data: gzip.compress(data, mtime=0), gzip.decompress),
    ".bz2": (bz2.compress, bz2.decompress),
    ".xz": (lzma.compress, lzma.decompress),
    ".zst": (zstandard.compress, zstandard.decompress),
}


@dataclass(frozen=True)
class Damage:
    """A file of a folder and its new content; None: it is missing."""

    name: str
    content: bytes | None


@st.composite
def damages(draw: st.DrawFn, files: Files) -> Damage:
    """One file of a folder, damaged."""
    name = draw(st.sampled_from(sorted(files)))
    if draw(st.integers(0, 40)) == 40 and len(files) > 1:
        return Damage(name, None)
    return Damage(name, draw(damaged(name, files[name])))


@st.composite
def damaged(draw: st.DrawFn, name: str, content: bytes) -> bytes:
    """Another content of a file: of its tree or table where its suffix has one, or of its bytes."""
    suffix = name[name.rfind(".") :]
    if suffix in _COMPRESSIONS and draw(st.booleans()):
        compress, decompress = _COMPRESSIONS[suffix]
        return compress(draw(damaged(name.removesuffix(suffix), decompress(content))))
    structured = _structured(suffix, content)
    if content and structured is not None and draw(st.integers(0, 3)):
        return draw(structured)
    if draw(st.booleans()):
        return draw(_damaged_lines(content))
    return draw(_damaged_bytes(content))


def _structured(suffix: str, content: bytes) -> st.SearchStrategy[bytes] | None:
    """Damage to what a file of this suffix holds; None where its bytes are all there is."""
    if content.startswith(b"PK\x03\x04"):
        return damaged_archive(content, damaged)
    if content.startswith(b"\x80\x02"):
        return damaged_pickle(content)
    match suffix:
        case ".json":
            return _damaged_json(content)
        case ".jsonl":
            return _damaged_json_lines(content)
        case ".toml":
            return _damaged_toml(content)
        case ".safetensors":
            return _damaged_header(content)
        case ".jinja":
            return _damaged_template(content)
        case ".parquet":
            return damaged_parquet(content, damaged_trees)
        case ".npy":
            return damaged_array(content)
        case ".model":
            return damaged_protobuf(content, _damaged_bytes)
        case _:
            return None


@st.composite
def _damaged_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        start, stop = sorted((_place(draw, len(data)), _place(draw, len(data))))
        stop = min(stop, start + draw(st.sampled_from((1, 4, 8, 64, 10**9))))
        match draw(st.integers(0, 5)):
            case 0:
                data[start : start + 1] = bytes([draw(st.integers(0, 255))])
            case 1:
                data[start:start] = draw(_CHUNK)
            case 2:
                data[start:stop] = draw(_CHUNK)
            case 3:
                del data[start:stop]
            case 4:
                data[start:start] = data[start:stop] * draw(st.integers(1, 3))
            case _:
                del data[start:]
    return bytes(data)


@st.composite
def _damaged_lines(draw: st.DrawFn, content: bytes) -> bytes:
    lines = content.split(b"\n")
    for _ in range(draw(st.integers(1, 3))):
        at, other = _place(draw, len(lines) - 1), _place(draw, len(lines) - 1)
        match draw(st.integers(0, 4)):
            case 0:
                lines.insert(at, lines[other])
            case 1 if len(lines) > 1:
                del lines[at]
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                cells = lines[at].split(draw(st.sampled_from((b",", b"\t", b" ", b":", b'"'))))
                cells[_place(draw, len(cells) - 1)] = draw(_CHUNK)
                lines[at] = draw(st.sampled_from((b",", b"\t", b" "))).join(cells)
            case _:
                lines.insert(at, draw(st.sampled_from((b"", b" ", b"\t", b"\0", b"#", b"# a"))))
    return b"\n".join(lines)


@st.composite
def _damaged_json(draw: st.DrawFn, content: bytes) -> bytes:
    return json.dumps(draw(damaged_trees(json.loads(content)))).encode()


@st.composite
def _damaged_json_lines(draw: st.DrawFn, content: bytes) -> bytes:
    lines = content.splitlines()
    at = _place(draw, len(lines) - 1)
    lines[at] = draw(_damaged_json(lines[at]))
    return b"\n".join(lines)


@st.composite
def _damaged_template(draw: st.DrawFn, content: bytes) -> bytes:
    parts = re.split(r"(?<=\})(?=\{)", content.decode())
    for _ in range(draw(st.integers(1, 4))):
        at = _place(draw, len(parts) - 1)
        match draw(st.integers(0, 3)):
            case 0 if len(parts) > 1:
                del parts[at]
            case 1:
                parts.insert(at, parts[_place(draw, len(parts) - 1)])
            case _:
                parts.insert(at, draw(st.sampled_from(_TEMPLATES)))
    return "".join(parts).encode()


@st.composite
def _damaged_toml(draw: st.DrawFn, content: bytes) -> bytes:
    tree = draw(damaged_trees(tomllib.loads(content.decode())))
    try:
        return tomli_w.dumps(tree).encode("utf-8", "surrogatepass")
    except (TypeError, AttributeError):  # null, or no table: TOML has no such thing
        return content


@st.composite
def _damaged_header(draw: st.DrawFn, content: bytes) -> bytes:
    """A safetensors file whose header is another tree, of the right length."""
    (size,) = struct.unpack("<Q", content[:8])
    header = draw(_damaged_json(content[8 : 8 + size]))
    return struct.pack("<Q", len(header)) + header + content[8 + size :]


@st.composite
def damaged_trees(draw: st.DrawFn, tree: Any) -> Any:
    """A tree of which one to three values are others, missing, repeated, wrapped or renamed."""
    tree = {"root": json.loads(json.dumps(tree))}
    for _ in range(draw(st.integers(1, 3))):
        holder, key = _choose_value(draw, tree)
        value = holder[key]
        match draw(st.integers(0, 7)):
            case 0 if holder is not tree:
                del holder[key]
            case 1:
                holder[key] = [value]
            case 2:
                other, name = _choose_value(draw, tree)
                holder[key] = json.loads(json.dumps(other[name]))
            case 3 if isinstance(holder, list):
                holder.insert(key, value)
            case 3 if holder is not tree:
                holder[draw(st.sampled_from((f"{key}_", "", "kind", "\ud800", "0")))] = value
            case 4 if isinstance(value, int | float) and not isinstance(value, bool):
                changed = (value + 1, value - 1, -value, value / 2, value * 1000, str(value))
                holder[key] = draw(st.sampled_from(changed))
            case 4 if isinstance(value, str):
                changed = (value + "x", value[:-1], value.upper(), f" {value}", value * 2, [*value])
                holder[key] = draw(st.sampled_from(changed))
            case 5 if isinstance(value, dict) and value:
                holder[key] = [*value.values()]
            case _:
                holder[key] = copy.deepcopy(draw(_VALUE))
    return tree["root"]


def _choose_value(draw: st.DrawFn, tree: dict[str, Any]) -> tuple[Any, Any]:
    """The holder of some value in a tree, and its key there; values near the root as often."""
    holder, key = tree, "root"
    while isinstance(holder[key], dict | list) and holder[key] and draw(st.integers(0, 4)):
        holder = holder[key]
        keys = sorted(holder) if isinstance(holder, dict) else range(len(holder))
        key = keys[_place(draw, len(keys) - 1)]
    return holder, key


def _place(draw: st.DrawFn, length: int) -> int:
    """A position from 0 to `length`."""
    return draw(st.integers(0, max(0, length)))
