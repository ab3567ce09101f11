"""The programs of docs/parts.md run, on a little text and with few steps."""

from __future__ import annotations

import lzma
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch
import uvicorn
from own_kinds import own_kinds
from starlette.testclient import TestClient

from trivium import nn, spec
from trivium.data.samples import sample_path

PAGE = (Path(__file__).parent.parent / "docs" / "parts.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r'^```python title="(\S+)"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = re.findall(r"^python (.+)$", PAGE, re.MULTILINE)
# Fewer steps; the differences between them stay.
SHORTER = {
    "], vocab_size=1000)": "], vocab_size=300)",
    "STEPS, stop = 200": "STEPS, stop = 4",
    "STEPS = 300": "STEPS = 2",
    '"steps": 300, "log_every": 100': '"steps": 2, "batch_tokens": 256, "eval_tokens": 256',
    "width: int = 128, layers: int = 4": "width: int = 32, layers: int = 2",
}
FEWER = {"loop.py 100": "loop.py 2", "loop.py 200": "loop.py 4", "steps=400": "steps=3"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """The current folder, with the programs and a little text; nothing of it stays imported."""
    (tmp_path / "samples").mkdir()
    with lzma.open(sample_path("en"), "rt", encoding="utf-8") as file:
        (tmp_path / "samples" / "english.txt").write_text(file.read(60_000), encoding="utf-8")
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(shortened(program, SHORTER), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def shortened(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def run(command: str, monkeypatch) -> dict[str, object]:
    """Run a program as in a process of its own: what it defines."""
    name, *arguments = shlex.split(shortened(command, FEWER))
    modules = {*sys.modules}
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    try:
        with own_kinds():
            return runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
        return {}
    finally:
        for module in {*sys.modules} - modules & {Path(one).stem for one in PROGRAMS}:
            del sys.modules[module]


def test_every_program_runs(folder: Path, monkeypatch, capsys) -> None:
    for change in (*SHORTER, *FEWER):
        assert change in PAGE, change
    assert {command.split()[0] for command in COMMANDS} == PROGRAMS.keys()
    output = {}
    for command in COMMANDS:
        defined = run(command, monkeypatch)
        output[command] = "".join(capsys.readouterr())
    assert "504 labels, " in output["transformer.py"]
    assert "(259, 257, 32, 257, 110, 258)\n" in output["tokens.py"]
    assert "resumed after step 2\n" in output["loop.py 200"]
    for checkpoint in (folder / "checkpoints").iterdir():
        checkpoint.rename(folder / checkpoint.name)
    run("loop.py 200", monkeypatch)
    whole, resumed = (path / "step-00000004" for path in (folder / "checkpoints", folder))
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (whole / name).read_bytes() == (resumed / name).read_bytes()
    assert re.search(r"training +3 steps", output[COMMANDS[-2]])
    assert "('logits', 'generate', 'score')\n" in output["own_model.py"]
    serve(defined, monkeypatch)


def serve(defined: dict[str, object], monkeypatch) -> None:
    """Run the lines that serve the model of `own_model.py`, and ask as the page does."""
    (lines,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    served = []
    monkeypatch.setattr(uvicorn, "run", lambda app, port: served.append(app))
    exec(compile(lines, "parts.md", "exec"), dict(defined))
    (body,) = re.findall(r"-d '(.+)'$", PAGE, re.MULTILINE)
    headers = {"content-type": "application/json"}
    with TestClient(served[0]) as client:
        answer = client.post("/v1/completions", content=body, headers=headers)
        models = client.get("/v1/models").json()["data"]
    assert answer.status_code == 200, answer.text
    assert 0 < answer.json()["usage"]["completion_tokens"] <= 12  # it may end its text itself
    assert {"/v1/completions", "/v1/score", "/v1/tokenize"} <= {*models[0]["endpoints"]}


def test_other_descriptions_that_the_page_names() -> None:
    base = spec.Layer(
        mixer=spec.Attention(num_heads=4, head_dim=8),
        feed_forward=spec.MLP(d_ff=16, activation="gelu"),
        norm=spec.LayerNorm(),
        norm_placement="post",
    )
    x, sequence = torch.randn(2, 5, 32), nn.SequenceInfo.of_length(5, causal=True)
    for changes in (
        {"pattern": spec.Sliding(window=2), "num_kv_heads": 2},
        {"positions": spec.ALiBi()},
    ):
        block = base.replace(mixer=base.mixer.replace(**changes)).build(32)
        y, loss = block(x, sequence)
        assert y.shape == x.shape
        assert loss is None
        ready = nn.LayerContext(prepared=block.mixer.prepare(sequence))
        torch.testing.assert_close(block(x, sequence, ready)[0], y)
    encoded = nn.EncoderOutput(torch.randn(2, 7, 32), is_token=torch.ones(2, 7))
    of_both = nn.SequenceInfo.of_length(5, causal=True, encoder=encoded)
    assert base.build(32, has_cross_attention=True)(x, of_both)[0].shape == x.shape
    assert base.feed_forward.build(32)(x)[0].shape == x.shape
