"""The command line: one module per command, imported only when the command runs.

A command module does not import torch at the top level, so that `--help` and usage errors are fast.
Its function imports the modules that need torch, inside `with exit_on_interrupt()` if torch may not
be loaded yet.

A module defines a command by the first line of its docstring: `cli/fill_mask.py` begins with
"`trivium fill-mask`: predict masked tokens.", which is the name and the summary of the command. The
function `fill_mask` runs the command, and its docstring contains the help of the arguments. The
rest of the module's docstring contains the examples at the end of `--help`. Modules whose names
begin with an underscore are not commands.

Exit codes: 0 success, 1 invalid input (one message, no traceback), 2 wrong usage, 130 interrupted,
141 the reader of the output closed the pipe.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

import trivium
from trivium.cli._help import HelpContext, translate_help
from trivium.errors import TriviumError, did_you_mean
from trivium.interrupts import INTERRUPTED, exit_on_interrupt
from trivium.messages import Language

OUTPUT_CLOSED = 141

UsageError: Any = typer.BadParameter.__base__
"""Click's `UsageError`, from the copy of click in Typer, which exports only its subclasses."""

Command = TypeVar("Command", bound=Callable[..., None])

# An entry under "Args:", with its continuation lines.
_ARGUMENT = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_PROGRAM_OPTIONS = {"--language": "--language zh", "--debug": "--debug", "--version": "--version"}
_FIRST_LINE = re.compile(r'"""`trivium ([a-z-]+)`: (.+?)(?:""")?$')
_EPILOG = """Examples:

  trivium quickstart

  trivium pretrain bert-small --data my_texts/ --out runs/mine

  trivium fill-mask runs/mine "The [MASK] was cloudy yesterday."

`trivium COMMAND --help` shows the options of a command.
"""


def commands() -> dict[str, tuple[str, str]]:
    """Return a dict of command name -> (module name, one-line summary).

    The summaries are read from the source files; the command modules are not imported.
    """
    result = {}
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        with path.open(encoding="utf-8") as file:
            match = _FIRST_LINE.match(file.readline().rstrip("\n"))
        assert match, f'{path.name} must begin with """`trivium COMMAND`: what it does."""'
        help_line = match[2][0].upper() + match[2][1:]
        result[match[1]] = (f"trivium.cli.{path.stem}", help_line)
    return result


def load_json(name: str) -> Any:
    """Read the JSON file `NAME.json` next to this module and return its content.

    docs/make_reference.py generates these files from modules that import torch. Reading a file
    avoids that import, which takes seconds.
    """
    path = Path(__file__).with_name(f"{name}.json")
    return json.loads(path.read_text(encoding="utf-8"))


def load_command(name: str) -> Any:
    """Import the module of a command and return the command as a click object.

    If the module defines `app` (a Typer app), the result is a group of subcommands; the help of
    each subcommand ends with the examples that contain its name. Otherwise, the command runs the
    function that has the same name as the module. If the module defines a class `Command`, the
    result is an instance of this class.
    """
    path, _ = commands()[name]
    module = importlib.import_module(path)
    _, _, examples = str(module.__doc__).partition("\n\n")
    if hasattr(module, "app"):
        group: Any = typer.main.get_command(module.app)
        for inner, command in getattr(group, "commands", {}).items():
            _add_examples(command, f"{name} {inner}", examples)
        return group
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    decorate = single.command(name, cls=getattr(module, "Command", None), epilog=examples)
    decorate(add_parameter_help(getattr(module, path.rpartition(".")[2])))
    return typer.main.get_command(single)


def _add_examples(command: Any, name: str, examples: str) -> None:
    """Set the epilog of a subcommand to those examples that contain its full name.

    `examples` is the text of all examples in the module's docstring, separated by blank lines.
    """
    own = [one for one in examples.split("\n\n") if f" {name} " in f"{one} "]
    command.epilog = "\n\n".join(["Examples:", *own]) if own else None


