"""Recipes from presets, TOML files and changes; open kinds (objective, tokenizer, ...) are chosen.

Numbers that a recipe leaves open need the data and are decided in `train/defaults.py`.
"""

from __future__ import annotations

import copy
import glob
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from trivium.config import iter_keys, merge_changes, problems_to_error
from trivium.data.shards import are_shards
from trivium.data.sources import PYTHON
from trivium.errors import RecipeError
from trivium.files import STDIN, version_entry
from trivium.model_loading import load
from trivium.models.base_model import Spec
from trivium.models.transformer import TransformerSpec
from trivium.objectives import Objective, default_objective
from trivium.presets import catalogue, did_you_mean_preset, is_own_size, presets
from trivium.remote import is_remote
from trivium.text import Tokenizer
from trivium.train import defaults
from trivium.train.optimizers import Optimizer
from trivium.train.recipe import BUDGETS, ORIGINS, ModelConfig, Recipe, as_list

# Keys whose texts say where something is.
_PATHS = ("paths", "validation", "path", "init_from", "model", "function")

AnyRecipe = str | os.PathLike[str] | Recipe | Mapping[str, Any]
"""A name or file of a recipe, a recipe, or its keys."""

Changes = Sequence[str] | Mapping[str, Any]
"""Changes of a recipe: `["train.steps=500", ...]` as `--set` takes them, or a dict, which may be
nested or have dotted keys."""


