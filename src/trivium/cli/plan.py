"""`trivium plan`: estimate memory, time and parallel layout of a training run before it starts.

Examples:

  trivium plan llama-65b --gpus 2048 --gpu a100-80g

  trivium plan llama-65b --gpus 2048 --gpu a100-80g --tokens-per-second-per-gpu 380

  trivium plan llama

  trivium plan llama-7b --gpus 64 --launch slurm > llama.sh

  trivium plan gpt2 --gpus 8 --gpu rtx-4090 --tokens 10e9 --json

  trivium plan bert-mini --this-machine --data my_texts/
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from trivium.cli import _options as opt
from trivium.config import option
from trivium.errors import RecipeError
from trivium.gpus import GPUS
from trivium.interrupts import exit_on_interrupt


@dataclass(frozen=True)
class _GPUOptions:
    """The options of `trivium plan` for training on GPUs."""

    gpus: int | None = option(None, "number of GPUs", unset="the minimum that fits", min=1)
    gpu: str = option("a100-80g", f"GPU model: {', '.join(GPUS)}")
    tokens: float | None = option(
        None, "number of training tokens", unset="as published, or from the recipe", min=1, max=1e18
    )
    batch_tokens: float | None = option(
        None,
        "tokens per step",
        unset="as published, or from the recipe, or 524,288",
        min=1,
        max=1e18,
    )
    length: int | None = option(
        None, "tokens per row", unset="as published, at most 8192, or from the recipe", min=1
    )
    tokens_per_second_per_gpu: float | None = option(
        None, "measured throughput, which replaces the predicted one", unset=False, min=1e-3
    )
    launch: Literal["torchrun", "slurm"] | None = option(
        None,
        "print the command or the Slurm script that starts the run, in place of the plan",
        unset=False,
    )


@opt.with_options(_GPUOptions)
def plan(
    name: Annotated[str, typer.Argument(metavar="PRESET_OR_RECIPE")],
    this_machine: bool = False,
    data: Annotated[list[str] | None, typer.Option(show_default=False)] = None,
    changes: opt.Set = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    **on_gpus: Any,
) -> None:
    """Estimate the memory, time and parallel layout of a training run without running it.

    For each layout (DDP or FSDP, tensor parallelism over 1 to 8 GPUs, with or without activation
    checkpointing), the plan lists the memory per GPU, the tokens per second and the utilization of
    the peak FLOP/s. It recommends a layout with reasons, and estimates FLOPs, days and GPU-hours.
    docs/plan.md explains the formulas and compares their predictions with published runs.

    Args:
        name: A preset, a bundled recipe, a TOML file, or a model family such as llama, for a table
            of its sizes.
        this_machine: Measure the training speed of the recipe on this machine. Takes about two
            seconds and uses random weights.
        data: With --this-machine: the training text, whose size determines the size of the
            vocabulary.
        as_json: Print the plan as one JSON object.
    """
    unused = [name.replace("_", "-") for name in opt.drop_unset({**on_gpus, "gpu": None})]
    if this_machine and unused:
        raise RecipeError(
            f"--{unused[0]} is for a plan for GPUs, and --this-machine uses the recipe: "
            "leave it out, and change the recipe with --set, such as --set train.steps=500."
        )
    if as_json and on_gpus["launch"]:
        raise RecipeError("--launch prints a command and --json a plan: give one of them.")
    if data and not this_machine:
        raise RecipeError("--data is for a plan with --this-machine: leave it out.")
    with exit_on_interrupt():
        from trivium.cli._planning import print_forecast, print_plan

    if this_machine:
        paths = [f"data.paths={json.dumps(data)}"] if data else []
        print_forecast(name, [*(changes or ()), *paths], as_json=as_json)
    else:
        print_plan(name, changes or (), **on_gpus, as_json=as_json)
