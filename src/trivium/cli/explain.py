"""`trivium explain`: see how a mechanism works, in numbers and pictures.

Examples:

  trivium explain

  trivium explain norm 1 2 3 6

  trivium explain norm --language zh --html norm.html
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trivium.cli import add_examples, described
from trivium.cli._help import translate_help
from trivium.cli._shared import print_json
from trivium.explain import load_topic, topic_names
from trivium.explain.page import Page, say
from trivium.messages import Language, terminal_language


class _TopicCommands(Mapping[str, Any]):
    """Topic -> its command, imported when it is asked for."""

    def __iter__(self) -> Iterator[str]:
        return iter(topic_names())

    def __len__(self) -> int:
        return len(topic_names())

    def __getitem__(self, name: str) -> Any:
        if name not in topic_names():
            raise KeyError(name)
        topic = load_topic(name)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        summary = say(topic.SUMMARY, terminal_language())
        single.command(name, short_help=summary)(_command(topic.explain))
        command = typer.main.get_command(single)
        add_examples(command, f"explain {name}", str(__doc__).partition("\n\n")[2])
        return command


class _TopicGroup(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = _TopicCommands()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a topic, in the reader's language."""
        command = super().get_command(ctx, cmd_name)
        return None if command is None else translate_help(command, "explain", cmd_name)


app = typer.Typer(
    cls=_TopicGroup,
    add_completion=False,
    rich_markup_mode=None,
    invoke_without_command=True,
    help="See how a mechanism works, in numbers and pictures.",
)

_LANGUAGE = Annotated[
    Language | None,
    typer.Option(help="English or Chinese.", show_default="the terminal's"),
]
_HTML = Annotated[Path | None, typer.Option(help="Write the page with pictures to this file.")]


@app.callback()
def explain(context: typer.Context, language: _LANGUAGE = None) -> None:
    """List the topics."""
    if context.invoked_subcommand is None:
        width = max(map(len, topic_names()))
        for name in topic_names():
            summary = say(load_topic(name).SUMMARY, language or terminal_language())
            typer.echo(f"{name:<{width}}  {summary}")


def _command(topic: Callable[..., Page]) -> Callable[..., None]:
    """A topic as a command: its first parameter is an argument, others are options."""

    def command(
        *,
        language: _LANGUAGE = None,
        html: _HTML = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
        **options: Any,
    ) -> None:
        page = topic(**{name: value for name, value in options.items() if value is not None})
        language = language or terminal_language()
        if html is not None:
            html.parent.mkdir(parents=True, exist_ok=True)
            page.save(html, language)
            typer.echo(str(html), err=True)
        elif as_json:
            print_json(page.facts)
        else:
            typer.echo(page.text(language))

    own = list(inspect.signature(topic, eval_str=True).parameters.values())
    if own:
        own[0] = own[0].replace(annotation=Annotated[own[0].annotation, typer.Argument()])
    keyword = [one.replace(kind=one.KEYWORD_ONLY) for one in own]
    *shared, _ = inspect.signature(command, eval_str=True).parameters.values()
    command.__signature__ = inspect.Signature([*keyword, *shared])  # type: ignore[attr-defined]
    command.__doc__ = topic.__doc__
    return described(command)
