"""Writes the command or the Slurm script that starts a planned run in its layout."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from string import Template
from typing import Literal

from trivium.errors import RecipeError
from trivium.plan.layouts import NODE
from trivium.plan.training_plan import TrainingPlan
from trivium.train.recipe_loading import load_recipe
from trivium.train.train_config import BUDGETS

Launcher = Literal["torchrun", "slurm"]

# A job asks for more time than planned, and for this many hours if the time is unknown.
_EXTRA_TIME, _DEFAULT_HOURS = 1.2, 24.0
_CPUS_PER_GPU = 4  # for the process of the GPU and the threads that prepare its batches
_COMMAND = Template("""\
torchrun --standalone --nproc-per-node $gpus \\
    -m trivium $command $model \\
    --data my_texts/ --out runs/$run \\
    $settings
""")
_SLURM = Template("""\
#!/usr/bin/env bash
#SBATCH --job-name=$run
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=$gpus
#SBATCH --cpus-per-task=$cpus
#SBATCH --time=$time
#SBATCH --requeue
#SBATCH --signal=TERM@120
# SIGTERM two minutes before the end: the run saves and stops; a requeued job goes on with it.
set -euo pipefail

data=$$HOME/my_texts  # all nodes must see both folders
out=$$HOME/runs/$run

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
nodes=$$(scontrol show hostnames "$$SLURM_JOB_NODELIST")
first_node=$${nodes%%$$'\\n'*}

srun torchrun \\
    --nnodes "$$SLURM_NNODES" --nproc-per-node $gpus \\
    --max-restarts 3 --shutdown-timeout 110 \\
    --rdzv-backend c10d --rdzv-endpoint "$$first_node:29400" --rdzv-id "$$SLURM_JOB_ID" \\
    -m trivium $command $model \\
    --data "$$data" --out "$$out" \\
    $settings
""")


def format_launch(plan: TrainingPlan, launcher: Launcher, overrides: Sequence[str] = ()) -> str:
    """Return the command line or the script that starts a planned run.

    The paths of the text and of the run are examples that the user changes.

    Args:
        plan: the plan, whose name is a preset or a recipe.
        launcher: "torchrun" for a command on one machine, or "slurm" for a script for `sbatch`.
        overrides: the recipe keys that the user changes, as KEY=VALUE.

    Raises:
        RecipeError: the launcher cannot start as many GPUs.
    """
    work = plan.step.work
    if work.gpus > NODE and (launcher == "torchrun" or work.gpus % NODE):
        raise RecipeError(
            f"--launch {launcher} starts at most {NODE} GPUs on one machine; this plan has "
            f"{work.gpus:,} GPUs: give --launch slurm and --gpus as a multiple of {NODE}."
        )
    given = {each.partition("=")[0] for each in overrides}
    if any(f"train.{budget}" in given for budget in BUDGETS):
        given.add("train.tokens")
    recipe = load_recipe(plan.name, overrides)
    settings = _list_settings(plan, labelled=recipe.labelled)
    settings = [each for each in settings if each.partition("=")[0] not in given]
    hours = plan.days * 24 * _EXTRA_TIME or _DEFAULT_HOURS
    days, minutes = divmod(math.ceil(hours * 60), 24 * 60)
    gpus = min(work.gpus, NODE)
    template = _SLURM if launcher == "slurm" else _COMMAND
    return template.substitute(
        command="finetune" if recipe.labelled else "pretrain",
        model=shlex.quote(plan.name),
        run=shlex.quote(plan.name.rpartition("/")[2].removesuffix(".toml")),
        nodes=max(1, work.gpus // NODE),
        gpus=gpus,
        cpus=_CPUS_PER_GPU * gpus,
        time=f"{days}-{minutes // 60:02}:{minutes % 60:02}:00",
        settings=" \\\n    ".join(f"--set {shlex.quote(each)}" for each in [*overrides, *settings]),
    )


def _list_settings(plan: TrainingPlan, *, labelled: bool) -> list[str]:
    """Return the recipe keys of a plan as KEY=VALUE: its row length, batch, tokens and layout.

    If the recipe has labelled examples, its batch and its budget are not counted in tokens and are
    left as they are.
    """
    step = plan.step
    layout, values = step.layout, {"data.length": step.work.length}
    if not labelled:
        values["train.batch_tokens"] = round(step.work.batch_tokens)
    if plan.tokens and not labelled:
        values["train.tokens"] = round(plan.tokens)
    settings = [f"{key}={value}" for key, value in values.items()]
    if step.work.gpus > 1:
        settings.append(f"parallel.data={layout.data}")
    if layout.tensor > 1:
        settings += [f"parallel.tensor={layout.tensor}", "parallel.sequence=true"]
    if layout.context > 1:
        settings.append(f"parallel.context={layout.context}")
    if layout.reduce_once:
        settings.append("parallel.reduce_once=true")
    if layout.activation_checkpointing:
        settings.append("parallel.activation_checkpointing=true")
    return settings
