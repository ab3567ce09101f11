"""The command line: one module a verb, imported only when it is asked for.

Exit codes: 0 success, 1 the user's input was wrong (one message, no traceback), 2 wrong usage,
130 interrupted, 141 the reader of the output went away.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import trivium
from trivium.errors import TriviumError, did_you_mean

# Verb -> the module whose `app` it is, and its line in the help.
VERBS = {
    "quickstart": ("trivium.cli.quickstart", "The whole way on bundled text, in minutes."),
    "samples": ("trivium.cli.samples", "Unpack the bundled texts and examples."),
    "tokenizer": ("trivium.cli.tokenizer", "Train a tokenizer, use it, see how it works."),
    "prepare": ("trivium.cli.prepare", "Turn text into token shards."),
    "pretrain": ("trivium.cli.pretrain", "Train a model from raw text."),
    "finetune": ("trivium.cli.finetune", "Teach a model a task by labelled examples."),
    "fill-mask": ("trivium.cli.fill_mask", "Predict what stands behind [MASK]."),
    "generate": ("trivium.cli.generate", "Continue a text."),
    "translate": ("trivium.cli.translate", "Write the target of a source: a translation, ..."),
    "classify": ("trivium.cli.classify", "Tell the class of a text or a pair."),
    "tag": ("trivium.cli.tag", "Tell what every word is."),
    "answer": ("trivium.cli.answer", "Answer questions on a text."),
    "embed": ("trivium.cli.embed", "Turn texts into vectors."),
    "score": ("trivium.cli.score", "Tell how probable texts are."),
    "eval": ("trivium.cli.eval", "Measure a model on files and tasks."),
    "prompt": ("trivium.cli.prompt", "Ask with examples in the prompt, nothing trained."),
    "import": ("trivium.cli.import_", "Take a model from Hugging Face."),
    "export": ("trivium.cli.export", "Give a model to Hugging Face."),
    "presets": ("trivium.cli.presets", "The named sizes of the literature."),
    "report": ("trivium.cli.report", "Look at a run: one HTML file."),
    "serve": ("trivium.cli.serve", "Models behind one API, with a playground."),
}
INTERRUPTED, READER_GONE = 130, 141

_EPILOG = """Examples:

  trivium quickstart

  trivium pretrain bert-small --data my_texts/ --out runs/mine

  trivium fill-mask runs/mine "The [MASK] was cloudy yesterday."

`trivium VERB --help` shows the options of a verb.
"""


class Verbs(TyperGroup):
    """The verbs by name and line of help; the module of one is imported when it runs."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command of `args[0]`. An unknown one is a usage error that suggests the nearest."""
        name = args[0]
        if name in VERBS:
            module = importlib.import_module(VERBS[name][0])
            return name, typer.main.get_command(module.app), args[1:]
        if not name.startswith("-"):
            ctx.fail(f"there is no verb {name!r}.{did_you_mean(name, VERBS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a verb; what the user can mend becomes one message and an exit code."""
        debug = bool(ctx.params.get("debug"))
        try:
            return super().invoke(ctx)
        except TriviumError as error:
            _fail(str(error), debug)
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit(READER_GONE) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{error.strerror or error}.", debug)
        except KeyboardInterrupt as stop:
            print(f"\n{stop}" if str(stop) else "\ninterrupted", file=sys.stderr)
            if debug:
                raise
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=Verbs,
    name="trivium",
    add_completion=False,
    epilog=_EPILOG,
    rich_markup_mode=None,  # Loading rich would double the time that --help takes.
    help="From raw text to a working language model.",
    no_args_is_help=True,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trivium {trivium.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of the program itself; `Verbs.invoke` reads them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on `arguments` (those of the process unless given): the exit code."""
    warnings.showwarning = _show_warning
    # PyTorch reads it when a verb imports it. Threads that wait by spinning, as they do unless
    # told otherwise, make training several times slower where other programs use the cores too.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    group = typer.main.get_command(app)
    assert isinstance(group, Verbs)
    for name, (_, line) in VERBS.items():
        group.add_command(TyperCommand(name, help=line))
    given = sys.argv[1:] if arguments is None else arguments
    code = 0
    try:
        group.main(args=list(given), prog_name="trivium")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:
        code = INTERRUPTED
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        code = READER_GONE
    return code


def _discard_output() -> None:
    """What is left in the buffer must not be written at exit: nobody reads it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, debug: bool) -> None:
    """Print the message and end with 1; within an `except`, show the traceback when debugging."""
    if debug:
        raise
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(1) from None


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    print(f"warning: {message}", file=file or sys.stderr)
