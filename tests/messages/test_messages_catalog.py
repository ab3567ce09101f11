"""What the program says: every identifier has its English and its Chinese, and none is unused."""

from __future__ import annotations

import ast
import functools
import json
import re
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from trivium import cli
from trivium.messages import _IN_FILES as IN_FILES
from trivium.messages import (
    detect_language,
    display_width,
    english,
    load_catalog,
    load_chinese_help,
    padded,
    translate_english,
    translated,
)
from trivium.objectives.causal import Causal
from trivium.train.run_warnings import WARNINGS, RunHistory

SOURCE = Path(__file__).parents[2] / "src" / "trivium"
VARIABLES = ("TRIVIUM_LANGUAGE", "LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
# What begins the identifiers that functions are called with, by argument; None: no identifier.
CALLS = {
    "translated": [""],
    "english": [""],
    "tell": ["label.", ""],
    "labelled": ["label."],
    "_format_summary_line": ["label."],
    "make_table": ["heading."] * 99,
    "add_text_column": [None, "heading."],
    "Finding.of": ["finding.", None, None, None, "advice."],
    "note": [""],  # of a record
    "to_overlap_finding": ["finding."],
    "to_findings": ["advice."],
    "counted": [None, "unit."],
}
IN_TEMPLATES = re.compile(r'\b_\("([^"]+)"')
# Names that are listed in a text of help.
LISTED = re.compile(r"[a-z0-9][\w-]*(?:, (?!or )[a-z0-9][\w-]*){3,}")


@functools.cache
def modules() -> dict[str, ast.Module]:
    files = {file for file in SOURCE.rglob("*.py") if file.parent.name != "messages"}
    return {str(one.relative_to(SOURCE)): ast.parse(one.read_text("utf-8")) for one in files}


@functools.cache
def strings() -> set[str]:
    """Every string of the modules: an identifier may end with a value that is one of them."""
    nodes = (node for tree in modules().values() for node in ast.walk(tree))
    return {
        one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


def identifiers(node: ast.expr, names: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    """The identifiers that an argument may be; of an f-string those that the catalog has."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*identifiers(node.body, names), *identifiers(node.orelse, names))
    elif isinstance(node, ast.Name) and node.id in names:
        for value in names[node.id]:
            yield from identifiers(value, {})
    elif isinstance(node, ast.JoinedStr):
        parts = (
            re.escape(str(p.value)) if isinstance(p, ast.Constant) else "(.+)" for p in node.values
        )
        pattern = re.compile("".join(map(str, parts)))
        for known in load_catalog("en"):
            match = pattern.fullmatch(known)
            if match and {match[1], f"{match[1]}s"} & strings():
                yield known


def fields(text: str) -> dict[str, str]:
    """The names of a text's fields, with their formats."""
    return {name: spec or "" for _, name, spec, _ in string.Formatter().parse(text) if name}


def scopes(node: ast.AST) -> Iterator[ast.AST]:
    """The functions and methods of a module, and its other statements."""
    for child in ast.iter_child_nodes(node):
        yield from scopes(child) if isinstance(child, ast.ClassDef) else [child]


def calls() -> Iterator[tuple[str, str, ast.Call, list[str]]]:
    """Every call with identifiers: where it is, of what, and which they may be."""
    for file, tree in modules().items():
        for scope in scopes(tree):
            names: dict[str, list[ast.expr]] = {}
            for node in (*tree.body, *ast.walk(scope)):
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    names.setdefault(node.targets[0].id, []).append(node.value)
            for node in ast.walk(scope):
                if isinstance(node, ast.Call):
                    name = ast.unparse(node.func)
                    name = name if name == "Finding.of" else name.split(".")[-1]
                    yield f"{file}:{node.lineno}", name, node, called_with(name, node, names)


def called_with(name: str, call: ast.Call, names: Mapping[str, list[ast.expr]]) -> list[str]:
    begins = CALLS.get(name, [])
    if name == "to_finding":
        begins = ["finding.", *[None] * (len(call.args) - 2), "advice."]
    found = [
        begin + one
        for begin, argument in zip(begins, call.args)
        if begin is not None
        for one in identifiers(argument, names)
        if one or begin not in ("label.", "advice.")
    ]
    return found + ([f"{one}s" for one in found] if name == "counted" else [])


def used() -> set[str]:
    texts = (file.read_text("utf-8") for file in SOURCE.rglob("*.j2"))
    in_templates = {one for text in texts for one in IN_TEMPLATES.findall(text)}
    return (
        in_templates
        | {f"warning.{name}" for name in WARNINGS}
        | {one for *_, found in calls() for one in found}
    )


def test_every_identifier_is_in_the_catalog_and_is_used():
    known = load_catalog("en").keys()
    of_click = {one for one in known if one.startswith("click.")}
    missing, unused = used() - known, known - used() - of_click - strings()
    assert (sorted(missing), sorted(unused)) == ([], [])


def test_texts_have_the_same_fields_in_both_languages():
    differing = [
        identifier
        for identifier, text in load_catalog("en").items()
        if fields(text).keys() != fields(load_catalog("zh")[identifier]).keys()
    ]
    assert differing == []


def test_calls_give_the_values_of_their_texts():
    wrong = []
    for where, name, call, found in calls():
        given = {one.arg for one in call.keywords}
        texts = [load_catalog("en").get(one, "") for one in found if not one.startswith("label.")]
        needed = {field for text in texts for field in fields(text)}
        if name in ("translated", "english", "tell") and texts and None not in given:
            wrong += [where] if given != needed else []
        elif name in ("Finding.of", "to_finding") and texts:
            wrong += [where] if not given >= needed else []
    assert wrong == []


def test_identifiers_are_seen_where_they_are_used():
    # Of a variable nobody sees whether the catalog has it, except where it is called `identifier`.
    hidden = [
        where
        for where, name, call, found in calls()
        if name in ("translated", "english") and not found
        if ast.unparse(call.args[0]) != "identifier"
    ]
    assert hidden == []


def help_texts() -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Every text of help: where it is, its English, and the tables and names it may be under."""
    for name, (_, line) in cli.commands().items():
        yield name, line, [(name, "summary")]
    every: dict[str, Any] = {"trivium": typer.main.get_command(cli.app)}
    for name in cli.commands():
        every[name] = cli.load_command(name)
        for inner, command in getattr(every[name], "commands", {}).items():
            every[f"{name} {inner}"] = command
    for name, command in every.items():
        tables = [name, *name.split()[:-1]]
        yield name, command.help or "", [(name, "about")]
        for one in command.params:
            for text, key in ((one.help, one.name), (one.show_default, f"{one.name}_default")):
                if isinstance(text, str):
                    yield f"{name} {one.name}", text, [(of, key) for of in (*tables, "options")]


def test_every_text_of_help_has_its_chinese_and_no_other_has():
    tables = load_chinese_help().items()
    known = {(table, name): text for table, texts in tables for name, text in texts.items()}
    said: dict[tuple[str, str], set[str]] = {}
    missing = []
    for where, text, places in help_texts():
        place = next((one for one in places if one in known), None)
        if place is not None:
            said.setdefault(place, set()).add(LISTED.sub("{names}", text))
        elif " " in text and text != "Show this message and exit.":  # a word alone is a value
            missing.append((where, text))
    assert (missing, sorted(known.keys() - said.keys())) == ([], [])
    # One Chinese text for several options: they say the same in English.
    assert {place: texts for place, texts in said.items() if len(texts) > 1} == {}
    numbers = {place: {*re.findall(r"\d+", min(texts))} for place, texts in said.items()}
    differing = [at for at, of in numbers.items() if of - {*re.findall(r"\d+", known[at])}]
    assert differing == []


@pytest.mark.parametrize(
    "identifier", [one for one in load_catalog("en") if one.startswith(IN_FILES)]
)
def test_a_text_of_a_file_is_translated_with_its_values(
    identifier: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TRIVIUM_LANGUAGE", "zh")
    specs = fields(load_catalog("en")[identifier])
    values = dict(zip(specs, (2, 3, 5, 7, 11, 13)))
    shown = {name: format(value, specs[name]) for name, value in values.items()}
    chinese = re.sub(
        r"\{(\w+)[^{}]*\}", lambda field: shown[field[1]], load_catalog("zh")[identifier]
    )
    assert translate_english(english(identifier, **values)) == chinese
    assert translate_english("BLEU nrefs:1|case:mixed") == "BLEU nrefs:1|case:mixed"


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
    assert detect_language() == language


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
    losses, history = (1.0, 4.0, 4.0, 4.0), RunHistory(Causal(), 9.0)
    steps = [{"step": n, "tokens": n, "lr": 1.0, "train_loss": x} for n, x in enumerate(losses)]
    records = [one | {"valid_loss": one["train_loss"] + 0.5} for one in steps]
    records[-1]["warning"] = [history.find_warning(one) for one in steps][-1]
    assert "diverges" in str(records[-1]["warning"])
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))

    assert cli.main([*options, "pretrain", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("\u7528\u6cd5")  # usage
    wrapped = [line for line in lines if not line.startswith("  trivium ")]  # examples
    assert max(map(display_width, wrapped)) <= 80
    assert not re.search("[a-z]+ [a-z]+ [a-z]+", "\n".join(lines[1:20]))

    assert cli.main([*options, "report", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    columns = {display_width(line) for line in table.splitlines() if " | " in line}
    assert len(columns) == 1
    assert translated("report.validation_loss") in table
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


def test_columns_count_characters_of_two():
    assert display_width("\u8bcd\u5143 ab") == 7
    assert padded("\u8bcd", 4) + "|" == "\u8bcd  |"
    assert padded("\u8bcd", 4, right=True) == "  \u8bcd"
