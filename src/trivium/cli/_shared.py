"""Arguments, options and output that several commands share."""

from __future__ import annotations

import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_origin, get_type_hints

import typer

from trivium.cli import UsageError
from trivium.config import option_fields
from trivium.errors import DataError, shorten
from trivium.text import Tokenizer
from trivium.text.symbols import MASK_PATTERN

MODELS_OWN = "the model's, or {}"
Item = TypeVar("Item")
Command = TypeVar("Command", bound=Callable[..., None])

_SHOWN_CHARACTERS = 20
BATCH_SIZE = 256
"""Texts that one call of a model receives; output of a pipe appears as often."""

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run, a checkpoint, a saved model, or a Hugging Face folder or name.",
    ),
]
TextsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="Default: the lines of stdin.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, ...")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per text.")]
DtypeOption = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option(help="Precision of the weights.", show_default="as stored"),
]
QuantizeOption = Annotated[
    Literal["int8"] | None,
    typer.Option(help="Quantize the weights of linear layers.", show_default=False),
]
CompileOption = Annotated[
    bool,
    typer.Option(
        "--compile", help="Compile the decode step with torch.compile; needs a C++ compiler."
    ),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Resume the run from its last checkpoint.")
]
AutoResumeOption = Annotated[
    bool, typer.Option("--auto-resume", help="Resume the run if it has begun, else start it.")
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace what --out already holds.")
]
ReplaceOption = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace the model in OUT; never a run, or other files."),
]
NoVerifyOption = Annotated[
    bool,
    typer.Option(
        "--no-verify", help="With --resume: do not compare shards and checkpoint with checksums."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; repeatable."),
]
TaskSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Of a task: change a key of its objective, such as objective.text_field; repeatable.",
    ),
]


def known_texts(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[str]:
    """The texts; a warning names the characters that the tokenizer does not know, each once.

    Spaces, and masks as they are written in a text, are none of them.
    """
    checked: set[str] = set()
    unk_id = None if tokenizer.unk_id == tokenizer.eos_id else tokenizer.unk_id  # GPT-2 has one
    for text in texts:
        plain = MASK_PATTERN.sub("", text)
        encoding = tokenizer.encode(plain, add_special_tokens=False)
        parts = [plain[a:b] for one, (a, b) in zip(encoding.ids, encoding.offsets) if one == unk_id]
        new = sorted({*"".join("".join(parts).split())} - checked)
        checked.update(new)
        ids = tokenizer.encode_ids_batch(new)
        unknown = [one for one, of_one in zip(new, ids) if unk_id in of_one]
        if unknown:
            more = ", ..." if len(unknown) > _SHOWN_CHARACTERS else ""
            warnings.warn(
                "the vocabulary does not know "
                + ", ".join(unknown[:_SHOWN_CHARACTERS])
                + more
                + ": the model cannot tell these characters apart.",
                stacklevel=2,
            )
        yield text


def read_texts(texts: Sequence[str] | None, *, keep_blank: bool = False) -> Iterator[str]:
    """The arguments, or else the lines of standard input; blank ones only with `keep_blank`.

    Raises:
        DataError: standard input is not UTF-8.
    """
    for text in texts or ():
        if os.path.isfile(text):
            warnings.warn(
                f'the text "{shorten(text)}" is also the name of a file; to read its lines: '
                f"< {shorten(text)}",
                stacklevel=2,
            )
        yield text
    if texts:
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"standard input, line {number}: not UTF-8 (byte {error.start + 1} of the line)."
            ) from None
        if keep_blank or text.strip():
            yield text


def batched(items: Iterable[Item], size: int = BATCH_SIZE) -> Iterator[list[Item]]:
    """Lists of at most `size` items."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def text_batches(texts: Sequence[str] | None, tokenizer: Tokenizer) -> Iterator[list[str]]:
    """The arguments, or the lines of standard input, in batches; warns of unknown characters."""
    return batched(known_texts(read_texts(texts, keep_blank=True), tokenizer))


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def show(record: dict[str, Any], line: str, *, as_json: bool) -> None:
    """Print one result: the record as a JSON object, or the line."""
    print_json(record) if as_json else typer.echo(line)


def tab_separated(*cells: str) -> str:
    """Cells with tabs between them; their own line breaks and tabs become spaces."""
    return "\t".join(" ".join(cell.split()) for cell in cells)


def fraction_or_paths(values: list[str]) -> float | list[str]:
    """A fraction where the only value is a number, else files."""
    try:
        (value,) = values
        return float(value)
    except ValueError:
        return values


def run_folder(
    name: str | None, out: Path | None, advice: str, *, resume: bool | str, overwrite: bool
) -> Path:
    """The folder of a run: `out`, or that of its name.

    Raises UsageError for a run without a name (which has the advice), and for options that
    contradict each other.
    """
    if name is None and resume is not True:
        raise UsageError(advice)
    if resume and overwrite:
        raise UsageError("--resume continues a run and --overwrite replaces it: give one of them.")
    if out is None and name is None:
        raise UsageError("--resume needs the run: give --out RUN.")
    return out or Path("runs") / Path(name or "").stem


def split_pair(line: str) -> tuple[str, str | None]:
    """The two texts of a line with a tab between them, or the line alone."""
    first, tab, second = line.partition("\t")
    return first, second if tab else None


def short_count(number: float) -> str:
    """124439808 -> "124.4M"."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{int(number)}"


_LINE = 79  # characters that fit into a narrow terminal


class Progress:
    """A counter on a terminal's standard error, which the result replaces."""

    def __init__(self, unit: str) -> None:
        self.unit, self._shown = unit, False

    def __call__(self, count: int) -> None:
        """Show a count; without a terminal nothing."""
        if sys.stderr.isatty():
            self.show(f"{count:,} {self.unit}")

    def show(self, text: str) -> None:
        """Show what is being done; without a terminal as a line that stays."""
        if not sys.stderr.isatty():
            print(text, file=sys.stderr)
            return
        self.clear()
        print(f"\r{text[:_LINE]}", end="", file=sys.stderr, flush=True)
        self._shown = True

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            print("\r" + " " * _LINE + "\r", end="", file=sys.stderr, flush=True)
            self._shown = False


def only_set(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a user set."""
    return {name: value for name, value in options.items() if value not in (None, [])}


def with_options(
    config: type, *, exclude: Sequence[str] = (), unset: str = ""
) -> Callable[[Command], Command]:
    """Give a command, in place of its `**options`, an option for every field of a dataclass.

    A field's type, default and `metadata["description"]` become those of the option; fields that
    are mappings have no form on a command line and are left out. With `unset`, which --help
    shows with the default in place of {}, what is not set is None here: see `only_set`.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        hints = get_type_hints(config)
        for field in option_fields(config):
            if field.name in exclude or get_origin(hints[field.name]) is Mapping:
                continue
            kind, default = hints[field.name], cast(Any, field.default)
            if get_origin(kind) is Sequence:
                kind, default = list[str], list(default)
            description, shown = field.metadata["description"], True
            if unset and default is not None and not isinstance(default, list):
                kind, default, shown = kind | None, None, unset.format(default)
            option = typer.Option(
                help=f"{description[0].upper()}{description[1:]}.", show_default=shown
            )
            named.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    annotation=Annotated[kind, option],
                    default=default,
                )
            )
        command.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
        return command

    return decorate
