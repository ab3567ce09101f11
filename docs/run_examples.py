"""Run the examples of a page, and write what they print into it.

    python docs/run_examples.py docs/tutorials/bert.md --folder /tmp/example

In a page, a block of `bash` holds commands, and the block of `text` after it what they print. A
block with a title is a file that the reader writes. Blocks of `sh` are for other machines and are
not run. A test runs all pages with small budgets and compares the form of what is printed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```\n', re.S | re.M
)
SERVER = "127.0.0.1:8000"
HEAD, TAIL = 14, 8
"""Lines of a long output that a page keeps, at its start and at its end."""


@dataclass(frozen=True)
class Example:
    """One block: a file to write, or commands with what the page says they print."""

    commands: tuple[str, ...]
    file: tuple[str, str] | None
    output: str | None
    span: tuple[int, int]
    """Where the output stands in the page."""


def examples(page: str) -> Iterator[Example]:
    """The examples of a page in their order."""
    blocks = list(BLOCK.finditer(page))
    for block, after in zip(blocks, [*blocks[1:], None]):
        if block["title"]:
            yield Example((), (block["title"], block["body"]), None, (0, 0))
        elif block["language"] == "bash":
            lines = block["body"].replace("\\\n", " ").splitlines()
            printed = after is not None and after["language"] == "text"
            printed = printed and not page[block.end() : after.start()].strip()
            span = after.span("body") if printed and after else (0, 0)
            output = page[slice(*span)] if printed else None
            yield Example(tuple(line for line in lines if line), None, output, span)


def shorten(output: str) -> str:
    """The first and the last lines of an output."""
    lines = output.rstrip().splitlines()
    if len(lines) > HEAD + TAIL + 1:
        lines = [*lines[:HEAD], "...", *lines[-TAIL:]]
    return "\n".join(lines) + "\n"


class Runner:
    """Runs commands in a folder as a reader would; a server stays until the next one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server = folder, None
        self.environment = os.environ | {
            "COLUMNS": "88",
            "TRIVIUM_LANGUAGE": "en",
            "PYTHONUNBUFFERED": "1",
        }

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, command: str) -> str:
        """What a command prints."""
        program, *arguments = shlex.split(command)
        if program == ".":
            return ""
        if program == "make":
            program = "trivium"
        if program == "trivium":
            program, arguments = sys.executable, ["-m", "trivium", *arguments]
            if arguments[2] == "serve":
                return self.serve([program, *arguments])
        quiet = program in ("curl", "python")  # progress bars of libraries
        done = subprocess.run(
            [sys.executable if program == "python" else program, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{command}\n{done.stdout}")
        return done.stdout.rstrip("\n") + "\n" if done.stdout else ""

    def serve(self, command: list[str]) -> str:
        """Start a server; what it prints until it answers."""
        self.stop()
        self.server = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True
        )
        assert self.server.stderr is not None
        printed = []
        for line in self.server.stderr:
            printed.append(line)
            if " serves " in line:
                return "".join(printed)
        raise SystemExit("".join(printed))

    def stop(self) -> None:
        """Stop the server, if there is one."""
        if self.server is not None:
            self.server.terminate()
            self.server.communicate(timeout=60)
            self.server = None


def main() -> None:
    """Run the examples of a page and write their output into it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="where the commands run")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    page = options.page.read_text(encoding="utf-8")
    replacements = []
    with Runner(options.folder) as runner:
        for example in examples(page):
            if example.file:
                name, text = example.file
                (options.folder / name).write_text(text, encoding="utf-8")
            output = ""
            for command in example.commands:
                started = time.monotonic()
                printed = runner.run(command)
                print(f"$ {command}\n{printed}[{time.monotonic() - started:.0f} s]", flush=True)
                output += printed
            if example.output is not None:
                replacements.append((example.span, shorten(output)))
    for (start, end), output in reversed(replacements):
        page = page[:start] + output + page[end:]
    options.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
