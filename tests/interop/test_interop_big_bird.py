"""BigBird's blocks against `transformers`, in texts that are not dense."""

from __future__ import annotations

import pytest
import torch
from hf_models import VOCABULARY, Case, hf_model, hf_outputs, local_outputs
from hugging_face import ours_of

from trivium.errors import SpecError
from trivium.interop.convert import is_expressible
from trivium.nn import SequenceInfo
from trivium.objectives.task_heads import build_classifier_head, build_tagger_head
from trivium.presets import presets

pytestmark = pytest.mark.usefixtures("double_precision")

_LONG = {
    "max_position_embeddings": 97,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@pytest.mark.parametrize(
    "name", ["Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification"]
)
@torch.no_grad()
def test_blocks_in_evaluation_and_random_ones_in_training(name):
    """Rows of 23 blocks, the last one with padding; and each of the heads of a text."""
    blocks = {"block_size": 3, "num_random_blocks": 2}
    real = torch.arange(69) < torch.tensor([[69], [67]])
    ids = torch.randint(5, VOCABULARY, (2, 69)).where(real, 0)
    inputs = {"input_ids": ids, "attention_mask": real.long()}
    for training in (False, True):
        original = hf_model(Case(f"BigBird{name}", {**_LONG, **blocks})).train(training)
        local = ours_of(original).train(training)
        prepared = local.encoder.layers[1].mixer.prepare(SequenceInfo.of_length(69))
        assert prepared.key_blocks.shape[2] == 23
        expected = next(hf_outputs(original, inputs))
        found = next(local_outputs(local, inputs))
        if found.shape[:2] == real.shape:
            found, expected = found[real], expected[real]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, msg=name)


def test_one_token_more_than_a_dense_text():
    """At the length where `transformers` changes, in whole blocks and not."""
    for length in (14, 15, 16, 17):
        sizes = {**_LONG, "block_size": 2, "num_random_blocks": 1}
        original = hf_model(Case("BigBirdModel", sizes))
        ids = torch.randint(5, VOCABULARY, (1, length))
        expected = original(ids).last_hidden_state
        torch.testing.assert_close(ours_of(original)(ids), expected, rtol=1e-9, atol=1e-9)
        # Gradients and kernels: the other way to compute attention.
        with torch.no_grad():
            torch.testing.assert_close(ours_of(original)(ids), expected, rtol=1e-9, atol=1e-9)


def test_packed_documents_are_refused():
    local = ours_of(hf_model(Case("BigBirdModel", _LONG)))
    ids = torch.ones(1, 5, dtype=torch.int64)
    with pytest.raises(SpecError, match="packed documents"):
        local(ids, document_ids=ids)


def test_what_is_fine_tuned_can_be_written():
    model = presets["bigbird-tiny"]
    for head in (build_classifier_head(model, 3, "first"), build_tagger_head(model, 3)):
        assert is_expressible(model.replace(heads=(head,)))
