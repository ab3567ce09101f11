"""`trivium plan`: memory, time and layout of a training run, before it starts.

Examples:

  trivium plan llama-65b --gpus 2048 --gpu a100-80g

  trivium plan llama-65b --gpus 2048 --gpu a100-80g --tokens-per-second-per-gpu 380

  trivium plan llama

  trivium plan gpt2 --gpus 8 --gpu rtx-4090 --tokens 10e9 --json

  trivium plan bert-mini --this-machine --data my_texts/
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from trivium.cli import _options as opt
from trivium.config import option
from trivium.errors import RecipeError
from trivium.gpus import GPUS
from trivium.interrupts import exit_on_interrupt


@dataclass(frozen=True)
class _OnGPUs:
    """The options of a plan on GPUs, in addition to the model."""

    gpus: int | None = option(None, "number of GPUs", unset="the fewest that suffice", min=1)
    gpu: str = option("a100-80g", f"kind of GPU: {', '.join(GPUS)}")
    tokens: float | None = option(
        None, "tokens of the run", unset="as published, or of the recipe", min=1, max=1e18
    )
    batch_tokens: float | None = option(
        None,
        "tokens of a step",
        unset="as published, or of the recipe, or 524,288",
        min=1,
        max=1e18,
    )
    length: int | None = option(
        None, "tokens of a row", unset="as published, 8192 at most, or of the recipe", min=1
    )
    tokens_per_second_per_gpu: float | None = option(
        None, "a measured or published rate, in place of the predicted one", unset=False, min=1e-3
    )


@opt.with_options(_OnGPUs)
def plan(
    name: Annotated[str, typer.Argument(metavar="PRESET_OR_RECIPE")],
    this_machine: bool = False,
    data: Annotated[list[str] | None, typer.Option(show_default=False)] = None,
    changes: opt.Set = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    **on_gpus: Any,
) -> None:
    """Memory, time and layout of a training run, from the description of the model alone.

    For every layout (ddp or fsdp, layers divided among 1 to 8 GPUs, with or without activation
    checkpointing): memory of each GPU, tokens per second and the share of the peak they use; which
    layout to take and why; FLOPs, days, GPU-hours. docs/plan.md has the formulas, and what they
    predict beside published runs.

    Args:
        name: A preset, a shipped recipe, a TOML file, or the name of a family, such as llama, for a
            table of its sizes.
        this_machine: Measure how fast the recipe trains here: about two seconds of random weights.
        data: With --this-machine: the text, whose amount decides the size of the vocabulary.
        as_json: Print one JSON object.
    """
    unused = [name.replace("_", "-") for name in opt.only_set({**on_gpus, "gpu": None})]
    if this_machine and unused:
        raise RecipeError(
            f"--{unused[0]} is for a plan on GPUs, and --this-machine takes all from the recipe: "
            "leave it out, and change the recipe by --set, such as --set train.steps=500."
        )
    if data and not this_machine:
        raise RecipeError("--data is for a plan with --this-machine: leave it out.")
    with exit_on_interrupt():
        from trivium.cli._planning import print_forecast, print_plan

    if this_machine:
        paths = [f"data.paths={json.dumps(data)}"] if data else []
        print_forecast(name, [*(changes or ()), *paths], as_json=as_json)
    else:
        print_plan(name, changes or (), **on_gpus, as_json=as_json)
