"""Memory in huge pages: nothing changes but where it lies."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from trivium.nn import huge_pages
from trivium.nn.huge_pages import use_huge_pages

PROGRAM = """
import torch
from trivium.nn.huge_pages import use_huge_pages

def huge():
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))

numbers = [torch.arange(500_000 + i) for i in range(40)]
before, asked, after = huge(), use_huge_pages(), huge()
print(asked, 1024 * (after - before), all(torch.equal(n, torch.arange(len(n))) for n in numbers))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone has them")
def test_what_is_in_memory_moves_and_stays_the_same():
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout.split()
    asked, moved, same = int(found[0]), int(found[1]), found[2] == "True"
    assert same
    assert 0 <= moved <= asked
    if asked:  # older kernels have no such thing
        assert moved > 100e6


def test_elsewhere_nothing_happens(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(huge_pages.ctypes, "CDLL", lambda name: pytest.fail("asked for"))
    assert use_huge_pages() == 0


def test_without_glibc_nothing_happens(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(huge_pages.ctypes, "CDLL", missing)
    numbers = torch.arange(1000)
    assert use_huge_pages() == 0
    assert torch.equal(numbers, torch.arange(1000))
