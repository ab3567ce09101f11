"""`trivium presets`: the named sizes of the literature. Nothing here imports torch."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Annotated, Any

import tomli_w
import typer

from trivium.errors import SpecError, did_you_mean
from trivium.presets import Preset, catalogue, find
from trivium.spec import ModelSpec, RNNSpec

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium presets

  trivium presets llama

  trivium presets bert-base --spec

  trivium presets bert-base --json
"""
# Key of a row -> heading, in the order in which a narrow terminal loses them from the right.
_COLUMNS = {
    "name": "preset",
    "parameters": "parameters",
    "encoder_layers": "encoder",
    "decoder_layers": "decoder",
    "d_model": "d_model",
    "heads": "heads",
    "inner": "inner",
    "context": "context",
    "training_tokens": "trained on",
    "vocab_size": "vocab",
    "paper": "paper",
}
_TEXT = {"name", "family", "paper"}
_GAP = "  "


@app.command(epilog=_EPILOG)
def presets(
    part: Annotated[
        str, typer.Argument(metavar="PART", help="Only names, families or papers with this.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a preset.")] = False,
    spec: Annotated[
        bool,
        typer.Option("--spec", help="The whole description of the preset PART, as in a recipe."),
    ] = False,
) -> None:
    """List the presets that `trivium pretrain` takes: sizes, context, training, paper.

    Encoder and decoder: layers. Heads: of queries, and of keys and values where they are fewer.
    Inner: width of the feed-forward network or recurrent cell. Trained on: tokens, as published.
    """
    if spec:
        typer.echo(_description(part, as_json=as_json))
        return
    rows = [_row(name, preset) for name, preset in catalogue.items()]
    words = part.lower()
    found = [row for row in rows if any(words in str(row[key]).lower() for key in _TEXT)]
    if not found:
        raise SpecError(f'no preset has "{part}" in it.{did_you_mean(part, catalogue)}')
    if as_json:
        for row in found:
            typer.echo(json.dumps(row, ensure_ascii=False))
    else:
        typer.echo(_table(found, shutil.get_terminal_size().columns if _in_terminal() else None))


def _description(name: str, *, as_json: bool) -> str:
    """All of one preset, in the words of a recipe."""
    preset = find(name)
    tree = preset.spec.to_dict()
    if as_json:
        return json.dumps({**_row(name, preset), "spec": tree}, ensure_ascii=False)
    head = f"# {name}: {preset.spec.num_parameters:,} parameters. {preset.paper}"
    return f"{head}\n{tomli_w.dumps({'model': {'spec': tree}})}".rstrip()


def _in_terminal() -> bool:
    return sys.stdout.isatty()


def _row(name: str, preset: Preset) -> dict[str, Any]:
    """All facts of a preset; what it does not have is None."""
    spec = preset.spec
    return {
        "name": name,
        "family": spec.family,
        "parameters": spec.num_parameters,
        **_layers(preset),
        "d_model": spec.d_model,
        **_widths(preset),
        "vocab_size": spec.vocab_size,
        "context": preset.context,
        "training_tokens": _whole(preset.training_tokens),
        "paper": preset.paper,
    }


def _layers(preset: Preset) -> dict[str, int | None]:
    spec = preset.spec
    if isinstance(spec, ModelSpec):
        return {
            "encoder_layers": spec.encoder.num_layers if spec.encoder else None,
            "decoder_layers": spec.decoder.num_layers if spec.decoder else None,
        }
    # The n-gram model of Bengio et al. has one hidden layer.
    layers = spec.num_layers if isinstance(spec, RNNSpec) else 1
    encodes = spec.family == "encoder-only"
    return {
        "encoder_layers": layers if encodes else None,
        "decoder_layers": None if encodes else layers,
    }


def _widths(preset: Preset) -> dict[str, int | None]:
    spec = preset.spec
    if not isinstance(spec, ModelSpec):
        keys = ("num_heads", "num_kv_heads", "head_dim", "d_ff")
        return {**dict.fromkeys(keys), "d_hidden": spec.d_hidden}
    stack = spec.stacks[-1]
    attention = stack.attention_of(0)
    return {
        "num_heads": attention.num_heads,
        "num_kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "d_ff": stack.feed_forward.d_ff,
        "d_hidden": None,
    }


def _table(rows: list[dict[str, Any]], room: int | None) -> str:
    """Aligned columns, numbers to the right; as many as fit into `room` characters."""
    cells = [list(_COLUMNS.values()), *([_cell(row, key) for key in _COLUMNS] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS))]
    keys = list(_COLUMNS)
    hidden: list[str] = []
    while room is not None and len(keys) > 2 and _width(widths[: len(keys)]) > room:
        hidden.insert(0, _COLUMNS[keys.pop()])
    lines = []
    for line in cells:
        padded = [
            cell.ljust(width) if key in _TEXT else cell.rjust(width)
            for cell, width, key in zip(line, widths, keys, strict=False)
        ]
        lines.append(_GAP.join(padded).rstrip())
    if hidden:
        lines.append(f"A wider terminal and --json also show: {', '.join(hidden)}.")
    return "\n".join(lines)


def _width(widths: list[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _cell(row: dict[str, Any], key: str) -> str:
    match key:
        case "parameters" | "training_tokens":
            return "-" if row[key] is None else _count(row[key])
        case "heads":
            heads, groups = row["num_heads"], row["num_kv_heads"]
            shared = f"/{groups}" if groups != heads else ""
            return "-" if heads is None else f"{heads}{shared}"
        case "inner":
            return str(row["d_ff"] or row["d_hidden"])
        case _:
            return "-" if row[key] is None else str(row[key])


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _count(number: float) -> str:
    """124439808 -> 124.4M."""
    for size, letter in ((1e12, "T"), (1e9, "B")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number / 1e6:.1f}M"
