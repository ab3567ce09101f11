"""`trivium presets`: list the named sizes of the literature.

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

from trivium.cli import stored
from trivium.cli._shared import print_json, short_count
from trivium.cli._tables import add_texts, new_table, print_table
from trivium.errors import SpecError, did_you_mean_model
from trivium.interrupts import exit_on_interrupt
from trivium.messages import translated

_SMALL = ("-tiny", "-mini")


def presets(
    part: Annotated[str, typer.Argument(metavar="[PART]")] = "",
    as_json: Annotated[bool, typer.Option("--json")] = False,
    spec: bool = False,
    recipe: bool = False,
) -> None:
    """List the presets that `trivium pretrain` takes: sizes, context, training tokens, paper.

    First those that a laptop trains in minutes, -tiny and -mini.

    Parameters are counted with the vocabulary beside them, the published one. A run trains a
    tokenizer for its own text, mostly a smaller one, and counts parameters with that.

    Args:
        part: Part of a name, a family or a paper.
        as_json: One JSON object per preset.
        spec: The whole spec of the preset PART, as in a recipe.
        recipe: How the preset PART was trained, as published, with the source of every number.
    """
    if recipe:
        _show_recipe(part, as_json=as_json)
        return
    if spec:
        _show_spec(part)
        return
    rows, words = stored("presets"), part.lower()
    selected = [
        row for row in rows if words in f"{row['name']} {row['family']} {row['paper']}".lower()
    ]
    if not selected:
        near = did_you_mean_model(part, [row["name"] for row in rows])
        raise SpecError(
            f'no preset has "{part}" in its name, family or paper.{near} `trivium presets` lists '
            "all."
        )
    selected.sort(key=lambda row: not row["name"].endswith(_SMALL))
    if as_json:
        for row in selected:
            print_json(row)
        return
    _print(selected)
    if not part:
        typer.echo(translated("presets.small_ones"), err=True)


def _show_spec(name: str) -> None:
    """Print a whole spec as TOML, which needs its classes and with them torch."""
    with exit_on_interrupt():
        from trivium.models import num_parameters
        from trivium.presets import catalogue

    preset = catalogue[name]
    typer.echo(f"# {name}: {num_parameters(preset.spec):,} parameters. {preset.paper}")
    typer.echo(tomli_w.dumps({"model": {"spec": preset.spec.to_dict()}}).rstrip())


def _show_recipe(name: str, *, as_json: bool) -> None:
    """Print how a preset was trained, as far as it is published."""
    from trivium.presets.published import published_recipes

    recipe = published_recipes().get(name)
    if recipe is None:
        near = did_you_mean_model(name, list(published_recipes()))
        raise SpecError(f'no recipe of "{name}" is published, as far as is known here.{near}')
    if as_json:
        print_json(dataclasses.asdict(recipe))
        return
    known = translated("presets.complete" if recipe.is_complete else "presets.incomplete")
    typer.echo(f"{name}: {recipe.paper}. {known}\n")
    table = new_table("key", "value", "source")
    for number, phase in enumerate(recipe.phases, start=1):
        for key, one in phase.items():
            table.add_row(f"phases[{number}].{key}", _shown(one.value), recipe.cite(one.source))
    for key, one in recipe.values.items():
        table.add_row(key, _shown(one.value), recipe.cite(one.source))
    for section in ("data", "hardware"):
        for key, one in getattr(recipe, section).items():
            table.add_row(f"({section}) {key}", _shown(one.value), recipe.cite(one.source))
    print_table(table)
    differences = [f"{subject}: {text}" for subject, text in recipe.differences.items()]
    for heading, lines in (
        (translated("presets.differences"), differences),
        (translated("presets.missing"), recipe.missing),
    ):
        if lines:
            typer.echo("\n".join(["", heading, *(f"  {line}" for line in lines)]))


def _shown(value: Any) -> str:
    """Return a published value for a table: thousands are separated, lists are joined."""
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    table = new_table(
        "preset", "parameters", "vocabulary", "layers", "d_model", "heads", "d_ff", "context",
        "tokens",
    )  # fmt: skip
    add_texts(table, "paper")
    for row in rows:
        d_model, heads, layers, d_ff = shape_cells(row)
        table.add_row(
            row["name"],
            _parameters(row["parameters"], row["active_parameters"]),
            f"{row['vocab_size']:,}",
            layers,
            d_model,
            heads,
            d_ff,
            *(short_count(row[key]) if row[key] else "-" for key in ("context", "training_tokens")),
            row["paper"],
        )
    print_table(table)


def _parameters(total: int, active: int) -> str:
    """How many, and how many of them compute for a token, where these are fewer."""
    part = translated("presets.active", count=short_count(active)) if active < total else ""
    return short_count(total) + part


def shape_cells(facts: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return width, heads, layers and hidden units of a model in words of a table.

    Heads are "32/8" where keys and values have fewer, and layers "6+6" where both the encoder and
    the decoder have some. "-" is for a model that has none.

    Args:
        facts: what `presets.facts.shape_summary` returns.
    """
    heads, kv_heads = facts.get("num_heads"), facts.get("num_kv_heads")
    shown = f"{heads}/{kv_heads}" if heads != kv_heads else str(heads or "-")
    layers = [facts.get(f"{name}_layers") for name in ("encoder", "decoder")]
    layers.append(facts.get("num_layers"))
    return (
        str(facts["d_model"]),
        shown,
        "+".join(str(count) for count in layers if count),
        str(facts.get("d_ff") or facts.get("d_hidden") or "-"),
    )
