"""A run where the system has none of what Linux alone has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"

# Modules, functions and files that other systems lack; then a short run, resumed, that generates.
PROGRAM = """
import os, pathlib, signal, sys, types

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "pwd", "grp", "termios"):
            raise ImportError(name)

sys.meta_path.insert(0, Hidden())
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules.pop(name, None)

import torch
import trivium
from trivium.train import hardware

for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGCHLD"):
    delattr(signal, name)
for name in ("O_DIRECTORY", "sched_getaffinity", "getuid", "fork", "statvfs"):
    delattr(os, name)

read_text, os_open = pathlib.Path.read_text, os.open

def without_proc(path, *args, **kwargs):
    if str(path).startswith(("/proc", "/sys")):
        raise FileNotFoundError(path)
    return read_text(path, *args, **kwargs)

def without_folders(path, *args, **kwargs):
    if "dir_fd" not in kwargs and os.path.isdir(path):  # shutil has another way there
        raise PermissionError(path)  # as on Windows
    return os_open(path, *args, **kwargs)

def no_library(name):
    raise OSError(name)

pathlib.Path.read_text, os.open = without_proc, without_folders
hardware.ctypes = types.SimpleNamespace(CDLL=no_library)

from trivium import files
assert files.fcntl is None
assert hardware.available_memory(torch.device("cpu")) == 8 * 2**30
text, out = sys.argv[1:]
changes = {
    "train": {"steps": 4, "save_every": 2, "eval_every": 4, "batch_tokens": 64},
    "data": {"length": 16},
    "tokenizer": {"kind": "byte-bpe", "vocab_size": 300},
}
trivium.pretrain("gpt2-tiny", data=text, out=out, changes=changes)
trivium.pretrain("", out=out, resume=True, changes={"train": {"steps": 6}})
print(repr(trivium.load(out).generate("The", max_new_tokens=3, seed=0)))
"""


def test_a_run_needs_nothing_that_linux_alone_has(tmp_path):
    text = tmp_path / "text.txt"
    lines = (f"The {word} is number {n}." for n in range(40) for word in ("cat", "dog", "bird"))
    text.write_text("\n\n".join(lines), encoding="utf-8")
    paths = os.pathsep.join(filter(None, [str(SRC), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, text, tmp_path / "run"],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "USER": "somebody"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()