def add_parameter_help(command: Command) -> Command:
    """Use the entries under "Args:" in the docstring of a command as the help of its parameters.

    A parameter without a default becomes an argument and any other parameter an option, unless its
    annotation contains a `typer.Argument` or `typer.Option`. A bool whose default is False becomes
    a flag without a `--no-` form, unless its annotation names the flags.
    """
    text, _, args = str(inspect.getdoc(command)).partition("\n\nArgs:\n")
    helps = {name: " ".join(words.split()) for name, words in _ARGUMENT.findall(args)}
    signature = inspect.signature(command, eval_str=True)
    parameters = []
    for name, one in signature.parameters.items():
        kind, info = one.annotation, typer.Option()
        if get_origin(kind) is Annotated:
            kind, info = get_args(kind)
        elif one.default is one.empty:
            info = typer.Argument()
        info = copy.copy(info)
        info.help = helps.pop(name, info.help)
        if kind is bool and one.default is False and info.default is ...:  # no names
            info.param_decls = (f"--{name.replace('_', '-')}",)
        parameters.append(one.replace(annotation=Annotated[kind, info]))
    assert not helps, f"{command.__name__} has no {', '.join(helps)}"
    command.__doc__ = text
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


class CommandGroup(TyperGroup):
    """The click group of all `trivium` commands.

    A command's module is imported when the command runs.
    """

    context_class = HelpContext

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command named by `args[0]`. Returns its name, itself and the other arguments.

        An unknown command is a usage error that suggests the command with the most similar name.
        """
        name, known = args[0], commands()
        if name in known:
            completes = ctx.resilient_parsing
            with exit_on_interrupt():
                command = _build_completion_command(name) if completes else load_command(name)
            return name, translate_help(command, name), args[1:]
        if not name.startswith("-"):
            inside = (other for other in load_json("completion") if other.endswith(f" {name}"))
            near = "".join(f" Did you mean `trivium {other}`?" for other in inside)
            ctx.fail(f"there is no command {name!r}.{near or did_you_mean(name, known)}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the program in the language of the terminal."""
        translate_help(self)
        super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command.

        An expected error is printed as one message and sets the exit code.
        """
        debug = bool(ctx.params.get("debug"))
        try:
            return super().invoke(ctx)
        except UsageError as error:
            if not _should_print_error():
                raise typer.Exit(error.exit_code) from None
            error.message = _format_usage_error(error)
            raise
        except TriviumError as error:
            _print_error_and_exit(str(error), debug)
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit(OUTPUT_CLOSED) from None
        except OSError as error:
            file = f"{error.filename}: " if error.filename else ""
            _print_error_and_exit(f"{file}{error.strerror or error}.", debug)
        except KeyboardInterrupt as interrupt:
            if os.environ.get("RANK", "0") == "0":  # only the first of several processes prints
                print(f"\n{interrupt}" if str(interrupt) else "\ninterrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=CommandGroup,
    name="trivium",
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog=_EPILOG,
    rich_markup_mode=None,  # Importing rich would double the time that --help takes.
    help="From raw text to a working language model.",
    no_args_is_help=True,
)


def _build_completion_command(name: str) -> Any:
    """Build a command (or group) that has option names but no behaviour, for shell completion.

    It is built from `completion.json`, so that the module of the command is not imported.
    """
    outline = typer.Typer(add_completion=False, rich_markup_mode=None)
    for command, options in load_json("completion").items():
        if command != name and not command.startswith(f"{name} "):
            continue
        flags = [
            inspect.Parameter(
                option.strip("-").replace("-", "_"),
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[bool, typer.Option(option, help=text)],
                default=False,
            )
            for option, text in options.items()
        ]

        def do_nothing() -> None: ...

        do_nothing.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
        outline.command(command.rpartition(" ")[2])(do_nothing)
    return typer.main.get_command(outline)


def _simplify_message(message: str) -> str:
    """Convert pydantic's error message for an invalid value to plain English."""
    plain = message.removeprefix("Value error, ").partition(", unable to")[0]
    plain = re.sub("Input should be (greater|less)", r"Input should be a number \1", plain)
    plain = plain.replace("a valid integer", "a whole number").replace("a valid ", "a ")
    return plain.replace("Input should be", "expected")


