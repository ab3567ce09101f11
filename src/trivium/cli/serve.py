"""`trivium serve`: serve models behind one API, with a playground.

Examples:

  trivium serve runs/gpt

  trivium serve runs/*

  trivium serve chat=runs/gpt runs/names --port 8080 --preload

  TRIVIUM_API_KEY=... trivium serve runs/* --host 0.0.0.0
"""

from __future__ import annotations

import json
import logging
import logging.config
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli import _options as opt
from trivium.cli._shared import load
from trivium.errors import TriviumError
from trivium.interrupts import exit_on_interrupt
from trivium.serve.limits import Limits

_LOG = logging.getLogger(__name__)


@opt.with_options(Limits)
def serve(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...")],
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    api_key: Annotated[str | None, typer.Option(envvar="TRIVIUM_API_KEY", show_envvar=True)] = None,
    preload: Annotated[bool, typer.Option("--preload/--load-on-demand")] = False,
    allow_origin: Annotated[list[str] | None, typer.Option(metavar="ORIGIN")] = None,
    root_path: Annotated[str, typer.Option(metavar="PATH")] = "",
    forwarded_allow_ips: Annotated[str, typer.Option(metavar="ADDRESSES")] = "",
    playground: bool = True,
    runs: Annotated[Path | None, typer.Option(show_default="those beside the first")] = None,
    dtype: opt.Dtype = None,
    quantize: opt.Quantize = None,
    compile: opt.Compile = False,
    device: opt.Device = "auto",
    quiet: bool = False,
    log_config: Path | None = None,
    **limits: Any,
) -> None:
    """Serve models: OpenAI's API, endpoints for all other tasks, metrics and a playground.

    SIGINT and SIGTERM let running requests finish.

    Args:
        models: Runs, checkpoints, saved models, or name=folder.
        host: Address to listen on; one that others reach needs a key.
        port: 0 takes any free one.
        api_key: API key that clients must send. A list of processes shows it: better set the
            variable.
        preload: Load models at the start, or when used.
        allow_origin: An origin such as https://example.org, whose pages may call the server: its
            own behind a proxy, or another site (CORS). May be repeated.
        root_path: The path under which a proxy serves it: /lm.
        forwarded_allow_ips: Proxies whose X-Forwarded-For, -Proto and -Host count: addresses or
            networks, separated by commas.
        playground: Show it at /, if Gradio is installed.
        runs: Runs whose curves the playground shows.
        quiet: Log only warnings and errors.
        log_config: Where the log goes: a JSON file for logging.config.dictConfig.
    """
    with exit_on_interrupt():
        from trivium.serve import create_app
        from trivium.serve.models import named_paths
        from trivium.serve.server import address_of, allowed_hosts, listen, run

    if api_key is not None and not api_key.strip():
        raise TriviumError("the API key is empty: leave it out, or give one.")
    if root_path and (not root_path.startswith("/") or root_path.endswith("/")):
        raise TriviumError(f"--root-path is {root_path!r}, but must be a path such as /lm.")
    hosts = allowed_hosts(host, api_key)
    if port:
        listen(host, port).close()  # a port that is taken is found before models are read
    _configure_logging(log_config, quiet=quiet)
    chosen = Limits(**limits)
    paths = {name: _model_folder(path) for name, path in named_paths(models).items()}
    _warn_of_missing(paths)
    _LOG.info("starting ...")  # Gradio takes its time.
    with exit_on_interrupt():  # Gradio is imported.
        server_app = create_app(
            paths,
            limits=chosen,
            key=api_key,
            hosts=hosts,
            origins=allow_origin or (),
            proxies=forwarded_allow_ips,
            root_path=root_path,
            load=partial(
                load,
                device=device,
                dtype=dtype,
                quantize=quantize,
                pack=not compile,
                compile=compile,
            ),
            preload=preload,
            playground=playground,
            runs=runs or _folder_of_runs(next(iter(paths.values()))),
        )
    with listen(host, port) as listening:
        line = (
            f"{address_of(listening)} serves {', '.join(paths)}: a page at /, the API at /v1, its "
            "documents at /docs"
        )
        run(server_app, listening, ready=lambda: _LOG.info(line))
    _LOG.info("stopped")


def _model_folder(path: str) -> str:
    """The folder of a model. Raises TriviumError where there is none."""
    from trivium.interop.hub import find_folder

    folder = find_folder(path)
    if not folder.is_dir():
        problem = "is a file" if Path(path).exists() else "there is no such folder"
        raise TriviumError(f"{path}: {problem}. Give a run such as runs/NAME, or a saved model.")
    return str(folder)


def _warn_of_missing(paths: dict[str, str]) -> None:
    """Say which folders hold no model yet. Raises TriviumError where none does."""
    problems: dict[str, str] = {}
    for name, path in paths.items():
        try:
            load(path, device="meta")
        except TriviumError as error:
            problems[name] = str(error)
    if len(problems) == len(paths):
        raise TriviumError(next(iter(problems.values())))
    for name, problem in problems.items():
        _LOG.warning("%s cannot be served yet: %s", name, problem)


def _folder_of_runs(path: str) -> Path | None:
    """The folder that holds a run; None for what is no run."""
    folder = Path(path).resolve()
    return folder.parent if (folder / "metrics.jsonl").is_file() else None


def _configure_logging(file: Path | None, *, quiet: bool) -> None:
    """Send the log where a file says, or to standard error, without dates of what `serve` says.

    Raises TriviumError for a file that `dictConfig` refuses.
    """
    if file is not None:
        try:
            settings = json.loads(file.read_text(encoding="utf-8"))
            logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, **settings})
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise TriviumError(f"{file} cannot configure the log: {error}") from None
        return
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    _LOG.handlers, _LOG.propagate = [logging.StreamHandler(sys.stderr)], False
    logging.getLogger("trivium").setLevel(logging.WARNING if quiet else logging.INFO)
