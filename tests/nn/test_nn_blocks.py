"""Blocks and residual connections against their formulas."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from trivium import spec
from trivium.nn.blocks import Block, ParallelBlock, Residual
from trivium.nn.context import Context, EncoderOutput

pytestmark = pytest.mark.usefixtures("double_precision")

ROWS, LENGTH, WIDTH = 2, 5, 11
PLACES = ("before", "branch", "after")
SELECT = torch.tensor([0, 3, 9])


def randomised(module):
    for weight in module.parameters():
        nn.init.normal_(weight)
    return module


def stack_of(norms, **changes):
    return spec.Stack(
        num_layers=2,
        mixer=spec.Attention(num_heads=3, head_dim=4),
        feed_forward=spec.FeedForward(d_ff=13, activation="gelu"),
        norm=spec.LayerNorm(),
        norms=norms,
    ).replace(**changes)


def some_norms():
    for count in range(4):
        yield from itertools.combinations(PLACES, count)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_a_residual_connection_has_norms_in_three_places():
    """after(x + branch(f(before(x)))); a place without a norm is the identity."""
    x, added = torch.randn(ROWS, LENGTH, WIDTH), torch.randn(ROWS, LENGTH, WIDTH)
    for norms in some_norms():
        residual = randomised(Residual(spec.LayerNorm(), norms, WIDTH, 0.5)).eval()
        norm = {place: getattr(residual, place) for place in PLACES}
        assert {place for place in PLACES if isinstance(norm[place], nn.LayerNorm)} == {*norms}
        close(residual.enter(x), norm["before"](x))
        close(residual(x, added), norm["after"](x + norm["branch"](added)))
    residual.train()
    torch.manual_seed(3)
    dropped = residual(x, added)
    torch.manual_seed(3)
    branch = nn.functional.dropout(norm["branch"](added), 0.5)
    close(dropped, norm["after"](x + branch))


def test_a_block_is_its_formula_and_uses_every_weight():
    """Sequential, and parallel with one norm for both or each its own, for all places of norms."""
    x, context = torch.randn(ROWS, LENGTH, WIDTH), Context.of_length(LENGTH, causal=True)
    for norms, first_norm in itertools.product(some_norms(), (True, False)):
        stack = stack_of(norms, first_norm=first_norm)
        one = randomised(Block(stack, 0, WIDTH))
        assert isinstance(one.mixer_residual.before, nn.LayerNorm) == (
            "before" in norms and first_norm
        )
        mixing, feeding = one.mixer_residual, one.feed_forward_residual
        y = mixing(x, one.mixer(mixing.before(x), context))
        expected = feeding(y, one.feed_forward(feeding.before(y))[0])
        check(one, x, context, expected)
        for kind in ("shared", "separate"):
            described = stack.replace(block=spec.ParallelLayers(norms=kind))
            one = randomised(ParallelBlock(described, 0, WIDTH))
            mixing, feeding = one.mixer_residual, one.feed_forward_residual
            entered = (mixing if kind == "shared" else feeding).before(x)
            both = one.mixer(mixing.before(x), context) + one.feed_forward(entered)[0]
            check(one, x, context, mixing.after(x + mixing.branch(both)))


def check(block, x, context, expected):
    """The output, that of some positions, and that every weight has a gradient."""
    y, loss = block(x, context)
    close(y, expected)
    assert loss is None
    some = Context.of_length(LENGTH, causal=True, select=SELECT)
    close(block(x, some)[0], expected.flatten(0, 1)[SELECT])
    y.square().sum().backward()
    for name, weight in block.named_parameters():
        # A bias of all keys alike changes no probability.
        assert weight.grad is not None, name
        assert weight.grad.any() or name == "mixer.key.bias", name


def test_cross_attention_is_between_the_mixer_and_the_feed_forward_network():
    encoder = EncoderOutput(torch.randn(ROWS, 7, WIDTH))
    x, context = torch.randn(ROWS, LENGTH, WIDTH), Context.of_length(LENGTH, encoder=encoder)
    for norms in (spec.PRE_NORM, spec.POST_NORM):
        one = randomised(Block(stack_of(norms), 1, WIDTH, crosses=True))
        y = x
        for residual, mix in (
            (one.mixer_residual, one.mixer),
            (one.cross_residual, one.cross_attention),
        ):
            y = residual(y, mix(residual.before(y), context))
        last = one.feed_forward_residual
        expected = last(y, one.feed_forward(last.before(y))[0])
        close(one(x, context)[0], expected)
