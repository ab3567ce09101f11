"""Loading of recipes from presets, TOML files and overrides.

If a recipe does not set the kind of a component, such as the objective or the tokenizer, the kind
is chosen here. Numbers that depend on the data are set in `train/defaults.py`.
"""

from __future__ import annotations

import copy
import glob
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from trivium.config import flatten_keys, iter_keys, merge_changes, problems_to_error
from trivium.data.shards import are_shards
from trivium.data.sources import PYTHON
from trivium.errors import RecipeError, SpecError, TokenizerError
from trivium.files import STDIN, version_entry
from trivium.model_loading import load
from trivium.presets import auto_presets, did_you_mean_preset, presets
from trivium.remote import is_remote
from trivium.stored_model import StoredModel, open_model
from trivium.train.data_config import ExtendedTokenizer, as_list
from trivium.train.model_config import ORIGINS, ModelConfig
from trivium.train.recipe import Recipe
from trivium.train.recipe_layers import RecipeLayer, apply_layer, fill_in_defaults
from trivium.train.train_config import BUDGETS

# Keys whose values are paths or names.
_PATHS = ("paths", "validation", "path", "init_from", "model", "function")

_EXTENSION = ("extend", "extend_special")

AnyRecipe = str | os.PathLike[str] | Recipe | Mapping[str, Any]
"""A recipe in any form: its name, its file, a `Recipe`, or its keys as a nested dict."""

Changes = Sequence[str] | Mapping[str, Any]
"""Overrides of recipe values: a list as for `--set`, or a dict.

A list contains strings such as `"train.steps=500"`. A dict may be nested or have dotted keys.
"""


