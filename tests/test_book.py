"""The chapters of the book: in both languages, with what the list of the textbooks says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from page_examples import SmallRunner, check_notebook, check_page

BOOK = Path(__file__).parent.parent / "docs" / "book"
ITEMS = tomllib.loads((BOOK / "coverage.toml").read_text(encoding="utf-8"))["items"]
CHAPTERS = sorted(page.stem for page in (BOOK / "en").glob("*.md"))
WRITTEN = [name for name in CHAPTERS if name not in ("index", "names")]
KINDS = {"listing", "formula", "example", "table", "system", "term"}


def commands(language: str, name: str) -> list[str]:
    """The commands of a chapter, without the language they are shown in."""
    text = (BOOK / language / f"{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:bash|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for one in blocks for line in one.replace("\\\n", " ").splitlines() if line]
    lines += re.findall(r"`(trivium [^`\n]+)`", text)
    return [line.replace(" --language zh", "") for line in lines]


def does(line: str) -> tuple[str, ...]:
    """The command of a line, with its task or topic."""
    program, name, *rest = [*line.split(), ""]
    return (program, name, rest[0]) if name in ("explain", "finetune") else (program, name)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_is_the_same_in_both_languages(name):
    assert sorted(page.stem for page in (BOOK / "zh").glob("*.md")) == CHAPTERS
    if name == "alignment":  # its runs are of texts in each language
        return
    if name in WRITTEN:
        english, chinese = ({*map(does, commands(each, name))} for each in ("en", "zh"))
        assert english == chinese
    pages = [(BOOK / language / f"{name}.md").read_text("utf-8") for language in ("en", "zh")]
    headings, formulas = r"^(#+) ", r"\$\$(.+?)\$\$"
    english, chinese = (re.findall(headings, page, re.MULTILINE) for page in pages)
    assert english == chinese
    english, chinese = (re.findall(formulas, page, re.DOTALL) for page in pages)
    assert len(english) == len(chinese)


def test_every_item_is_on_its_page():
    for item in ITEMS:
        assert item["kind"] in KINDS, item
        assert item["page"] in WRITTEN, item
        if "command" in item:
            assert item["command"] in commands("en", item["page"]), item
        else:
            assert item["reason"], item
    assert {item["page"] for item in ITEMS} == {*WRITTEN}


def test_the_index_has_every_chapter():
    for language in ("en", "zh"):
        index = (BOOK / language / "index.md").read_text(encoding="utf-8")
        assert re.findall(r"\]\(([a-z-]+)\.md\)", index) != []
        assert {*re.findall(r"\]\(([a-z-]+)\.md\)", index)} == {*CHAPTERS} - {"index"}


@pytest.mark.slow
# Of models of a few steps, and of vocabularies learned from a little text.
@pytest.mark.filterwarnings("ignore:a text ends at its limit", "ignore:not in the vocabulary")
@pytest.mark.parametrize("name", WRITTEN)
def test_the_examples_of_a_chapter_run_and_print_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with SmallRunner(tmp_path) as runner:
        check_page(BOOK / "zh" / f"{name}.md", runner)


# The examples of all chapters run above; these show that the conversion to notebooks works.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["decoding", "tokenization", "transformer"])
def test_a_chapter_runs_as_a_notebook(name: str, tmp_path: Path) -> None:
    check_notebook(BOOK / "en" / f"{name}.md", tmp_path)
