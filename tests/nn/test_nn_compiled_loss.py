"""The compiled loss of a vocabulary against PyTorch's cross-entropy in float64.

The vocabulary is padded as on a GPU. Float64 shows that the formula is right, float32 and bfloat16
that sums are in float32.
"""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from double import BFLOAT16, FLOAT32, relative_error
from small_models import ALL_SPECS, inputs_for, random_ids, small_model
from torch._dynamo.utils import counters
from torch.nn import functional as F

from trivium.nn import loss as loss_module
from trivium.nn.loss import cross_entropy_and_gradient, linear_cross_entropy

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's
WIDTH, VOCABULARY, PADDED = 7, 31, 64


def compile_with(monkeypatch, backend):
    """Replace Inductor by another backend of `torch.compile`, and forget what was compiled."""
    torch._dynamo.reset()
    counters.clear()
    loss_module._compile.cache_clear()
    compile = functools.partial(loss_module._compile, backend=backend)
    monkeypatch.setattr(loss_module, "_compile", compile)


def make(labels=13, dtype=torch.float64, *, bias=True, vocabulary=VOCABULARY):
    shapes = [(labels, WIDTH), (vocabulary, WIDTH), *([(vocabulary,)] if bias else [])]
    inputs = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    return inputs, torch.randint(vocabulary, (labels,))


def loss_of(inputs, targets, **options):
    bias = inputs[2] if len(inputs) == 3 else None
    return linear_cross_entropy(inputs[0], inputs[1], bias, targets, **options)


def compiled_loss(inputs, targets, **options):
    """The loss as it is computed on a GPU."""
    return loss_of(inputs, targets, compiled=True, vocab_multiple=64, **options)


def with_gradients(loss, inputs):
    return [loss, *torch.autograd.grad(0.37 * loss, inputs)]


def expected(inputs, targets, smoothing=0.0, soft_cap=None):
    double = [tensor.detach().double().requires_grad_() for tensor in inputs]
    rows, *matrix = double
    logits = F.linear(rows[: len(targets)], *matrix)
    logits = logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)
    loss = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    return with_gradients(loss, double)


def assert_close(actual, wanted, tolerance):
    for a, b in zip(actual, wanted, strict=True):
        assert a.shape == b.shape
        assert relative_error(a, b) < tolerance


@pytest.mark.parametrize("soft_cap", [None, 1.3])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_the_formula_in_float64(smoothing, soft_cap):
    logits = torch.randn(13, PADDED, dtype=torch.float64)
    labels = torch.randint(VOCABULARY, (13,))
    labels[torch.tensor([2, 12])] = -1
    exact = logits[:, :VOCABULARY].clone().requires_grad_()
    capped = exact if soft_cap is None else soft_cap * torch.tanh(exact / soft_cap)
    options = {"reduction": "sum", "label_smoothing": smoothing, "ignore_index": -1}
    wanted = F.cross_entropy(capped, labels, **options)
    (d_wanted,) = torch.autograd.grad(wanted, exact)
    options = {"num_ids": VOCABULARY, "vocab_size": VOCABULARY, "smoothing": smoothing}
    loss, gradient = cross_entropy_and_gradient(logits, labels, **options, soft_cap=soft_cap)
    assert gradient is not None
    torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient[:, :VOCABULARY], d_wanted, rtol=1e-12, atol=1e-12)
    assert not gradient[:, VOCABULARY:].any()


def test_value_and_gradients_for_every_chunk_size(monkeypatch):
    compile_with(monkeypatch, "eager")
    choices = (1, 5, 13, 100), (0.0, 0.1), (True, False), (None, 1.3), (13, 20)
    for rows, smoothing, bias, soft_cap, padded_rows in itertools.product(*choices):
        monkeypatch.setattr(loss_module, "_CPU_CHUNK", rows * VOCABULARY)
        inputs, targets = make(padded_rows, bias=bias)
        targets, options = targets[:13], {"smoothing": smoothing, "soft_cap": soft_cap}
        wanted = expected(inputs, targets, **options)
        assert_close(
            with_gradients(compiled_loss(inputs, targets, **options), inputs), wanted, 1e-6
        )
        with torch.no_grad():
            assert_close([compiled_loss(inputs, targets, **options)], wanted[:1], 1e-6)