def builtin_recipes() -> dict[str, Path]:
    """Return the paths of the built-in recipes, by name."""
    folder = Path(__file__).parent.parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_recipe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file or a built-in recipe. Returns the recipe as a nested dict.

    Raises RecipeError if the file does not exist or is not valid TOML.
    """
    name = os.fspath(path)
    file = builtin_recipes().get(name, Path(name))
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
        return {name: value for name, value in tree.items() if name not in version_entry()}
    except FileNotFoundError:
        known = ", ".join(builtin_recipes())
        raise RecipeError(f"{name}: no such recipe file. Shipped recipes: {known}.") from None
    except (OSError, ValueError, RecursionError) as error:  # also if a number is too long
        raise RecipeError(f"{file}: not valid TOML: {error}") from None


def parse_changes(changes: Changes) -> dict[str, Any]:
    """Parse recipe overrides into one nested dict. Later overrides win over earlier ones.

    A value is parsed as TOML, or used as a string if it is not valid TOML. Raises RecipeError if an
    override is not of the form `section.key=value`.

    >>> parse_changes(["train.steps=500", "model.preset=gpt2-mini"])
    {'train': {'steps': 500}, 'model': {'preset': 'gpt2-mini'}}
    >>> parse_changes({"train.steps": 500, "model": {"preset": "gpt2-mini"}})
    {'train': {'steps': 500}, 'model': {'preset': 'gpt2-mini'}}
    """
    if isinstance(changes, str):
        raise RecipeError(f"changes is a list such as ['train.steps=500'], not {changes!r}.")
    pairs = changes.items() if isinstance(changes, Mapping) else map(_parse_set_option, changes)
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


def _parse_set_option(option: str) -> tuple[str, Any]:
    """Parse one `--set` option. Returns the dotted key and the value."""
    path, equals, text = option.partition("=")
    if not equals or not all(key.strip() for key in path.split(".")):
        raise RecipeError(f"--set takes key=value such as train.steps=500, not {option!r}.")
    try:
        return path, tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError) as error:
        if text.strip()[:1] in ("[", "{"):
            raise RecipeError(
                f"--set {option}: not valid TOML ({error}). Texts inside need quotation marks, "
                "and the whole a pair around it in the shell: --set 'data.paths=[\"a.txt\"]'."
            ) from None
        return path, text.strip()


def apply_changes(tree: dict[str, Any], changes: Changes) -> None:
    """Apply overrides to a recipe, given as a nested dict, in place.

    A new budget replaces the recipe's budget, and a new preset, spec or `init_from` replaces the
    recipe's model. Sources in `mix` replace `[objective]` and `data.paths`, and vice versa.
    """
    new = copy.deepcopy(parse_changes(changes))
    check_sections(new, "changes of the recipe")
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


def check_sections(tree: Mapping[str, Any], location: str) -> None:
    """Raise RecipeError if a section of a recipe is not a table.

    `mix` and `phases` must be lists of tables. `location` names the recipe in error messages.
    """
    tables = {name: value for name, value in tree.items() if name in Recipe.model_fields}
    tables.pop("seed", None)
    tables.pop("defaults", None)
    for name in ("mix", "phases"):
        listed = tables.pop(name, None) or ()
        if not isinstance(listed, list | tuple):
            raise RecipeError(f"{location}: [[{name}]] is a list of tables, not {listed!r}.")
        for number, table in enumerate(listed):
            tables[f"{name}[{number}]"] = table
            if name == "mix" and isinstance(table, Mapping):
                tables[f"mix[{number}].objective"] = table.get("objective", {})
    for name, table in tables.items():
        if table is not None and not isinstance(table, Mapping):
            keys = (key.name for key in iter_keys(Recipe) if key.name.startswith(f"{name}."))
            raise RecipeError(
                f"{location}: {name} is a section with keys of its own, not {table!r}: set one of "
                f"its keys, such as {next(keys, 'objective.kind')}={table}."
            )


def load_recipe(recipe: AnyRecipe, changes: Changes = ()) -> Recipe:
    """Load a recipe, apply overrides and fill in defaults, except those that depend on the data.

    Args:
        recipe: a preset ("bert-small"), a built-in recipe ("textbook-bert"), a TOML file, a Recipe
            or its keys as a nested dict, or the folder of a model to continue from.
        changes: overrides as for `--set`, or a nested dict.

    Raises:
        RecipeError: the recipe or preset does not exist, a key is unknown, or a value is not
            allowed.
    """
    return build_recipe(load_recipe_tree(recipe), changes, where=recipe_name(recipe))


def recipe_name(recipe: AnyRecipe) -> str:
    """Return the name to use for a recipe in error messages.

    This is the path of its TOML file, or "recipe" if it has none.
    """
    is_file = isinstance(recipe, str | os.PathLike) and ".toml" in os.fspath(recipe)
    return str(recipe) if is_file else "recipe"


def load_recipe_tree(recipe: AnyRecipe) -> dict[str, Any]:
    """Load a recipe from any of the forms that `load_recipe` accepts, without defaults.

    Returns a nested dict of the keys that the recipe sets.
    """
    if isinstance(recipe, Recipe):
        return _drop_default_tokenizer(recipe)
    if isinstance(recipe, Mapping):
        return copy.deepcopy(dict(recipe))
    name = os.fspath(recipe)
    if name in presets or name in auto_presets:
        return {"model": {"preset": name}}
    if name in builtin_recipes() or name.endswith(".toml"):
        return read_recipe(name)
    if Path(name).is_dir():
        return {"model": {"init_from": name}}
    near = did_you_mean_preset(name, [*builtin_recipes(), *auto_presets])
    raise RecipeError(
        f'"{name}" is no preset, no shipped recipe, no .toml file and no folder.{near} '
        "`trivium presets` lists all presets."
    )


def _drop_default_tokenizer(recipe: Recipe) -> dict[str, Any]:
    """Convert a recipe to a nested dict, without the tokenizer if it is the default tokenizer.

    Otherwise, the default tokenizer would conflict with data that has its own tokenizer.
    """
    tree = recipe.to_tree()
    if recipe.tokenizer is not None:
        bare = {name: table for name, table in tree.items() if name != "tokenizer"}
        if build_recipe(bare).tokenizer == recipe.tokenizer:
            return bare
    return tree


def map_paths(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to every path or list of paths in a nested dict. Returns the new dict.

    A value is a path or a list of paths if its key is in `_PATHS`.
    """
    if isinstance(tree, list | tuple):
        return [map_paths(one, function) for one in tree]
    if not isinstance(tree, Mapping):
        return tree
    return {
        key: function(value)
        if key in _PATHS and isinstance(value, str | list | tuple)
        else map_paths(value, function)
        for key, value in tree.items()
    }


