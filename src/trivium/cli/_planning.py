"""Computes and prints the plans of `trivium plan`. Importing this module loads torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from trivium.adapt import count_parameters
from trivium.cli._shared import print_json, shorten_count
from trivium.cli._tables import TextTable, make_table, print_table
from trivium.cli.presets import format_model_size
from trivium.errors import RecipeError
from trivium.gpus import find_gpu
from trivium.interop.hf_folder import export_problem
from trivium.messages import translate_english, translated
from trivium.models import active_parameters, build
from trivium.models.base_model import Spec
from trivium.plan.forecast import build_trainer_without_data, forecast_run, resolve_model_spec
from trivium.plan.launch import Launcher, format_launch
from trivium.plan.layouts import Workload
from trivium.plan.model_size import build_sized_recipe
from trivium.plan.training_plan import TrainingPlan, find_fewest_gpus, plan_training
from trivium.presets import catalogue, is_own_size
from trivium.presets.facts import shape_summary
from trivium.presets.published import PublishedRecipe, published_recipes
from trivium.progress import format_duration, labelled
from trivium.train import defaults
from trivium.train.context_parallel import find_unsupported
from trivium.train.memory import training_memory_options
from trivium.train.recipe_loading import load_recipe, load_recipe_tree, recipe_name

_LONGEST = 8192  # max tokens per row; longer rows are for the end of training
_BATCH = 2.0**19  # tokens per step if the paper does not give the batch model


def print_plan(
    name: str,
    overrides: Sequence[str],
    *,
    gpus: int | None,
    gpu: str,
    tokens: float | None,
    batch_tokens: float | None,
    length: int | None,
    tokens_per_second_per_gpu: float | None,
    launch: Launcher | None,
    as_json: bool,
) -> None:
    """Print the training plan of a preset or recipe, or a table of plans for a model family.

    Args:
        name: a preset, a recipe, or the name of a model family such as "llama".
        overrides: recipe keys to change, as KEY=VALUE.
        gpus: the number of GPUs; None uses the smallest number that fits.
        gpu: the GPU model.
        tokens: the number of training tokens; None uses the published number.
        batch_tokens: tokens per step; None uses the published number.
        length: tokens per row; None uses the published number.
        tokens_per_second_per_gpu: a measured throughput, which replaces the predicted throughput.
        launch: prints the command or the script that starts the run, in place of the plan.
        as_json: whether to print JSON.

    Raises:
        RecipeError: the number of tokens per step is unknown, or the run cannot be launched.
    """
    models, state = (
        {} if overrides or is_own_size(name) else _load_published_models(name),
        dict[str, Any](),
    )
    if not models:
        models[name], state = _load_recipe_model(name, overrides)
    plans = []
    for label, model in models.items():
        total, row = tokens or model.tokens or 0.0, length or model.context
        step = batch_tokens or model.batch
        if not row or not step:
            examples = {"--length 512": row, "--batch-tokens 16e3": step}
            raise RecipeError(
                f"neither the paper nor the recipe of {label} gives the model of a training step, "
                "and for labelled examples it depends on the data: give, for example, "
                f"{' '.join(flag for flag, value in examples.items() if not value)}."
            )
        work = Workload(model.spec, row, step, find_gpu(gpu), gpus or 1, **state)
        work = find_fewest_gpus(work) if gpus is None else work
        plans.append(plan_training(label, work, total, measured=tokens_per_second_per_gpu))
    if launch is not None:
        if len(plans) > 1:
            raise RecipeError(
                f"--launch starts one model, and {name} is a family: give one of "
                f"{', '.join(plan.name for plan in plans)}."
            )
        typer.echo(format_launch(plans[0], launch, overrides), nl=False)
    elif as_json:
        records = [plan.to_dict() for plan in plans]
        print_json(records[0] if len(records) == 1 else records)
    elif len(plans) == 1:
        _print_plan(plans[0], gpu, models[plans[0].name])
    else:
        print_table(_build_size_table(plans, models))
        left_out = translated("plan.left_out")
        typer.echo("\n" + translated("plan.on_gpu", gpu=gpu, left_out=left_out))


@dataclass(frozen=True)
class PlannedModel:
    """A model and its known training settings, as input of a training plan.

    Args:
        spec: the model's spec.
        paper: the paper that published the model; "" if there is none.
        context: tokens per row; None if unknown.
        tokens: the number of training tokens; None if unknown.
        batch: tokens per step; None if unknown.
        lr: the peak learning rate; None if unknown.
        text_bytes: the size of the training text in bytes; None if unknown.
        hardware: the hardware and training time reported in the paper; "" if unknown.
    """

    spec: Spec
    paper: str = ""
    context: int | None = None
    tokens: float | None = None
    batch: float | None = None
    lr: float | None = None
    text_bytes: float | None = None
    hardware: str = ""


def _load_published_models(name: str) -> dict[str, PlannedModel]:
    """Return the models of the preset `name`, or of all presets in the model family `name`.

    The result is a dict of preset name -> model.

    Presets of a family without a published number of training tokens are left out, unless the whole
    family lacks this number. If `name` is a recipe, the dict is empty.
    """

    def load_published(name: str) -> PlannedModel:
        """Return the model of a preset, together with the training settings from its paper."""
        preset, recipe = catalogue[name], published_recipes().get(name)
        values = {} if recipe is None else {key: one.value for key, one in recipe.values.items()}
        return PlannedModel(
            preset.spec,
            preset.paper,
            min(values.get("data.length") or preset.context or _LONGEST, _LONGEST),
            (recipe and recipe.tokens) or preset.tokens,
            values.get("train.batch_tokens", _BATCH),
            values.get("optimizer.lr"),
            preset.text_bytes,
            _format_hardware(recipe),
        )

    if name in catalogue:
        return {name: load_published(name)}
    is_path = Path(name).exists()
    family = {n: load_published(n) for n in catalogue if n.startswith(f"{name}-")}
    published = {n: preset for n, preset in family.items() if preset.tokens}
    return {} if is_path else published or family


def _format_hardware(recipe: PublishedRecipe | None) -> str:
    """Return the hardware and training time from the paper as text; "" if it reports none."""
    known = {} if recipe is None else {key: one.value for key, one in recipe.hardware.items()}
    time = next((f"{known[unit]:g} {unit}" for unit in ("days", "hours") if unit in known), "")
    if "device_hours" in known:
        time = f"{known['device_hours']:,.0f} device hours"
    return ", ".join(filter(None, (str(known.get("devices", "")), time)))


def _load_recipe_model(name: str, overrides: Sequence[str]) -> tuple[PlannedModel, dict[str, Any]]:
    """Load the model of a recipe for a training plan.

    If `name` is a preset, settings that are not in `overrides` keep their published values.

    Returns:
        The model with its training settings, and a dict of further arguments for `Workload`.

    Raises:
        RecipeError: the recipe uses data-parallel replicas (`parallel.replicas`).
    """
    recipe = load_recipe(name, overrides)
    if recipe.parallel.replicas > 1:
        raise RecipeError(
            "a plan shards the model over all GPUs: leave parallel.replicas out, or set it to 1."
        )
    (spec, _), preset = resolve_model_spec(recipe), recipe.model.preset
    if name in catalogue and preset is not None and not is_own_size(preset):
        model = _load_published_models(preset)[preset]
    else:
        model = PlannedModel(spec)
        recipe = recipe if recipe.labelled else defaults.complete(recipe, spec)
    batch = recipe.train.batch_tokens or model.batch
    kind, budget = recipe.train.budget or ("", None)
    tokens = {"steps": (budget or 0) * (batch or 0), "tokens": budget, "": model.tokens}
    module = build(spec, device="meta")
    recipe.freeze_or_add_lora(module)
    context = recipe.data.length or model.context
    model = dataclasses.replace(
        model, spec=spec, context=context, tokens=tokens.get(kind), batch=batch
    )
    state = training_memory_options(recipe, module)
    return model, state | {"divides_rows": not find_unsupported(spec, recipe.objectives)}


def print_forecast(name: str, overrides: Sequence[str], *, as_json: bool) -> None:
    """Measure a few training steps on this machine, and print a forecast for the whole run."""
    recipe = build_sized_recipe(load_recipe_tree(name), overrides, where=recipe_name(name))
    trainer, memory = build_trainer_without_data(recipe)
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
    _print_export_problem(trainer.train_step.model.spec)  # type: ignore[union-attr]
    typer.echo(labelled("steps", steps))
    typer.echo(labelled("forecast", forecast.line))
    if forecast.warning is not None:
        typer.echo(labelled("warning", forecast.warning))


def _print_plan(plan: TrainingPlan, gpu: str, model: PlannedModel) -> None:
    """Print the plan of one model: its size, the parallelism layouts, the time and the memory."""
    work = plan.step.work
    typer.echo(labelled("model", _format_model(plan, model)))
    width, heads, layers, feed_forward = format_model_size(shape_summary(work.spec))
    text = model.text_bytes and translated("plan.text_size", size=model.text_bytes / 1e9)
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
    _print_export_problem(work.spec)
    typer.echo(labelled("run", _format_run(plan)))
    typer.echo(labelled("machine", machine) + "\n")
    print_table(_build_layout_table(plan))
    memory = plan.step.memory.items()
    parts = (f"{translated(f'memory.{name}')} {size / 2**30:.1f}" for name, size in memory)
    held = translated(
        "plan.memory",
        size=plan.step.memory_bytes / 2**30,
        parts=translated("join.comma").join(parts),
    )
    host = {"each": plan.step.host_bytes / 2**30, "first": plan.step.first_host_bytes / 2**30}
    reasons = translated("join.semicolon").join(map(translate_english, plan.reasons))
    samples = translated("plan.left_out_samples") if work.samples else ""
    typer.echo("\n" + labelled("layout", f"{plan.step.layout}{translated('join.colon')}{reasons}"))
    typer.echo(labelled("time", _format_time(plan)))
    if model.hardware:
        typer.echo(labelled("published", model.hardware))
    typer.echo(labelled("memory", held))
    typer.echo(labelled("", translated("plan.host_memory", **host)))
    typer.echo(labelled("", translated("plan.left_out") + samples))


def _print_export_problem(spec: Spec) -> None:
    """If the model cannot be exported to Hugging Face, print the reason."""
    if problem := export_problem(spec):
        words = translated("run.export_problem", problem=problem)
        typer.echo(labelled("", words))


def _format_model(plan: TrainingPlan, model: PlannedModel) -> str:
    """Return one line with the name, parameter counts and paper of a model."""
    work = plan.step.work
    parameters, active = work.sizes.parameters, active_parameters(work.spec)
    line = translated("plan.model", name=plan.name, count=parameters)
    if active < parameters:
        line += translated("plan.active", count=active)
    if work.trained < 1:
        line += translated("plan.trained_share", share=work.trained)
    return line + (translated("plan.paper", paper=model.paper) if model.paper else "")


def _format_run(plan: TrainingPlan) -> str:
    """Return one line with a plan's number of training tokens, batch size and FLOPs."""
    work = plan.step.work
    values = {"batch": work.batch_tokens, "length": work.length, "each": work.flops_per_token}
    if not plan.tokens:
        return translated("plan.step", **values)
    return translated("plan.run", tokens=shorten_count(plan.tokens), flops=plan.flops, **values)