@pytest.mark.parametrize("vocabulary", [1, 31, 64, 67])
def test_padding_without_compilation(vocabulary):
    for soft_cap in (None, 1.3):
        inputs, targets = make(13, torch.float32, vocabulary=vocabulary)
        options = {"smoothing": 0.1, "soft_cap": soft_cap}
        loss = loss_of(inputs, targets, vocab_multiple=64, **options)
        wanted = with_gradients(loss_of(inputs, targets, **options), inputs)
        for a, b in zip(with_gradients(loss, inputs), wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_low_precision(backend, monkeypatch):
    compile_with(monkeypatch, backend)
    for dtype, autocast in ((torch.float32, False), (torch.float32, True), (torch.bfloat16, False)):
        inputs, targets = make(dtype=dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = compiled_loss(inputs, targets, smoothing=0.1)
        actual = with_gradients(loss, inputs)
        assert [each.dtype for each in actual] == [torch.float32] + [dtype] * 3
        exact = dtype is torch.float32 and not autocast
        assert_close(actual, expected(inputs, targets, 0.1), FLOAT32 if exact else BFLOAT16)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("soft_cap", [None, 1.3])
def test_one_compilation_serves_every_number_of_rows(smoothing, soft_cap, monkeypatch):
    compile_with(monkeypatch, "eager")
    options = {"smoothing": smoothing, "soft_cap": soft_cap}
    for training in (True, False):
        for rows in (64, 13, 129, 7, 31):  # the first as many as padded entries
            inputs, targets = make(rows)
            with torch.set_grad_enabled(training):
                compiled_loss(inputs, targets, **options)
    assert counters["stats"]["unique_graphs"] == 2  # with the gradient, and without
    assert not counters["graph_break"]


@pytest.mark.slow
def test_inductor(monkeypatch):
    compile_with(monkeypatch, "inductor")
    for dtype in (torch.float32, torch.bfloat16):
        for rows, soft_cap in ((13, None), (70, None), (13, 1.3)):
            inputs, targets = make(rows, dtype)
            options = {"smoothing": 0.1, "soft_cap": soft_cap}
            wanted = expected(inputs, targets, **options)
            tolerance = FLOAT32 if dtype is torch.float32 else BFLOAT16
            loss = compiled_loss(inputs, targets, **options)
            assert_close(with_gradients(loss, inputs), wanted, tolerance)
            with torch.no_grad():
                assert_close([compiled_loss(inputs, targets, **options)], wanted[:1], tolerance)


@pytest.mark.parametrize("vocabulary", [31, 1024, 50_257])
@pytest.mark.gpu
def test_on_a_gpu_compiled_and_not(vocabulary, monkeypatch):
    compile_with(monkeypatch, "inductor")
    for dtype, compiled in itertools.product((torch.float32, torch.bfloat16), (True, False)):
        for rows, soft_cap in ((128, None), (70, None), (128, 1.3)):
            inputs, targets = make(rows, dtype, vocabulary=vocabulary)
            options = {"smoothing": 0.1, "soft_cap": soft_cap}
            wanted = expected(inputs, targets[:67], **options)
            cuda = [each.detach().cuda().requires_grad_() for each in inputs]
            loss = loss_of(cuda, targets[:67].cuda(), compiled=compiled, **options)
            actual = [each.cpu() for each in with_gradients(loss, cuda)]
            assert_close(actual, wanted, FLOAT32 if dtype is torch.float32 else BFLOAT16)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_compiled_loss_of_every_family(device, monkeypatch):
    compile_with(monkeypatch, "eager" if device == "cpu" else "inductor")
    forced = {"compiled": True, "vocab_multiple": 64}
    for name in ALL_SPECS:
        model, ids = small_model(name), random_ids(3, 11)
        hidden, targets = model(**inputs_for(name, ids)).flatten(0, 1), ids.flatten()
        wanted = model.lm_loss(hidden, targets, smoothing=0.1)
        (d_wanted,) = torch.autograd.grad(wanted, hidden)
        model, hidden = model.to(device), hidden.detach().to(device).requires_grad_()
        model.linear_cross_entropy = lambda *inputs, **options: linear_cross_entropy(
            *inputs, **options | forced
        )
        loss = model.lm_loss(hidden, targets.to(device), smoothing=0.1)
        (d_hidden,) = torch.autograd.grad(loss, hidden)
        assert relative_error(loss.cpu(), wanted) < FLOAT32, name
        assert relative_error(d_hidden.cpu(), d_wanted) < FLOAT32, name


@pytest.mark.gpu
def test_compiled_blocks_have_a_compiled_loss(monkeypatch):
    """Training, evaluation and a smaller batch compile the loss twice: with the gradient or not."""
    compile_with(monkeypatch, "inductor")
    called = []
    compiled = loss_module._compile(cross_entropy_and_gradient)
    monkeypatch.setattr(
        loss_module, "_compile", lambda _: lambda *a, **k: called.append(1) or compiled(*a, **k)
    )
    model = small_model("gpt2").cuda()
    model.compiles_loss = True
    for rows, training in ((3, True), (3, False), (9, True), (1, False)):
        ids = random_ids(rows, 11).cuda()
        with torch.set_grad_enabled(training):
            model.lm_loss(model(input_ids=ids).flatten(0, 1), ids.flatten())
    assert len(called) == 4
    assert counters["stats"]["unique_graphs"] == 2
