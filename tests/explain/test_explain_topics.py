"""Every topic, by being there: its page in both languages, as text, HTML and JSON."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from trivium.errors import TriviumError
from trivium.explain import Bilingual, explain, load_topic, topic_names
from trivium.explain.page import say


class _Balanced(HTMLParser):
    """Every element is closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)
        assert not any(name in ("src", "href") for name, _ in attrs), "no links"

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", topic_names())
def test_every_topic(name):
    summary = load_topic(name).SUMMARY
    assert isinstance(summary, Bilingual)
    page = explain(name)
    english, chinese = page.text("en"), page.text("zh")
    assert say(page.title, "en") in english
    assert say(page.title, "zh") in chinese
    assert any("\u4e00" <= character <= "\u9fff" for character in say(page.title, "zh"))
    assert json.loads(json.dumps(page.facts))
    for language in ("en", "zh"):
        reader = _Balanced()
        reader.feed(page.html(language))
        assert not reader.open


def test_an_unknown_topic_is_refused_with_the_nearest():
    with pytest.raises(TriviumError, match='Did you mean "norm"'):
        explain("nrom")
