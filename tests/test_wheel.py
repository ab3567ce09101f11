"""The wheel: all files of the package, the same bytes in every build, and an installation."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the wheel is built from, so that builds leave nothing in the project."""
    copy = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    (copy / ".venv").mkdir()
    (copy / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    return copy


def build(tree: Path, folder: Path) -> Path:
    command = ["make", "--silent", "wheel", f"DIST={folder}"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tree, tmp_path_factory.mktemp("dist"))


@pytest.mark.slow
def test_a_second_build_has_the_same_bytes(wheel: Path, tree: Path, tmp_path: Path) -> None:
    for path in (tree / "src").rglob("*.py"):
        os.utime(path)
    assert build(tree, tmp_path).read_bytes() == wheel.read_bytes()


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    package = ROOT / "src"
    files = {
        path.relative_to(package).as_posix()
        for path in (package / "trivium").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        assert files == {name for name in archive.namelist() if name.startswith("trivium/")}
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_all("Classifier")
    assert metadata.get_all("Project-URL")


@pytest.mark.slow
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_an_installed_wheel_works(installer: str, wheel: Path, tmp_path: Path) -> None:
    if installer == "uv" and shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    options = ["--quiet", "--no-deps", "--no-index", str(wheel)]
    if installer == "pip":
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", *options]
    else:
        install = ["uv", "pip", "install", "--python", str(python), *options]
    subprocess.run(install, check=True, env={**os.environ, "PYTHONPATH": ""})
    # The dependencies are those of this environment; the package is the installed one.
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    command = [str(python.parent / "trivium"), "generate", "stories", "Once", "--temperature", "0"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Once")
    where = "import trivium; print(trivium.__file__)"
    found = subprocess.run([str(python), "-c", where], env=environment, capture_output=True)
    assert found.stdout.decode().startswith(str(tmp_path))
