"""ULMFiT's pooling against its formula in float64, and what an export says of it."""

from __future__ import annotations

import pytest
import torch
from double import double_precision
from small_models import ALL_SPECS

from trivium import spec
from trivium.errors import SpecError
from trivium.interop.convert import to_hf_config
from trivium.models import build
from trivium.presets import catalogue

CONCAT = spec.ClassifierHead(num_labels=3, pooling="concat")


@pytest.mark.parametrize("dense", [None, spec.Dense(activation="tanh")])
@double_precision()
def test_concat_is_the_last_state_with_maximum_and_mean_of_all(dense: spec.Dense | None):
    part = ALL_SPECS["lstm"].replace(heads=(CONCAT.replace(dense=dense),))
    head = build(part, seed=1).eval().heads["classifier"]
    hidden = torch.randn(3, 5, part.d_model, generator=torch.Generator().manual_seed(2))
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0], [0, 0, 0, 0, 0]])
    texts = hidden[0], hidden[1, 1:4]
    pooled = torch.stack([torch.cat((h[-1], h.max(0).values, h.mean(0))) for h in texts])
    if dense is not None:
        pooled = torch.tanh(head.dense.linear(pooled))
    hidden.requires_grad_()
    logits = head(hidden, mask)
    torch.testing.assert_close(logits[:2], head.classifier(pooled))
    torch.testing.assert_close(head(hidden[:1]), logits[:1])  # without a mask
    logits.sum().backward()  # of a text without tokens, too
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


def test_an_export_names_it():
    head = CONCAT.replace(dense=spec.Dense(activation="tanh"))
    with pytest.raises(SpecError, match=r"cannot be exported.*pooling = 'concat'"):
        to_hf_config(catalogue["bert-tiny"].spec.replace(heads=(head,)))
