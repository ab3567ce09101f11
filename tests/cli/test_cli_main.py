"""The program itself: verbs found lazily, errors as one line, exit codes."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import types
import warnings

import pytest
import typer

from trivium import cli
from trivium.errors import DataError
from trivium.presets import presets


class Failing:
    """A verb module whose command raises what a test wants."""

    def __init__(self, error: BaseException) -> None:
        self.app = typer.Typer(add_completion=False)

        @self.app.command()
        def run() -> None:
            raise error


@pytest.fixture
def failing(monkeypatch):
    def install(error: BaseException) -> None:
        module = types.SimpleNamespace(app=Failing(error).app)
        monkeypatch.setitem(sys.modules, "trivium_failing_verb", module)
        monkeypatch.setitem(cli.VERBS, "fail", ("trivium_failing_verb", "Fails."))

    return install


@pytest.fixture(autouse=True)
def warnings_as_before(monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)


def program(*arguments: str, **changes) -> subprocess.CompletedProcess[str]:
    settings = {"capture_output": True, "text": True, "timeout": 60, **changes}
    return subprocess.run([sys.executable, "-m", "trivium", *arguments], **settings)


@pytest.mark.parametrize("arguments", [["--help"], ["presets"], ["--version"]])
def test_no_torch(arguments):
    code = (
        "import sys; from trivium.cli import main; code = main(sys.argv[1:]);"
        "assert 'torch' not in sys.modules and 'tokenizers' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_a_module_and_help(verb, capsys):
    assert isinstance(importlib.import_module(cli.VERBS[verb][0]).app, typer.Typer)
    assert cli.main([verb, "--help"]) == 0
    assert "Examples" in capsys.readouterr().out or verb == "tokenizer"


def test_help_lists_the_verbs(capsys):
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out and line in out for verb, (_, line) in cli.VERBS.items())


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["pretrian"], "there is no verb 'pretrian'. Did you mean \"pretrain\"?"),
        (["--nonsense"], "--nonsense"),
        (["presets", "--nonsense"], "--nonsense"),
        (["generate"], "MODEL"),
        ([], "Usage"),
    ],
)
def test_wrong_usage(arguments, what, capsys):
    assert cli.main(arguments) == 2
    assert what.lower() in capsys.readouterr().err.lower()


def test_user_errors_are_one_line(failing, capsys):
    failing(DataError("bad.txt is empty."))
    assert cli.main(["fail"]) == 1
    assert capsys.readouterr() == ("", "error: bad.txt is empty.\n")


def test_full_disk(failing, capsys):
    failing(OSError(28, "No space left on device", "out.bin"))
    assert cli.main(["fail"]) == 1
    assert capsys.readouterr().err == "error: out.bin: No space left on device.\n"


class Interrupted(KeyboardInterrupt):
    """As the training loop's."""


def test_interrupted(failing, capsys):
    failing(Interrupted("saved; go on with --resume"))
    assert cli.main(["fail"]) == 130
    assert capsys.readouterr().err == "\nsaved; go on with --resume\n"
    failing(KeyboardInterrupt())
    assert cli.main(["fail"]) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


def test_debug_shows_the_traceback(failing):
    failing(DataError("bad.txt is empty."))
    with pytest.raises(DataError):
        cli.main(["--debug", "fail"])


def test_bugs_keep_their_traceback(failing):
    failing(ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        cli.main(["fail"])


def test_warnings_are_one_line(capsys):
    cli.main(["--version"])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = cli._show_warning
        warnings.warn("careful", stacklevel=1)
    assert capsys.readouterr().err == "warning: careful\n"


def test_reader_that_goes_away():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as out:
        done = program("presets", stdout=out, stderr=subprocess.PIPE, capture_output=False)
    assert (done.returncode, done.stderr) == (cli.READER_GONE, "")


def test_python_dash_m_and_the_process_exit_code():
    done = program("presets", "no-such-thing")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no preset")


def test_presets_table_and_json(capsys):
    assert cli.main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(presets)
    assert cli.main(["presets", "LLAMA3-", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = ["llama3-tiny", "llama3-mini", "llama3-8b", "llama3-70b"]
    assert [row["name"] for row in rows] == names
    rows = rows[2:]
    assert rows[0]["parameters"] == 8_030_261_248
    assert (rows[0]["num_heads"], rows[0]["num_kv_heads"], rows[0]["context"]) == (32, 8, 8192)
