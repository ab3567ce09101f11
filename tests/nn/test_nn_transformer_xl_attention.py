"""Segments with a memory: against one pass with a window, and what only memory can learn."""

from __future__ import annotations

import pytest
import torch
from double import double_precision
from small_models import SPECS, random_ids, random_model

from trivium import spec
from trivium.errors import SpecError
from trivium.nn.mixers.transformer_xl_attention import TransformerXLAttentionModule
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import CacheSlice
from trivium.spec import TransformerXLAttention, TransformerXLPositions

PART = TransformerXLAttention(
    num_heads=3, head_dim=10, bias=False, positions=TransformerXLPositions(), memory=5
)


@pytest.mark.parametrize("qk_norm", [None, spec.RMSNorm()], ids=["plain", "qk-norm"])
@double_precision()
def test_segments_are_one_text_and_gradients_end_with_them(qk_norm):
    """Of any lengths, also longer than the memory; rows of different lengths are in slots."""
    decoder = SPECS["llama"].decoder.with_layers(mixer=PART.replace(qk_norm=qk_norm))
    model, ids = random_model(SPECS["llama"].replace(decoder=decoder)), random_ids(2, 29)
    whole = model(ids)
    cache, slots = model.new_cache(3, 29), torch.tensor([2, 0])
    cut = [model(part, cache=cache, slots=slots) for part in ids.split([3, 1, 9, 1, 1, 5, 9], 1)]
    torch.testing.assert_close(torch.cat(cut, 1), whole, rtol=1e-9, atol=1e-9)
    assert all(not tensor.requires_grad for state in cache.states for tensor in state.tensors)
    cache, lengths = model.new_cache(2, 29), torch.tensor([7, 4])
    model(ids[:, :7], cache=cache, lengths=lengths)
    rest = torch.stack([ids[0, 7:13], ids[1, 4:10]])
    found = model(rest, cache=cache)
    torch.testing.assert_close(found[0], whole[0, 7:13], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[1], whole[1, 4:10], rtol=1e-9, atol=1e-9)


@double_precision()
def test_what_is_remembered_trains_the_matrices_of_keys_and_values():
    """SG(h) of section 3.2 stops at the hidden states: W_k and W_v read them anew."""
    mixer = TransformerXLAttentionModule(PART, 13)
    for weight in mixer.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    x = torch.randn(1, 6, 13, requires_grad=True)
    state, columns = mixer.new_state(1, 6, x[:0]), torch.arange(6)[None]
    for start, end in ((0, 4), (4, 6)):
        cache_slice = CacheSlice(slice(1), start, end - start, None, end)
        own = columns[:, start:end]
        found = mixer(
            x[:, start:end], SequenceInfo(own, own, causal=True, cache_slice=cache_slice), state
        )
    loss = found.square().sum()
    fixed = torch.cat((x[:, :4].detach(), x[:, 4:]), 1)
    sequence = SequenceInfo(columns, columns, causal=True)
    expected = mixer(fixed, sequence)[:, 4:].square().sum()
    weights = [x, *mixer.parameters()]
    # Queries of the first segment have no part in the loss of the second.
    for one, other in zip(
        torch.autograd.grad(loss, weights), torch.autograd.grad(expected, weights), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_parts_that_cannot_remember_are_refused():
    with pytest.raises(SpecError, match="makes anew of what it remembers"):
        PART.replace(positions=spec.Rotary())


@double_precision()
@torch.no_grad()
def test_queries_and_keys_are_normalised():
    """Their length does not matter, as in other attention."""
    mixer = TransformerXLAttentionModule(PART.replace(qk_norm=spec.LayerNorm(eps=1e-12)), 13)
    for name, weight in mixer.named_parameters():
        torch.nn.init.normal_(weight, std=0.5) if "norm" not in name else None
    x, sequence = torch.randn(1, 6, 13), SequenceInfo.of_length(6, causal=True)
    before = mixer(x, sequence)
    for layer in (mixer.query, mixer.key):
        layer.weight.mul_(3.0)
        torch.testing.assert_close(mixer(x, sequence), before, rtol=1e-9, atol=1e-9)
