"""Precision and threads by measurement, which a resumed run keeps."""

from __future__ import annotations

import itertools

import pytest
import torch
from small_models import small_model

from trivium.train import hardware
from trivium.train.hardware import (
    PRECISIONS,
    choose_precision,
    describe_device,
    measure_matmuls,
    peak_flops,
    precision_name,
)

CPU = torch.device("cpu")


@pytest.fixture
def speeds(monkeypatch):
    """GFLOP/s by (precision, threads) in place of measured ones; three threads at most."""
    table: dict[tuple[str, int], float] = {}

    def measure(height, width, settings, *_):
        return {one: table[one] for one in settings}

    monkeypatch.setattr(hardware, "measure_matmuls", measure)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return table


def chosen(precision="auto", kept=None):
    metadata = {"device": describe_device(CPU), **kept} if kept else {}
    arithmetic = choose_precision(precision, CPU, small_model("bert"), metadata)
    return arithmetic.precision, arithmetic.threads


def test_the_faster_precision_and_number_of_threads_are_chosen_and_kept(speeds, monkeypatch):
    bf16, fp32 = torch.bfloat16, torch.float32
    speeds |= {("fp32", 3): 200.0, ("fp32", 1): 100.0, ("bf16", 3): 300.0, ("bf16", 1): 150.0}
    assert chosen() == (bf16, 3)
    speeds["fp32", 3] = 105.0  # others use the cores
    assert chosen() == (bf16, 1)
    speeds["bf16", 1] = 102.0  # about as fast: float32
    assert chosen() == (fp32, 1)
    assert chosen("bf16") == (bf16, 1)
    # A resumed run keeps what it has, but for what is set, and on another machine.
    assert chosen(kept={"precision": "bf16", "threads": 2}) == (bf16, 2)
    assert chosen(kept={"precision": "bf16", "threads": 64}) == (bf16, 3)  # fewer cores than before
    resumed = choose_precision(
        "auto", CPU, small_model("bert"), {"device": "another", "precision": "bf16", "threads": 2}
    )
    assert (resumed.precision, resumed.threads) == (fp32, 1)
    assert resumed.gflops == {"bf16": 102.0, "fp32": 100.0}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    speeds["bf16", 3] = 21.0
    assert chosen() == (fp32, 3)
    assert chosen(kept={"precision": "bf16", "threads": 2}) == (bf16, 3)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((9, 0), "bf16"), ((8, 0), "bf16"), ((7, 5), "fp16"), ((7, 0), "fp16"), ((6, 1), "fp32")],
)
def test_a_gpu_takes_the_half_precision_that_it_has(capability, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "one")
    device, model = torch.device("cuda"), small_model("bert")
    for asked, kept in (("auto", {}), ("auto", {"device": "one", "precision": "bf16"})):
        found = choose_precision(asked, device, model, kept).precision
        assert precision_name(found) == kept.get("precision", expected)
    for asked, dtype in PRECISIONS.items():
        assert choose_precision(asked, device, model, {}).precision is dtype


def test_float16_on_a_cpu_is_said_to_be_slow_and_has_no_measured_peak():
    with pytest.warns(UserWarning, match="fp16 is slow on a CPU"):
        arithmetic = choose_precision("fp16", CPU, small_model("bert"), {})
    assert arithmetic.precision is torch.float16
    assert peak_flops(CPU, torch.float16) is None


def test_products_are_measured_in_every_setting():
    threads = torch.get_num_threads()
    speeds = measure_matmuls(7, 11, (("bf16", 1), ("fp32", 1), ("fp32", 2)))
    assert all(speed > 0 for speed in speeds.values())
    assert torch.get_num_threads() == threads


def test_a_precision_that_a_cpu_only_emulates_is_given_up_after_some_rows():
    ticks = itertools.cycle([0.0, 50.0, 50.0, 50.5])  # of bf16, of fp32
    calls = []

    def clock():
        calls.append(1)
        return next(ticks)

    speeds = measure_matmuls(4096, 4096, (("bf16", 1), ("fp32", 1)), clock)
    assert speeds["fp32", 1] == pytest.approx(100 * speeds["bf16", 1])
    assert len(calls) == 8  # two rounds


def test_mps_is_said_to_be_untried():
    device = torch.device("mps")
    assert "untried" in describe_device(device)
    assert choose_precision("auto", device, small_model("bert"), {}).precision is torch.float32