def _format_time(plan: TrainingPlan) -> str:
    """Return one line with the training time and throughput of a plan.

    If the number of training tokens is unknown, the line contains only the throughput.
    """
    time, rate = "", plan.tokens_per_second_per_gpu
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


def _build_layout_table(plan: TrainingPlan) -> TextTable:
    """Build a table of all parallelism layouts of a plan.

    The columns are memory per GPU, throughput, step time and communication volume. The step time is
    split into compute, tensor-parallel communication, and data-parallel communication ("data").
    Data-parallel communication transfers weights and gradients, and overlaps with compute.
    """
    table = make_table(
        "layout", "micro_batch", "memory_gib", "tokens_per_second", "of_peak", "compute_s",
        "tensor_s", "data_s", "sent_gb",
    )  # fmt: skip
    for step in plan.steps:
        micro_batch = f"{step.micro_batches} x {step.micro_batch_rows * step.work.length:,}"
        first = translate_english(step.problem) if step.problem else micro_batch
        cells = [first, f"{step.memory_bytes / 2**30:,.1f}"] + ["-"] * 6
        if step.problem is None:
            products, memory, tensor, data = step.seconds.values()
            cells[2:] = [
                f"{step.tokens_per_second_per_gpu:,.0f}",
                f"{step.utilization(step.tokens_per_second_per_gpu):.1%}",
                *(f"{seconds:.2f}" for seconds in (products + memory, tensor, data)),
                f"{sum(step.communication.values()) / 1e9:,.1f}",
            ]
        table.add_row(f"{'>' if step is plan.step else ' '} {step.layout}", *cells)
    return table


