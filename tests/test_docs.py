"""The reference pages are what the program would write, and the examples of all pages work."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import pytest
import typer

import trivium
from trivium.cli import commands, main
from trivium.data.documents import read_documents
from trivium.objectives import (
    Chat,
    QuestionAnswering,
    Tagging,
    TextClassification,
    Translation,
)
from trivium.train.recipe_loading import build_recipe

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAMES = [page.relative_to(DOCS).as_posix() for page in PAGES]
TUTORIALS = [name for name in NAMES if name.startswith("tutorials/")]
# In place of the minutes of the pages: the same work in a few small steps.
PRETRAIN = ("train.steps=2", "train.batch_tokens=256", "train.eval_tokens=256", "data.length=64")
FINETUNE = ("train.steps=2", "train.batch_examples=8", "data.validation=0.02")
FINETUNE_GENERATED = (*FINETUNE, "train.eval_examples=2")


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return load_script("make_reference")


run_examples = load_script("run_examples")


def test_reference_pages_are_up_to_date(reference: ModuleType) -> None:
    for page, make in (("cli.md", "command_line"), ("recipe.md", "recipe_keys")):
        written = (DOCS / page).read_text(encoding="utf-8")
        assert written == getattr(reference, make)(), f"docs/{page} is out of date: `make docs`"


def test_every_recipe_key_has_a_description(reference: ModuleType) -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \|.*\| (.*) \|$", reference.recipe_keys(), re.MULTILINE)
    assert len(rows) > 80
    assert [key for key, description in rows if not description.strip()] == []


def test_links_of_the_docs_lead_to_files() -> None:
    for page in PAGES:
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page.name


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for name in NAMES if f": {name}\n" not in navigation] == []


def test_the_python_page_has_all_public_names() -> None:
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    for path in re.findall(r"^::: (\S+)", page, re.MULTILINE):
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path
    missing = [name for name in trivium.__all__ if name.rpartition("__")[2] and name not in page]
    assert missing == []


def test_commands_that_pages_mention_have_these_options() -> None:
    """Also those in running text, and those that are for other machines."""
    lines = [line for page in (*PAGES, ROOT / "README.md") for line in mentioned(page)]
    assert len(lines) > 100
    for line in lines:
        _, command, *arguments = shlex.split(line, comments=True)
        if command == "--help":
            continue
        assert command in commands(), line
        module, _ = commands()[command]
        parsed: Any = typer.main.get_command(importlib.import_module(module).app)
        if hasattr(parsed, "commands") and arguments:
            parsed = parsed.commands[arguments.pop(0)]
        known = {name for one in parsed.params for name in (*one.opts, *one.secondary_opts)}
        given = {part.partition("=")[0] for part in arguments if part.startswith("--")}
        assert given <= known | {"--help"}, line


def mentioned(page: Path) -> Iterator[str]:
    """The `trivium` commands of a page; of generated ones, those in blocks."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```(?:bash|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.split(r" \| (?=trivium )", line)[-1]
            command = re.sub(r"^(\w+=\S+ )+", "", command)
            if command.startswith("trivium "):
                yield command
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for command in re.findall(r"`(trivium [^`\n]+)`", text):
        if not re.search(r"[A-Z]{3,}|\.\.\.", command):
            yield command


def files_of(name: str) -> dict[str, str]:
    """The files that a page shows, by name."""
    page = (DOCS / name).read_text(encoding="utf-8")
    return dict(example.file for example in run_examples.examples(page) if example.file)


def test_the_examples_of_data_formats_are_read(tmp_path: Path) -> None:
    for name, text in files_of("data.md").items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert len(list(read_documents(tmp_path / "texts"))) == 4
    readers = {
        "reviews.csv": TextClassification,
        "nli.jsonl": TextClassification,
        "names.conll": Tagging,
        "names.jsonl": Tagging,
        "questions.jsonl": QuestionAnswering,
        "pairs.tsv": Translation,
        "pairs.jsonl": Translation,
        "chats.jsonl": Chat,
    }
    assert readers.keys() == {one for one in files_of("data.md") if "/" not in one}
    for name, objective in readers.items():
        examples = list(objective().read([str(tmp_path / name)]))
        assert len(examples) == 2, name


