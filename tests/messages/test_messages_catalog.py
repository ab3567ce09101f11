"""What the program says in Chinese: nothing is missing in the catalog, nothing there is unused."""

from __future__ import annotations

import ast
import json
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from trivium import cli
from trivium.cli import _help
from trivium.messages import catalog, display_width, padded, terminal_language, translated

SOURCE = Path(__file__).parents[2] / "src" / "trivium"
CHINESE = catalog("zh")
VARIABLES = ("TRIVIUM_LANGUAGE", "LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
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
    return bool(re.match(r"([A-Z_=.]+ |[a-z]+ [^`]*\| )?(trivium|python -c) ", paragraph))


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


def strings_of_the_source() -> set[str]:
    """Every string of the modules, since a text may be chosen before it is translated."""
    return {
        node.value
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_text_has_its_chinese_and_no_other_has():
    texts, called = {*help_texts()}, {*called_texts()}
    named = {text: _help._NAMES.sub("{names}", text) for text in texts}
    missing = [text for text in texts if not {text, named[text]} & CHINESE.keys()]
    missing = [text for text in missing if not is_example(text)]
    missing += called - CHINESE.keys() - {""}
    assert missing == []
    of_click = {"Usage: ", "Arguments:", "Options:", "Commands:", "Show this message and exit."}
    used = texts | {*named.values()} | called | strings_of_the_source() | of_click
    units = {"token", "tokens", "step", "minute", "epoch"}  # of `counted` and of a budget
    assert sorted(CHINESE.keys() - used - units) == []


def test_values_have_the_same_names_in_both_languages():
    def names(text: str) -> set[str]:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name}

    formatted = {text for text in called_texts() if names(text)}
    more = {text: names(CHINESE[text]) - names(text) for text in formatted}
    assert {text for text, unknown in more.items() if unknown} == set()


@pytest.mark.parametrize(
    ("language", "environment"),
    [
        ("en", {}),
        ("zh", {"LANG": "zh_CN.UTF-8"}),
        ("en", {"LANG": "zh_CN.UTF-8", "LC_ALL": "en_US.UTF-8"}),
        ("zh", {"LANG": "en_US.UTF-8", "LANGUAGE": "zh_CN:zh"}),
        ("en", {"LC_ALL": "C", "LANG": "zh_CN.UTF-8", "LANGUAGE": "zh_CN:zh"}),
        ("en", {"LANG": "C.UTF-8", "LANGUAGE": "zh"}),
        ("en", {"LANGUAGE": "zh"}),
        ("zh", {"LC_ALL": "C", "TRIVIUM_LANGUAGE": "zh"}),
        ("en", {"LANG": "zh_CN.UTF-8", "TRIVIUM_LANGUAGE": "en"}),
    ],
)
def test_the_language_is_that_of_gettext_or_chosen(
    language: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for key in VARIABLES:
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert terminal_language() == language


@pytest.mark.parametrize(
    ("environment", "options"),
    [({"TRIVIUM_LANGUAGE": "en"}, ["--language", "zh"]), ({"LC_ALL": "zh_CN.UTF-8"}, [])],
    ids=["option", "terminal"],
)
def test_help_and_reports_are_chinese(
    environment: dict[str, str],
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    for key in VARIABLES:
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "recipe.toml").write_text('[model]\npreset = "gpt2-mini"\n')
    records = [{"step": n, "train_loss": 5.0 - n, "valid_loss": 5.5 - n} for n in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))

    assert cli.main([*options, "pretrain", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("\u7528\u6cd5")  # usage
    assert max(map(display_width, lines)) <= 80
    assert not re.search("[a-z]+ [a-z]+ [a-z]+", "\n".join(lines[1:20]))

    assert cli.main([*options, "report", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    columns = {display_width(line) for line in table.splitlines() if " | " in line}
    assert len(columns) == 1
    assert translated("Validation loss") in table
    page = (tmp_path / "report.html").read_text("utf-8")
    assert '<html lang="zh">' in page
    assert not re.search(">[A-Za-z ]* (loss|tokens|steps)[a-z, ]*<", page)


def test_columns_count_characters_of_two():
    assert display_width("\u8bcd\u5143 ab") == 7
    assert padded("\u8bcd", 4) + "|" == "\u8bcd  |"
    assert padded("\u8bcd", 4, right=True) == "  \u8bcd"
