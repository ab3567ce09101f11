"""Training that goes on from a model there is: a run of ours, or one from Hugging Face."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trivium.errors import RecipeError
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel, load
from trivium.models import LanguageModule
from trivium.models.replaced import GeneratorAndDiscriminator
from trivium.objectives import Objective
from trivium.presets import presets
from trivium.text import Tokenizer
from trivium.train.recipe import Recipe, load_recipe
from trivium.workflows.objectives import PAIRED

GENERATOR = "generator"
"""The folder in a run where the generator of replaced tokens stands."""


def recipe_or_model(
    name: str | os.PathLike[str] | Recipe, changes: Sequence[str] | dict[str, Any] = ()
) -> Recipe:
    """`load_recipe`, where `name` may also be a folder with a model to go on from.

    Raises:
        RecipeError: no such recipe, or a value that does not fit.
        CheckpointError: a folder without a whole model.
    """
    if isinstance(name, Recipe) or os.fspath(name) in presets or not Path(name).is_dir():
        return load_recipe(name, changes)
    spec = load(name).spec
    recipe = Recipe.from_dict({"model": {"spec": spec.to_dict(), "start": os.fspath(name)}})
    return load_recipe(recipe, changes)


def starting_model(folder: str) -> LanguageModel:
    """The model that training goes on from.

    Raises:
        RecipeError: it has no tokenizer to read text with.
        CheckpointError: it is gone or damaged.
    """
    found = load(folder)
    if found.tokenizer is None:
        raise RecipeError(
            f"{folder}: this model has no tokenizer, without which no text can be read for it."
        )
    return found


def start_settings(run: Path, recipe: Recipe) -> Settings:
    """How the encoder-decoder to go on from writes, kept in the run; nothing for other models."""
    if recipe.spec.family != "encoder-decoder":
        return Settings()
    kept, folder = Settings.read(run), recipe.model.start
    return kept if folder is None or kept != Settings() else load(folder).settings


def writing_settings(objective: Objective, told: Settings) -> Settings:
    """The settings with what an encoder-decoder needs to write: its start, end and padding."""
    if not isinstance(objective, PAIRED):
        return told
    ids = {
        "decoder_start_token_id": objective.start_id,
        "eos_token_id": objective.end_id,
        "pad_token_id": objective.pad_id,
    }
    return replace(told, generation={**ids, **told.generation}, config={**ids, **told.config})


def check_tokenizer(of_text: Tokenizer, of_start: Path, folder: str) -> None:
    """Refuse text that was encoded by another tokenizer than the model's."""
    if of_text.fingerprint != Tokenizer.load(of_start).fingerprint:
        raise RecipeError(
            f"the text was prepared with another tokenizer than that of {folder}: give the text "
            f"itself, or shards from `trivium prepare --tokenizer {folder}`."
        )


def take_weights(folder: str, model: LanguageModule) -> None:
    """Fill a model that is to be trained with the weights of the one in `folder`.

    A generator gets those of the generator beside it; one that has none there begins anew.

    Raises:
        RecipeError: it is built differently.
        CheckpointError: it is gone or damaged.
    """
    start = starting_model(folder)
    if not isinstance(model, GeneratorAndDiscriminator):
        copy_weights(start, model)
        return
    copy_weights(start, model.discriminator)
    beside = Path(folder) / GENERATOR
    if beside.is_dir():
        copy_weights(load(beside), model.generator)


def copy_weights(start: LanguageModel, model: LanguageModule) -> None:
    """Fill a model with the weights of another, which may have more heads.

    A head of a kind that the other has not stays as it is.

    Raises:
        RecipeError: the other is built differently.
    """
    theirs, ours = start.module.state_dict(), model.state_dict()
    new = {head.kind for head in model.spec.heads} - {head.kind for head in start.spec.heads}
    taken = {}
    for name, weight in ours.items():
        if name not in theirs and name.startswith(tuple(f"heads.{kind}." for kind in new)):
            continue
        if name not in theirs or theirs[name].shape != weight.shape:
            raise RecipeError(
                f"the model to start from has no {name} of shape {list(weight.shape)}: leave the "
                "model section of its recipe as it is."
            )
        taken[name] = theirs[name]
    model.load_state_dict(taken, strict=False)
