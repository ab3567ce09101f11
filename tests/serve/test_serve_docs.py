"""What docs/serving.md and docs/playground.md tell people to type works."""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from serving import running
from typer.main import get_command

from trivium.cli.serve import app as serve_command
from trivium.interop.folder import is_hugging_face

DOCS = Path(__file__).parents[2] / "docs"
SERVING, PLAYGROUND = DOCS / "serving.md", DOCS / "playground.md"
# Programs of others, which are not here; what they read is.
OTHERS = ("pip", "vllm", "python", "llama-server", "lm_eval")
URL = re.compile(r"(http://127\.0\.0\.1:8000|localhost:8000)")


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    lines = "".join(blocks(SERVING, "sh")).replace("\\\n", "").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


@pytest.fixture(scope="module")
def folder(paths, tmp_path_factory):
    """Runs of the names that the pages use."""
    folder = tmp_path_factory.mktemp("docs")
    for name, kind in {"names": "decoder", "bert": "encoder", "llama": "long"}.items():
        shutil.copytree(paths[kind], folder / "runs" / name)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with running({name: str(folder / "runs" / name) for name in ("names", "bert")}) as found:
        yield found


def test_every_command_is_one_that_is_known():
    programs = [arguments[0] for arguments in commands()]
    assert set(programs) == {"trivium", "curl", *OTHERS}
    verbs = {arguments[1] for arguments in commands() if arguments[0] == "trivium"}
    assert verbs == {"serve", "export"}  # the first is run by test_cli_serve.py


def test_curl_is_answered(server):
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    asked = [arguments for arguments in commands() if arguments[0] == "curl"]
    assert len(asked) == 2
    for arguments in asked:
        told = [URL.sub(server.url, argument) for argument in arguments]
        done = subprocess.run([*told, "--silent", "--fail"], capture_output=True, check=True)
        assert b'"model"' in done.stdout or b'"token"' in done.stdout


def test_the_export_is_one_that_others_read(folder, monkeypatch):
    monkeypatch.chdir(folder)
    exports = [arguments for arguments in commands() if arguments[:2] == ["trivium", "export"]]
    for arguments in exports:
        subprocess.run([sys.executable, "-m", *arguments], check=True, capture_output=True)
        assert is_hugging_face(folder / arguments[-1])


def test_python_of_the_server(server, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(secrets, "randbits", lambda _: 3)  # a drawn text may be empty
    client, loading = blocks(SERVING, "python")
    exec(URL.sub(server.url, client), {})
    assert len(capsys.readouterr().out) > 3
    found = {"trivium": __import__("trivium")}
    exec(loading, found)
    assert found["model"].generate("The", max_new_tokens=3)


def test_python_of_the_playground(folder, monkeypatch):
    pytest.importorskip("gradio")
    monkeypatch.chdir(folder)
    mounted, attention = blocks(PLAYGROUND, "python")
    found = {}
    exec(mounted, found)
    assert any(route.path == "/zh" for route in found["app"].routes)
    found = {}
    exec(attention, found)
    assert float(found["weights"][1][0, 1].sum(-1).mean()) == pytest.approx(1.0)


def test_options_are_those_of_the_command():
    named = set(re.findall(r"`(--[a-z-]+)", SERVING.read_text(encoding="utf-8")))
    known = {name for option in get_command(serve_command).params for name in option.opts}
    assert named - known <= {"--quantize", "--dtype"} <= known