def shipped_recipes() -> dict[str, Path]:
    """The recipes inside the package, by name."""
    folder = Path(__file__).parent.parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_recipe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The tree in a TOML file, or of a shipped recipe. Raises RecipeError where it is none."""
    name = os.fspath(path)
    file = shipped_recipes().get(name, Path(name))
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
        return {name: value for name, value in tree.items() if name not in version_entry()}
    except FileNotFoundError:
        known = ", ".join(shipped_recipes())
        raise RecipeError(f"{name}: no such recipe file. Shipped recipes: {known}.") from None
    except (OSError, ValueError, RecursionError) as error:  # also of numbers that are too long
        raise RecipeError(f"{file}: not valid TOML: {error}") from None


def changes_tree(changes: Changes) -> dict[str, Any]:
    """Changes as one tree, in their order.

    Raises RecipeError where a text is not `section.key=value`. A value is TOML, or text where it
    is not valid TOML.

    >>> changes_tree(["train.steps=500", "model.preset=gpt2-mini"])
    {'train': {'steps': 500}, 'model': {'preset': 'gpt2-mini'}}
    >>> changes_tree({"train.steps": 500, "model": {"preset": "gpt2-mini"}})
    {'train': {'steps': 500}, 'model': {'preset': 'gpt2-mini'}}
    """
    if isinstance(changes, str):
        raise RecipeError(f"changes is a list such as ['train.steps=500'], not {changes!r}.")
    pairs = changes.items() if isinstance(changes, Mapping) else map(_parse_change, changes)
    tree: dict[str, Any] = {}
    for path, value in pairs:
        *tables, last = (key.strip() for key in path.split("."))
        table = tree
        for key in tables:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise RecipeError(f"{path} is set, but {key} has a value and is not a table.")
        table[last] = dict(value) if isinstance(value, Mapping) else value
    return tree


def _parse_change(change: str) -> tuple[str, Any]:
    """The dotted key and the value of one `--set`."""
    path, equals, text = change.partition("=")
    if not equals or not all(key.strip() for key in path.split(".")):
        raise RecipeError(f"--set takes key=value such as train.steps=500, not {change!r}.")
    try:
        return path, tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError) as error:
        if text.strip()[:1] in ("[", "{"):
            raise RecipeError(
                f"--set {change}: not valid TOML ({error}). Texts inside need quotation marks, "
                "and the whole a pair around it in the shell: --set 'data.paths=[\"a.txt\"]'."
            ) from None
        return path, text.strip()


def apply_changes(tree: dict[str, Any], changes: Changes) -> None:
    """Change a recipe's tree in place.

    A new budget replaces the recipe's own, sources in `mix` replace `[objective]` and `data.paths`,
    and the other way round; a new origin of the model replaces the old one.
    """
    new = copy.deepcopy(changes_tree(changes))
    check_tables(new, "changes of the recipe")
    for section, alternatives in (("train", BUDGETS), ("model", ORIGINS)):
        if any(name in (new.get(section) or {}) for name in alternatives):
            for name in alternatives:
                tree.get(section, {}).pop(name, None)
    if "mix" in new:
        tree.pop("objective", None)
        tree.get("data", {}).pop("paths", None)
    elif "objective" in new or "paths" in (new.get("data") or {}):
        tree.pop("mix", None)
    merge_changes(tree, new)


def check_tables(tree: Mapping[str, Any], where: str) -> None:
    """Raise RecipeError where a section is no table, or [[mix]] or [[phases]] no list of tables."""
    tables = {name: value for name, value in tree.items() if name in Recipe.model_fields}
    tables.pop("seed", None)
    tables.pop("defaults", None)
    for name in ("mix", "phases"):
        listed = tables.pop(name, None) or ()
        if not isinstance(listed, list | tuple):
            raise RecipeError(f"{where}: [[{name}]] is a list of tables, not {listed!r}.")
        for number, table in enumerate(listed):
            tables[f"{name}[{number}]"] = table
            if name == "mix" and isinstance(table, Mapping):
                tables[f"mix[{number}].objective"] = table.get("objective", {})
    for name, table in tables.items():
        if table is not None and not isinstance(table, Mapping):
            keys = (key.name for key in iter_keys(Recipe) if key.name.startswith(f"{name}."))
            raise RecipeError(
                f"{where}: {name} is a section with keys of its own, not {table!r}: set one of its "
                f"keys, such as {next(keys, 'objective.kind')}={table}."
            )


def load_recipe(recipe: AnyRecipe, changes: Changes = ()) -> Recipe:
    """A recipe with changes applied, complete but for numbers that depend on the data.

    Args:
        recipe: a preset ("bert-small"), a shipped recipe ("textbook-bert"), a TOML file, a Recipe
            or its keys as a nested dict, or the folder of a model to continue from.
        changes: as `--set` takes them, or a nested dict.

    Raises:
        RecipeError: no such recipe or preset, an unknown key, or a value that is not allowed.
    """
    return build_recipe(recipe_tree(recipe), changes, where=recipe_name(recipe))


def recipe_name(recipe: AnyRecipe) -> str:
    """What errors call a recipe: its file, if it is one."""
    is_file = isinstance(recipe, str | os.PathLike) and ".toml" in os.fspath(recipe)
    return str(recipe) if is_file else "recipe"


def recipe_tree(recipe: AnyRecipe) -> dict[str, Any]:
    """The keys that a recipe sets, given as `load_recipe` takes it."""
    if isinstance(recipe, Recipe):
        return _without_default_tokenizer(recipe)
    if isinstance(recipe, Mapping):
        return copy.deepcopy(dict(recipe))
    name = os.fspath(recipe)
    if name in presets:
        return {"model": {"preset": name}}
    if name in shipped_recipes() or name.endswith(".toml"):
        return read_recipe(name)
    if Path(name).is_dir():
        return {"model": {"init_from": name}}
    near = did_you_mean_preset(name, shipped_recipes())
    raise RecipeError(
        f'"{name}" is no preset, no shipped recipe, no .toml file and no folder.{near} '
        "`trivium presets` lists all presets."
    )


def _without_default_tokenizer(recipe: Recipe) -> dict[str, Any]:
    """The tree of a recipe, without a tokenizer that it did not set: the data may have its own."""
    tree = recipe.to_tree()
    if recipe.tokenizer is not None:
        bare = {name: table for name, table in tree.items() if name != "tokenizer"}
        if build_recipe(bare).tokenizer == recipe.tokenizer:
            return bare
    return tree


def map_paths(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return a recipe's tree with `change` applied to the values that are a path or several."""
    if isinstance(tree, list | tuple):
        return [map_paths(one, change) for one in tree]
    if not isinstance(tree, Mapping):
        return tree
    return {
        key: change(value)
        if key in _PATHS and isinstance(value, str | list | tuple)
        else map_paths(value, change)
        for key, value in tree.items()
    }


