"""Every topic, by being there: its page in both languages, as text, HTML and JSON."""

from __future__ import annotations

import json
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from trivium import cli
from trivium.errors import TriviumError
from trivium.explain import Bilingual, explain, get_topic_summary, list_topics
from trivium.explain import page as page_module
from trivium.explain.page import render
from trivium.explain.topics import replaced_token


class _Balanced(HTMLParser):
    """Every element is closed where it should be, and every picture has a name."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)
        assert not any(name in ("src", "href") for name, _ in attrs), "no links"
        assert tag != "svg" or dict(attrs).get("aria-label", "").strip()

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", list_topics())
def test_every_topic(name):
    summary = get_topic_summary(name)
    assert isinstance(summary, Bilingual)
    page = explain(name)
    english, chinese = page.text("en"), page.text("zh")
    assert render(page.title, "en") in english
    assert render(page.title, "zh") in chinese
    assert any("\u4e00" <= character <= "\u9fff" for character in render(page.title, "zh"))
    assert json.loads(json.dumps(page.data))
    for language in ("en", "zh"):
        reader = _Balanced()
        reader.feed(page.html(language))
        assert not reader.open


def test_a_negative_number_is_no_option(capsys):
    assert cli.main(["explain", "feed-forward", "1", "-1", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert cli.main(["explain", "feed-forward", "1", "--no-such-option"]) == 2
    assert "No such option: --no-such-option" in capsys.readouterr().err


def test_an_unknown_topic_is_refused_with_the_nearest():
    with pytest.raises(TriviumError, match='Did you mean "norm"'):
        explain("nrom")


def test_every_text_is_used_and_its_languages_have_the_same_fields():
    folder = Path(page_module.__file__).parent
    known = {
        f"{table}.{name}": languages
        for table, texts in tomllib.loads((folder / "texts.toml").read_text("utf-8")).items()
        for name, languages in texts.items()
    }
    source = "".join(file.read_text("utf-8") for file in folder.rglob("*.py"))
    used = {*re.findall(r'get_text\(\s*"([\w.]+)"', source)}
    used |= {f"{name.replace('-', '_')}.summary" for name in list_topics()}
    used |= {f"replaced_token.{name}" for name in replaced_token._COLUMNS}
    assert used == known.keys()
    for name, (english, chinese) in known.items():
        fields = [sorted(re.findall(r"{(\w*)", text)) for text in (english, chinese)]
        assert fields[0] == fields[1], name
        assert re.search("[\u4e00-\u9fff]", chinese) or not re.search("[a-z]{4} [a-z]", english)
