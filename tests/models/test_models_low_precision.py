"""Float32 and bfloat16 against float64 of the same weights."""

from __future__ import annotations

import pytest
import torch
from double import BFLOAT16, FLOAT32, relative_error
from small_models import inputs_for, random_ids, small_model
from torch import Tensor
from torch.nn import functional as F

from trivium.nn.loss import linear_cross_entropy


def logits_in_steps(model, name: str, inputs: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The logits of `ids` [B, T], decoded token by token."""
    cache = model.new_cache(*ids.shape)
    # A cache on a CPU is float32 at least, whatever the model's precision.
    assert cache.states[0].tensors[0].dtype == torch.promote_types(model.dtype, torch.float32)
    if name == "t5":
        cache.remember(torch.arange(len(ids)), model.encode(inputs["input_ids"]))
        steps = [model(decoder_input_ids=i, cache=cache) for i in ids.split(1, 1)]
    else:
        steps = [model(i, cache=cache) for i in ids.split(1, 1)]
    return model.logits(torch.cat(steps, 1))


@pytest.mark.parametrize("name", ["llama", "t5"])
@torch.no_grad()
def test_models_in_low_precision_are_roughly_the_same(name):
    ids = random_ids(2, 11)
    model, inputs = small_model(name), inputs_for(name, ids)
    exact = small_model(name).double()
    expected = exact.logits(exact(**inputs))
    single = model.logits(model(**inputs))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model.logits(model(**inputs))
    low = small_model(name).bfloat16()
    pure = low.logits(low(**inputs))
    cached = logits_in_steps(low, name, inputs, ids)
    assert [each.dtype for each in (single, pure)] == [torch.float32, torch.bfloat16]
    assert relative_error(single, expected) < FLOAT32
    for actual in (mixed, pure, cached):
        assert relative_error(actual, expected) < BFLOAT16


def test_the_loss_sums_in_float32():
    targets = torch.randint(31, (13,))
    for dtype, autocast in ((torch.float32, True), (torch.bfloat16, False)):
        shapes = ((13, 7), (31, 7), (31,))
        features, weight, bias = inputs = [
            torch.randn(shape).to(dtype).requires_grad_() for shape in shapes
        ]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = linear_cross_entropy(features, weight, bias, targets)
        actual = [loss, *torch.autograd.grad(loss, inputs)]
        assert [tensor.dtype for tensor in actual] == [torch.float32] + [dtype] * 3
        double = [tensor.detach().double().requires_grad_() for tensor in inputs]
        total = F.cross_entropy(F.linear(*double), targets, reduction="sum")
        expected = [total, *torch.autograd.grad(total, double)]
        for one, exact in zip(actual, expected, strict=True):
            assert relative_error(one, exact) < BFLOAT16
        assert loss.item() == pytest.approx(total.item(), rel=0.03)
