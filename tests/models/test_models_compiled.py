"""Compiled blocks have no graph break, and are compiled again for a new shape only once.

The backend "eager" runs the operations that `torch.compile` has found, without generating code.
"""

from __future__ import annotations

import pytest
import torch
from small_models import SPECS, random_ids

from trivium.models import build
from trivium.presets import presets

# PyTorch itself reads this attribute of the tensors that enter a compiled block.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

QUICK = ("bert-tiny", "gpt2-tiny", "mixtral-tiny")
TINY = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name, preset in presets.items()
    if name.endswith("-tiny") and preset.kind == "transformer"
]
TINY.append(pytest.param("gpt-oss"))  # of which there is no small preset
# The loops over tokens of these mixers are unrolled, so that every length is compiled.
LOOPS = {"mamba", "time-mixing"}


@pytest.fixture(autouse=True)
def limits():
    """Compile from nothing, and restore the limits that `compile_blocks` raises."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8, capture_scalar_outputs=False):
        yield
    torch._dynamo.reset()


def run(model, rows, length, *, training):
    """Run a forward pass, and in training a backward pass. Returns the hidden states."""
    ids = random_ids(rows, length)
    inputs = {"input_ids": ids}
    if model.spec.family == "encoder-decoder":
        inputs["decoder_input_ids"] = ids[:, :-1]
    if model.spec.family == "encoder-only":
        # The masked positions, of which every batch has another number.
        inputs["gather_positions"] = torch.arange(0, ids.numel(), 3)
    torch.manual_seed(rows)  # of dropout
    model.train(training)
    with torch.set_grad_enabled(training):
        hidden = model(**inputs)
    if training:
        hidden.square().sum().backward()
    return hidden.detach()


def steps(model, whole, shorter, shortest):
    """Take a training step, an evaluation whose last batch is smaller, and a smaller step."""
    return [
        run(model, 4, whole, training=True),
        run(model, 6, whole, training=False),
        run(model, 5, shorter, training=False),
        run(model, 3, shortest, training=True),
    ]


@pytest.mark.parametrize("name", TINY)
def test_blocks_have_no_graph_break_and_are_not_compiled_again(name):
    described = (SPECS if name in SPECS else presets)[name].replace(vocab_size=64)
    model, expected = build(described, seed=0), build(described, seed=0)
    model.compile_blocks(backend="eager", fullgraph=True)
    first, second = (32, 25, 23), (32, 29, 22)
    if {mixer.kind for stack in described.stacks for mixer in stack.mixers} & LOOPS:
        first = second = (32, 32, 32)
    # With `fullgraph`, a graph break is an error, and so is the limit of variants.
    hidden = steps(model, *first)
    with torch._dynamo.config.patch(error_on_recompile=True):
        hidden += steps(model, *second)
    torch.testing.assert_close(hidden, steps(expected, *first) + steps(expected, *second))
