"""What the READMEs tell people to type works: every command, in this process, on tiny models."""

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

from trivium.cli import commands, main
from trivium.data.samples import sample

ROOT = Path(__file__).parent.parent
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
# Appended to every `trivium pretrain` and `trivium finetune`: the same work, but two small steps.
PRETRAIN = ("train.steps=2", "train.batch_tokens=256", "train.eval_tokens=256", "data.length=64")
FINETUNE = ("train.steps=2", "train.batch_examples=8", "data.validation=0.02")


def blocks(readme: Path, language: str) -> list[str]:
    text = readme.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def shell_lines(readme: Path) -> list[str]:
    return [line for block in blocks(readme, "bash") for line in block.splitlines() if line]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """The current folder, with `my_texts/`: some of the bundled text."""
    texts = tmp_path / "my_texts"
    texts.mkdir()
    with lzma.open(sample("en"), "rt", encoding="utf-8") as file:
        documents = file.read(300_000).split("\n\n")[:-1]
    (texts / "one.txt").write_text("\n\n".join(documents[::2]), encoding="utf-8")
    (texts / "two.txt").write_text("\n\n".join(documents[1::2]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_both_languages_have_the_same_commands() -> None:
    assert shell_lines(CHINESE) == shell_lines(ENGLISH)
    assert blocks(CHINESE, "python") == blocks(ENGLISH, "python")
    for readme in (ENGLISH, CHINESE):
        text = readme.read_text(encoding="utf-8")
        named = re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)
        assert sorted(named) == sorted(commands())
        links = re.findall(r"\]\(([^)#]+)\)", text)
        assert links
        assert [link for link in links if not (ROOT / link).exists()] == []


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [line.split()[1] for line in shell_lines(ENGLISH) if line.startswith("make ")]
    assert targets == ["quickstart", "test", "check"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_the_commands_run(folder: Path, capsys) -> None:
    for line in shell_lines(ENGLISH):
        program, *arguments = shlex.split(line)
        if program != "trivium":
            continue
        if arguments[0] == "serve":
            serve_shortly(arguments, folder)
            continue
        code = main(shorter(arguments))
        output = capsys.readouterr()
        assert code == 0, f"{line}:\n{output.out}\n{output.err}"
    assert (folder / "runs" / "mine" / "report.html").is_file()
    assert (folder / "comparison.html").is_file()


def test_the_python_example_runs(folder: Path, capsys) -> None:
    (example,) = blocks(ENGLISH, "python")
    assert '"train.minutes=5"' in example
    assert '"gpt2-mini"' in example
    small = ", ".join(f'"{change}"' for change in PRETRAIN)
    shortened = example.replace('"train.minutes=5"', small).replace("gpt2-mini", "gpt2-tiny")
    exec(compile(shortened, "README.md", "exec"), {})
    output = capsys.readouterr().out
    assert "weather" in output
    assert "encoder-only" in output


def shorter(arguments: list[str]) -> list[str]:
    """The command with tiny models and two steps; a resumed run takes a third one."""
    line = re.sub(r" --set train\.minutes=\d+", "", shlex.join(arguments))
    tiny = [re.sub(r"(?<=-)(small|mini)$", "tiny", argument) for argument in shlex.split(line)]
    match arguments[0]:
        case "pretrain" if "--resume" in arguments:
            changes = ["train.steps=3"]
        case "pretrain":
            preset = ["model.preset=bert-tiny"] if "textbook-bert" in arguments else []
            changes = [*PRETRAIN, *preset]
        case "finetune":
            changes = list(FINETUNE)
        case _:
            return arguments
    return [*tiny, *(part for change in changes for part in ("--set", change))]


def serve_shortly(arguments: list[str], folder: Path) -> None:
    """Start a server, read its list of models, stop it."""
    command = [sys.executable, "-m", "trivium", *arguments, "--port", "0", "--no-playground"]
    names = [Path(path).name for path in arguments[1:]]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            output = ""
            for line in server.stderr:
                output += line
                if match := re.search(r"http://\S+:\d+", line):
                    break
            else:
                raise AssertionError(output)
            with urllib.request.urlopen(f"{match[0]}/v1/models", timeout=60) as answer:
                assert [model["id"] for model in json.load(answer)["data"]] == names
        finally:
            server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0
