"""What the READMEs tell people to type works; training is cut to a few tiny steps."""

from __future__ import annotations

import json
import lzma
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from trivium.cli import VERBS
from trivium.data.samples import sample

ROOT = Path(__file__).parent.parent
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
# Appended to every `trivium pretrain`: the same way, but two small steps.
SMALL = {
    "train.steps": 2,
    "train.batch_tokens": 256,
    "train.micro_batch": 4,
    "train.eval_tokens": 256,
    "data.length": 64,
}
# And to every `trivium finetune`.
FEW = ("train.steps=2", "train.batch=8", "data.validation=0.02")
ACTIVATE = ". .venv/bin/activate"


def blocks(readme: Path, language: str) -> list[str]:
    text = readme.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands(readme: Path) -> list[str]:
    return [line for block in blocks(readme, "bash") for line in block.splitlines() if line]


def run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def serve_shortly(arguments: list[str], folder: Path) -> None:
    """A server that is asked what it serves, and stopped."""
    command = [sys.executable, "-m", "trivium", *arguments, "--port", "0"]
    names = [Path(path).name for path in arguments[1:]]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            said = ""
            for line in server.stderr:
                said += line
                if found := re.search(r"(http://\S+) serves (.*)", line):
                    break
            else:
                raise AssertionError(said)
            assert found[2].split(", ") == names
            with urllib.request.urlopen(f"{found[1]}/v1/models", timeout=60) as answer:
                assert [model["id"] for model in json.load(answer)["data"]] == names
        finally:
            server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `my_texts/`, some of the bundled text."""
    texts = tmp_path / "my_texts"
    texts.mkdir()
    with lzma.open(sample("en"), "rt", encoding="utf-8") as file:
        documents = file.read(400_000).split("\n\n")[:-1]
    (texts / "one.txt").write_text("\n\n".join(documents[::2]), encoding="utf-8")
    (texts / "two.txt").write_text("\n\n".join(documents[1::2]), encoding="utf-8")
    return tmp_path


def test_both_languages_tell_the_same() -> None:
    assert commands(CHINESE) == commands(ENGLISH)
    assert blocks(CHINESE, "python") == blocks(ENGLISH, "python")


@pytest.mark.parametrize("readme", [ENGLISH, CHINESE])
def test_the_table_names_every_verb(readme: Path) -> None:
    named = re.findall(r"^\| `([a-z-]+)` \|", readme.read_text(encoding="utf-8"), re.MULTILINE)
    assert named == list(VERBS)


@pytest.mark.parametrize("readme", [ENGLISH, CHINESE])
def test_links_lead_somewhere(readme: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", readme.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [line.split()[1] for line in commands(ENGLISH) if line.startswith("make ")]
    assert targets == ["quickstart", "test", "check"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


@pytest.mark.slow
def test_the_commands_run(folder: Path) -> None:
    for line in commands(ENGLISH):
        if line.startswith("make ") or line == ACTIVATE:
            continue
        program, *arguments = shlex.split(line)
        assert program == "trivium"
        if arguments[0] == "serve":
            serve_shortly(arguments, folder)
            continue
        run(["-m", "trivium", *arguments, *_smaller(arguments)], folder)
    assert (folder / "runs" / "mine" / "report.html").is_file()
    assert (folder / "comparison.html").is_file()


@pytest.mark.slow
def test_the_python_example_runs(folder: Path) -> None:
    (example,) = blocks(ENGLISH, "python")
    small = ", ".join(f'"{key}={value}"' for key, value in SMALL.items())
    assert '"train.minutes=5"' in example
    output = run(["-c", example.replace('"train.minutes=5"', small)], folder)
    assert "weather" in output
    assert "110106428" in output


def _smaller(arguments: list[str]) -> list[str]:
    """What makes a command short; a resumed run keeps its shape and takes one more step."""
    if arguments[0] == "finetune":
        beams = ("task.beams=1",) if arguments[1] == "translation" else ()
        return [part for change in (*FEW, *beams) for part in ("--set", change)]
    if arguments[0] != "pretrain":
        return []
    if "--resume" in arguments:
        return ["--set", "train.steps=3"]
    changes = dict[str, object](SMALL)
    if "textbook-bert" in arguments:
        # BERT-base takes minutes a step on a CPU, so that its shape alone is made smaller.
        changes["model.preset"] = "bert-tiny"
    return [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
