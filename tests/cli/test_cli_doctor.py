"""`trivium doctor`: what it prints is what is installed, and nothing of the user's."""

from __future__ import annotations

import getpass
import importlib.metadata
import json
import platform
import tomllib
from pathlib import Path

import pytest
import torch

from trivium.cli import doctor as doctor_command
from trivium.cli import main
from trivium.messages import load_catalog
from trivium.workflows import doctor

ROOT = Path(__file__).parents[2]
OF_DEVELOPERS = {"all", "test", "docs", "dev"}


@pytest.fixture
def versions(monkeypatch):
    """What importlib.metadata finds; a test may change it. None: not installed."""
    changed: dict[str, str | None] = {}
    find = importlib.metadata.version

    def version(name: str) -> str:
        found = changed.get(name, "")
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found or find(name)

    monkeypatch.setattr(doctor, "version", version)
    return changed


def test_every_extra_is_described_and_no_other():
    """The list of the package: pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {*project["optional-dependencies"]} - OF_DEVELOPERS
    assert sorted(doctor.EXTRAS) == sorted(extras)
    assert {name[6:] for name in load_catalog("en") if name.startswith("extra.")} == extras


def test_the_installation_is_described(versions, capsys):
    versions |= {"seqeval": None, "wandb": None, "llguidance": "0.7.1", "numpy": "1.20"}
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["trivium"] == importlib.metadata.version("trivium")
    assert facts["python"].startswith(platform.python_version())
    assert facts["libraries"]["torch"] == importlib.metadata.version("torch")
    assert facts["libraries"]["numpy"] is None  # too old
    assert "seqeval" not in facts["libraries"]
    extras = facts["extras"]
    assert extras["metrics"]["missing"] == ["seqeval>=1.2.2"]
    assert "scikit-learn" in extras["metrics"]["installed"]
    assert extras["wandb"] == {"installed": {}, "missing": ["wandb>=0.17"]}
    assert extras["structured"]["missing"] == ["llguidance>=1"]
    every = {**extras["playground"]["installed"], **dict.fromkeys(extras["playground"]["missing"])}
    assert {"gradio", "fastapi"} <= {name.partition(">")[0] for name in every}  # trivium[serve]
    assert all(speed > 0 for speed in facts["gflops"].values())
    assert facts["memory"]["available"] > 0
    assert 1 <= facts["threads"] <= facts["cores"] or "OMP_NUM_THREADS" in facts["variables"]

    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.split() for line in lines]
    assert ["metrics", "no"] in [one[:2] for one in words]
    assert any(line.startswith("missing") and "numpy, or a newer" in line for line in lines)
    (advice,) = (line for line in lines if "EXTRAS=" in line)
    assert {"metrics", "wandb", "structured"} <= {*advice.partition("EXTRAS=")[2].split(",")}


def test_nothing_of_the_user_is_printed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIVIUM_LANGUAGE", "en")  # which --language changes
    for arguments in (["doctor"], ["doctor", "--json"], ["--language", "zh", "doctor"]):
        assert main(arguments) == 0
        output = capsys.readouterr().out
        private = [str(Path.home()), str(ROOT), str(tmp_path), platform.node()]
        private += [name for name in (getpass.getuser(),) if name != "root"]
        assert [one for one in private if one in output] == []


def test_a_gpu_that_pytorch_does_not_find_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(doctor, "_COMPILERS", ())
    facts = doctor.describe_installation()
    assert facts["device"]["cuda"] == "12.8"
    gpu, compiler = doctor_command._list_problems({**facts, "extras": {}})
    assert "built for CUDA 12.8 and finds none" in gpu
    assert "C++ compiler" in compiler
