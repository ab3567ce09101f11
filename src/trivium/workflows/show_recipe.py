"""Shows a recipe before a run: every key with its value, and where the value comes from."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.errors import RecipeError
from trivium.model_loading import load
from trivium.plan.model_size import build_sized_recipe
from trivium.train import defaults
from trivium.train.recipe_loading import (
    AnyRecipe,
    Changes,
    apply_changes,
    format_recipe_with_origins,
    load_recipe_tree,
    recipe_name,
)


def show_recipe(recipe: AnyRecipe, data: Sequence[str] = (), changes: Changes = ()) -> str:
    """Return a recipe as TOML text, with a comment that says where each value comes from.

    Values that depend on the data or the machine are omitted: the vocabulary size, the micro-batch
    size and, for labelled runs, the values that depend on the number of examples.

    Args:
        recipe: the recipe, as in `pretrain`.
        data: the paths of the data. They need not exist.
        changes: overrides for recipe keys, as in `pretrain`.

    Raises:
        RecipeError: the recipe is not valid.
    """
    if not recipe:
        raise RecipeError("which recipe? Name a preset, a recipe file or a model.")
    tree = load_recipe_tree(recipe)
    if data:
        apply_changes(tree, {"data": {"paths": list(data)}})
    chosen = build_sized_recipe(tree, changes, where=recipe_name(recipe))
    if chosen.labelled:
        return format_recipe_with_origins(chosen)
    spec = chosen.model.build_spec() or load(str(chosen.model.init_from), device="meta").spec
    return format_recipe_with_origins(defaults.complete(chosen, spec))
