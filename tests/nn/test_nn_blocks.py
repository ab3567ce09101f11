"""Blocks and residual connections against their formulas."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
import torch
from torch import nn

from trivium import spec
from trivium.nn.blocks import Residual
from trivium.nn.sequence_info import EncoderOutput, SequenceInfo

pytestmark = pytest.mark.usefixtures("double_precision")

ROWS, LENGTH, WIDTH = 2, 5, 11
PLACES = ("pre_norm", "post_sublayer_norm", "post_norm")
PLACEMENTS = get_args(spec.NormPlacement)
SELECT = torch.tensor([0, 3, 9])


def randomised(module):
    for weight in module.parameters():
        nn.init.normal_(weight)
    return module


def layer_of(norm_placement, **changes):
    return spec.Layer(
        mixer=spec.Attention(num_heads=3, head_dim=4),
        feed_forward=spec.MLP(d_ff=13, activation="gelu"),
        norm=spec.LayerNorm(),
        norm_placement=norm_placement,
    ).replace(**changes)


def some_norms():
    for count in range(4):
        yield from itertools.combinations(PLACES, count)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_a_residual_connection_has_norms_in_three_places():
    """after(x + m branch(f(before(x)))); a place without a norm is the identity."""
    x, added = torch.randn(ROWS, LENGTH, WIDTH), torch.randn(ROWS, LENGTH, WIDTH)
    for norms, multiplier in itertools.product(some_norms(), (1.0, 0.22)):
        layer = layer_of("pre", residual_multiplier=multiplier)
        residual = randomised(Residual(layer, norms, WIDTH, 0.5)).eval()
        norm = {place: getattr(residual, place) for place in PLACES}
        assert {place for place in PLACES if isinstance(norm[place], nn.LayerNorm)} == {*norms}
        close(residual.normalize(x), norm["pre_norm"](x))
        close(
            residual(x, added),
            norm["post_norm"](x + multiplier * norm["post_sublayer_norm"](added)),
        )
    residual.train()
    torch.manual_seed(3)
    dropped = residual(x, added)
    torch.manual_seed(3)
    branch = nn.functional.dropout(norm["post_sublayer_norm"](added), 0.5)
    close(dropped, norm["post_norm"](x + 0.22 * branch))


def test_a_block_is_its_formula_and_uses_every_weight():
    """Sequential, and parallel with one norm for both or each its own, for all places of norms."""
    x, sequence = torch.randn(ROWS, LENGTH, WIDTH), SequenceInfo.of_length(LENGTH, causal=True)
    for placement, first_norm in itertools.product(PLACEMENTS, (True, False)):
        layer = layer_of(placement)
        one = randomised(layer.build(WIDTH, first_norm=first_norm))
        assert isinstance(one.mixer_residual.pre_norm, nn.LayerNorm) == (
            placement in ("pre", "sandwich") and first_norm
        )
        mixing, feeding = one.mixer_residual, one.feed_forward_residual
        y = mixing(x, one.mixer(mixing.pre_norm(x), sequence))
        expected = feeding(y, one.feed_forward(feeding.pre_norm(y))[0])
        check(one, x, sequence, expected)
        for kind in ("shared", "separate"):
            parallel = layer.replace(block=spec.ParallelLayers(norms=kind))
            one = randomised(parallel.build(WIDTH, first_norm=first_norm))
            mixing, feeding = one.mixer_residual, one.feed_forward_residual
            entered = (mixing if kind == "shared" else feeding).pre_norm(x)
            both = one.mixer(mixing.pre_norm(x), sequence) + one.feed_forward(entered)[0]
            check(one, x, sequence, mixing.post_norm(x + mixing.post_sublayer_norm(both)))


def check(block, x, sequence, expected):
    """The output, that of some positions, and that every weight has a gradient."""
    y, loss = block(x, sequence)
    close(y, expected)
    assert loss is None
    some = SequenceInfo.of_length(LENGTH, causal=True, gather_positions=SELECT)
    close(block(x, some)[0], expected.flatten(0, 1)[SELECT])
    y.square().sum().backward()
    for name, weight in block.named_parameters():
        # A bias of all keys alike changes no probability.
        assert weight.grad is not None, name
        assert weight.grad.any() or name == "mixer.key.bias", name


def test_cross_attention_is_between_the_mixer_and_the_feed_forward_network():
    encoder = EncoderOutput(torch.randn(ROWS, 7, WIDTH))
    x, sequence = torch.randn(ROWS, LENGTH, WIDTH), SequenceInfo.of_length(LENGTH, encoder=encoder)
    for placement in ("pre", "post"):
        one = randomised(layer_of(placement).build(WIDTH, has_cross_attention=True))
        y = x
        for residual, mix in (
            (one.mixer_residual, one.mixer),
            (one.cross_residual, one.cross_attention),
        ):
            y = residual(y, mix(residual.pre_norm(y), sequence))
        last = one.feed_forward_residual
        expected = last(y, one.feed_forward(last.pre_norm(y))[0])
        close(one(x, sequence)[0], expected)


def test_a_block_without_a_feed_forward_network_is_its_mixer():
    x, sequence = torch.randn(ROWS, LENGTH, WIDTH), SequenceInfo.of_length(LENGTH, causal=True)
    for block in (spec.SequentialLayers(), spec.ParallelLayers()):
        one = randomised(layer_of("pre", feed_forward=None, block=block).build(WIDTH))
        mixing = one.mixer_residual
        check(one, x, sequence, mixing(x, one.mixer(mixing.pre_norm(x), sequence)))
