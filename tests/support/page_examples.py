"""The examples of README and docs as tests run them: in one process, small, with little text."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import runpy
import shlex
import sys
import urllib.request
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from trivium.cli import main

DOCS = Path(__file__).parents[2] / "docs"
# In place of the minutes of the pages: the same work in a few small steps.
PRETRAIN = ("train.steps=2", "train.batch_tokens=256", "train.eval_tokens=256", "data.length=64")
FINETUNE = ("train.steps=2", "train.batch_examples=8", "data.validation=0.02")
FINETUNE_GENERATED = (*FINETUNE, "train.eval_examples=2")
SLOW = ("prepared ", "encoding", "forecast ", "warning ")
"""Lines that appear only where something takes long, or is short."""
TEXT_BYTES, SENTENCES = 300_000, 200
"""What is kept of the bundled text, and of the sentences of reviews."""


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


run_examples = load_script("run_examples")


def agrees(documented: str, printed: str) -> list[str]:
    """Documented lines to whose form no printed line corresponds; `...` stands for any."""
    forms = {form(line) for line in printed.splitlines()}
    lines = (line for line in documented.splitlines() if line.strip() not in ("", "..."))
    return [line for line in lines if not line.startswith(SLOW) and form(line) not in forms]


def form(line: str) -> Any:
    """The keys of JSON, a table's heading or number of columns; else words or numbers, labelled."""
    if line.startswith("{"):
        return json.dumps(keys(json.loads(line)), sort_keys=True)
    if " | " in line:
        line = re.sub(r" on [\d,]+$", "", line)  # a heading's "bleu on 2": tests evaluate less
        columns = tuple(cell.strip() for cell in line.split("|"))
        return len(columns) if re.search(r"\d", line) else columns
    cells = line.strip().split("\t") if "\t" in line else re.split(r"  +", line.strip())
    kinds = ["number" if re.fullmatch(r"-?[\d.,e+-]*\d%?", cell) else "text" for cell in cells]
    if re.fullmatch(r"[\d.]+%|-?\d+\.\d{4}", cells[0]):  # a probability or score, then any token
        return ("%" in cells[0], len(cells))
    labelled = "\t" not in line and len(cells) > 1 and kinds[0] == "text"
    # A label is followed by free text, or by numbers whose count is the table's.
    if labelled and "number" not in kinds:
        return re.sub(r"[\d.,]+", "0", cells[0])
    return (cells[0] if labelled and cells[0].isidentifier() else "", *kinds)


def keys(value: Any) -> Any:
    """A JSON value without what its keys hold."""
    if isinstance(value, dict):
        return {name: keys(inner) for name, inner in value.items()}
    return [keys(inner) for inner in value[:1]] if isinstance(value, list) else None


