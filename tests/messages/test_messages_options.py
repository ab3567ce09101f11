"""Every option that a text of the program names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import typer

from trivium import cli

SOURCE = Path(__file__).parents[2] / "src" / "trivium"
TORCHRUN = {
    *("--nnodes", "--nproc-per-node", "--standalone", "--max-restarts", "--shutdown-timeout"),
    *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"),
}
SLURM = {
    *(
        "--cpus-per-task",
        "--gpus-per-node",
        "--job-name",
        "--nodes",
        "--ntasks-per-node",
        "--requeue",
        "--signal",
    ),
    "--time",
}
STYLES = {"--text-xl", "--font", "--font-mono"}  # CSS variables of the playground
PREFIX = "--no-"  # of the second name of a flag


def options(command: Any) -> set[str]:
    """The names of the options of a command and its subcommands."""
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return names.union(*map(options, getattr(command, "commands", {}).values()))


def texts(file: Path) -> list[str]:
    """The strings of a module, or a whole file of messages."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        return [text]
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return [node.value for node in nodes if isinstance(node.value, str)]


def test_options_in_messages_exist():
    commands = [typer.main.get_command(cli.app), *map(cli.load_command, cli.commands())]
    known = {"--help", PREFIX}.union(TORCHRUN, SLURM, STYLES, *map(options, commands))
    files = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.toml")]
    named = [(file.name, text) for file in files for text in texts(file)]
    wrong = {
        (name, option)
        for name, text in named
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", text)
        if option not in known
    }
    assert wrong == set()
