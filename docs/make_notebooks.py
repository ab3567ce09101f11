"""Write the tutorials and the chapters of the book as Jupyter notebooks: `make notebooks`.

The first cell installs the wheel of Trivium, which is built beside the notebooks, and the packages
for which the page names `pip install`. Commands become cells that run them, files become cells that
write them. What a page says that they print is left out, since running the cell prints it. A server
runs in the background until the last cell. A notebook runs from top to bottom; the models go into
the folder of the notebook.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

sys.path.insert(0, str(Path(__file__).parent))
from run_examples import BLOCK

DOCS = Path(__file__).parent
FOLDERS = ("tutorials", "tutorials/zh", "book/en", "book/zh")
EXTRAS = "metrics,playground"
# Commands of the kernel's environment are found although nobody has activated the environment, and
# draw no progress bars, which a notebook shows as thousands of lines.
INSTALL = """\
%pip install --quiet {packages}
import os, sys
os.environ["TERM"] = "dumb"
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]"""
# What a page takes from an earlier page.
EARLIER = {
    "finetuning": (
        "trivium samples samples",
        "trivium pretrain modernbert-mini --data samples/english.txt --out runs/bert "
        "--set train.minutes=4",
    )
}
SERVE = """\
import subprocess
server = subprocess.Popen("exec {command} > server.log 2>&1", shell=True)
!until grep -q -e " serves " -e "^error" server.log; do sleep 1; done; cat server.log"""


def prose(text: str) -> nbformat.NotebookNode:
    """A cell of text, without links between pages."""
    return new_markdown_cell(re.sub(r"\[([^]]+)\]\((?!http)[^)]+\)", r"\1", text))


def code_of(commands: str) -> str:
    """Return the code of a cell that runs shell commands."""
    lines = [line for line in commands.replace("\\\n", " ").splitlines() if line]
    return "\n".join(
        SERVE.format(command=line) if line.startswith("trivium serve ") else f"!{line}"
        for line in lines
    )


def notebook(page: str, wheel: str, earlier: Iterable[str] = ()) -> nbformat.NotebookNode:
    """Return the notebook of a page.

    `wheel`: the path or address that the first cell installs. `earlier`: commands of other pages
    that the second cell runs.
    """
    packages = [f'"{wheel}[{EXTRAS}]"', *re.findall(r"`pip install ([\w-]+)`", page)]
    cells = [new_code_cell(INSTALL.format(packages=" ".join(packages)))]
    if earlier:
        cells.append(new_code_cell(code_of("\n".join(earlier))))
    end, after_commands = 0, False
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
            cells.append(new_code_cell(code_of(body)))
        elif not is_output:
            cells.append(new_markdown_cell(block[0].rstrip()))
    if rest := page[end:].strip():
        cells.append(prose(rest))
    if any("server = subprocess" in cell.source for cell in cells):
        cells.append(new_code_cell("server.terminate()"))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this project in a folder. Returns its path."""
    command = ["make", "--silent", "--directory", str(DOCS.parent), "wheel"]
    subprocess.run([*command, f"DIST={folder.resolve()}"], check=True)
    (wheel,) = folder.glob("trivium-*.whl")
    return wheel


def main() -> None:
    """Write the notebook of every tutorial and chapter in both languages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("notebooks"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel(out)
    for folder in FOLDERS:
        for page in sorted((DOCS / folder).glob("*.md")):
            if page.stem in ("index", "names"):
                continue
            path = out / folder / f"{page.stem}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            up = "/".join([".."] * len(Path(folder).parts))
            text = page.read_text(encoding="utf-8")
            made = notebook(text, f"{up}/{wheel.name}", EARLIER.get(page.stem, ()))
            nbformat.write(made, path)
            print(path)


if __name__ == "__main__":
    main()