def _build_size_table(
    plans: Sequence[TrainingPlan], models: Mapping[str, PlannedModel]
) -> TextTable:
    """Build a table of all models in a family, with their sizes, training times and memory use."""
    table = make_table(
        "preset", "parameters", "width", "heads", "layers", "feed_forward", "text_gb",
        "learning_rate", "batch", "tokens", "flops", "gpu_hours", "gpus", "days",
        "gib_per_gpu", "layout",
    )  # fmt: skip
    for plan in plans:
        work, model = plan.step.work, models[plan.name]
        table.add_row(
            plan.name,
            shorten_count(work.sizes.parameters),
            *format_model_size(shape_summary(work.spec)),
            f"{model.text_bytes / 1e9:,.0f}" if model.text_bytes else "-",
            f"{model.lr:.1e}" if model.lr else "-",
            f"{work.batch_tokens / 1e6:.1f}M",
            shorten_count(plan.tokens) if plan.tokens else "-",
            f"{plan.flops:.2e}" if plan.tokens else "-",
            f"{plan.gpu_hours:,.0f}" if plan.tokens else "-",
            f"{work.gpus:,}",
            f"{plan.days:,.{int(plan.days <= 10)}f}" if plan.tokens else "-",
            f"{plan.step.memory_bytes / 2**30:.0f}",
            str(plan.step.layout),
        )
    return table