def absolute_paths(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's tree with absolute paths, which hold in every working directory.

    Names of other kinds stay, such as those of models on the hub.
    """

    def absolute(value: Any) -> Any:
        if not isinstance(value, str):
            return [absolute(one) for one in value]
        named = value == STDIN or value.startswith(("hf:", PYTHON)) or is_remote(value)
        file = value.rpartition(":")[0] or value  # file.py:function
        exists = glob.has_magic(value) or os.path.exists(value) or os.path.exists(file)
        return os.path.abspath(value) if exists and not named else value

    return map_paths(tree, absolute)


def recipe_file(recipe: Recipe) -> str:
    """Return the content of a run's `recipe.toml`, by which it is resumed from any directory."""
    tree = Recipe.from_tree(absolute_paths(recipe.to_tree())).to_tree()
    text = tomli_w.dumps({**version_entry(), **tree})
    note = (
        "# The data was given from Python. The run has stored it; this file alone does not repeat "
        "the run.\n"
    )
    return note + text if f'"{PYTHON}' in text else text


def build_recipe(tree: dict[str, Any], changes: Changes = (), *, where: str = "recipe") -> Recipe:
    """A recipe from a tree, with changes applied and every kind that is left open chosen."""
    tree = copy.deepcopy(tree)
    check_tables(tree, where)
    apply_changes(tree, changes)
    _name_sources(tree.get("mix") or ())
    try:
        model = ModelConfig.model_validate(tree.setdefault("model", {}))
    except ValidationError:
        raise problems_to_error(where, Recipe.problems(tree, partial=True)) from None
    _refuse_second_tokenizer(tree, model)
    spec = model.build_spec()
    if spec is None:
        spec = load(str(model.init_from), device="meta").spec
    _choose_defaults(tree, spec)
    return Recipe.from_tree(tree, where=where)


def _refuse_second_tokenizer(tree: Mapping[str, Any], model: ModelConfig) -> None:
    """Raise RecipeError for keys of a tokenizer where the model or the shards have their own."""
    keys = ", ".join(f"tokenizer.{key}" for key in tree.get("tokenizer") or ())
    tables = tree.get("mix") or [tree.get("data") or {}]
    paths = [as_list(table.get("paths")) for table in tables]
    shards = (one[0] for one in paths if isinstance(one, list | tuple) and are_shards(one))
    owner = model.init_from or next(shards, None)
    if keys and owner is not None:
        kind = "model" if model.init_from else "folder of shards"
        raise RecipeError(
            f"the {kind} has its own tokenizer: leave {keys} out. Everything is read with the "
            f"tokenizer of {owner}."
        )


def _name_sources(tables: Sequence[dict[str, Any]]) -> None:
    """Name the sources of a mix that have no name after their first path, in place."""
    names = {"loss", *(str(table.get("name")) for table in tables)}
    for table in tables:
        paths = as_list(table.get("paths"))
        if "name" not in table and paths and isinstance(paths, list | tuple):  # else refused later
            first = str(paths[0]).removeprefix("hf:")
            stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(first).name.split(".")[0]).strip("-")
            name, number = stem or "text", 2
            while name in names:
                name, number = f"{stem or 'text'}-{number}", number + 1
            table["name"] = name
            names.add(name)


