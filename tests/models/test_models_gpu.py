"""Models on a GPU compute what they compute on a CPU, cached and packed into documents too."""

from __future__ import annotations

import pytest
import torch
from small_models import ALL_SPECS, BOTH, GENERATING, inputs_for, random_ids, small_model

pytestmark = pytest.mark.gpu


def close(actual, expected, name):
    torch.testing.assert_close(
        actual.cpu(), expected, rtol=1e-3, atol=1e-3, msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize("name", ALL_SPECS)
@torch.no_grad()
def test_hidden_states_with_padding_and_documents(name):
    real = torch.arange(11) < torch.tensor([[11], [4], [7]])
    documents = torch.arange(11)[None].expand(3, -1) // 4 + 1
    inputs = inputs_for(name, random_ids(3, 11), real=real)
    cases = [(inputs, real)]
    if name not in BOTH and small_model(name).spec.supports_packing:
        packed = {"input_ids": inputs["input_ids"], "document_ids": documents}
        cases.append((packed, torch.ones_like(real)))
    expected = [small_model(name)(**case)[mask] for case, mask in cases]
    model = small_model(name).cuda()
    for (case, mask), hidden in zip(cases, expected, strict=True):
        actual = model(**{key: value.cuda() for key, value in case.items()})
        close(actual[mask.cuda()], hidden, name)


@pytest.mark.parametrize("name", GENERATING)
@torch.no_grad()
def test_cached_equals_uncached(name):
    ids = random_ids(2, 11)
    model, inputs = small_model(name), inputs_for(name, ids)
    expected = model(**inputs)
    model = model.cuda()
    cache = model.new_cache(4, 13)
    slots, key = torch.tensor([3, 1], device="cuda"), "input_ids"
    if name in BOTH:
        cache.set_encoder_output(slots, model.encode(inputs["input_ids"].cuda()))
        key = "decoder_input_ids"
    parts = [
        model(**{key: part.cuda()}, cache=cache, slots=slots) for part in ids.split([5, 1, 5], 1)
    ]
    close(torch.cat(parts, 1), expected, name)
    assert cache.lengths.tolist() == [0, 11, 0, 11]
