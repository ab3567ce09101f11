"""Arguments and options that several commands have, and those that a dataclass describes."""

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
        help="A run, a checkpoint, a saved model, or a Hugging Face folder or name.",
    ),
]
Checkpoint = Annotated[
    int | None,
    typer.Option(
        min=1, help="Of a run: the step whose checkpoint to use.", show_default="the last"
    ),
]
Texts = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="Default: the lines of stdin.")
]
Positive = Annotated[int, typer.Option(min=1)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, ...")]
SpecialTokens = Annotated[
    literals.SpecialTokens | None,
    typer.Option(
        help="Read the name of a special token in a text as text, or as the special token.",
        show_default="text; in the prompt of generate special",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per text.")]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option(help="Precision of the weights.", show_default="as stored"),
]
Quantize = Annotated[
    Literal["int8"] | None,
    typer.Option(help="Quantize the weights of linear layers.", show_default=False),
]
Compile = Annotated[
    bool, typer.Option(help="Compile the decode step with torch.compile; needs a C++ compiler.")
]
Resume = Annotated[bool, typer.Option(help="Resume the run from its last checkpoint.")]
AutoResume = Annotated[bool, typer.Option(help="Resume the run if it has begun, else start it.")]
Overwrite = Annotated[bool, typer.Option(help="Replace what --out already holds.")]
Replace = Annotated[
    bool, typer.Option(help="Replace the model in OUT; never a run, or other files.")
]
NoVerify = Annotated[
    bool, typer.Option(help="With --resume: do not compare shards and checkpoint with checksums.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; repeatable."),
]
TaskSet = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key of the task's objective, such as objective.text_field, or "
        "data.encoding; repeatable.",
    ),
]
Symbols = Annotated[
    bool, typer.Option(help="Show tokens as the vocabulary spells them, not as text.")
]


def only_set(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a user set."""
    return {name: value for name, value in options.items() if value not in (None, [])}


def above(bound: float | None) -> Callable[[Any], Any] | None:
    """Return a callback of an option whose numbers are above a bound (None: any), which is wrong
    usage otherwise. Typer has `min` and `max` only, which are allowed themselves."""

    def check(value: Any) -> Any:
        if value is not None and not value > bound:
            raise typer.BadParameter(f"expected a number greater than {bound}")
        return value

    return None if bound is None else check


def with_options(
    config: type, *, exclude: Sequence[str] = (), unset: str = ""
) -> Callable[[Command], Command]:
    """Give a command, in place of its `**options`, an option for every field of a dataclass.

    A field's type, default, description and bounds become those of the option; fields that
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
                callback=above(field.metadata.get("gt")),
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
