"""Tables on terminals of several widths, and in a pipe."""

from __future__ import annotations

import importlib
import re

import pytest
from terminals import on_terminal

from trivium import cli
from trivium.cli._tables import TextTable, add_text_column, make_table
from trivium.messages import display_width

TABLES = {
    "presets": ["presets", "bert"],
    "family": ["plan", "gpt3"],
    "layouts": ["plan", "gpt3-13b", "--gpus", "16"],
    "check": ["check", "{texts}"],
    "clean": ["clean", "{texts}", "--out", "{texts}.clean", "--overwrite", "--rule", "none"],
}


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    sentence = "A sentence that is long enough to be a document of its own, number"
    path.write_text("\n\n".join(f"{sentence} {n % 7}." for n in range(40)), encoding="utf-8")
    return str(path)


def once(function):
    """The function, which runs at its first call alone."""
    results = []

    def call(*arguments, **options):
        results[:] = results or [function(*arguments, **options)]
        return results[0]

    return call


def names_and_numbers(text: str) -> set[str]:
    return set(re.findall(r"[a-z][\w.-]*\d[\w.-]*|[\d,.]*\d[\w%]*", text))


@pytest.mark.parametrize("table", TABLES)
def test_a_table_fits_and_keeps_names_and_numbers(table, texts, monkeypatch, capsys):
    arguments = [one.format(texts=texts) for one in TABLES[table]]
    if table == "clean":  # once
        pytest.importorskip("datatrove")
        command = importlib.import_module("trivium.cli.clean")
        monkeypatch.setattr(command, "clean_texts", once(command.clean_texts))
    assert cli.main(arguments) == 0
    piped = capsys.readouterr().out
    if table not in ("check", "clean"):  # which cut samples of the text
        assert "…" not in piped
    for columns in (60, 80, 120, 140):
        text = on_terminal(arguments, columns, monkeypatch)
        rows = [line for line in text.splitlines() if re.search(r"\S {2,}\S", line)]
        assert rows
        if table == "presets":  # others are followed by sentences
            assert max(map(display_width, rows)) <= columns
        cells = {cell for row in piped.splitlines() for cell in re.split(r" {2,}", row.strip())}
        short = {cell for cell in cells if len(cell) <= 20 and re.search(r"\d", cell)}
        papers = {cell for cell in short if " " in cell}
        assert names_and_numbers(" ".join(short - papers)) <= names_and_numbers(text), columns


NUMBERS = {
    "0", "7", "-3", "12,345", "1.5e-05", "0.1235", "11.3M", "12.5%", "4m06s", "6.3 GB", "2 x 8",
    "~5", "<1", "+2%",
}  # fmt: skip


@pytest.mark.parametrize("none", ["-", ""])
@pytest.mark.parametrize("cell", sorted(NUMBERS))
def test_a_column_of_numbers_ends_on_the_right(cell, none):
    table = TextTable(make_table("run").columns)
    table.add_column("a longer heading")
    table.add_column("words")
    add_text_column(table, "such_as")
    table.add_row("1", cell, "word", "5")
    table.add_row("200", none, "longer", "words")
    heading, first, _ = table.format_lines(None)
    end = heading.index("a longer heading") + len("a longer heading")
    assert first[:end].endswith(f"  {cell}")
    assert len(first[:end].rstrip()) == end
    assert first.startswith("1 ")  # names begin on the left, as do words and texts
    assert first.index("word") == heading.index("words")


def test_a_column_with_a_word_begins_on_the_left():
    table = make_table("run")
    table.add_column("a longer heading")
    table.add_row("a", "5")
    table.add_row("b", "none")
    heading, *rows = table.format_lines(None)
    assert {row.index(cell) for row, cell in zip(rows, ("5", "none"))} == {heading.index("a l")}