def make_paths_absolute(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a recipe, given as a nested dict, with absolute paths.

    Names that are not paths, such as models on the Hugging Face Hub, are not changed.
    """

    def make_absolute(value: Any) -> Any:
        """Return a path or a list of paths as absolute paths, and other names unchanged."""
        if not isinstance(value, str):
            return [make_absolute(one) for one in value]
        named = value == STDIN or value.startswith(("hf:", PYTHON)) or is_remote(value)
        file = value.rpartition(":")[0] or value  # file.py:function
        exists = glob.has_magic(value) or os.path.exists(value) or os.path.exists(file)
        return os.path.abspath(value) if exists and not named else value

    return map_paths(tree, make_absolute)


def format_recipe_file(recipe: Recipe) -> str:
    """Return the content of a run's `recipe.toml`, with absolute paths.

    After each value, a comment states where the value comes from.
    """
    tree = Recipe.from_tree(make_paths_absolute(recipe.to_tree())).to_tree()
    text = _add_origin_comments(tomli_w.dumps({**version_entry(), **tree}), recipe)
    note = (
        "# The data was given from Python. The run has stored it; this file alone does not repeat "
        "the run.\n"
    )
    return note + text if f'"{PYTHON}' in text else text


def format_recipe_with_origins(recipe: Recipe) -> str:
    """Return a recipe as TOML text, with comments that state where each value comes from."""
    return _add_origin_comments(tomli_w.dumps(recipe.to_tree()), recipe)


def _add_origin_comments(text: str, recipe: Recipe) -> str:
    """Append a comment to each value in a recipe's TOML text: the origin of the value."""
    tree, lines = tomllib.loads(text), text.splitlines()
    for number, key in _iter_toml_keys(text):
        if key not in version_entry():
            lines[number] += f"  # {_find_origin(recipe, key, tree)}"
    return "\n".join(lines) + "\n"


def _iter_toml_keys(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line index and the dotted key of each value in TOML text.

    A key in a list of tables contains the index of the table, such as `mix[0].objective.kind`.
    """
    section, counts = "", Counter[str]()
    for number, line in enumerate(text.splitlines()):
        if header := re.fullmatch(r"(\[+)([\w.-]+)\]+", line):
            name = header[2]
            counts[name] += header[1] == "[["
            first, dot, rest = name.partition(".")
            index = f"[{counts[first] - 1}]" if counts[first] else ""
            section = f"{first}{index}{dot}{rest}."
        elif assignment := re.match(r"([\w-]+) = ", line):
            yield number, section + assignment[1]


def _find_origin(recipe: Recipe, key: str, tree: Any) -> str:
    """Return the origin of the value of a dotted key, for a comment in `recipe.toml`.

    If `recipe` has a recorded origin, it is returned. Otherwise, the origin is "default" if the
    value in `tree` is the default, or else "chosen for this model and data".
    """
    if origin := recipe.origin_of(key):
        return origin
    value = tree
    for name, index in re.findall(r"([\w-]+)(?:\[(\d+)\])?", key):
        value = value[name] if not index else value[name][int(index)]
    known = [one.default for one in iter_keys(Recipe) if one.name == re.sub(r"\[\d+\]", "", key)]
    is_default = any(_to_toml_value(default) == value for default in known)
    return "default" if is_default or not known else "chosen for this model and data"


def _to_toml_value(default: Any) -> Any:
    """Convert a tuple to a list, since TOML has no tuples. Other values are returned unchanged."""
    return list(default) if isinstance(default, tuple) else default


def read_origins(text: str) -> dict[str, str]:
    """Read the comments of a `recipe.toml`. Returns the origin of each value, by dotted key."""
    lines = text.splitlines()
    found = ((key, re.search(r"  # (.+)$", lines[number])) for number, key in _iter_toml_keys(text))
    return {key: comment[1] for key, comment in found if comment}


def build_recipe(
    tree: dict[str, Any],
    changes: Changes = (),
    *,
    where: str = "recipe",
    size: RecipeLayer | None = None,
) -> Recipe:
    """Build a recipe from a nested dict: apply overrides, then fill in defaults.

    Args:
        tree: the recipe as a nested dict.
        changes: overrides as for `--set`, or a nested dict.
        where: names the recipe in error messages.
        size: the values that `plan.model_size` has chosen for an auto preset such as "llama-auto".

    Raises:
        RecipeError: the recipe is not valid, or has an auto preset without a chosen size.
    """
    tree = copy.deepcopy(tree)
    check_sections(tree, where)
    apply_changes(tree, changes)
    changed, given = flatten_keys(parse_changes(changes)), "given" if where == "recipe" else where
    origins = {key: "--set" if key in changed else given for key in flatten_keys(tree)}
    of_mix = origins.pop("mix", "")
    for number, source in enumerate(tree.get("mix") or ()):
        origins |= dict.fromkeys(flatten_keys(source, f"mix[{number}]."), of_mix)
    _name_unnamed_sources(tree.get("mix") or ())
    if (preset := (tree.get("model") or {}).get("preset")) in auto_presets:
        if size is None:
            raise RecipeError(
                f"{preset} chooses the size of the model for a training run on text: use it with "
                f"`trivium pretrain`, or choose a size, such as {auto_presets[preset]}."
            )
        del tree["model"]["preset"], origins["model.preset"]
        apply_layer(tree, size, origins)
    try:
        model = ModelConfig.model_validate(tree.setdefault("model", {}))
    except ValidationError:
        raise problems_to_error(where, Recipe.problems(tree, partial=True)) from None
    _reject_second_tokenizer(tree, model)
    spec = model.build_spec()
    if spec is None:
        spec = load(str(model.init_from), device="meta").spec
    fill_in_defaults(tree, spec, origins)
    recipe = Recipe.from_tree(tree, where=where)
    recipe._origins = origins
    return recipe


def open_base_model(recipe: Recipe, *, verify: bool = True) -> StoredModel | None:
    """Open the model that training starts from, with the new tokens of the recipe.

    Its weights are read when they are looked up. An adapter is merged. Returns None if training
    starts from a preset or a spec. `verify` is as for `trivium.load`.

    Raises:
        RecipeError: a new token cannot be added.
        CheckpointError: as `open_model`.
    """
    if recipe.model.init_from is None:
        return None
    base = open_model(recipe.model.init_from, verify=verify)
    tokenizer = recipe.tokenizer
    if not isinstance(tokenizer, ExtendedTokenizer):
        return base
    try:
        return base.with_new_tokens(tokenizer.extend, special_tokens=tokenizer.extend_special)
    except (SpecError, TokenizerError) as error:
        raise RecipeError(f"tokenizer.extend: {error}") from None


def _reject_second_tokenizer(tree: Mapping[str, Any], model: ModelConfig) -> None:
    """Raise RecipeError if a recipe sets a tokenizer, but its model or shards already have one.

    The tokenizer of a model may be extended.
    """
    given = tree.get("tokenizer") or {}
    keys = ", ".join(f"tokenizer.{key}" for key in given)
    tables = tree.get("mix") or [tree.get("data") or {}]
    paths = [as_list(table.get("paths")) for table in tables]
    shards = next(
        (one[0] for one in paths if isinstance(one, list | tuple) and are_shards(one)), None
    )
    owner = model.init_from or shards
    if {*_EXTENSION} & given.keys() or given.get("kind") == "extended":
        if shards is not None:
            raise RecipeError(
                f"{keys}: {shards} was encoded without new tokens. Give the text itself."
            )
        if owner is None:
            raise RecipeError(
                f"{keys}: new tokens are for a model to start from (model.init_from). A new "
                "tokenizer takes tokenizer.special_tokens."
            )
        if given.keys() != {"kind"} and given.keys() <= {"kind", *_EXTENSION}:
            return
    if keys and owner is not None:
        kind = "model" if model.init_from else "folder of shards"
        raise RecipeError(
            f"the {kind} has its own tokenizer: leave {keys} out. Everything is read with the "
            f"tokenizer of {owner}."
        )


def _name_unnamed_sources(tables: Sequence[dict[str, Any]]) -> None:
    """Name each unnamed data source of a mix after its first path, in place."""
    names = {"loss", *(str(table.get("name")) for table in tables)}
    for table in tables:
        paths = as_list(table.get("paths"))
        # Paths of other types are rejected later.
        if "name" not in table and paths and isinstance(paths, list | tuple):
            first = str(paths[0]).removeprefix("hf:")
            stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(first).name.split(".")[0]).strip("-")
            name, number = stem or "text", 2
            while name in names:
                name, number = f"{stem or 'text'}-{number}", number + 1
            table["name"] = name
            names.add(name)
