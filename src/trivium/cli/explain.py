"""`trivium explain`: explain a mechanism with numbers and figures.

Examples:

  trivium explain

  trivium explain norm 1 2 3 6

  trivium explain norm --language zh --html norm.html
"""

from __future__ import annotations

import inspect
import pathlib
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, Literal, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from trivium.cli import add_parameter_help, load_json
from trivium.cli._shared import print_json
from trivium.explain import get_topic_summary, list_topics, load_topic
from trivium.explain.page import render
from trivium.interrupts import exit_on_interrupt
from trivium.messages import Language, detect_language

_NEGATIVE_NUMBER = re.compile(r"-\.?\d.*")
_NAMES = {"Literal": Literal, "pathlib": pathlib}
"""The names that the annotations of topics use.

The annotations are stored as text and then evaluated.
"""


class _TopicCommand(TyperCommand):
    """A command of `trivium explain`. Its arguments may be negative numbers, such as -1."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Click alone would report -1 as an unknown option."""
        ctx.ignore_unknown_options = any(map(_NEGATIVE_NUMBER.fullmatch, args))
        return super().parse_args(ctx, args)


class _TopicGroup(TyperGroup):
    """The click group of `trivium explain`, with one command per topic.

    The options of the commands are read from `topics.json`. The module of a topic is imported only
    when its command runs.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        topics = typer.Typer(add_completion=False, rich_markup_mode=None)
        for name, outline in load_json("topics").items():
            summary = render(get_topic_summary(name), detect_language())
            command = _build_command(name, **outline)
            topics.command(name, cls=_TopicCommand, short_help=summary)(command)
        group: Any = typer.main.get_command(topics)
        self.commands |= group.commands


app = typer.Typer(
    cls=_TopicGroup,
    add_completion=False,
    rich_markup_mode=None,
    invoke_without_command=True,
    help="Explain a mechanism with numbers and figures, computed by the code that trains.",
)

_LANGUAGE = Annotated[
    Language | None,
    typer.Option(
        help="Language of the output: English or Chinese.", show_default="language of the terminal"
    ),
]
_HTML = Annotated[
    pathlib.Path | None, typer.Option(help="Write the page with figures to this HTML file.")
]


@app.callback()
def explain(context: typer.Context, language: _LANGUAGE = None) -> None:
    """Print the list of topics, unless a topic is given."""
    if context.invoked_subcommand is None:
        width = max(map(len, list_topics()))
        for name in list_topics():
            summary = render(get_topic_summary(name), language or detect_language())
            typer.echo(f"{name:<{width}}  {summary}")


def _build_command(name: str, help: str, parameters: Mapping[str, Any]) -> Callable[..., None]:
    """Build the command function of a topic.

    The first parameter of the topic becomes a positional argument, all others become options.

    Args:
        name: the name of the topic.
        help: the docstring of the topic's function `explain`.
        parameters: parameter name -> (annotation, default).
    """

    def run_topic(
        *,
        language: _LANGUAGE = None,
        html: _HTML = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
        **options: Any,
    ) -> None:
        """Compute the page of the topic, and print it or write it as HTML or JSON."""
        with exit_on_interrupt():
            topic = load_topic(name)
        page = topic.explain(**{key: value for key, value in options.items() if value is not None})
        language = language or detect_language()
        if html is not None:
            html.parent.mkdir(parents=True, exist_ok=True)
            page.save(html, language)
            typer.echo(str(html), err=True)
        elif as_json:
            print_json(page.data)
        else:
            typer.echo(page.text(language))

    annotations = {key: annotation for key, (annotation, _) in parameters.items()}
    kinds = get_type_hints(SimpleNamespace(__annotations__=annotations), _NAMES)
    if kinds:
        first = next(iter(kinds))
        kinds[first] = Annotated[kinds[first], typer.Argument()]
    own = [
        inspect.Parameter(
            key, inspect.Parameter.KEYWORD_ONLY, annotation=kinds[key], default=default
        )
        for key, (_, default) in parameters.items()
    ]
    *shared, _ = inspect.signature(run_topic, eval_str=True).parameters.values()
    run_topic.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    run_topic.__doc__ = help
    return add_parameter_help(run_topic)
