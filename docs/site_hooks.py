"""Hooks of MkDocs: a source file that a page links to becomes a page of the site, TeX MathML.

A folder in the navigation stands for all pages inside it.

Chinese pages have the Chinese texts of the theme around them.

On a code host `[trainer](../src/trivium/train/trainer.py)` leads to the file; here to a page with
its text, so that the site needs nothing outside its folder. Formulas between dollar signs
are rendered by the code host; here they become MathML, which browsers show without a script.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
ROOT = DOCS.parent
# Blocks and spans of code, which stay, or a formula in a line of its own or within one.
FORMULA = re.compile(r"(^```.*?^```|`[^`\n]*`)|\$\$(.+?)\$\$|\$([^$\n]+?)\$", re.S | re.M)
LINK = re.compile(r"\]\(((?:\.\./)+[\w./-]+)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """Replace every folder in the navigation by the pages inside it."""
    config.nav = _with_pages(config.nav)
    return config


def _with_pages(nav: Any) -> Any:
    """The navigation with a list of pages, the index first, in place of each `folder/`."""
    if isinstance(nav, list):
        return [_with_pages(one) for one in nav]
    if isinstance(nav, dict):
        return {title: _with_pages(one) for title, one in nav.items()}
    if not nav.endswith("/"):
        return nav
    pages = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / nav).glob("*.md"))
    folders = [path for path in (DOCS / nav).iterdir() if path.is_dir()]
    index = f"{nav}index.md"
    inner = [{path.name: f"{nav}{path.name}/"} for path in sorted(folders)]
    listed = [index, *({Path(page).stem: page} for page in pages if page != index)]
    return [*listed, *_with_pages(inner)]


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every file outside docs/ that a page links to."""
    linked = {
        _target(file.src_uri, match[1])
        for file in files.documentation_pages()
        for match in LINK.finditer(file.content_string)
    }
    for name in sorted(name for name in linked if not name.startswith("docs/")):
        files.append(File.generated(config, _page(name), content=_content(name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to files outside docs/ to their pages; make formulas of the book MathML."""
    here = page.file.src_uri
    if here.startswith("book/"):
        markdown = FORMULA.sub(_mathml, markdown)

    def replace(match: re.Match[str]) -> str:
        target = _target(here, match[1])
        if target.startswith("docs/"):
            return match[0]
        path = posixpath.relpath(_page(target), posixpath.dirname(here) or ".")
        return f"]({path}{match[2] or ''})"

    return LINK.sub(replace, markdown)


def on_page_context(context: Any, page: Any, config: Any, **_: Any) -> Any:
    """Set the language of the page (`lang` of <html>) and of the theme's texts around it."""
    config.theme["language"] = "zh" if "/zh/" in page.file.src_uri else "en"
    return context


def _mathml(match: re.Match[str]) -> str:
    code, block, inline = match.groups()
    if code is not None:
        return code
    if inline:
        return convert(inline.strip())
    return f'<div class="formula">{convert(block.strip(), display="block")}</div>'


def _target(page: str, link: str) -> str:
    """The file that a link of a page leads to, relative to the root of the repository."""
    return posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))


def _page(name: str) -> str:
    return f"source/{name.removesuffix('.md')}.md"


def _content(name: str) -> str:
    path = ROOT / name
    if path.is_dir():
        listing = "\n".join(sorted(one.name for one in path.iterdir() if one.name[0] not in "_."))
        text, language = listing, "text"
    else:
        text = path.read_text(encoding="utf-8")
        language = {".py": "python", ".toml": "toml"}.get(path.suffix, "text")
    hidden = "---\nsearch:\n  exclude: true\nhide: [navigation, toc]\n---\n"
    if path.suffix == ".md":
        return f"{hidden}\n{text}"
    return f"{hidden}\n# {name}\n\n~~~~~{language}\n{text}\n~~~~~\n"
