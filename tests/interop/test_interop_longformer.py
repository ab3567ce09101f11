"""Longformer's windows and global tokens against `transformers`, in texts of several blocks."""

from __future__ import annotations

import pytest
import torch
from hf_models import VOCABULARY, Case, hf_model, hf_outputs, local_outputs
from hugging_face import ours_of

from trivium.errors import CheckpointError, SpecError
from trivium.nn import SequenceInfo

pytestmark = pytest.mark.usefixtures("double_precision")

_LONG = {"max_position_embeddings": 402, "type_vocab_size": 1}


@torch.no_grad()
def test_windows_in_blocks_with_far_global_tokens_and_those_that_a_task_has():
    length = 397
    real = torch.arange(length) < torch.tensor([[397], [211]])
    ids = torch.randint(5, VOCABULARY, (2, length)).where(real, 1)
    question = torch.tensor([[5], [9]])
    for row, end in enumerate([5, 9]):
        ids[row, [end, end + 1, 200]] = 2  # </s></s> between question and context, and at the end
    far = torch.zeros(2, length, dtype=torch.bool)
    far[0, [7, 300]], far[1, [2, 140, 390]] = True, True  # the last one is padding
    padded = {"input_ids": ids, "attention_mask": real.long()}
    for name, mine, theirs in [
        ("Model", {"global_tokens": far}, {"global_attention_mask": far + 0}),
        ("Model", {}, {}),
        ("ForMaskedLM", {}, {}),
        ("ForSequenceClassification", {}, {}),
        ("ForQuestionAnswering", {"token_type_ids": (torch.arange(length) >= question) + 0}, {}),
    ]:
        original = hf_model(Case(f"Longformer{name}", _LONG))
        local = ours_of(original)
        assert (
            len(local.encoder.layers[0].mixer.prepare(SequenceInfo.of_length(length)).mask.slices)
            > 1
        )
        expected = next(hf_outputs(original, {**padded, **theirs}))
        found = next(local_outputs(local, {**padded, **mine}))
        if found.shape[:2] == real.shape:
            found, expected = found[real], expected[real]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, msg=name)


def test_other_windows_and_tokens_of_models_without_global_ones_are_refused():
    for window in (5, [4, 4, 4], 0):
        original = hf_model(Case("LongformerModel", {}))
        original.config.attention_window = window
        with pytest.raises(CheckpointError, match="attention_window"):
            ours_of(original)
    bert, ids = ours_of(hf_model(Case("BertModel", {}))), torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(SpecError, match="global_tokens"):
        bert(ids, global_tokens=ids)
