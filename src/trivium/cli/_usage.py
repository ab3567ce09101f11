"""Suggestions in usage errors: the option, recipe key or command that the user may have meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trivium.cli import load_json
from trivium.config import HF_KEY_NAMES
from trivium.errors import nearest_name

_FILES = {"data", "file", "files", "input", "path"}


def suggest_option(option: str, context: Any, similar: Sequence[str] | None) -> str:
    """Return a suggestion to append to the error message for an unknown option.

    What the user typed as an option may be a positional argument, a misspelled option, a recipe key
    (which is set with `--set`), or an option of other commands.

    Args:
        option: the unknown option, with its dashes.
        context: the click context of the command.
        similar: options of the command with similar names.
    """
    command, name = context.command, option.lstrip("-").replace("-", "_")
    arguments = {p.name.rstrip("s") for p in command.params if not p.opts[0].startswith("-")}
    if name.rstrip("s") in arguments or (name in _FILES and arguments & _FILES):
        usage = " ".join(context.get_usage().split()).partition(" ")[2]
        return f". It is a positional argument: `{usage.replace(' [OPTIONS]', '')}`."
    known, keys = load_json("keys"), dict[str, list[str]]()
    if any("--set" in param.opts for param in command.params):
        for key in known["recipe"]:
            keys.setdefault(key.rpartition(".")[2], []).append(key)
    having = [other for other, options in load_json("completion").items() if option in options]
    elsewhere = f" {option} is an option of {', '.join(having)}." if having else ""
    near_options = [] if name in keys else nearest_name(option, similar or ())
    if near_options:
        return f". Did you mean {near_options[0]}?{elsewhere}"
    names = [name] if name in keys else HF_KEY_NAMES.get(name) or nearest_name(name, keys)
    if matches := [key for match in names for key in keys.get(match, ())]:
        # The columns of labelled examples are set in the objective.
        labelled = command.name == "finetune"
        other = known["text_only" if labelled else "labelled_only"]
        first = "objective." if labelled else "data."
        usable = [*dict.fromkeys(other.get(key) or key for key in matches)]
        preferred = [key for key in usable if key.startswith(first)] or usable
        options = " or ".join(f"--set {key}=VALUE" for key in preferred[:3])
        return f". It is a key of the recipe: {options}."
    return f".{elsewhere}"
