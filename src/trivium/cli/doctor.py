"""`trivium doctor`: print what is installed, the machine and its speed, for bug reports.

Examples:

  trivium doctor

  trivium doctor --json
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trivium.cli._shared import print_json
from trivium.cli._tables import add_text_column, make_table, print_table
from trivium.interrupts import exit_on_interrupt
from trivium.messages import translated
from trivium.progress import labelled

_GIB = 2**30


def doctor(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Print what is installed and missing, the device, and the speed measured on this machine.

    The output contains no paths and no names of users or machines, so that it can be pasted into a
    bug report.

    Args:
        as_json: Print one JSON object.
    """
    with exit_on_interrupt():
        from trivium.workflows.doctor import describe_installation

    facts = describe_installation()
    if as_json:
        print_json(facts)
        return
    _print_machine(facts)
    _print_extras(facts["extras"])
    for line in _list_problems(facts):
        typer.echo(labelled("missing", line))


def _print_machine(facts: dict[str, Any]) -> None:
    """Print the versions, the device, its speed and its memory."""
    device, memory = facts["device"], facts["memory"]
    libraries = ", ".join(f"{name} {found}" for name, found in facts["libraries"].items() if found)
    speeds = ", ".join(
        translated("doctor.speed", speed=speed, precision=precision)
        for precision, speed in facts["gflops"].items()
    )
    variables = "".join(f", {name}={value}" for name, value in facts["variables"].items())
    total = "?" if memory["total"] is None else f"{memory['total'] / _GIB:.1f}"
    lines = {
        "version": f"trivium {facts['trivium']}, Python {facts['python']}, {facts['system']}",
        "libraries": libraries,
        "device": f"{device['kind']}: {device['name']}",
        "threads": translated("doctor.threads", threads=facts["threads"], cores=facts["cores"])
        + variables,
        "precision": facts["precision"],
        "speed": translated("doctor.speeds", speeds=speeds),
        "main_memory": translated(
            "doctor.memory", available=memory["available"] / _GIB, total=total
        ),
        "compiler": facts["compiler"] or "-",
    }
    for label, line in lines.items():
        typer.echo(labelled(label, line))


def _print_extras(extras: dict[str, Any]) -> None:
    """Print a table of the extras: whether each is installed, and what it is for."""
    table = make_table("extra", "installed")
    add_text_column(table, "purpose")
    for name, extra in extras.items():
        installed = translated("doctor.no" if extra["missing"] else "doctor.yes")
        table.add_row(name, installed, translated(f"extra.{name}"))
    typer.echo()
    print_table(table)
    typer.echo()


def _list_problems(facts: dict[str, Any]) -> list[str]:
    """Return one sentence for each missing library, GPU or compiler, and one for missing extras."""
    device, extras = facts["device"], facts["extras"]
    problems = [
        translated("doctor.no_library", name=name)
        for name, found in facts["libraries"].items()
        if found is None
    ]
    if device["cuda"] and not device["gpus"]:
        problems.append(translated("doctor.no_gpu", cuda=device["cuda"]))
    if facts["compiler"] is None:
        problems.append(translated("doctor.no_compiler"))
    missing = {name: extra["missing"] for name, extra in extras.items() if extra["missing"]}
    if missing:
        libraries = ", ".join(sorted({one for some in missing.values() for one in some}))
        names = ",".join(missing)
        problems.append(translated("doctor.no_extras", libraries=libraries, names=names))
    return problems
