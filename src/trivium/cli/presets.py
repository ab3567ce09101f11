"""`trivium presets`: the named sizes of the literature. Nothing here imports torch."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from trivium.errors import SpecError, did_you_mean
from trivium.presets import Preset, catalogue

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium presets

  trivium presets llama

  trivium presets bert-base --json
"""
_COLUMNS = {
    "name": "preset",
    "family": "family",
    "parameters": "parameters",
    "num_layers": "layers",
    "d_model": "d_model",
    "heads": "heads/kv",
    "d_ff": "d_ff",
    "vocab_size": "vocab",
    "context": "context",
    "paper": "paper",
}
_TEXT = {"name", "family", "paper"}


@app.command(epilog=_EPILOG)
def presets(
    part: Annotated[
        str, typer.Argument(metavar="PART", help="Only names, families or papers with this.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a preset.")] = False,
) -> None:
    """List the presets that `trivium pretrain` takes: sizes, context, paper."""
    rows = [_row(name, preset) for name, preset in catalogue.items()]
    words = part.lower()
    found = [row for row in rows if any(words in str(row[key]).lower() for key in _TEXT)]
    if not found:
        raise SpecError(f'no preset has "{part}" in it.{did_you_mean(part, catalogue)}')
    if as_json:
        for row in found:
            typer.echo(json.dumps(row, ensure_ascii=False))
    else:
        typer.echo(_table(found))


def _row(name: str, preset: Preset) -> dict[str, Any]:
    spec = preset.spec
    stack = spec.stacks[0]
    attention = stack.attention_of(0)
    return {
        "name": name,
        "family": spec.family,
        "parameters": spec.num_parameters,
        "num_layers": stack.num_layers,
        "d_model": spec.d_model,
        "num_heads": attention.num_heads,
        "num_kv_heads": attention.kv_heads,
        "d_ff": stack.feed_forward.d_ff,
        "vocab_size": spec.vocab_size,
        "context": preset.context,
        "paper": preset.paper,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    """Aligned columns, numbers to the right."""
    cells = [list(_COLUMNS.values())]
    for row in rows:
        shown = {
            **row,
            "parameters": _count(row["parameters"]),
            "heads": f"{row['num_heads']}/{row['num_kv_heads']}",
        }
        cells.append([str(shown[key]) for key in _COLUMNS])
    widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS))]
    lines = []
    for line in cells:
        padded = [
            cell.ljust(width) if key in _TEXT else cell.rjust(width)
            for cell, width, key in zip(line, widths, _COLUMNS)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _count(parameters: int) -> str:
    """124439808 -> 124.4M."""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.1f}B"
    return f"{parameters / 1e6:.1f}M"
