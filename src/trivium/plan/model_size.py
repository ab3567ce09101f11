"""Chooses the size of a model for a budget in minutes: the presets `llama-auto`, `bert-auto`, ...

The speed of every size is measured on this machine. A formula predicts the loss of a size from its
number of weights and from the number of steps that fit into the budget. The size with the lowest
predicted loss is chosen.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trivium.data.documents import estimate_text_bytes
from trivium.data.shards import are_shards
from trivium.errors import RecipeError
from trivium.messages import translated
from trivium.models import num_parameters
from trivium.objectives import Objective
from trivium.plan.forecast import (
    build_trainer_without_data,
    estimate_useful_epochs,
    forecast_run,
    resolve_model_spec,
)
from trivium.presets import auto_presets, presets
from trivium.progress import ProgressLine, labelled
from trivium.train import defaults
from trivium.train.data_config import as_list
from trivium.train.recipe import Recipe
from trivium.train.recipe_layers import RecipeLayer
from trivium.train.recipe_loading import Changes, apply_changes, build_recipe

# Pairs (layers per stack, width), from small to large.
_SIZES = (
    (4, 64), (4, 96), (4, 128), (4, 192), (4, 256), (6, 384), (8, 512), (12, 768), (24, 1024)
)  # fmt: skip
# The smallest width of a preset. In two minutes, BERT with widths up to 128 learned little more
# than the frequencies of tokens, in float32 and in bf16 (`benchmarks/RESULTS.md`).
_SMALLEST_WIDTH = {"bert-auto": 192}
# Above the width of a -mini preset, a head has this many features, and a large text gets a larger
# vocabulary than this.
_HEAD_DIM, _SMALL_VOCABULARY = 64, 8192
_BYTES_PER_TOKEN = 4.0  # in English, with a vocabulary of 8,192 tokens
_MEASUREMENTS = 2  # the faster one counts, because other programs only slow a measurement down
# Nats per byte of children's stories after S steps of a decoder with N weights in its blocks:
# _FLOOR + (_N0 / N)^_N_EXPONENT + (_S0 / S)^_S_EXPONENT, fitted to the runs in
# benchmarks/model_size.py (`--fit`).
_FLOOR, _N0, _N_EXPONENT, _S0, _S_EXPONENT = 0.109, 1418.0, 0.1792, 11.65, 0.2994


@dataclass(frozen=True)
class SizedModel:
    """A size of the model, with its measured speed and its predicted loss.

    Args:
        num_layers: the number of layers of every stack.
        d_model: the width.
        num_weights: the number of weights without token embeddings and output matrix.
        steps: the number of training steps that fit into the budget.
        loss: the predicted loss after these steps in nats per byte of children's stories.
        values: the values that this size sets in a recipe, by dotted key.
    """

    num_layers: int
    d_model: int
    num_weights: int
    steps: float
    loss: float
    values: dict[str, Any]


def build_sized_recipe(
    tree: dict[str, Any],
    changes: Changes = (),
    *,
    where: str = "recipe",
    log: ProgressLine | None = None,
) -> Recipe:
    """Build a recipe as `build_recipe` does. If its preset is an auto preset, choose the size.

    Args:
        tree: the recipe as a nested dict.
        changes: overrides as for `--set`, or a nested dict.
        where: names the recipe in error messages.
        log: the progress line on which the choice is printed; None prints nothing.

    Raises:
        RecipeError: the recipe is invalid, or has an auto preset, but no budget in minutes, no
            single source of text, or more than one process.
    """
    merged = copy.deepcopy(tree)
    apply_changes(merged, changes)
    preset = merged.get("model", {}).get("preset")
    if preset not in auto_presets:
        return build_recipe(tree, changes, where=where)
    minutes = _get_minutes(merged, preset)
    if log is not None:
        log.update(translated("run.measuring_sizes"))
    sizes = list(_iter_sizes(merged, preset))
    best = min(sizes, key=lambda size: size.loss)
    if log is not None:
        log.print_line(labelled("size", _describe_choice(best, sizes, minutes)))
    origin = f"chosen for {minutes:g} minutes on this machine"
    return build_recipe(tree, changes, where=where, size=RecipeLayer(best.values, origin))


def predict_loss(num_weights: int, steps: float) -> float:
    """Return the predicted loss of a decoder in nats per byte of children's stories.

    The formula holds for the default number of tokens per step, 8 times the width. On other text
    and for other models, the loss differs; only the order of the sizes is used.

    Args:
        num_weights: the number of weights without token embeddings and output matrix.
        steps: the number of training steps.
    """
    steps_term = (_S0 / max(1.0, steps)) ** _S_EXPONENT
    return _FLOOR + (_N0 / num_weights) ** _N_EXPONENT + steps_term


def _get_minutes(tree: Mapping[str, Any], preset: str) -> float:
    """Return the budget of a recipe in minutes.

    Raises RecipeError if a size cannot be chosen for the recipe.
    """
    kind = str(tree.get("objective", {}).get("kind", ""))
    if tree.get("mix") or (kind in Objective.kinds and Objective.kinds[kind].labelled):
        given = "several sources ([[mix]])" if tree.get("mix") else "labelled examples"
        raise RecipeError(
            f"{preset} chooses the size of the model for one source of text; this recipe has "
            f"{given}: choose a size, such as {auto_presets[preset]}."
        )
    minutes = tree.get("train", {}).get("minutes")
    if not isinstance(minutes, int | float) or minutes <= 0:
        raise RecipeError(
            f"{preset} chooses the size of the model for a budget in minutes: set one, such as "
            f"--set train.minutes=20, or choose a size, such as {auto_presets[preset]}."
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RecipeError(
            f"{preset} measures the speed of one process: choose a size, such as "
            f"{auto_presets[preset]}, to train with several processes."
        )
    return float(minutes)


def _iter_sizes(tree: Mapping[str, Any], preset: str) -> Iterator[SizedModel]:
    """Measure and yield the sizes from small to large, until the predicted loss rises twice.

    `tree` is the recipe as a nested dict, with the user's values.
    """
    best, rises = math.inf, 0
    smallest = _SMALLEST_WIDTH.get(preset, 0)
    sizes = [(num_layers, d_model) for num_layers, d_model in _SIZES if d_model >= smallest]
    for index, (num_layers, d_model) in enumerate(sizes):
        try:
            size = _measure_size(tree, preset, num_layers, d_model)
        except RecipeError:
            if index == 0:
                raise
            return  # a larger model does not fit in memory
        yield size
        rises = rises + 1 if size.loss > best else 0
        best = min(best, size.loss)
        if rises == 2:
            return


def _measure_size(
    tree: Mapping[str, Any], preset: str, num_layers: int, d_model: int
) -> SizedModel:
    """Measure the speed of a size on this machine, and predict its loss.

    Args:
        tree: the recipe as a nested dict, with the user's values.
        preset: the auto preset.
        num_layers: the number of layers of every stack.
        d_model: the width.

    Raises:
        RecipeError: the recipe is invalid, or the model does not fit in memory.
    """
    base = auto_presets[preset]
    paths = as_list(tree.get("data", {}).get("paths")) or ()
    has_shards = are_shards(paths)
    num_bytes = estimate_text_bytes(paths) if paths and not has_shards else math.inf
    values: dict[str, Any] = {"model.preset": base, "model.d_model": d_model, "defaults": "fast"}
    for stack in ("encoder", "decoder"):
        if getattr(presets[base], stack) is not None:
            values[f"model.{stack}.num_layers"] = num_layers
            if d_model > presets[base].d_model:
                values[f"model.{stack}.layers.mixer.num_heads"] = d_model // _HEAD_DIM
    vocab_size = _SMALL_VOCABULARY
    if d_model > presets[base].d_model and math.isfinite(num_bytes):
        vocab_size = defaults.vocabulary_size(presets[base], round(num_bytes))
    measured = copy.deepcopy(dict(tree))
    measured.setdefault("data", {}).pop("paths", None)
    if has_shards:  # they have a tokenizer, of about this size
        measured["tokenizer"] = {"vocab_size": vocab_size}
    elif "path" not in tree.get("tokenizer", {}):
        values["tokenizer.vocab_size"] = vocab_size
    recipe = build_recipe(measured, size=RecipeLayer(values, "measured"))
    trainer, memory = build_trainer_without_data(recipe)
    forecasts = [forecast_run(trainer, memory) for _ in range(_MEASUREMENTS)]
    forecast = max(forecasts, key=lambda one: one.tokens_per_second)
    batch_tokens = forecast.tokens / forecast.steps
    spec, _ = resolve_model_spec(recipe)
    num_weights = num_parameters(spec.replace(vocab_size=1))
    epoch = num_bytes / _BYTES_PER_TOKEN
    tokens = forecast.tokens
    if math.isfinite(epoch) and spec.family == "decoder-only":
        tokens = min(tokens, epoch * estimate_useful_epochs(epoch, num_parameters(spec)))
    values["train.batch_tokens"] = round(batch_tokens)
    loss = predict_loss(num_weights, tokens / batch_tokens)
    return SizedModel(num_layers, d_model, num_weights, forecast.steps, loss, values)


def _describe_choice(best: SizedModel, sizes: Sequence[SizedModel], minutes: float) -> str:
    """Describe the chosen size and the predicted loss of the other sizes, in one line."""
    others = ", ".join(
        translated("run.size_neighbour", width=size.d_model, more=100 * (size.loss / best.loss - 1))
        for size in sizes
        if size is not best
    )
    return translated(
        "run.size",
        layers=best.num_layers,
        width=best.d_model,
        minutes=minutes,
        steps=best.steps,
        others=others,
    )
