"""How `trivium plan` plans a run and prints the plan; imports torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from trivium.adapt import count_parameters
from trivium.cli._shared import print_json, short_count
from trivium.cli._tables import TextTable, new_table, print_table
from trivium.cli.presets import shape_cells
from trivium.errors import RecipeError
from trivium.gpus import find_gpu
from trivium.interop.hf_folder import export_problem
from trivium.messages import translated, translated_english
from trivium.models import active_parameters, build
from trivium.models.base_model import Spec
from trivium.plan.forecast import forecast_run, planned_model, trainer_without_data
from trivium.plan.layouts import Workload
from trivium.plan.training_plan import TrainingPlan, fewest_gpus, plan_training
from trivium.presets import catalogue, is_own_size
from trivium.presets.facts import shape_summary
from trivium.presets.published import PublishedRecipe, published_recipes
from trivium.progress import format_duration, labelled
from trivium.train import defaults
from trivium.train.memory import trained_state
from trivium.train.recipe_loading import load_recipe

_LONGEST = 8192  # tokens of a row; longer ones are for the end of training
_BATCH = 2.0**19  # tokens of a step where a paper does not say


def print_plan(
    name: str,
    changes: Sequence[str],
    *,
    gpus: int | None,
    gpu: str,
    tokens: float | None,
    batch_tokens: float | None,
    length: int | None,
    tokens_per_second_per_gpu: float | None,
    as_json: bool,
) -> None:
    """Print the plan of a preset, of a recipe, or of every size of a family."""
    sizes, state = {} if changes or is_own_size(name) else _published(name), dict[str, Any]()
    if not sizes:
        sizes[name], state = _of_recipe(name, changes)
    plans = []
    for label, size in sizes.items():
        total, row = tokens or size.tokens or 0.0, length or size.context
        step = batch_tokens or size.batch
        if not row or not step:
            examples = {"--length 512": row, "--batch-tokens 16e3": step}
            raise RecipeError(
                f"neither a paper nor the recipe says how much a step of {label} reads, and of "
                "labelled examples only the data does: give "
                f"{' '.join(one for one, value in examples.items() if not value)}, for instance."
            )
        work = Workload(size.spec, row, step, find_gpu(gpu), gpus or 1, **state)
        work = fewest_gpus(work) if gpus is None else work
        plans.append(plan_training(label, work, total, measured=tokens_per_second_per_gpu))
    if as_json:
        facts = [one.to_dict() for one in plans]
        print_json(facts[0] if len(facts) == 1 else facts)
    elif len(plans) == 1:
        _show_plan(plans[0], gpu, sizes[plans[0].name])
    else:
        print_table(_family_table(plans, sizes))
        left_out = translated("plan.left_out")
        typer.echo("\n" + translated("plan.on_gpu", gpu=gpu, left_out=left_out))


@dataclass(frozen=True)
class PlannedSize:
    """A size whose training is planned: rows of `context` tokens, steps of `batch` tokens.

    Values that are not known are None.
    """

    spec: Spec
    paper: str = ""
    context: int | None = None
    tokens: float | None = None
    batch: float | None = None
    lr: float | None = None
    text_bytes: float | None = None
    hardware: str = ""


def _published(name: str) -> dict[str, PlannedSize]:
    """The preset of this name, or the published sizes of a family; none where it is a recipe."""

    def complete(name: str) -> PlannedSize:
        preset, recipe = catalogue[name], published_recipes().get(name)
        values = {} if recipe is None else {key: one.value for key, one in recipe.values.items()}
        return PlannedSize(
            preset.spec,
            preset.paper,
            min(values.get("data.length") or preset.context or _LONGEST, _LONGEST),
            (recipe and recipe.tokens) or preset.tokens,
            values.get("train.batch_tokens", _BATCH),
            values.get("optimizer.lr"),
            preset.text_bytes,
            _hardware(recipe),
        )

    if name in catalogue:
        return {name: complete(name)}
    is_path = Path(name).exists()
    family = {n: complete(n) for n in catalogue if n.startswith(f"{name}-")}
    published = {n: preset for n, preset in family.items() if preset.tokens}
    return {} if is_path else published or family


def _hardware(recipe: PublishedRecipe | None) -> str:
    """Return the published devices and duration of a training as a text, "" if there are none."""
    known = {} if recipe is None else {key: one.value for key, one in recipe.hardware.items()}
    time = next((f"{known[unit]:g} {unit}" for unit in ("days", "hours") if unit in known), "")
    if "device_hours" in known:
        time = f"{known['device_hours']:,.0f} device hours"
    return ", ".join(filter(None, (str(known.get("devices", "")), time)))


def _of_recipe(name: str, changes: Sequence[str]) -> tuple[PlannedSize, dict[str, Any]]:
    """What a recipe trains, and what else of it a `Workload` has.

    What the changes of a published size do not set is as published. Raises RecipeError for
    replicas.
    """
    recipe = load_recipe(name, changes)
    if recipe.parallel.replicas > 1:
        raise RecipeError("a plan has shards on all GPUs: leave parallel.replicas out, or set 1.")
    (spec, _), preset = planned_model(recipe), recipe.model.preset
    if name in catalogue and preset is not None and not is_own_size(preset):
        size = _published(preset)[preset]
    else:
        size = PlannedSize(spec)
        recipe = recipe if recipe.labelled else defaults.complete(recipe, spec)
    batch = recipe.train.batch_tokens or size.batch
    kind, budget = recipe.train.budget or ("", None)
    tokens = {"steps": (budget or 0) * (batch or 0), "tokens": budget, "": size.tokens}
    module = build(spec, device="meta")
    recipe.freeze_weights(module)
    context = recipe.data.length or size.context
    size = dataclasses.replace(
        size, spec=spec, context=context, tokens=tokens.get(kind), batch=batch
    )
    return size, trained_state(recipe, module)


def print_forecast(name: str, changes: Sequence[str], *, as_json: bool) -> None:
    """Measure a few steps of a recipe here, and print how long its run would take."""
    recipe = load_recipe(name, changes)
    trainer, memory = trainer_without_data(recipe)
    forecast = forecast_run(trainer, memory)
    if as_json:
        print_json(forecast.to_dict())
        return
    parameters = count_parameters(trainer.train_step)
    trained = default = ""
    if parameters.frozen:
        trained = translated("run.trained_parameters", count=parameters.trained)
    if not recipe.train.budget:
        default = translated("plan.default_steps", count=forecast.steps)
    model = translated(
        "plan.measured_model",
        parameters=sum(parameters),
        trained=trained,
        vocabulary=trainer.loader.streams[0].vocabulary.size,
    )
    steps = translated(
        "plan.measured_step",
        tokens=forecast.tokens / forecast.steps,
        micro_batch=forecast.micro_batch_tokens,
        default=default,
    )
    typer.echo(labelled("model", model))
    _print_export(trainer.train_step.model.spec)  # type: ignore[union-attr]
    typer.echo(labelled("steps", steps))
    typer.echo(labelled("forecast", forecast.line))
    if forecast.warning is not None:
        typer.echo(labelled("warning", forecast.warning))


def _show_plan(plan: TrainingPlan, gpu: str, size: PlannedSize) -> None:
    work = plan.step.work
    typer.echo(labelled("model", _model_line(plan, size)))
    width, heads, layers, feed_forward = shape_cells(shape_summary(work.spec))
    text = size.text_bytes and translated("plan.text_size", size=size.text_bytes / 1e9)
    shape = translated(
        "plan.shape",
        layers=layers,
        width=width,
        feed_forward=feed_forward,
        heads=heads,
        text=text or "",
    )
    machine = translated(
        "plan.machine",
        count=work.gpus,
        gpu=gpu,
        peak=work.gpu.peak_flops / 1e12,
        memory=work.gpu.memory / 2**30,
    )
    typer.echo(labelled("", shape))
    _print_export(work.spec)
    typer.echo(labelled("run", _run_line(plan)))
    typer.echo(labelled("machine", machine) + "\n")
    print_table(_layout_table(plan))
    memory = plan.step.memory.items()
    parts = (f"{translated(f'memory.{name}')} {size / 2**30:.1f}" for name, size in memory)
    held = translated(
        "plan.memory",
        size=plan.step.memory_bytes / 2**30,
        parts=translated("join.comma").join(parts),
    )
    reasons = translated("join.semicolon").join(map(translated_english, plan.reasons))
    samples = translated("plan.left_out_samples") if work.samples else ""
    typer.echo("\n" + labelled("layout", f"{plan.step.layout}{translated('join.colon')}{reasons}"))
    typer.echo(labelled("time", _time_line(plan)))
    if size.hardware:
        typer.echo(labelled("published", size.hardware))
    typer.echo(labelled("memory", held))
    typer.echo(labelled("", translated("plan.left_out") + samples))


def _print_export(spec: Spec) -> None:
    """Say why a model could not be exported."""
    if problem := export_problem(spec):
        words = translated("run.export_problem", problem=problem)
        typer.echo(labelled("", words))


def _model_line(plan: TrainingPlan, size: PlannedSize) -> str:
    work = plan.step.work
    parameters, active = work.sizes.parameters, active_parameters(work.spec)
    line = translated("plan.model", name=plan.name, count=parameters)
    if active < parameters:
        line += translated("plan.active", count=active)
    if work.trained < 1:
        line += translated("plan.trained_share", share=work.trained)
    return line + (translated("plan.paper", paper=size.paper) if size.paper else "")


def _run_line(plan: TrainingPlan) -> str:
    """How much it reads, and the FLOPs of it."""
    work = plan.step.work
    values = {"batch": work.batch_tokens, "length": work.length, "each": work.flops_per_token}
    if not plan.tokens:
        return translated("plan.step", **values)
    return translated("plan.run", tokens=short_count(plan.tokens), flops=plan.flops, **values)


def _time_line(plan: TrainingPlan) -> str:
    """How long it takes, where it is known how much it reads, and at which rate."""
    time, rate = "", plan.tokens_per_second
    if plan.tokens:
        days = format_duration(plan.days * 86_400)
        if plan.days >= 1:
            days = translated("plan.days", days=plan.days)
        hours = f"{plan.gpu_hours:{',.0f' if plan.gpu_hours >= 10 else '.2g'}}"
        time = translated("plan.time", time=days, hours=hours)
    return time + translated(
        "plan.rate",
        rate=rate,
        source=translated("plan.rate_given" if plan.measured else "plan.rate_predicted"),
        share=plan.step.utilization(rate),
    )


def _layout_table(plan: TrainingPlan) -> TextTable:
    """All layouts: what a GPU holds, its speed, and of a step its seconds and what it sends.

    It computes, waits for the links of tensor parallelism, and meanwhile sends weights and
    gradients ("data").
    """
    table = new_table(
        "layout", "micro_batch", "memory_gib", "tokens_per_second", "of_peak", "compute_s",
        "tensor_s", "data_s", "sent_gb",
    )  # fmt: skip
    for step in plan.steps:
        micro_batch = f"{step.micro_batches} x {step.micro_rows * step.work.length:,}"
        first = translated_english(step.problem) if step.problem else micro_batch
        cells = [first, f"{step.memory_bytes / 2**30:,.1f}"] + ["-"] * 6
        if step.problem is None:
            products, memory, tensor, data = step.seconds.values()
            cells[2:] = [
                f"{step.tokens_per_second:,.0f}",
                f"{step.utilization(step.tokens_per_second):.1%}",
                *(f"{seconds:.2f}" for seconds in (products + memory, tensor, data)),
                f"{sum(step.communication.values()) / 1e9:,.1f}",
            ]
        table.add_row(f"{'>' if step is plan.step else ' '} {step.layout}", *cells)
    return table


def _family_table(plans: Sequence[TrainingPlan], sizes: Mapping[str, PlannedSize]) -> TextTable:
    """The table of sizes in a family's paper, and what each of them takes."""
    table = new_table(
        "preset", "parameters", "width", "heads", "layers", "feed_forward", "text_gb",
        "learning_rate", "batch", "tokens", "flops", "gpu_hours", "gpus", "days",
        "gib_per_gpu", "layout",
    )  # fmt: skip
    for plan in plans:
        work, size = plan.step.work, sizes[plan.name]
        table.add_row(
            plan.name,
            short_count(work.sizes.parameters),
            *shape_cells(shape_summary(work.spec)),
            f"{size.text_bytes / 1e9:,.0f}" if size.text_bytes else "-",
            f"{size.lr:.1e}" if size.lr else "-",
            f"{work.batch_tokens / 1e6:.1f}M",
            short_count(plan.tokens) if plan.tokens else "-",
            f"{plan.flops:.2e}" if plan.tokens else "-",
            f"{plan.gpu_hours:,.0f}" if plan.tokens else "-",
            f"{work.gpus:,}",
            f"{plan.days:,.{int(plan.days <= 10)}f}" if plan.tokens else "-",
            f"{plan.step.memory_bytes / 2**30:.0f}",
            str(plan.step.layout),
        )
    return table
