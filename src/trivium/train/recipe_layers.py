"""Default values for a recipe, filled in layer by layer.

From the highest to the lowest priority, the layers are:

1. `--set`
2. the user's file
3. the size chosen for a budget, if the preset is an auto preset (`plan/model_size.py`)
4. the published recipe of the preset, or else the fast settings
5. the defaults of the task
6. the defaults of the library

The origin of each value is recorded. Numbers that depend on the data are set later, in
`train/defaults.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from trivium.config import flatten_keys
from trivium.errors import RecipeError
from trivium.models.base_model import Spec
from trivium.models.transformer import TransformerSpec
from trivium.objectives import Objective, default_objective
from trivium.presets import is_own_size
from trivium.presets.published import Published, PublishedRecipe, published_recipes
from trivium.text import Tokenizer
from trivium.train import defaults
from trivium.train.optimizers import Optimizer
from trivium.train.recipe import Recipe
from trivium.train.train_config import BUDGETS

Tree = dict[str, Any]  # a recipe as a nested dict

FAST, LIBRARY = "fast settings", "default"


class RecipeLayer(NamedTuple):
    """One layer of default values, by dotted key, and where these values come from.

    In a mix, keys that start with `objective.` apply to every data source. `origin` is the origin
    of all values, or a dict with the origin of each key.
    """

    values: Mapping[str, Any]
    origin: str | Mapping[str, str]


def fill_in_defaults(tree: Tree, spec: Spec, origins: dict[str, str]) -> None:
    """Fill in the values that are missing from a recipe, in place.

    `tree` is the recipe as a nested dict. The origin of each new value is added to `origins`, by
    dotted key. Raises RecipeError for settings that the model does not support.
    """
    layers: tuple[Callable[[Tree, Spec], RecipeLayer], ...] = (
        _make_objective_layer,
        _make_published_layer,
        _make_fast_layer,
        _make_task_layer,
        _make_library_layer,
    )
    for make in layers:
        apply_layer(tree, make(tree, spec), origins)


def get_published_recipe(tree: Mapping[str, Any]) -> PublishedRecipe | None:
    """Return the published recipe on which a recipe is based, or None.

    `tree` is the recipe as a nested dict. It is based on the published recipe of its preset if it
    sets `defaults = "published"` and uses the same kind of data (text or labelled examples).
    Incomplete published recipes do not count.
    """
    if tree.get("defaults") != "published":
        return None
    return _find_preset_recipe(tree)


def has_published_budget(recipe: Recipe) -> bool:
    """Return whether the budget of a run comes from the published recipe, not from the user."""
    budget, published = recipe.train.budget, get_published_recipe(recipe.to_tree())
    if budget is None or published is None:
        return False
    key = f"train.{budget[0]}"
    one = published.values.get(key)
    return one is not None and recipe.origin_of(key) == published.cite(one.source)


def compare_with_published(
    recipe: Recipe, published: PublishedRecipe
) -> tuple[list[str], dict[str, tuple[Any, Any]]]:
    """Compare a recipe with a published recipe.

    Returns a list and a dict. The list contains the keys that have the published value. The dict
    maps every other published key to a pair: the value in `recipe` and the published value.
    """
    tree, same, changed = flatten_keys(recipe.to_tree()), list[str](), {}
    for key, one in published.values.items():
        if tree.get(key) == one.value:
            same.append(key)
        else:
            changed[key] = tree.get(key), one.value
    phases = [_build_phase_tree(phase) for phase in published.phases]
    if phases and tree.get("phases") == phases:
        same.append("phases")
    elif phases:
        changed["phases"] = tree.get("phases") or None, phases
    return same, changed


def _find_preset_recipe(tree: Mapping[str, Any]) -> PublishedRecipe | None:
    """Return the published recipe for the preset in `tree`, which is a recipe as a nested dict.

    Returns None if there is no published recipe, if it is incomplete, or if it is for another kind
    of data than `tree` (text or labelled examples). Also returns None if `tree` has a mix.
    """
    recipe = published_recipes().get(tree.get("model", {}).get("preset") or "")
    if recipe is None or not recipe.is_complete or tree.get("mix"):
        return None
    kinds = [tree.get("objective", {}).get("kind")]
    if "objective.kind" in recipe.values:
        kinds.append(recipe.values["objective.kind"].value)
    labelled = {Objective.kinds[kind].labelled for kind in kinds if kind in Objective.kinds}
    return recipe if len(labelled) == 1 else None


def apply_layer(tree: Tree, layer: RecipeLayer, origins: dict[str, str]) -> None:
    """Set the values of a layer that are still missing from a recipe, in place.

    `tree` is the recipe as a nested dict. The origin of each new value is added to `origins`. Keys
    that belong to another kind of component are skipped. A budget is skipped if the recipe already
    has a budget.
    """
    kinds = {key: value for key, value in layer.values.items() if key.endswith(".kind")}
    has_budget = any(tree.get("train", {}).get(budget) is not None for budget in BUDGETS)
    for key, value in layer.values.items():
        section, _, name = key.rpartition(".")
        if has_budget and section == "train" and name in BUDGETS:
            continue
        for prefix, root in _iter_parents(tree, section):
            table = root
            for step in section.split(".") if section else ():
                table = table.setdefault(step, {})
            kind = kinds.get(f"{section}.kind")
            if name not in table and kind in (None, table.get("kind", kind)):
                table[name] = value
                origin = layer.origin if isinstance(layer.origin, str) else layer.origin[key]
                origins[prefix + key] = origin


def _iter_parents(tree: Tree, section: str) -> Iterator[tuple[str, Tree]]:
    """Yield every dict in a recipe that can contain a section, as pairs (key prefix, dict).

    In a mix, every data source contains its own section `objective`, with a key prefix such as
    "mix[0].". All other sections are at the top level, with the prefix "".
    """
    sources = tree.get("mix") if section == "objective" else None
    for number, source in enumerate(sources or ()):
        yield f"mix[{number}].", source
    if not sources:
        yield "", tree


def _iter_objectives(tree: Mapping[str, Any]) -> Iterator[tuple[str, type[Objective]]]:
    """Yield the kind and the class of each data source's objective. Unknown kinds are skipped."""
    for table in tree.get("mix") or [tree]:
        kind = str(table.get("objective", {}).get("kind", ""))
        if kind in Objective.kinds:
            yield kind, Objective.kinds[kind]


