"""`trivium serve`: serve models with an OpenAI-compatible API and a playground.

Examples:

  trivium serve runs/gpt

  trivium serve runs/*

  trivium serve chat=runs/gpt runs/names --port 8080 --preload

  trivium serve runs/gpt --adapter poems=adapters/poems --adapter letters=adapters/letters

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
    adapter: Annotated[list[str] | None, typer.Option(metavar="NAME=FOLDER")] = None,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    api_key: Annotated[str | None, typer.Option(envvar="TRIVIUM_API_KEY", show_envvar=True)] = None,
    preload: Annotated[bool, typer.Option("--preload/--load-on-demand")] = False,
    allow_origin: Annotated[list[str] | None, typer.Option(metavar="ORIGIN")] = None,
    root_path: Annotated[str, typer.Option(metavar="PATH")] = "",
    forwarded_allow_ips: Annotated[str, typer.Option(metavar="ADDRESSES")] = "",
    playground: bool = True,
    runs: Annotated[Path | None, typer.Option(show_default="the folder of the first run")] = None,
    dtype: opt.Dtype = None,
    quantize: opt.Quantize = None,
    compile: opt.Compile = False,
    device: opt.Device = "auto",
    quiet: bool = False,
    log_config: Path | None = None,
    **limits: Any,
) -> None:
    """Serve models: an OpenAI-compatible API, endpoints for other tasks, metrics and a playground.

    On SIGINT or SIGTERM, the server finishes running requests before it stops.

    Args:
        models: Runs, checkpoints or saved models. NAME=FOLDER sets the name in the API.
        adapter: Serve the adapter in FOLDER (in PEFT's format) under NAME. It shares the weights of
            its base, which must be one of the models. Repeatable.
        host: Address to listen on. An address that other machines can reach requires an API key.
        port: Port to listen on; 0 chooses a free port.
        api_key: API key that clients must send. On the command line, it is visible in the list of
            processes: prefer the environment variable.
        preload: Load all models at startup, instead of each model when it is first used.
        allow_origin: Allow requests from web pages of this origin, such as https://example.org
            (CORS). Also needed for the server's own origin behind a proxy. Repeatable.
        root_path: The path under which a proxy serves this server, such as /lm.
        forwarded_allow_ips: Addresses or networks of proxies, separated by commas. Their headers
            X-Forwarded-For, -Proto and -Host are trusted.
        playground: Show the playground at /, if Gradio is installed.
        runs: The folder of runs whose curves the playground shows.
        quiet: Log only warnings and errors.
        log_config: A JSON file for logging.config.dictConfig, which configures the log.
    """
    with exit_on_interrupt():
        from trivium.serve import create_app
        from trivium.serve.models import parse_adapter_arguments, parse_model_arguments
        from trivium.serve.server import format_address, get_allowed_hosts, listen, run_server

    if api_key is not None and not api_key.strip():
        raise TriviumError("the API key is empty: give a key, or leave it out.")
    if root_path and (not root_path.startswith("/") or root_path.endswith("/")):
        raise TriviumError(f"--root-path is {root_path!r}, but it must be a path such as /lm.")
    hosts = get_allowed_hosts(host, api_key)
    if port:
        listen(host, port).close()  # fail before loading the models if the port is in use
    _configure_logging(log_config, quiet=quiet)
    chosen = Limits(**limits)
    paths = {name: _find_model_folder(path) for name, path in parse_model_arguments(models).items()}
    adapters = parse_adapter_arguments(adapter or (), paths)
    _warn_about_missing_models(paths)
    _LOG.info("starting ...")  # Importing Gradio takes seconds.
    with exit_on_interrupt():  # `create_app` imports Gradio.
        server_app = create_app(
            paths,
            adapters=adapters,
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
            runs=runs or _find_runs_folder(next(iter(paths.values()))),
        )
    with listen(host, port) as listening:
        names = ", ".join([*paths, *adapters])
        line = (
            f"{format_address(listening)} serves {names}: a page at /, the API at /v1, "
            "its documentation at /docs"
        )
        run_server(server_app, listening, ready=lambda: _LOG.info(line))
    _LOG.info("stopped")


def _find_model_folder(path: str) -> str:
    """Return the local folder of a model. Raises TriviumError if the folder does not exist."""
    from trivium.remote_model import find_model

    folder = find_model(path)
    if not folder.is_dir():
        problem = "is a file" if Path(path).exists() else "there is no such folder"
        raise TriviumError(f"{path}: {problem}. Give a run such as runs/NAME, or a saved model.")
    return str(folder)


def _warn_about_missing_models(paths: dict[str, str]) -> None:
    """Log a warning for each folder that does not contain a model yet.

    Args:
        paths: model id -> folder.

    Raises:
        TriviumError: none of the folders contains a model.
    """
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


def _find_runs_folder(path: str) -> Path | None:
    """Return the parent folder of the run `path`. Returns None if `path` is not a run."""
    folder = Path(path).resolve()
    return folder.parent if (folder / "metrics.jsonl").is_file() else None


def _configure_logging(file: Path | None, *, quiet: bool) -> None:
    """Configure logging from a JSON file for `dictConfig`.

    If `file` is None, log to standard error.

    On standard error, log lines of this module have no timestamps. If `quiet` is true, only
    warnings and errors are logged there.

    Raises:
        TriviumError: the file is not valid JSON, or `dictConfig` rejects it.
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
