"""`trivium presets`: list the presets: model sizes from published papers.

Examples:

  trivium presets

  trivium presets llama

  trivium presets bert-base --spec

  trivium presets bert-base --recipe

  trivium presets bert-base --json
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import tomli_w
import typer

from trivium.cli import load_json
from trivium.cli._shared import print_json, shorten_count
from trivium.cli._tables import add_text_column, make_table, print_table
from trivium.errors import SpecError, did_you_mean_model
from trivium.interrupts import exit_on_interrupt
from trivium.messages import translated

_SMALL = ("-auto", "-tiny", "-mini")


def presets(
    part: Annotated[str, typer.Argument(metavar="[PART]")] = "",
    as_json: Annotated[bool, typer.Option("--json")] = False,
    spec: bool = False,
    recipe: bool = False,
) -> None:
    """List the presets for `trivium pretrain` with their sizes, context, training tokens and paper.

    The presets named -auto, -tiny and -mini, which can be trained on a laptop in minutes, are
    listed first. `trivium pretrain` chooses the size of an -auto preset for the budget, the text
    and the speed of the machine.

    The number of parameters includes the published vocabulary. A run trains its own tokenizer,
    usually with a smaller vocabulary, and so has fewer parameters.

    Args:
        part: List only the presets whose name, family or paper contains this text.
        as_json: Print one JSON object per preset.
        spec: Print the complete spec of the preset PART, as in a recipe.
        recipe: Print the published training settings of the preset PART, with the source of every
            value.
    """
    rows, words = load_json("presets"), part.lower()
    base = next((row.get("resizes") for row in rows if row["name"] == part), None)
    if base is not None and (spec or recipe):
        raise SpecError(
            f"{part} has no sizes of its own: `trivium pretrain` chooses them for the budget. "
            f"Show {base}, which it resizes."
        )
    if recipe:
        _print_published_recipe(part, as_json=as_json)
        return
    if spec:
        _print_spec(part)
        return
    selected = [
        row for row in rows if words in f"{row['name']} {row['family']} {row['paper']}".lower()
    ]
    if not selected:
        near = did_you_mean_model(part, [row["name"] for row in rows])
        raise SpecError(
            f'no preset has "{part}" in its name, family or paper.{near} `trivium presets` lists '
            "all presets."
        )
    selected.sort(key=lambda row: not row["name"].endswith(_SMALL))
    if as_json:
        for row in selected:
            print_json(row)
        return
    _print_presets(selected)
    if not part:
        typer.echo(translated("presets.small_ones"), err=True)


def _print_spec(name: str) -> None:
    """Print the complete spec of a preset as TOML. This imports torch."""
    with exit_on_interrupt():
        from trivium.models import num_parameters
        from trivium.presets import catalogue

    preset = catalogue[name]
    typer.echo(f"# {name}: {num_parameters(preset.spec):,} parameters. {preset.paper}")
    typer.echo(tomli_w.dumps({"model": {"spec": preset.spec.to_dict()}}).rstrip())


def _print_published_recipe(name: str, *, as_json: bool) -> None:
    """Print the published training settings of a preset, with the source of every value."""
    from trivium.presets.published import published_recipes

    recipe = published_recipes().get(name)
    if recipe is None:
        near = did_you_mean_model(name, list(published_recipes()))
        raise SpecError(f'no published recipe is known for "{name}".{near}')
    if as_json:
        print_json(dataclasses.asdict(recipe))
        return
    known = translated("presets.complete" if recipe.is_complete else "presets.incomplete")
    typer.echo(f"{name}: {recipe.paper}. {known}\n")
    table = make_table("key", "value", "source")
    for index, phase in enumerate(recipe.phases, start=1):
        for key, one in phase.items():
            table.add_row(
                f"phases[{index}].{key}", _format_value(one.value), recipe.cite(one.source)
            )
    for key, one in recipe.values.items():
        table.add_row(key, _format_value(one.value), recipe.cite(one.source))
    for section in ("data", "hardware"):
        for key, one in getattr(recipe, section).items():
            table.add_row(f"({section}) {key}", _format_value(one.value), recipe.cite(one.source))
    print_table(table)
    differences = [f"{subject}: {text}" for subject, text in recipe.differences.items()]
    for heading, lines in (
        (translated("presets.differences"), differences),
        (translated("presets.missing"), recipe.missing),
    ):
        if lines:
            typer.echo("\n".join(["", heading, *(f"  {line}" for line in lines)]))


def _format_value(value: Any) -> str:
    """Format a published value for a table. Numbers get thousands separators."""
    if isinstance(value, list):
        return ", ".join(map(_format_value, value))
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _print_presets(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of presets with their sizes, vocabulary, context length and paper."""
    table = make_table(
        "preset", "parameters", "vocabulary", "layers", "d_model", "heads", "d_ff", "context",
        "tokens",
    )  # fmt: skip
    add_text_column(table, "paper")
    for row in rows:
        if "resizes" in row:
            table.add_row(row["name"], *["-"] * 8, row["paper"])
            continue
        d_model, heads, layers, d_ff = format_model_size(row)
        table.add_row(
            row["name"],
            _format_parameters(row["parameters"], row["active_parameters"]),
            f"{row['vocab_size']:,}",
            layers,
            d_model,
            heads,
            d_ff,
            *(
                shorten_count(row[key]) if row[key] else "-"
                for key in ("context", "training_tokens")
            ),
            row["paper"],
        )
    print_table(table)


def _format_parameters(total: int, active: int) -> str:
    """Format a parameter count, with the number of active parameters per token if it is smaller."""
    part = translated("presets.active", count=shorten_count(active)) if active < total else ""
    return shorten_count(total) + part


def format_model_size(summary: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return the width, heads, layers and feed-forward width of a model as table cells.

    If there are fewer key-value heads than query heads, both counts are given, such as "32/8". For
    an encoder-decoder, the layers of both stacks are given, such as "6+6". "-" means that the model
    has no such component.

    Args:
        summary: the result of `presets.facts.shape_summary`.
    """
    heads, kv_heads = summary.get("num_heads"), summary.get("num_kv_heads")
    shown = f"{heads}/{kv_heads}" if heads != kv_heads else str(heads or "-")
    layers = [summary.get(f"{name}_layers") for name in ("encoder", "decoder")]
    layers.append(summary.get("num_layers"))
    return (
        str(summary["d_model"]),
        shown,
        "+".join(str(count) for count in layers if count),
        str(summary.get("d_ff") or summary.get("d_hidden") or "-"),
    )
