"""Write docs/cli.md, docs/recipe.md and docs/finetune.md from the program itself.

So they cannot disagree with it: `make docs` runs this, and a test compares the files with what it
would write.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic_core import PydanticUndefined

from trivium.cli import VERBS
from trivium.train.finetune_recipe import FinetuneRecipe
from trivium.train.recipe import Recipe, Section, shipped_recipes

DOCS = Path(__file__).parent
NOTE = "<!-- Written by docs/make_reference.py; change the program and run `make docs`. -->"


def command_line() -> str:
    """docs/cli.md: every verb with its arguments, options and examples."""
    parts = [NOTE, "# The command line", "`trivium VERB --help` shows the same."]
    rows = [f"| [`{verb}`](#trivium-{verb}) | {line} |" for verb, (_, line) in VERBS.items()]
    parts.append("\n".join(["| verb | does |", "|---|---|", *rows]))
    for verb, (module, _) in VERBS.items():
        command: Any = typer.main.get_command(importlib.import_module(module).app)
        parts.append(f"## trivium {verb}")
        inner = getattr(command, "commands", None)
        if inner is None:
            parts.extend(_command(f"trivium {verb}", command))
            continue
        parts.append(_paragraphs(command.help))
        for name, subcommand in inner.items():
            parts.append(f"### trivium {verb} {name}")
            parts.extend(_command(f"trivium {verb} {name}", subcommand))
    parts.append(
        "Exit codes: 0 success, 1 the input was wrong (one message), 2 wrong usage, "
        "130 interrupted after saving."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def recipe_keys() -> str:
    """docs/recipe.md: every key of a recipe with its default."""
    shipped = ", ".join(f"`{name}`" for name in shipped_recipes())
    parts = [
        NOTE,
        "# The recipe",
        "A recipe is one TOML file; the same keys are what `--set` takes "
        "(`--set train.steps=500`). An unknown key is an error. A key without a default is decided "
        "from the model and the text, and the run writes the whole recipe to `recipe.toml` in its "
        f"folder. Shipped with the package: {shipped}.",
        _keys(["seed"], "", Recipe),
    ]
    for name, field in Recipe.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            parts += [f"## [{name}]", _paragraphs(inspect.getdoc(field.annotation))]
            parts.append(_keys(None, f"{name}.", field.annotation))
            parts.extend(_mixed(name, field.annotation))
    return "\n\n".join(part for part in parts if part) + "\n"


def finetune_keys() -> str:
    """docs/finetune.md: every key of a recipe of fine-tuning with its default."""
    parts = [
        NOTE,
        "# The recipe of fine-tuning",
        "`trivium finetune TASK --model ... --data ...` and the keys below, which `--set` takes "
        "(`--set train.epochs=3`), or one TOML file with them: `trivium finetune recipe.toml`. A "
        "key without a default is decided from the model and the examples, and the run writes the "
        "whole recipe to `recipe.toml` in its folder. What was measured is in `evaluation.json`, "
        "the answers to all held-out examples in `predictions.jsonl`, both in `report.html` too.",
        _keys(["seed"], "", FinetuneRecipe),
    ]
    for name, field in FinetuneRecipe.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            parts += [f"## [{name}]", _paragraphs(inspect.getdoc(field.annotation))]
            parts.append(_keys(None, f"{name}.", field.annotation))
    return "\n\n".join(part for part in parts if part) + "\n"


def _mixed(name: str, section: type[Section]) -> Iterator[str]:
    """The tables of which a section may hold several."""
    mix = section.model_fields.get("mix")
    if mix is not None:
        table = next(found for found in _sections_in(mix.annotation))
        yield f"### [[{name}.mix]]"
        yield _paragraphs(inspect.getdoc(table))
        own = [key for key in table.model_fields if key in table.__annotations__]
        yield _keys(own, f"{name}.mix.", table)


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _sections_in(inner)


def _keys(only: list[str] | None, prefix: str, section: type[Any]) -> str:
    rows = ["| key | default | takes |", "|---|---|---|"]
    for name, field in section.model_fields.items():
        if only is None or name in only:
            value = field.default
            given = value is not None and value is not PydanticUndefined
            default = f"`{_toml(value)}`" if given else ""
            rows.append(f"| `{prefix}{name}` | {default} | {_type(field.annotation)} |")
    return "\n".join(rows)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(one) for one in value)}]"
    return f"{value:_}" if isinstance(value, int) else str(value)


def _type(annotation: Any) -> str:
    """What a key takes, in the words of TOML."""
    choices = getattr(annotation, "__args__", ())
    origin = getattr(annotation, "__origin__", None)
    if hasattr(annotation, "__metadata__"):
        return _type(origin)
    if choices and all(isinstance(choice, str) for choice in choices):
        return ", ".join(f'`"{choice}"`' for choice in choices)
    if origin is tuple:
        return "list"
    if choices and origin is not dict:
        return " or ".join(_type(one) for one in choices if one is not type(None))
    names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    return names.get(annotation, "table")


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join([name, *(_placeholder(one) for one in arguments), "[OPTIONS]"])
    yield f"```\n{usage}\n```"
    yield _paragraphs(command.help)
    rows = ["| | |", "|---|---|"]
    rows += [f"| `{_placeholder(one)}` | {_described(one)} |" for one in arguments]
    rows += [
        f"| `{', '.join([*one.opts, *one.secondary_opts])}` | {_described(one)} |"
        for one in options
    ]
    yield "\n".join(rows)
    examples = [" ".join(one.split()) for one in (command.epilog or "").split("\n\n")[1:]]
    if examples:
        yield "```bash\n" + "\n".join(examples) + "\n```"


def _placeholder(argument: Any) -> str:
    if argument.metavar:
        return argument.metavar
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _described(parameter: Any) -> str:
    text = (parameter.help or "").replace("|", "\\|")
    shown = parameter.show_default
    if isinstance(shown, str):
        return f"{text} Default: {shown}."
    default = parameter.default
    if parameter.required:
        return text if parameter.param_type_name == "argument" else f"{text} Required."
    if default is None or default is False or default == "" or callable(default):
        return text
    shown_as = parameter.opts[0] if default is True else default
    return f"{text} Default: `{shown_as}`."


def _paragraphs(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("\f", "")


def main() -> None:
    """Write all files."""
    (DOCS / "cli.md").write_text(command_line(), encoding="utf-8")
    (DOCS / "recipe.md").write_text(recipe_keys(), encoding="utf-8")
    (DOCS / "finetune.md").write_text(finetune_keys(), encoding="utf-8")


if __name__ == "__main__":
    main()
