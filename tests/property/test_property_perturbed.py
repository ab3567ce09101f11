"""The setting that moves products: which functions it moves, how far, and equal repeats."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import perturbed
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

SUPPORT = Path(perturbed.__file__).parent
ROWS, WIDTH, LENGTH = 3, 5, 7
ONE_PRODUCT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "operator": lambda x, w: x @ w,
    "method": lambda x, w: x.matmul(w),
    "matmul": lambda x, w: torch.matmul(x, w),
    "linalg-matmul": lambda x, w: torch.linalg.matmul(x, w),
    "mm": lambda x, w: torch.mm(x[:, 0], w),
    "method-mm": lambda x, w: x[:, 0].mm(w),
    "bmm": lambda x, w: torch.bmm(x, w.expand(len(x), -1, -1)),
    "method-bmm": lambda x, w: x.bmm(w.expand(len(x), -1, -1)),
    "mv": lambda x, w: torch.mv(x[:, 0], w[0]),
    "inner": lambda x, w: torch.inner(x, w),
    "addmm": lambda x, w: torch.addmm(w[0], x[:, 0], w),
    "addmm-in-place": lambda x, w: torch.ones_like(x[:, 0]).addmm_(x[:, 0], w),
    "baddbmm": lambda x, w: torch.baddbmm(w[0], x, w.expand(len(x), -1, -1)),
    "addmv": lambda x, w: torch.addmv(x[:, 0, 0], x[:, 0], w[0]),
    "einsum": lambda x, w: torch.einsum("btd,de->bte", x, w),
    "tensordot": lambda x, w: torch.tensordot(x, w, dims=1),
    "linear": lambda x, w: F.linear(x, w, w[0]),
    "bilinear": lambda x, w: F.bilinear(x, x, w[None]),
    "conv1d": lambda x, w: F.conv1d(x, w[:, :, None]),
    "conv2d": lambda x, w: F.conv2d(x[:, :, None], w[:, :, None, None]),
    "conv-transpose1d": lambda x, w: F.conv_transpose1d(x, w[:, :, None]),
    "attention": lambda x, w: F.scaled_dot_product_attention(x, x, x),
}
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "conv1d": lambda: nn.Conv1d(WIDTH, 2, 2),
    "conv2d": lambda: nn.Conv2d(WIDTH, 2, 1),
    "rnn": lambda: nn.RNN(WIDTH, WIDTH, batch_first=True),
    "lstm": lambda: nn.LSTM(WIDTH, 2, batch_first=True, bidirectional=True),
    "gru": lambda: nn.GRU(WIDTH, 2, batch_first=True),
    "lstm-cell": lambda: nn.LSTMCell(WIDTH, 2),
    "gru-cell": lambda: nn.GRUCell(WIDTH, 2),
    "attention": lambda: nn.MultiheadAttention(WIDTH, 1, batch_first=True),
    "encoder-layer": lambda: nn.TransformerEncoderLayer(WIDTH, 1, 7, 0.0, batch_first=True),
}


@pytest.fixture(autouse=True)
def replaced(monkeypatch):
    """The products are replaced in this process, as under the setting."""
    for owner, names in perturbed.PRODUCTS:
        for name in names:
            exact = getattr(owner, name)
            if not hasattr(exact, "exact"):
                monkeypatch.setattr(owner, name, perturbed.perturbed(exact))


@pytest.fixture
def exactly(monkeypatch):
    """A function that computes without moving anything."""

    def compute(function, *operands):
        with monkeypatch.context() as patch:
            patch.setattr(perturbed, "SIZES", {})
            return function(*operands)

    return compute


def operands(dtype=torch.float64) -> tuple[Tensor, Tensor]:
    """Rows [B, T, D], of which the last one is not read, and a matrix."""
    return torch.rand(ROWS + 1, WIDTH, WIDTH, dtype=dtype), torch.rand(WIDTH, WIDTH, dtype=dtype)


def mostly_differ(one: Tensor, other: Tensor) -> bool:
    """Whether few elements are equal: there are about ten numbers that one may be moved to."""
    return bool((one != other).double().mean() > 0.3)


def relative_change(moved: Tensor, exact: Tensor) -> Tensor:
    return ((moved - exact) / exact).abs()


@pytest.mark.parametrize("name", ONE_PRODUCT)
@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float64, 1e-15), (torch.float32, 1e-6)], ids=["float64", "float32"]
)
def test_a_product_moves_by_its_size_and_repeats_are_equal(name, dtype, size, exactly):
    function, (x, matrix) = ONE_PRODUCT[name], operands(dtype)
    moved, exact = function(x, matrix), exactly(function, x, matrix)
    change, rounding = relative_change(moved, exact), torch.finfo(dtype).eps
    assert (size / 2 - rounding < change).all()
    assert (change < size + rounding).all()
    assert torch.equal(function(x, matrix), moved)
    assert torch.equal(exactly(function, x, matrix), exact)


@pytest.mark.parametrize("name", ONE_PRODUCT)
def test_any_other_operand_moves_elements_elsewhere(name):
    function, (x, matrix) = ONE_PRODUCT[name], operands()
    # One more row, and another number in a row that this result does not read.
    assert mostly_differ(function(x, matrix)[:ROWS], function(x[:ROWS], matrix))
    other = x.clone()
    other[-1] += 1
    assert mostly_differ(function(x, matrix)[:ROWS], function(other, matrix)[:ROWS])


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_layers_move_and_repeats_are_equal(name, mode, exactly):
    layer = LAYERS[name]().double().train(mode == "training")
    x, _ = operands()
    x = x[:, 0] if "cell" in name else x[:, :, :, None] if name == "conv2d" else x
    taken = (x, x, x) if name == "attention" else (x,)

    def first(*inputs):
        with torch.set_grad_enabled(mode == "training"):
            result = layer(*inputs)
        return result[0] if isinstance(result, tuple) else result

    moved, exact = first(*taken), exactly(first, *taken)
    assert mostly_differ(moved, exact)
    torch.testing.assert_close(moved, exact, rtol=1e-12, atol=1e-14)
    assert torch.equal(first(*taken), moved)
    fewer = first(*(each[:ROWS] for each in taken))
    assert mostly_differ(fewer, moved[:ROWS])


def test_gradients_move_and_repeats_are_equal(exactly):
    x, matrix = operands()
    matrix.requires_grad_()

    def gradient(rows):
        (found,) = torch.autograd.grad((rows @ matrix).square().sum(), matrix)
        return found

    moved, exact = gradient(x), exactly(gradient, x)
    assert mostly_differ(moved, exact)
    torch.testing.assert_close(moved, exact, rtol=1e-13, atol=0.0)
    assert torch.equal(gradient(x), moved)


def test_zeros_stay_and_what_has_no_numbers_is_left_alone():
    zeros, matrix = torch.zeros(2, WIDTH), torch.rand(WIDTH, WIDTH)
    assert not (zeros @ matrix).any()
    assert (zeros.to("meta") @ matrix.to("meta")).shape == (2, WIDTH)
    counts = torch.arange(4)[None]
    assert (counts @ counts.T).item() == 14


def test_threads_and_started_processes_move_alike():
    code = "import torch; x = torch.arange(12.0).view(3, 4) / 7; print((x @ x.T).tolist())"
    x = torch.arange(12.0).view(3, 4) / 7
    moved = x @ x.T
    in_thread: list[Tensor] = []
    thread = threading.Thread(target=lambda: in_thread.append(x @ x.T))
    thread.start()
    thread.join()
    assert torch.equal(in_thread[0], moved)
    environment = os.environ | {
        perturbed.VARIABLE: "1",
        "PYTHONPATH": os.pathsep.join([str(SUPPORT / "perturbed_start"), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert torch.equal(torch.tensor(eval(done.stdout)), moved)
