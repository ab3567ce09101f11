"""What the program says in Chinese: nothing is missing in the catalog, nothing there is unused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import typer

from trivium import cli
from trivium.cli import _help
from trivium.messages import catalog

SOURCE = Path(__file__).parents[2] / "src" / "trivium"
CHINESE = catalog("zh")
# What is called with an English text, and how many of its arguments are texts.
CALLS = {"translated": 1, "tell": 2, "labelled": 1}
IN_TEMPLATES = re.compile(r'\b_\("([^"]+)"')


def help_texts() -> Iterator[str]:
    """Every text of every command's help, as the catalog has them."""
    commands = [("", typer.main.get_command(cli.app)), *cli._load_all()]
    for _, (_, line) in cli.commands().items():
        yield line
    for name, command in commands:
        texts = [command.help, command.epilog]
        texts += [one.help for one in command.params]
        texts += [one.show_default for one in command.params]
        if not name.startswith("explain "):  # a topic says its summary in both languages
            texts.append(command.short_help)
        for text in texts:
            if isinstance(text, str) and " " in text:
                paragraphs = (" ".join(one.split()) for one in text.split("\n\n"))
                yield from filter(None, paragraphs)


def is_example(paragraph: str) -> bool:
    return " trivium " in f" {paragraph}" or paragraph.startswith("python -c")


def literals(node: ast.expr) -> Iterator[str]:
    """A string, or those of `a if condition else b`."""
    if isinstance(node, ast.IfExp):
        yield from (*literals(node.body), *literals(node.orelse))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def called_texts() -> Iterator[str]:
    """Texts in calls of `translated` and of what calls it, and in templates."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).split(".")[-1]
                for argument in node.args[: CALLS.get(name, 0)]:
                    yield from literals(argument)
    for file in SOURCE.rglob("*.j2"):
        yield from IN_TEMPLATES.findall(file.read_text(encoding="utf-8"))


def test_every_text_has_its_chinese():
    names = _help._NAMES
    missing = [
        text
        for text in help_texts()
        if text not in CHINESE
        and names.sub("{names}", text) not in CHINESE
        and not (is_example(text) and "`" not in text)
    ]
    missing += [text for text in called_texts() if text and text not in CHINESE]
    assert not sorted(set(missing)), sorted(set(missing))