class SmallRunner(run_examples.Runner):
    """Runs the commands of a page in this process, on tiny models and with few steps."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = run_examples.SERVER

    def run(self, command: str) -> str:
        program, *arguments = shlex.split(command)
        if program == "curl":
            return self.post(arguments)
        if arguments[0] == "serve":
            options = ["--port", "0", "--no-playground"]
            output = self.serve([sys.executable, "-m", "trivium", *arguments, *options])
            (self.address,) = re.findall(r"http://(\S+:\d+)", output)
            return output
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            if program == "python":
                runpy.run_path(str(self.folder / arguments[0]), run_name="__main__")
            else:
                code = main(smaller(arguments))
                assert code == 0, f"{command}:\n{printed.getvalue()}"
        if arguments[0] == "samples":
            self.shorten_text()
        return printed.getvalue()

    def shorten_text(self) -> None:
        for path in self.folder.glob("samples/[ecs]*.txt"):
            text = path.read_text(encoding="utf-8")[:TEXT_BYTES]
            path.write_text(text.rpartition("\n\n")[0], encoding="utf-8")
        for path in self.folder.glob("samples/movies.jsonl"):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            path.write_text("".join(lines[:SENTENCES]), encoding="utf-8")

    def post(self, arguments: list[str]) -> str:
        address = next(one for one in arguments if one.startswith("http"))
        request = urllib.request.Request(
            address.replace(run_examples.SERVER, self.address),
            arguments[arguments.index("-d") + 1].encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode() + "\n"


def smaller(arguments: list[str]) -> list[str]:
    """A command with tiny models and few steps; a resumed run takes one more."""
    line = re.sub(r" --set train\.(minutes|epochs)=\d+", "", shlex.join(arguments))
    tiny = [re.sub(r"(?<=-)mini$", "tiny", argument) for argument in shlex.split(line)]
    match arguments[0]:
        case "pretrain" if "--resume" in arguments:
            changes = ("train.steps=3",)
        case "pretrain" if arguments[1] == "textbook-transformer-mini":  # a recipe
            tiny[1], changes = arguments[1], FINETUNE_GENERATED
        case "pretrain" if any(one.endswith(".toml") for one in arguments):
            changes = ("train.eval_examples=2",)
        case "pretrain" if arguments[1] in ("ngram-add-k", "ngram-kneser-ney"):
            changes = (*PRETRAIN[1:], "tokenizer.vocab_size=1000")  # counted once, without a budget
        case "pretrain":
            new = "/" not in arguments[1]  # a preset, not a folder, which has its tokenizer
            size = 4000 if "samples/chinese.txt" in arguments else 1000  # it has more characters
            changes = (*PRETRAIN, *([f"tokenizer.vocab_size={size}"] if new else []))
        case "finetune":
            changes = FINETUNE_GENERATED if "translation" in arguments else FINETUNE
            if "--validation" in arguments:
                changes = FINETUNE[:-1]
        case _:
            return arguments
    return [*tiny, *(part for change in changes for part in ("--set", change))]


def smaller_file(text: str) -> str:
    """A file that the reader writes, with tiny models and few steps."""
    text = re.sub(r"^(minutes|steps) = \d+$", "steps = 2", text, flags=re.MULTILINE)
    return text.replace("-mini", "-tiny")


def check_page(page: Path, runner: SmallRunner) -> None:
    """Run the examples of a page and compare what they print with what it says."""
    for example in run_examples.examples(page.read_text(encoding="utf-8")):
        if any(command.startswith("make ") for command in example.commands):
            continue
        if example.file:
            name, text = example.file
            text = smaller_file(text).replace(run_examples.SERVER, runner.address)
            (runner.folder / name).write_text(text, encoding="utf-8")
        printed = "".join(map(runner.run, example.commands))
        if example.output is not None:
            assert agrees(example.output, printed) == [], f"{example.commands}\n{printed}"


# The commands of later cells run in the notebook's own process, small, and print plain text.
FIRST_CELL = f"""
import os
import sys
from pathlib import Path

import rich.console

sys.path.insert(0, {str(Path(__file__).parent)!r})
from page_examples import SmallRunner

rich.console._is_jupyter = lambda: False
del os.environ["FORCE_COLOR"]
shell, runner = get_ipython(), SmallRunner(Path.cwd())
shell.system = lambda line: print(runner.run(shell.var_expand(line)), end="")
shell.input_transformers_cleanup.append(
    lambda lines: [line.replace({run_examples.SERVER!r}, runner.address) for line in lines]
)
"""


def check_notebook(page: Path, folder: Path) -> None:
    """Run a page as the notebook that is made of it and compare what its cells print."""
    text = page.read_text(encoding="utf-8")
    script = load_script("make_notebooks")
    earlier = script.EARLIER.get(page.stem, ())
    made = script.notebook(text, "trivium.whl", earlier)
    assert made.cells[0].source.startswith("%pip install")
    made.cells[0] = new_code_cell(FIRST_CELL)
    if made.cells[-1].source == "server.terminate()":
        made.cells.pop()
    code = [cell for cell in made.cells[1:] if cell.cell_type == "code"]
    for cell in code:
        if cell.source.startswith("%%writefile"):
            cell.source = smaller_file(cell.source)
        if served := re.search(r'Popen\("exec (trivium serve [^">]+?) >', cell.source):
            cell.source = f"!{served[1]}"  # the runner starts a server on a free port
    NotebookClient(made, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    for cell, example in zip(
        code[1:] if earlier else code, run_examples.examples(text), strict=True
    ):
        if example.output is not None:
            printed = "".join(output["text"] for output in cell.outputs)
            assert agrees(example.output, printed) == [], f"{cell.source}\n{printed}"
