"""The reference pages are what the program would write."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_reference"] = module
    spec.loader.exec_module(module)
    return module


def test_reference_pages_are_up_to_date(reference: ModuleType) -> None:
    for page, make in (("cli.md", "command_line"), ("recipe.md", "recipe_keys")):
        written = (DOCS / page).read_text(encoding="utf-8")
        assert written == getattr(reference, make)(), f"docs/{page} is out of date: `make docs`"


def test_every_recipe_key_has_a_description(reference: ModuleType) -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \|.*\| (.*) \|$", reference.recipe_keys(), re.MULTILINE)
    assert len(rows) > 80
    assert [key for key, description in rows if not description.strip()] == []


def test_links_of_the_docs_lead_to_files() -> None:
    for page in DOCS.glob("*.md"):
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page.name
