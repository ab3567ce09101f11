"""Linformer against the paper's formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trivium import spec
from trivium.errors import SpecError
from trivium.models import build
from trivium.nn.mixers.attention import AttentionModule
from trivium.nn.mixers.linformer import LinformerModule, Projection
from trivium.nn.sequence_info import SequenceInfo
from trivium.spec import Linformer

pytestmark = pytest.mark.usefixtures("double_precision")


def start(*modules: torch.nn.Module | None):
    """Draw every E and F."""
    generator = torch.Generator().manual_seed(0)
    for each in (each for one in modules if one is not None for each in one.modules()):
        if isinstance(each, Projection):
            with torch.no_grad():
                each.reset_parameters(generator)


@pytest.mark.parametrize("shared", ["headwise", "key-value", "layerwise"])
def test_the_mixer_is_the_formula_of_the_paper(shared):
    x, real = torch.randn(2, 7, 11), torch.arange(7) < torch.tensor([7, 4])[:, None]
    part = Linformer(num_heads=3, head_dim=2, rank=5, max_length=13, shared=shared)
    mixer = LinformerModule(part, 11)
    sequence, table = SequenceInfo.of_length(7, is_token=real), mixer.new_table()
    start(mixer, table)
    y = mixer(x, sequence, None, mixer.prepare(sequence, None, table)).detach().numpy()
    of_keys = table if table is not None else mixer.project_key
    e = of_keys.get_parameter("weight").detach().numpy()
    f = mixer.project_value.weight.detach().numpy() if shared == "headwise" else e
    for row, length in enumerate((7, 4)):
        q, k, v = (
            getattr(mixer, name)(x[row]).detach().numpy() for name in ("query", "key", "value")
        )
        k, v, heads = e[:, :length] @ k[:length], f[:, :length] @ v[:length], []
        for some in (slice(0, 2), slice(2, 4), slice(4, 6)):
            p = np.exp(q[:, some] @ k[:, some].T / 2**0.5)
            heads.append(p / p.sum(1, keepdims=True) @ v[:, some])
        expected = mixer.output(torch.from_numpy(np.concatenate(heads, 1))).detach().numpy()
        np.testing.assert_allclose(y[row], expected, atol=1e-12)
    with pytest.raises(SpecError, match="linformer cannot keep tokens from each other by causal"):
        mixer(x, SequenceInfo.of_length(7, causal=True))
    with pytest.raises(SpecError, match="max_length=13"):
        mixer(torch.randn(1, 14, 11), SequenceInfo.of_length(14))


def test_means_of_fewer_neighbours_are_nearer_to_attention():
    """Where E = F are means of neighbours; of one each it is attention itself."""
    attention = AttentionModule(spec.Attention(num_heads=3, head_dim=2), 11)
    x, sequence, errors = torch.randn(2, 32, 11).cumsum(1), SequenceInfo.of_length(32), []
    for rank in (4, 8, 16, 32):
        part = Linformer(num_heads=3, head_dim=2, rank=rank, max_length=32, shared="key-value")
        means = torch.eye(rank).repeat_interleave(32 // rank, 1) * rank / 32
        mixer = LinformerModule(part, 11)
        mixer.load_state_dict({**attention.state_dict(), "project_key.weight": means})
        errors.append((mixer(x, sequence) - attention(x, sequence)).abs().mean().item())
    assert errors[0] > errors[1] > errors[2] > 1e-3
    assert errors[3] < 1e-12
    with pytest.raises(SpecError, match="rank=33"):
        part.replace(rank=33)


@pytest.mark.parametrize("shared", ["headwise", "key-value", "layerwise"])
def test_flops_are_those_of_the_products(shared):
    """A token is multiplied with no weight of E, and with `rank` keys and values."""
    stack = spec.Stack.from_mixers(
        num_layers=2,
        mixer=Linformer(num_heads=3, head_dim=2, rank=5, max_length=13, shared=shared),
        feed_forward=spec.MLP(d_ff=17, activation="relu"),
        norm=spec.LayerNorm(),
        norm_placement="pre",
    )
    model = spec.TransformerSpec(
        vocab_size=19, d_model=11, embedding=spec.Embedding(), encoder=stack
    )
    weights = 19 * 11 + 2 * (4 * 11 * 6 + 2 * 11 * 17)
    products = 2 * (2 + 2) * 5 * 6  # both projections, scores and sums
    assert build(model, device="meta").flops_per_token(7) == 6 * (weights + products)
