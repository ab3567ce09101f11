"""Arguments and options shared by several commands, and options generated from dataclasses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, cast, get_origin, get_type_hints

import typer

from trivium.config import option_fields
from trivium.text import literals

MODELS_OWN = "the model's, or {}"
Command = TypeVar("Command", bound=Callable[..., None])

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run, a checkpoint, a saved model, the folder or name of a Hugging Face model, the "
        "URL of such a folder (s3://...), or a model that comes with Trivium: stories, "
        "sample-encoder.",
    ),
]
Checkpoint = Annotated[
    int | None,
    typer.Option(
        min=1, help="Step of the run whose checkpoint is loaded.", show_default="the last"
    ),
]
Texts = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="The texts. Default: the lines of stdin.")
]
Positive = Annotated[int, typer.Option(min=1)]
Device = Annotated[str, typer.Option(help="Device to compute on: auto, cpu, cuda, ...")]
SpecialTokens = Annotated[
    literals.SpecialTokens | None,
    typer.Option(
        help="Whether the name of a special token in a text, such as [SEP], is ordinary text or "
        "the special token.",
        show_default="text; special for the prompts of generate",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per text.")]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option(help="Data type of the weights.", show_default="as stored"),
]
Quantize = Annotated[
    Literal["int8", "nf4"] | None,
    typer.Option(help="Quantize the weights of the linear layers.", show_default=False),
]
Compile = Annotated[
    bool, typer.Option(help="Compile the decode step with torch.compile; needs a C++ compiler.")
]
Resume = Annotated[bool, typer.Option(help="Resume the run from its last checkpoint.")]
AutoResume = Annotated[
    bool, typer.Option(help="Resume the run if it has started, otherwise start it.")
]
Overwrite = Annotated[bool, typer.Option(help="Replace existing content of --out.")]
Replace = Annotated[
    bool,
    typer.Option(help="Replace an existing model in OUT. A run or other files are never replaced."),
]
NoVerify = Annotated[
    bool, typer.Option(help="With --resume: do not verify the checksums of shards and checkpoint.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the recipe. Repeatable."),
]
TaskSet = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the task's objective, such as objective.text_field, or of the data, "
        "such as data.encoding. Repeatable.",
    ),
]
Symbols = Annotated[
    bool,
    typer.Option(help="Show tokens as they are spelled in the vocabulary, not as readable text."),
]


def drop_unset(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the user set: all except those that are None or an empty list."""
    return {name: value for name, value in options.items() if value not in (None, [])}


def check_greater_than(bound: float | None) -> Callable[[Any], Any] | None:
    """Return a Typer callback that rejects values that are not greater than `bound`.

    Returns None if `bound` is None. Typer's own `min` and `max` are inclusive.
    """

    def check_value(value: Any) -> Any:
        """Return `value` unchanged. Raises BadParameter if it is not greater than `bound`."""
        if value is not None and not value > bound:
            raise typer.BadParameter(f"expected a number greater than {bound}")
        return value

    return None if bound is None else check_value


def with_options(
    config: type, *, exclude: Sequence[str] = (), unset: str = ""
) -> Callable[[Command], Command]:
    """Return a decorator that replaces a command's `**options` with the fields of a dataclass.

    Each field becomes an option with the type, default, description and bounds of the field. Fields
    of type Mapping are skipped.

    Args:
        config: the dataclass.
        exclude: names of fields that do not become options.
        unset: if given, options that the user does not set are passed as None (see `drop_unset`).
            `--help` shows this text as their default, with {} replaced by the default of the field.
    """

    def decorate(command: Command) -> Command:
        """Give the command an option for each field of `config`. Returns the same command."""
        signature = inspect.signature(command, eval_str=True)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        hints = get_type_hints(config)
        for field in option_fields(config):
            if field.name in exclude or get_origin(hints[field.name]) is Mapping:
                continue
            kind, default = hints[field.name], cast(Any, field.default)
            if get_origin(kind) is Sequence:
                kind, default = list[str], list(default)
            description, name = field.metadata["description"], field.name.replace("_", "-")
            shown = field.metadata.get("unset", True)
            if unset and default is not None and not isinstance(default, list):
                kind, default, shown = kind | None, None, unset.format(default)
            opposites = [f"--{name}/--no-{name}"] if kind is bool else []
            option = typer.Option(
                *opposites,
                help=f"{description[0].upper()}{description[1:]}.",
                show_default=shown,
                min=field.metadata.get("min", field.metadata.get("ge")),
                max=field.metadata.get("max", field.metadata.get("le")),
                callback=check_greater_than(field.metadata.get("gt")),
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
