"""`trivium serve`: every model behind one API, and a playground."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.weights import CompileOption, DtypeOption, QuantizeOption
from trivium.errors import TriviumError
from trivium.interop.hub import find_folder
from trivium.language_model import load
from trivium.serve import (
    Limits,
    address_of,
    allowed_hosts,
    create_app,
    listen,
    named_paths,
    run,
)

app = typer.Typer(add_completion=False)

_USUAL = Limits()
_EPILOG = """Examples:

  trivium serve runs/gpt

  trivium serve runs/*

  trivium serve chat=runs/gpt runs/names --port 8080 --preload

  TRIVIUM_API_KEY=... trivium serve runs/* --host 0.0.0.0
"""


@app.command(epilog=_EPILOG)
def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Runs, checkpoints, saved models, or name=folder."),
    ],
    host: Annotated[
        str, typer.Option(help="Where to listen; what others reach needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes one that is free.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="TRIVIUM_API_KEY",
            help="What clients must know. Others see it in a list of "
            "processes: better set the variable.",
            show_envvar=True,
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(help="Texts a model writes at the same time.", min=1)
    ] = _USUAL.rows,
    max_queue: Annotated[
        int, typer.Option(help="Texts that wait for a model; then 429.", min=1)
    ] = _USUAL.max_queue,
    max_tokens: Annotated[
        int, typer.Option(help="Tokens to write that one may ask for.", min=1)
    ] = _USUAL.max_tokens,
    max_prompt: Annotated[
        int, typer.Option(help="Tokens that are read, if the model reads as many.", min=1)
    ] = _USUAL.max_prompt,
    max_texts: Annotated[int, typer.Option(help="Texts of one request.", min=1)] = _USUAL.max_texts,
    max_body: Annotated[
        int, typer.Option(help="Bytes of one request; then 413.", min=1)
    ] = _USUAL.max_body,
    timeout: Annotated[
        float, typer.Option(help="Seconds for one request; then 504.")
    ] = _USUAL.timeout,
    grace: Annotated[
        float, typer.Option(help="Seconds for what runs, when the server is stopped.")
    ] = _USUAL.grace,
    preload: Annotated[
        bool,
        typer.Option(
            "--preload/--load-on-demand", help="Load all models now, or each when asked for."
        ),
    ] = False,
    playground: Annotated[
        bool, typer.Option(help="Show it at /, where Gradio is installed.")
    ] = True,
    runs: Annotated[
        Path | None,
        typer.Option(help="Runs whose curves it shows; unless given, those beside the first."),
    ] = None,
    quantize: QuantizeOption = None,
    dtype: DtypeOption = None,
    compiled: CompileOption = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="No line for every request.")] = False,
) -> None:
    """Serve models: OpenAI's API, the other roads, metrics and a playground.

    SIGINT and SIGTERM let what runs come to its end.
    """
    if api_key is not None and not api_key.strip():
        raise TriviumError("the API key is empty: leave it out, or give one.")
    hosts = allowed_hosts(host, api_key)
    limits = Limits(
        rows=rows,
        max_queue=max_queue,
        max_tokens=max_tokens,
        max_prompt=max_prompt,
        max_texts=max_texts,
        max_body=max_body,
        timeout=timeout,
        grace=grace,
    )
    paths = {name: _found(path) for name, path in named_paths(models).items()}
    gate = create_app(
        paths,
        limits=limits,
        key=api_key,
        hosts=hosts,
        load=partial(
            load, device=device, dtype=dtype, quantize=quantize, packed=True, compiled=compiled
        ),
        preload=preload,
        playground=playground,
        runs=runs or _beside(next(iter(paths.values()))),
        say=None if quiet else _say,
    )
    with listen(host, port) as listening:
        url = address_of(listening)
        run(gate, listening, limits=limits, ready=lambda: _say(f"{url} serves {', '.join(paths)}"))


def _found(path: str) -> str:
    """The folder of a model. Raises TriviumError where there is none."""
    folder = find_folder(path)
    if not folder.is_dir():
        what = "is a file" if Path(path).exists() else "there is no such folder"
        raise TriviumError(f"{path}: {what}. Give a run such as runs/NAME, or a saved model.")
    return str(folder)


def _beside(path: str) -> Path | None:
    """The folder that a run is in; None for what is no run."""
    folder = Path(path).resolve()
    return folder.parent if (folder / "metrics.jsonl").is_file() else None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