def _choose_defaults(tree: dict[str, Any], spec: Spec) -> None:
    """Choose what a recipe's tree leaves open, by the model's form, in place.

    That is every kind, an optimizer's values for fine-tuning, and a tokenizer's special tokens.
    """
    objectives: list[tuple[dict[str, Any], type[Objective]]] = []
    for table in tree.get("mix") or [tree]:
        objective = table.setdefault("objective", {})
        if "kind" not in objective:
            objective["kind"] = default_objective(spec).kind
        if str(objective["kind"]) in Objective.kinds:
            objectives.append((objective, Objective.kinds[objective["kind"]]))
    kinds = [kind for _, kind in objectives]
    labelled = any(kind.labelled for kind in kinds)
    has_new_weights = "init_from" not in tree["model"] or tree["model"].get("new_weights", False)
    optimizer = tree.setdefault("optimizer", {})
    if has_new_weights and not labelled and spec.stacks:
        own = is_own_size(tree["model"].get("preset") or "")
        tree.setdefault("defaults", "fast" if own else "published")
        _set_published(tree)
    fast = tree.get("defaults") == "fast"
    if fast and (not has_new_weights or not isinstance(spec, TransformerSpec)):
        raise RecipeError('defaults = "fast" is for Transformers with new weights: leave it out.')
    if isinstance(spec, TransformerSpec) and "init_from" not in tree["model"]:
        _choose_initialization(tree, spec, kinds)
    for objective, kind in objectives if fast else ():
        for key, value in kind.fast.items():
            objective.setdefault(key, value)
    if has_new_weights:
        optimizer.setdefault("kind", defaults.optimizer_kind(spec, fast=fast))
    optimizer.setdefault("kind", "adamw")
    if labelled and str(optimizer["kind"]) in Optimizer.kinds:
        for key, value in Optimizer.kinds[optimizer["kind"]].fine_tuning.items():
            optimizer.setdefault(key, value)
    tree.setdefault("schedule", {}).setdefault("kind", "linear" if labelled else "stable-decay")
    if "init_from" not in tree["model"]:
        tokenizer = tree.setdefault("tokenizer", {})
        _choose_tokenizer(tokenizer, kinds, spec)
        minutes = tree.get("train", {}).get("minutes")
        kind = Tokenizer.kinds.get(str(tokenizer["kind"]))
        if isinstance(minutes, int | float) and kind is not None:
            tokenizer.setdefault("sample_bytes", defaults.sample_bytes(kind, minutes))


def _choose_initialization(
    tree: dict[str, Any], spec: TransformerSpec, kinds: Sequence[type[Objective]]
) -> None:
    """Choose between the published and the fast initialization, in place."""
    own = is_own_size(tree["model"].get("preset") or "") and "defaults" not in tree
    translates = all(kind.family == "encoder-decoder" for kind in kinds)
    # T5 (fan-in) learns no faster with copy heads (benchmarks/LOG.md).
    gains = translates and spec.initialization.kind != "fan-in"
    if tree.get("defaults") == "fast" or (own and gains):
        tree["model"].setdefault("initialization", defaults.fastest_initialization(spec))


def _set_published(tree: dict[str, Any]) -> None:
    """Set what the preset's paper says and a recipe leaves open, in place.

    Nothing in a table of another kind, and no budget beside one.
    """
    preset = tree["model"].get("preset")
    if preset is None or tree["defaults"] != "published":
        return
    for name, keys in catalogue[preset].recipe.items():
        table = tree.setdefault(name, {})
        if table.get("kind") in (None, keys.get("kind")):
            has_budget = any(table.get(budget) is not None for budget in BUDGETS)
            for key, value in keys.items():
                if not (has_budget and key in BUDGETS):
                    table.setdefault(key, value)


def _choose_tokenizer(
    tokenizer: dict[str, Any], objectives: Sequence[type[Objective]], spec: Spec
) -> None:
    """Kind and special tokens of a new tokenizer: what an objective needs, or by the model."""
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
    missing = [name for name in needed if vocabulary.find(name) is None]
    if missing or len(chosen) > 1:
        tokenizer["special_tokens"] = [*config.special_tokens, *missing]
