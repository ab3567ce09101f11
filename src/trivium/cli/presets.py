"""`trivium presets`: list the named sizes of the literature.

Examples:

  trivium presets

  trivium presets llama

  trivium presets bert-base --spec

  trivium presets bert-base --json
"""

from __future__ import annotations

from typing import Annotated, Any

import tomli_w
import typer

from trivium.cli._shared import print_json, short_count
from trivium.cli._tables import add_texts, new_table, print_table
from trivium.errors import SpecError
from trivium.messages import translated
from trivium.models import active_parameters, num_parameters
from trivium.models.base_model import Spec
from trivium.models.transformer import ModelSpec
from trivium.nn.mixers import Mixer
from trivium.presets import Preset, catalogue, did_you_mean_preset

_SMALL = ("-tiny", "-mini")


def presets(
    part: Annotated[str, typer.Argument(metavar="[PART]")] = "",
    as_json: Annotated[bool, typer.Option("--json")] = False,
    spec: bool = False,
) -> None:
    """List the presets that `trivium pretrain` takes: sizes, context, training tokens, paper.

    First those that a laptop trains in minutes, -tiny and -mini.

    Parameters are counted with the vocabulary beside them, the published one. A run trains a
    tokenizer for its own text, mostly a smaller one, and counts parameters with that.

    Args:
        part: Part of a name, a family or a paper.
        as_json: One JSON object per preset.
        spec: The whole spec of the preset PART, as in a recipe.
    """
    if spec:
        preset = catalogue[part]
        typer.echo(f"# {part}: {num_parameters(preset.spec):,} parameters. {preset.paper}")
        typer.echo(tomli_w.dumps({"model": {"spec": preset.spec.to_dict()}}).rstrip())
        return
    words = part.lower()
    selected = {
        name: preset
        for name, preset in catalogue.items()
        if words in f"{name} {preset.spec.family} {preset.paper}".lower()
    }
    if not selected:
        raise SpecError(
            f'no preset has "{part}" in its name, family or paper.{did_you_mean_preset(part)} '
            "`trivium presets` lists all."
        )
    names = sorted(selected, key=lambda name: not name.endswith(_SMALL))
    if as_json:
        for name in names:
            print_json(_row(name, selected[name]))
        return
    _print({name: selected[name] for name in names})
    if not part:
        typer.echo(translated("presets.small_ones"), err=True)


def _row(name: str, preset: Preset) -> dict[str, Any]:
    """All facts of a preset; None where it has no such number."""
    spec = preset.spec
    row: dict[str, Any] = {
        "name": name,
        "family": spec.family,
        "parameters": num_parameters(spec),
        "active_parameters": active_parameters(spec),
        "d_model": spec.d_model,
        "vocab_size": spec.vocab_size,
        "context": preset.context,
        "training_tokens": preset.tokens,
        "paper": preset.paper,
    }
    if not isinstance(spec, ModelSpec):
        return row | {
            "num_layers": getattr(spec, "num_layers", 1),
            "d_hidden": getattr(spec, "d_hidden", None),
        }
    mixer = _with_heads(spec)
    heads = getattr(mixer, "num_heads", None)
    return row | {
        "encoder_layers": spec.encoder.num_layers if spec.encoder else None,
        "decoder_layers": spec.decoder.num_layers if spec.decoder else None,
        "num_heads": heads,
        "num_kv_heads": getattr(mixer, "kv_heads", heads),
        "head_dim": getattr(mixer, "head_dim", None),
        "d_ff": spec.stacks[-1].d_ff,
    }


def _print(selected: dict[str, Preset]) -> None:
    table = new_table(
        "preset", "parameters", "vocabulary", "layers", "d_model", "heads", "d_ff", "context",
        "tokens",
    )  # fmt: skip
    add_texts(table, "paper")
    for name, preset in selected.items():
        spec, tokens = preset.spec, preset.tokens
        d_model, heads, layers = shape_cells(spec)
        table.add_row(
            name,
            _parameters(spec),
            f"{spec.vocab_size:,}",
            layers,
            d_model,
            heads,
            str((spec.stacks[-1].d_ff if spec.stacks else getattr(spec, "d_hidden", None)) or "-"),
            short_count(preset.context) if preset.context else "-",
            short_count(tokens) if tokens else "-",
            preset.paper,
        )
    print_table(table)


def _parameters(spec: Spec) -> str:
    """How many, and how many of them compute for a token, where these are fewer."""
    total, active = num_parameters(spec), active_parameters(spec)
    part = translated("presets.active", count=short_count(active)) if active < total else ""
    return short_count(total) + part


def shape_cells(spec: Spec) -> tuple[str, str, str]:
    """Width, heads and layers in words of a table.

    Heads are "32/8" where keys and values have fewer, "-" where there are none; layers are "6+6"
    where encoder and decoder have some.
    """
    if not spec.stacks:
        return str(spec.d_model), "-", str(getattr(spec, "num_layers", 1))
    mixer = _with_heads(spec)
    heads = getattr(mixer, "num_heads", "-")
    kv_heads = getattr(mixer, "kv_heads", heads)
    if kv_heads != heads:
        heads = f"{heads}/{kv_heads}"
    return str(spec.d_model), str(heads), "+".join(str(stack.num_layers) for stack in spec.stacks)


def _with_heads(spec: Spec) -> Mixer | None:
    """The first mixer of the last stack that has heads: not all have."""
    return next((mixer for mixer in spec.stacks[-1].mixers if hasattr(mixer, "num_heads")), None)
