"""Explanations of how a mechanism works, with numbers and figures computed by the training code.

Each topic is a module in `topics/` with a function `explain`, which returns a `Page`. Many topics
accept the reader's own text or model. On the command line, the first parameter of `explain` is the
positional argument and the others are options. The list of topics shows the text `summary` from the
topic's table in `texts.toml`. `make docs` writes the options of all topics to `cli/topics.json`.

>>> from trivium.explain import explain
>>> print(explain("norm", vector=[1, 2, 3]).text())  # doctest: +ELLIPSIS
Normalization of one vector
...
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from trivium.errors import TriviumError, did_you_mean
from trivium.explain.page import Bilingual as Bilingual
from trivium.explain.page import Curves as Curves
from trivium.explain.page import Formula as Formula
from trivium.explain.page import Grid as Grid
from trivium.explain.page import Heading as Heading
from trivium.explain.page import Page as Page
from trivium.explain.page import Table as Table
from trivium.explain.page import Token as Token
from trivium.explain.page import TokenRow as TokenRow
from trivium.explain.page import Tree as Tree
from trivium.explain.page import get_text


def list_topics() -> list[str]:
    """Return the names of all topics, such as "byte-bpe" for the module `topics/byte_bpe.py`."""
    files = (Path(__file__).parent / "topics").glob("[!_]*.py")
    return sorted(file.stem.replace("_", "-") for file in files)


def get_topic_summary(name: str) -> Bilingual:
    """Return the one-line summary of a topic in English and Chinese."""
    return get_text(f"{name.replace('-', '_')}.summary")


def load_topic(name: str) -> Any:
    """Import the module of a topic. Raises TriviumError if there is no such topic."""
    if name not in list_topics():
        near = did_you_mean(name, list_topics())
        raise TriviumError(f'there is no topic "{name}"; topics: {", ".join(list_topics())}.{near}')
    return import_module(f"trivium.explain.topics.{name.replace('-', '_')}")


def explain(topic: str, *args: Any, **options: Any) -> Page:
    """Return the page that explains a topic.

    `args` and `options` are the arguments and options that `trivium explain TOPIC --help` lists.
    """
    return load_topic(topic).explain(*args, **options)
