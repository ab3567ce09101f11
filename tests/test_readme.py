"""What the READMEs tell people to type works: every command, in this process, on tiny models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_examples import PRETRAIN, SmallRunner, agrees, check_page, run_examples

from trivium.cli import main
from trivium.interop.families import FAMILIES

ROOT = Path(__file__).parent.parent
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"


def blocks(readme: Path, language: str) -> list[str]:
    text = readme.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def shell_lines(readme: Path) -> list[str]:
    return [line for block in blocks(readme, "bash") for line in block.splitlines() if line]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `my_texts/`: some of the bundled text."""
    monkeypatch.chdir(tmp_path)
    assert main(["samples", "samples"]) == 0
    text = (tmp_path / "samples" / "english.txt").read_text(encoding="utf-8")
    documents = text[:300_000].split("\n\n")[:-1]
    (tmp_path / "my_texts").mkdir()
    for name, part in (("one.txt", documents[::2]), ("two.txt", documents[1::2])):
        (tmp_path / "my_texts" / name).write_text("\n\n".join(part), encoding="utf-8")
    return tmp_path


def test_both_languages_have_the_same_commands_and_output() -> None:
    assert shell_lines(CHINESE) == shell_lines(ENGLISH)
    assert blocks(CHINESE, "text") == blocks(ENGLISH, "text")
    assert blocks(CHINESE, "python") == blocks(ENGLISH, "python")
    for readme in (ENGLISH, CHINESE):
        text = readme.read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)#:]+)\)", text)
        assert links
        assert [link for link in links if not (ROOT / link).exists()] == []


def test_they_count_the_hugging_face_families_that_are_read() -> None:
    for readme in (ENGLISH, CHINESE):
        text = readme.read_text(encoding="utf-8")
        (line,) = (one for one in text.splitlines() if "`model_type`" in one)
        sentence = line.partition("`model_type`")[2]
        assert f" {len(FAMILIES)} " in sentence
        assert {*re.findall(r"`([a-z0-9_-]+)`", sentence)} <= {*FAMILIES}
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z0-9_-]+)` \| yes \|", index, re.M) == sorted(FAMILIES)
    concepts = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    cells = "".join(line.split(" | ")[-1] for line in concepts.splitlines() if "-mini` |" in line)
    assert {*re.findall("`([a-z0-9_-]+)`", cells)} <= {*FAMILIES}


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [line.split()[1] for line in shell_lines(ENGLISH) if line.startswith("make ")]
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


@pytest.mark.filterwarnings("ignore:a text ends at its limit")  # after two steps
def test_the_commands_run_and_print_what_is_said(folder: Path) -> None:
    with SmallRunner(folder) as runner:
        check_page(ENGLISH, runner)
    assert (folder / "runs" / "bert" / "report.html").is_file()
    assert (folder / "comparison.html").is_file()


@pytest.mark.slow
def test_the_quickstart_prints_what_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = run_examples.examples(ENGLISH.read_text(encoding="utf-8"))
    (shown,) = (each for each in examples if "make quickstart" in each.commands)
    assert main(["quickstart", "--minutes", "0.1"]) == 0
    assert agrees(shown.output, capsys.readouterr().err) == []


def test_the_python_example_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks(ENGLISH, "python")
    assert '"train.minutes=5"' in example
    assert '"gpt2-mini"' in example
    small = ", ".join(f'"{change}"' for change in PRETRAIN)
    shortened = example.replace('"train.minutes=5"', small).replace("gpt2-mini", "gpt2-tiny")
    exec(compile(shortened, "README.md", "exec"), {})
    output = capsys.readouterr().out
    assert "weather" in output
    assert "encoder-only" in output


def test_pictures_are_small() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", ENGLISH.read_text(encoding="utf-8"))
    assert pictures
    assert sum((ROOT / picture).stat().st_size for picture in pictures) < 300_000