def _has_new_weights(tree: Mapping[str, Any]) -> bool:
    """Return whether a recipe (a nested dict) trains a model from scratch."""
    return "init_from" not in tree["model"] or tree["model"].get("new_weights", False)


def _is_labelled(tree: Mapping[str, Any]) -> bool:
    """Return whether any data source of a recipe (a nested dict) has labelled examples."""
    return any(objective.labelled for _, objective in _iter_objectives(tree))


def _make_published_layer(tree: Tree, spec: Spec) -> RecipeLayer:
    """Return a recipe layer with the values of the preset's published recipe.

    The layer is empty if the recipe does not use a published recipe, for example because it trains
    existing weights. If the user sets another budget, the warm-up takes the same fraction of that
    budget as of the published budget. Published phases are omitted if the user sets a key that they
    change.
    """
    recipe, chosen = _find_preset_recipe(tree), tree.get("defaults")
    if recipe is None or not _has_new_weights(tree) or chosen == "fast":
        return RecipeLayer({}, LIBRARY)
    values = {"defaults": Published("published", "the preset"), **recipe.values}
    if "init_from" in tree["model"] or "path" in tree.get("tokenizer", {}):
        values = {key: one for key, one in values.items() if not key.startswith("tokenizer.")}
    budget = recipe.budget
    train, warmup, steps = tree.get("train", {}), values.get("schedule.warmup"), recipe.steps
    changed = {f"train.{name}": train[name] for name in BUDGETS if train.get(name) is not None}
    is_other = bool(changed) and changed != dict([budget] if budget else [])
    if is_other and warmup and warmup.value >= 1 and steps:
        share = round(min(warmup.value / steps, 1.0), 6)
        source = f"{warmup.source}: {warmup.value:,} of {steps:,.0f} steps"
        values["schedule.warmup"] = Published(share, source)
    phases = [_build_phase_tree(phase) for phase in recipe.phases]
    keys = {key for phase in recipe.phases for key in phase if key != "until"}
    if phases and not keys & set(flatten_keys(tree)):
        source = ", ".join(dict.fromkeys(one["until"].source for one in recipe.phases))
        values["phases"] = Published(phases, source)
    origins = {key: recipe.cite(one.source) for key, one in values.items()}
    return RecipeLayer({key: one.value for key, one in values.items()}, origins)


def _build_phase_tree(phase: Mapping[str, Published]) -> Tree:
    """Return the values of a published phase, given by dotted key, as a nested dict."""
    tree: Tree = {}
    for key, one in phase.items():
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = one.value
    return tree


def _make_objective_layer(tree: Tree, spec: Spec) -> RecipeLayer:
    """Return a recipe layer that sets the kind of the default objective.

    If the preset has a published recipe for text, the default is the objective of that recipe.
    Otherwise, it depends on the architecture. If every objective is already set, the layer is
    empty.
    """
    if all("kind" in root.get("objective", {}) for _, root in _iter_parents(tree, "objective")):
        return RecipeLayer({}, LIBRARY)
    recipe = published_recipes().get(tree["model"].get("preset") or "")
    if recipe is not None and "objective.kind" in recipe.values and not tree.get("mix"):
        published = str(recipe.values["objective.kind"].value)
        takes_it = recipe.is_complete and not Objective.kinds[published].labelled
        if takes_it and tree.get("defaults") != "fast" and _has_new_weights(tree):
            source = recipe.cite(recipe.values["objective.kind"].source)
            return RecipeLayer({"objective.kind": published}, source)
    return RecipeLayer({"objective.kind": default_objective(spec).kind}, LIBRARY)


