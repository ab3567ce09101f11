"""Tables on terminals of several widths, and in a pipe."""

from __future__ import annotations

import os
import re
import sys
import threading

import pytest

from trivium import cli
from trivium.messages import display_width

pty = pytest.importorskip("pty")
termios = pytest.importorskip("termios")

TABLES = {
    "presets": ["presets", "bert"],
    "family": ["plan", "gpt3"],
    "layouts": ["plan", "gpt3-13b", "--gpus", "16"],
    "check": ["check", "{texts}"],
}


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    sentence = "A sentence that is long enough to be a document of its own, number"
    path.write_text("\n\n".join(f"{sentence} {n % 7}." for n in range(40)), encoding="utf-8")
    return str(path)


def on_terminal(arguments, columns, monkeypatch) -> str:
    """What a command prints on a terminal of so many columns."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, columns))
    parts: list[bytes] = []

    def read() -> None:
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:
                return
            if not part:
                return
            parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with monkeypatch.context() as patch, os.fdopen(slave, "w", encoding="utf-8") as terminal:
        patch.delenv("COLUMNS", raising=False)
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "__stdout__", terminal)
        assert cli.main(arguments) == 0
    reader.join()
    os.close(master)
    return b"".join(parts).decode()


def names_and_numbers(text: str) -> set[str]:
    return set(re.findall(r"[a-z][\w.-]*\d[\w.-]*|[\d,.]*\d[\w%]*", text))


@pytest.mark.parametrize("table", TABLES)
def test_a_table_fits_and_keeps_names_and_numbers(table, texts, monkeypatch, capsys):
    arguments = [one.format(texts=texts) for one in TABLES[table]]
    assert cli.main(arguments) == 0
    piped = capsys.readouterr().out
    if table != "check":  # which cuts samples of the text
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
