"""A terminal of a given width, on which a command prints."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from trivium import cli

pty = pytest.importorskip("pty")
termios = pytest.importorskip("termios")


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