def _make_fast_layer(tree: Tree, spec: Spec) -> RecipeLayer:
    """Return a recipe layer with the settings that learn fastest when training from scratch.

    They set the initialization, the optimizer and fields of objectives. They are used for model
    sizes without a published recipe, or if the recipe sets `defaults = "fast"`. Otherwise, the
    layer contains only defaults for training from scratch, such as the kind of optimizer.

    Raises:
        RecipeError: the recipe asks for fast settings, but the model does not support them.
    """
    is_new, labelled = _has_new_weights(tree), _is_labelled(tree)
    own = is_own_size(tree["model"].get("preset") or "")
    values: Tree = {}
    if is_new and not labelled and spec.stacks:
        values["defaults"] = "fast"
    fast = tree.get("defaults", values.get("defaults")) == "fast"
    if fast and (not is_new or not isinstance(spec, TransformerSpec)):
        raise RecipeError('defaults = "fast" is for Transformers with new weights: leave it out.')
    kinds = [objective for _, objective in _iter_objectives(tree)]
    if isinstance(spec, TransformerSpec) and "init_from" not in tree["model"]:
        translates = all(kind.supported_family == "encoder-decoder" for kind in kinds)
        # T5 (fan-in) learns no faster with copy heads (benchmarks/LOG.md).
        gains = translates and spec.initialization.kind != "fan-in"
        if fast or (own and gains and "defaults" not in tree):
            values["model.initialization"] = defaults.choose_initialization(spec)
    if fast:
        for kind in kinds:
            values |= {f"objective.{key}": value for key, value in kind.advice().fast.items()}
    if is_new:
        values["optimizer.kind"] = defaults.choose_optimizer(spec, fast=fast)
    return RecipeLayer(values, FAST if fast else LIBRARY)


def _make_task_layer(tree: Tree, spec: Spec) -> RecipeLayer:
    """Return a recipe layer with the defaults of labelled tasks for the schedule and optimizer.

    The layer is empty if no data source is labelled.
    """
    tasks = [name for name, objective in _iter_objectives(tree) if objective.labelled]
    if not tasks:
        return RecipeLayer({}, LIBRARY)
    kind = tree.get("optimizer", {}).get("kind", "adamw")
    values: Tree = {"optimizer.kind": "adamw", "schedule.kind": "linear"}
    if str(kind) in Optimizer.kinds:
        fine_tuning = Optimizer.kinds[kind].fine_tuning
        values |= {f"optimizer.{key}": value for key, value in fine_tuning.items()}
        values["optimizer.kind"] = kind
    return RecipeLayer(values, f"default of {tasks[0]}")


def _make_library_layer(tree: Tree, spec: Spec) -> RecipeLayer:
    """Return a recipe layer with the library's default optimizer, schedule and tokenizer.

    With `init_from`, there is no default tokenizer, since a loaded model has its own tokenizer.
    """
    values: Tree = {"optimizer.kind": "adamw", "schedule.kind": "stable-decay"}
    if "init_from" not in tree["model"]:
        tokenizer = dict(tree.get("tokenizer", {}))
        _choose_tokenizer(tokenizer, [objective for _, objective in _iter_objectives(tree)], spec)
        minutes = tree.get("train", {}).get("minutes")
        kind = Tokenizer.kinds.get(str(tokenizer["kind"]))
        if isinstance(minutes, int | float) and kind is not None:
            tokenizer.setdefault("sample_bytes", defaults.choose_sample_bytes(kind, minutes))
        values |= {f"tokenizer.{key}": value for key, value in tokenizer.items()}
    elif tree.get("tokenizer"):
        values["tokenizer.kind"] = "extended"
    return RecipeLayer(values, LIBRARY)


def _choose_tokenizer(
    tokenizer: dict[str, Any], objectives: Sequence[type[Objective]], spec: Spec
) -> None:
    """Choose the kind and the special tokens of a new tokenizer, unless they are already set.

    If any objective has tokenizer defaults, the first such objective decides. Otherwise, the
    architecture decides. `tokenizer` is the section `[tokenizer]`, which is changed in place.
    """
    if spec.family == "encoder-decoder":
        chosen = {"kind": "unigram", "special_tokens": ["<pad>", "</s>", "<unk>", "<s>"]}
    else:
        chosen = {"kind": "wordpiece" if spec.family == "encoder-only" else "byte-bpe"}
    for objective in reversed(objectives):
        chosen = objective.tokenizer_defaults(spec) or chosen
    tokenizer.setdefault("kind", "file" if "path" in tokenizer else chosen["kind"])
    config = Tokenizer.kinds.get(tokenizer["kind"])
    if config is None or "special_tokens" in tokenizer:
        return
    config = config(special_tokens=chosen["special_tokens"]) if len(chosen) > 1 else config()
    vocabulary = config.special_vocabulary
    needed = dict.fromkeys(name for each in objectives for name in each.special_tokens)
    missing = [name for name in needed if vocabulary.special_token_id(name) is None]
    if missing or len(chosen) > 1:
        tokenizer["special_tokens"] = [*config.special_tokens, *missing]