def test_recipes_on_pages_are_recipes() -> None:
    found = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```toml[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            build_recipe(tomllib.loads(block), where=page.name)
            found += 1
    assert found >= 4


def test_forms_of_output() -> None:
    """What the comparison below tells apart, and what it does not."""
    assert agrees("done  5 steps\n", "done  7,000 steps in 3s\n") == []
    assert agrees("done  5 steps\n", "best  at step 3\n") == ["done  5 steps"]
    assert agrees(" 4.3%  the  The\n", " 0.1%  of  Of\n") == []
    assert agrees(" 4.3%  the  The\n", "of  Of\n") != []
    assert agrees("negative\t0.5\ttext\n", "positive\t0.9\ttext\n") == []
    assert agrees("negative\t0.5\ttext\n", "positive\n") != []
    assert agrees('{"a": [{"b": 1}]}\n', '{"a": [{"b": 2}]}\n') == []
    assert agrees('{"a": [{"b": 1}]}\n', '{"a": [{"c": 1}]}\n') != []


def agrees(documented: str, printed: str) -> list[str]:
    """Documented lines to whose form no printed line corresponds; `...` stands for any."""
    forms = {form(line) for line in printed.splitlines()}
    lines = (line for line in documented.splitlines() if line.strip() not in ("", "..."))
    return [line for line in lines if form(line) not in forms]


def form(line: str) -> Any:
    """The keys of JSON; a table's cells as words or numbers, and its label; or "text"."""
    if line.startswith("{"):
        return json.dumps(keys(json.loads(line)))
    cells = line.strip().split("\t") if "\t" in line else re.split(r"  +", line.strip())
    kinds = ["number" if re.fullmatch(r"-?[\d.,e+-]+%?", cell) else "text" for cell in cells]
    labelled = "\t" not in line and len(cells) > 1 and kinds[0] == "text"
    # A label is followed by free text, or by numbers whose count is the table's.
    if labelled and "number" not in kinds:
        return cells[0]
    return (cells[0] if labelled and cells[0].isidentifier() else "", *kinds)


def keys(value: Any) -> Any:
    """A JSON value without what its keys hold."""
    if isinstance(value, dict):
        return {name: keys(inner) for name, inner in value.items()}
    return [keys(inner) for inner in value[:1]] if isinstance(value, list) else None


class SmallRunner(run_examples.Runner):
    """Runs the commands of a page in this process, on tiny models and with few steps."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder)
        self.capsys, self.address = capsys, ""

    def run(self, command: str) -> str:
        program, *arguments = shlex.split(command)
        if program == "curl":
            return self.post(arguments)
        if program == "python":
            runpy.run_path(str(self.folder / arguments[0]), run_name="__main__")
        elif arguments[0] == "serve":
            options = ["--port", "0", "--no-playground"]
            output = self.serve([sys.executable, "-m", "trivium", *arguments, *options])
            (self.address,) = re.findall(r"http://(\S+:\d+)", output)
            for file in self.folder.glob("*.py"):
                text = file.read_text(encoding="utf-8")
                file.write_text(text.replace(run_examples.SERVER, self.address), encoding="utf-8")
            return output
        else:
            code = main(smaller(arguments))
            output = self.capsys.readouterr()
            assert code == 0, f"{command}:\n{output.out}\n{output.err}"
            return output.err + output.out
        output = self.capsys.readouterr()
        return output.err + output.out

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
    line = re.sub(r" --set train\.minutes=\d+", "", shlex.join(arguments))
    tiny = [re.sub(r"(?<=-)mini$", "tiny", argument) for argument in shlex.split(line)]
    match arguments[0]:
        case "pretrain" if "--resume" in arguments:
            changes = ("train.steps=3",)
        case "pretrain" if any(one.endswith(".toml") for one in arguments):
            changes = ("train.eval_examples=2",)
        case "pretrain":
            changes = (*PRETRAIN, "tokenizer.vocab_size=1000")
        case "finetune":
            changes = FINETUNE_GENERATED if "translation" in arguments else FINETUNE
        case _:
            return arguments
    return [*tiny, *(part for change in changes for part in ("--set", change))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["index.md", "concepts.md", *TUTORIALS])
def test_the_examples_of_a_page_run_and_print_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "tutorials/finetuning.md":
        small = [part for change in PRETRAIN for part in ("--set", change)]
        assert main(["samples", "samples"]) == 0
        first = ["pretrain", "modernbert-tiny", "--data", "samples/english.txt"]
        assert (
            main([*first, "--out", "runs/bert", "--set", "tokenizer.vocab_size=1000", *small]) == 0
        )
        capsys.readouterr()
    page = (DOCS / name).read_text(encoding="utf-8")
    with SmallRunner(tmp_path, capsys) as runner:
        for example in run_examples.examples(page):
            if example.file:
                file, text = example.file
                text = text.replace("-mini", "-tiny").replace("minutes = 5", "steps = 2")
                (tmp_path / file).write_text(text, encoding="utf-8")
            printed = "".join(map(runner.run, example.commands))
            if example.output is not None:
                assert agrees(example.output, printed) == [], f"{example.commands}\n{printed}"


class Links(HTMLParser):
    """The links, ids and loaded files of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := values.get(name))}
        address = values.get("href") or values.get("src")
        if not address:
            return
        if tag == "a" or values.get("rel") in ("next", "prev", "canonical"):
            self.links.append(address)
        else:
            self.loaded.append(address)


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_needs_no_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs_material", reason="install the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = {}
    for path in tmp_path.rglob("*.html"):
        pages[path.resolve()] = links = Links()
        links.feed(path.read_text(encoding="utf-8"))
    assert len(pages) > 20
    for path, links in pages.items():
        assert [one for one in links.loaded if one.startswith(("http", "//"))] == [], path
        for link in (*links.links, *links.loaded):
            if re.match(r"[a-z]+:", link) or path.name == "404.html":
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / unquote(name)).resolve() if name else path
            assert target.exists(), f"{path}: {link}"
            if anchor and target in pages:
                assert unquote(anchor) in pages[target].ids, f"{path}: {link}"
