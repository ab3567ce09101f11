"""Hooks of MkDocs: a source file that a page links to becomes a page of the site, TeX MathML.

A folder in the navigation stands for all pages inside it.

The site has two languages in one build, so that pages of both can link to each other and one search
finds all. The two first levels of the navigation in mkdocs.yml are the languages. A page shows the
navigation and the theme's texts of its language, and the switch in the header leads to the same
page in the other language, or to the first page of that language.

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
from mkdocs.structure.nav import Navigation, Section

DOCS = Path(__file__).parent
ROOT = DOCS.parent
HOME = {"en": "index.md", "zh": "zh/index.md"}
"""The first page of each language, in the order of the navigation."""
ENGLISH = {"zh/recipe.md": "reference/recipe/index.md"}
"""The English page of a Chinese page that has another name."""
navigations: dict[str, Navigation] = {}
"""Navigation per language, filled by `on_nav`."""
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


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    """Divide the navigation into one per language. Returns the English one."""
    for language, section in zip(HOME, nav.items, strict=True):
        assert isinstance(section, Section)
        for item in section.children:
            item.parent = None
        pages = [page for page in nav.pages if _language(page.file.src_uri) == language]
        pages[0].previous_page = pages[-1].next_page = None
        navigations[language] = Navigation(section.children, pages)
        navigations[language].homepage = pages[0]
    return navigations["en"]


def on_page_context(context: Any, page: Any, config: Any, **_: Any) -> Any:
    """Set what depends on the language: `lang` of <html>, texts, navigation and the switch."""
    here = page.file.src_uri
    language = _language(here)
    config.theme["language"] = language
    context["nav"] = navigations[language]
    for other in config.extra["alternate"]:
        source = here if other["lang"] == language else _translation(here)
        other["link"] = source.removesuffix(".md") + ".html"
    return context


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Give the search dialog, which the theme leaves without a name, a name for screen readers."""
    name = {"en": "Search", "zh": "\u641c\u7d22"}[_language(page.file.src_uri)]
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="{name}"')


def _language(page: str) -> str:
    return "zh" if "zh" in page.split("/") else "en"


def _translation(page: str) -> str:
    """The page in the other language, or the first page of that language."""
    if _language(page) == "zh":
        names = [page.replace("zh/", "en/", 1), page.replace("zh/", "", 1)]
        names = [ENGLISH.get(page, ""), *names, HOME["en"]]
    else:
        folder, name = posixpath.split(page)
        names = [page.replace("/en/", "/zh/"), f"{folder}/zh/{name}", f"zh/{page}", HOME["zh"]]
    return next(name for name in names if name not in ("", page) and (DOCS / name).exists())


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
