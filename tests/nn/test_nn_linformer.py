"""Linformer against the paper's formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trivium.errors import SpecError
from trivium.nn.context import Context
from trivium.nn.mixers.linformer import LinformerMixer
from trivium.spec.mixers.linformer import Linformer

pytestmark = pytest.mark.usefixtures("double_precision")


def test_the_mixer_is_the_formula_of_the_paper():
    x, real = torch.randn(2, 7, 11), torch.arange(7) < torch.tensor([7, 4])[:, None]
    for shared in ("headwise", "key-value", "layerwise"):
        part = Linformer(num_heads=3, head_dim=2, rank=5, max_length=13, shared=shared)
        mixer = LinformerMixer(part, 11)
        context, table = Context.of_length(7, padding=real), mixer.new_table()
        y = mixer(x, context, None, mixer.prepare(context, None, table)).detach().numpy()
        e = (table if table is not None else mixer.project_key).weight.detach().numpy()
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
    with pytest.raises(SpecError, match="no limit but padding"):
        mixer(x, Context.of_length(7, causal=True))
    with pytest.raises(SpecError, match="max_length=13"):
        mixer(torch.randn(1, 14, 11), Context.of_length(14))
