"""What the program says in Chinese: nothing is missing in the catalog, nothing there is unused."""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from trivium import cli
from trivium.cli import _help
from trivium.messages import (
    catalog,
    display_width,
    padded,
    terminal_language,
    translated,
    translated_whole,
)
from trivium.train.health import LossMonitor

SOURCE = Path(__file__).parents[2] / "src" / "trivium"
CHINESE = catalog("zh")
VARIABLES = ("TRIVIUM_LANGUAGE", "LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
# What is called with an English text, and how many of its arguments are texts.
CALLS = {"translated": 1, "tell": 2, "labelled": 1, "_summary_line": 1}
CALLS |= {"new_table": 99, "add_texts": 2}
# What makes texts that are finished before they are translated (`translated_whole`).
FINDINGS = ("Finding", "finding", "findings", "overlap")
FIELD = re.compile(r"\{\w+[^{}]*\}")
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


def templates(node: ast.expr, names: dict[str, list[str]]) -> Iterator[str]:
    """Strings and f-strings of an expression, with {} for every value."""
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        yield "".join(map(str, parts))
    elif isinstance(node, ast.Name):
        yield from names.get(node.id, ())
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*templates(node.body, names), *templates(node.orelse, names))
    elif isinstance(node, ast.Tuple | ast.List):
        yield from (text for one in node.elts for text in templates(one, names))


def finished_texts() -> Iterator[str]:
    """What checks find, what monitors warn of, and notes of metrics, as templates."""
    for file in SOURCE.rglob("*.py"):
        tree, names = ast.parse(file.read_text(encoding="utf-8")), dict[str, list[str]]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names.setdefault(node.targets[0].id, []).extend(templates(node.value, names))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in FINDINGS:
                yield from (text for one in node.args for text in templates(one, names))
            elif isinstance(node, ast.ClassDef) and node.name.endswith("Monitor"):
                for one in ast.walk(node):
                    if isinstance(one, ast.Yield) and isinstance(one.value, ast.Tuple):
                        halves = (templates(half, names) for half in one.value.elts)
                        yield from map(" ".join, itertools.product(*halves))
                    elif isinstance(one, ast.Return) and one.value is not None:
                        yield from templates(one.value, {})
            elif isinstance(node, ast.keyword) and node.arg == "notes":
                yield from templates(node.value, names)


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
        text
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant | ast.JoinedStr)
        for text in templates(node, {})
    }


def test_every_text_has_its_chinese_and_no_other_has():
    texts, called = {*help_texts()}, {*called_texts()}
    named = {text: _help._NAMES.sub("{names}", text) for text in texts}
    missing = [text for text in texts if not {text, named[text]} & CHINESE.keys()]
    missing = [text for text in missing if not is_example(text)]
    missing += called - CHINESE.keys() - {""}
    known = {FIELD.sub("{}", text) for text in CHINESE}
    finished = {text for text in finished_texts() if re.search("[a-z] ?[a-z]+ ", text)}
    missing += {FIELD.sub("{}", text) for text in finished} - known
    assert sorted(missing) == []
    of_click = {"Usage: ", "Arguments:", "Options:", "Commands:", "Show this message and exit."}
    used = texts | {*named.values()} | called | finished | strings_of_the_source() | of_click
    units = {"token", "tokens", "step", "minute", "epoch", "questions"}  # of `counted`, of a budget
    unused = CHINESE.keys() - used - units
    assert sorted(text for text in unused if FIELD.sub("{}", text) not in used) == []


def test_values_have_the_same_names_in_both_languages():
    def names(text: str) -> set[str]:
        return {field.strip("{}").split(":")[0] for field in FIELD.findall(text)}

    unknown = {text for text, chinese in CHINESE.items() if names(chinese) - names(text)}
    assert unknown == set()


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
    losses, monitor = (1.0, 4.0, 4.0, 4.0), LossMonitor(9.0, math.inf)
    steps = [{"step": n, "tokens": n, "lr": 1.0, "train_loss": x} for n, x in enumerate(losses)]
    records = [one | {"valid_loss": one["train_loss"] + 0.5} for one in steps]
    records[-1]["warning"] = [monitor.warning(one) for one in steps][-1]
    assert "diverges" in records[-1]["warning"]
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
    assert "4.00" in table
    assert "diverges" not in table
    page = (tmp_path / "report.html").read_text("utf-8")
    assert '<html lang="zh">' in page
    assert not re.search(">[A-Za-z ]* (loss|tokens|steps)[a-z, ]*<", page)


def test_tables_of_commands_are_chinese(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TRIVIUM_LANGUAGE", "zh")
    (tmp_path / "texts.txt").write_text("one\n\nThe same text again, twice.\n\n" * 2)
    for command in (
        ("check", str(tmp_path), "--validation", "0.5"),
        ("presets", "mixtral"),
        ("plan", "gpt2-mini", "--gpus", "8", "--tokens", "1e9"),
    ):
        assert cli.main(command) == 0
        table = capsys.readouterr().out
        words = re.sub("[A-Z][a-z]+ et al|The same .*", "", table)
        assert not re.search("[a-z]{3,} [a-z]{3,}", words), table


def test_a_finished_text_is_translated_with_its_values(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRIVIUM_LANGUAGE", "zh")
    side, reason = (
        "labels never in training",
        "fsdp x tensor 2 needs 1,149 GiB per GPU of 74 usable",
    )
    assert translated("training") in translated_whole(side)
    values = re.findall("fsdp x tensor 2|[0-9,]{2,}", translated_whole(reason))
    assert values == ["fsdp x tensor 2", "1,149", "74"]
    assert translated_whole("BLEU nrefs:1|case:mixed") == "BLEU nrefs:1|case:mixed"


def test_columns_count_characters_of_two():
    assert display_width("\u8bcd\u5143 ab") == 7
    assert padded("\u8bcd", 4) + "|" == "\u8bcd  |"
    assert padded("\u8bcd", 4, right=True) == "  \u8bcd"
