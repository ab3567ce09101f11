"""What to say about wrong usage: which option, key or command was meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trivium.config import OTHER_NAMES, list_keys
from trivium.errors import nearest
from trivium.train.recipe import LABELLED_KEYS, TEXT_KEYS, Recipe

_FILES = {"data", "file", "files", "input", "path"}


def option_advice(
    option: str, context: Any, similar: Sequence[str] | None, others: Iterable[tuple[str, Any]]
) -> str:
    """How to write an option that a command does not have.

    It is a key of the recipe, where the command takes --set; or one of the similar ones; or belongs
    to other commands, which come with their names.
    """
    command, name = context.command, option.lstrip("-").replace("-", "_")
    arguments = {one.name.rstrip("s") for one in command.params if not one.opts[0].startswith("-")}
    if name.rstrip("s") in arguments or (name in _FILES and arguments & _FILES):
        usage = " ".join(context.get_usage().split()).partition(" ")[2]
        return f". Give it by its position: `{usage.replace(' [OPTIONS]', '')}`."
    keys: dict[str, list[str]] = {}
    if _has_option(command, "--set"):
        for key in dict.fromkeys(one.name for one in list_keys(Recipe)):
            if not key.startswith("mix."):
                keys.setdefault(key.rpartition(".")[2], []).append(key)
    having = [other for other, one in others if _has_option(one, option)]
    elsewhere = f" {option} is an option of {', '.join(having)}." if having else ""
    near_options = [] if name in keys else nearest(option, similar or ())
    if near_options:
        return f". Did you mean {near_options[0]}?{elsewhere}"
    names = [name] if name in keys else OTHER_NAMES.get(name) or nearest(name, keys)
    if matches := [key for one in names for key in keys.get(one, ())]:
        # Examples are read by their objective.
        labelled = command.name == "finetune"
        other = TEXT_KEYS if labelled else LABELLED_KEYS
        first = "objective." if labelled else "data."
        usable = [*dict.fromkeys(other.get(key) or key for key in matches)]
        preferred = [key for key in usable if key.startswith(first)] or usable
        options = " or ".join(f"--set {key}=VALUE" for key in preferred[:3])
        return f". That is a key of the recipe: {options}."
    return f".{elsewhere}"


def _has_option(command: Any, option: str) -> bool:
    return any(option in parameter.opts for parameter in command.params)
