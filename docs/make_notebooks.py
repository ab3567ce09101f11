"""Write the chapters of the book as Jupyter notebooks: `make notebooks`.

Commands become cells that run them, files cells that write them; what a page says they print is
left out, since running the cell prints it. A notebook runs from top to bottom in a folder of its
own.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

sys.path.insert(0, str(Path(__file__).parent))
from run_examples import BLOCK

BOOK = Path(__file__).parent / "book"


def prose(text: str) -> nbformat.NotebookNode:
    """A cell of text, without links between pages."""
    return new_markdown_cell(re.sub(r"\[([^]]+)\]\((?!http)[^)]+\)", r"\1", text))


def notebook(page: str) -> nbformat.NotebookNode:
    """The notebook of a page."""
    cells, end, after_commands = [], 0, False
    for block in BLOCK.finditer(page):
        between = page[end : block.start()].strip()
        is_output = block["language"] == "text" and after_commands and not between
        if between:
            cells.append(prose(between))
        body, end = block["body"].rstrip(), block.end()
        after_commands = block["language"] == "bash"
        if block["title"]:
            cells.append(new_code_cell(f"%%writefile {block['title']}\n{body}"))
        elif block["language"] == "bash":
            lines = body.replace("\\\n", " ").splitlines()
            cells.append(new_code_cell("\n".join(f"!{line}" for line in lines if line)))
        elif not is_output:
            cells.append(new_markdown_cell(block[0].rstrip()))
    if rest := page[end:].strip():
        cells.append(prose(rest))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def main() -> None:
    """Write every chapter in both languages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("notebooks"))
    out = parser.parse_args().out
    for page in sorted(BOOK.glob("*/*.md")):
        if page.stem in ("index", "names"):
            continue
        path = out / page.parent.name / f"{page.stem}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook(page.read_text(encoding="utf-8")), path)
        print(path)


if __name__ == "__main__":
    main()
