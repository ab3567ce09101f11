"""XLNet's two streams against `transformers`, with masks of an order and targets."""

from __future__ import annotations

import pytest
import torch
from hf_models import VOCABULARY, Case, hf_model
from hugging_face import ours_of

pytestmark = pytest.mark.usefixtures("double_precision")


@torch.no_grad()
def test_targets_in_an_order_have_the_logits_of_perm_mask_and_target_mapping():
    original = hf_model(Case("XLNetLMHeadModel", {}))
    local, generator = ours_of(original), torch.Generator().manual_seed(0)
    rows, length = 5, 11
    ids = torch.randint(5, VOCABULARY, (rows, length), generator=generator)
    types = torch.randint(0, 3, (rows, length), generator=generator)
    rank = torch.rand(rows, length, generator=generator).argsort(1).argsort(1)
    order = (rank - 3).clamp(min=0)  # four tokens are known from the beginning
    predicted = torch.stack([(row > 0).nonzero()[:, 0] for row in order])
    mask = torch.arange(length) >= torch.tensor([[0], [0], [1], [2], [3]])
    known = order[:, None, :] < order[:, :, None]
    alike = (order[:, None, :] == 0) & (order[:, :, None] == 0)
    inputs = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask.long()}
    expected = original(
        **inputs,
        perm_mask=(~(known | alike)).double(),
        target_mapping=torch.nn.functional.one_hot(predicted, length).double(),
    ).logits
    logits = local.logits(local(**inputs, order=order, predicted=predicted))
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
    some = torch.tensor([0, 8, 15, 34])
    logits = local.logits(local(**inputs, order=order, predicted=predicted, gather_positions=some))
    torch.testing.assert_close(logits, expected.flatten(0, 1)[some], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_rows_after_others_have_the_logits_of_mems():
    """One row in the order of its targets, one as a whole; the memory is longer than a row."""
    original = hf_model(Case("XLNetLMHeadModel", {"mem_len": 13}))
    local, generator = ours_of(original), torch.Generator().manual_seed(0)
    length, predicted = 7, torch.tensor([[1, 4], [0, 5], [6, 3]])
    rank = torch.rand(3, length, generator=generator).argsort(1).argsort(1)
    order = torch.zeros(3, length, dtype=torch.int64).scatter(1, predicted, 1 + rank[:, :2])
    mask = order[:, None, :] >= order[:, :, None].clamp(min=1)
    target = torch.nn.functional.one_hot(predicted, length).double()
    cache, slots, mems = local.new_cache(4, 5 * length), torch.tensor([3, 0, 2]), None
    for step in range(5):
        ids = torch.randint(5, VOCABULARY, (3, length), generator=generator)
        types = torch.randint(0, 3, (3, length), generator=generator) if step % 2 else None
        inputs = {"input_ids": ids, "token_type_ids": types}
        ordered = {"perm_mask": mask.double(), "target_mapping": target} if step != 2 else {}
        expected = original(**inputs, **ordered, mems=mems)
        ordered = {"order": order, "predicted": predicted} if step != 2 else {}
        logits = local.logits(local(**inputs, **ordered, cache=cache, slots=slots))
        torch.testing.assert_close(logits, expected.logits, rtol=1e-9, atol=1e-9)
        mems = expected.mems