def _format_usage_error(error: Any) -> str:
    """Return the message of a usage error, with a suggestion of the correct usage if known."""
    if isinstance(error, typer.BadParameter):
        return _simplify_message(error.message)
    option, command = getattr(error, "option_name", None), getattr(error.ctx, "command", None)
    if option is not None and hasattr(error, "possibilities"):
        similar, error.possibilities = error.possibilities, ()
        if option in _PROGRAM_OPTIONS:
            path = error.ctx.command_path.partition(" ")[2]
            example = f"`trivium {_PROGRAM_OPTIONS[option]} {path}`"
            return f"{error.message}. It goes before the command: {example}."
        usage = importlib.import_module("trivium.cli._usage")
        return error.message + usage.suggest_option(option, error.ctx, similar)
    if "extra argument" in error.message and "=" in error.message:
        return f"{error.message}. Write --set before every KEY=VALUE: --set A=1 --set B=2."
    params = getattr(command, "params", ())
    repeatable = [param.opts[0] for param in params if getattr(param, "multiple", False)]
    if "extra argument" in error.message and repeatable:
        several = f"{repeatable[0]} A {repeatable[0]} B"
        return f"{error.message}. Repeat an option to give several values: {several}."
    return error.message


def _show_version(requested: bool) -> None:
    """Print the version and exit if the user passed `--version`."""
    if requested:
        typer.echo(f"trivium {trivium.__version__}")
        raise typer.Exit


def _set_language(language: Language | None) -> None:
    """Set the language of messages for this process if the user passed `--language`."""
    if language is not None:
        os.environ["TRIVIUM_LANGUAGE"] = language


@app.callback()
def define_options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback if an error occurs.")
    ] = False,
    language: Annotated[
        Language | None,
        typer.Option(
            help="Language of the output: English or Chinese.",
            show_default="language of the terminal",
            is_eager=True,
            callback=_set_language,
        ),
    ] = None,
) -> None:
    """Define the options of the program that come before the command.

    The function does nothing itself: `CommandGroup.invoke` reads `--debug`, and callbacks handle
    the other options.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line program and return its exit code.

    Args:
        arguments: the command-line arguments; None uses `sys.argv[1:]`.
    """
    warnings.showwarning = _show_warning
    # OpenMP reads this when PyTorch is imported. Without the limit, threads that spin while they
    # wait make training several times slower on a machine whose cores are shared.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    group = typer.main.get_command(app)
    assert isinstance(group, CommandGroup)
    for name, (_, help_line) in commands().items():
        group.add_command(TyperCommand(name, short_help=help_line))
    for stream in (sys.stdout, sys.stderr):  # some terminals and pipes cannot encode all text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = 0
    try:
        group.main(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="trivium")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        code = OUTPUT_CLOSED
    return code


def _discard_output() -> None:
    """Redirect standard output to /dev/null after its reader has closed the pipe.

    Otherwise, Python's flush at exit would print another error.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error_and_exit(message: str, debug: bool) -> None:
    """Print an error message and exit with code 1. With `debug`, re-raise the exception instead."""
    if debug:
        raise
    if _should_print_error():
        print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(1) from None


def _should_print_error() -> bool:
    """Return whether this process should print its error message.

    Under `torchrun`, only the first process that fails on each machine prints its error. Without
    `torchrun`, the result is True.
    """
    own_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if own_file is None:
        return True
    try:
        (Path(own_file).parents[1] / "trivium-error").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a Python warning as one line without its source location.

    Replaces `warnings.showwarning`.
    """
    print(f"warning: {message}", file=sys.stderr)
