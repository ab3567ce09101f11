"""RoBERTa in and out of Hugging Face."""

from __future__ import annotations

import pytest
import torch
from encoder_families import check_choices, check_exports, options, padded_inputs
from hugging_face import check_family, options_of, ours_of

from trivium import spec
from trivium.errors import CheckpointError
from trivium.interop import from_hugging_face, to_hugging_face
from trivium.interop.roberta import ROBERTA

transformers = pytest.importorskip("transformers")

CLASSES = [
    "RobertaModel",
    "RobertaForMaskedLM",
    "RobertaForSequenceClassification",
    "RobertaForTokenClassification",
    "RobertaForQuestionAnswering",
]


def tiny(name: str, **changes):
    config = transformers.RobertaConfig(**options(name, **changes))
    return getattr(transformers, name)(config)


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_answers_equally_both_ways(name):
    ours = check_family(tiny(name), padded_inputs(padding=1))
    assert ours.spec.embedding.positions == spec.Learned(max_length=29, offset=2)


def test_untied_another_activation_and_another_padding_token():
    hf_model = tiny(
        "RobertaForMaskedLM", tie_word_embeddings=False, hidden_act="relu", pad_token_id=4
    )
    ours = check_family(hf_model, padded_inputs(padding=4))
    assert ours.spec.embedding.positions == spec.Learned(max_length=26, offset=5)
    # Theirs has gelu in its head whatever the blocks have.
    head = spec.MLMHead(dense=spec.Dense(activation="gelu", norm=True), tied=False)
    assert ours.spec.heads == (head,)


def test_multiple_choice_is_a_classifier_of_one_label():
    check_choices(tiny("RobertaForMultipleChoice"))


def test_a_pooler_that_no_head_reads_is_kept():
    hf_model = tiny("RobertaForSequenceClassification")
    pooler = {
        "roberta.pooler.dense.weight": torch.randn(22, 22),
        "roberta.pooler.dense.bias": torch.ones(22),
    }
    ours = from_hugging_face(options_of(hf_model), {**hf_model.state_dict(), **pooler})
    assert [head.kind for head in ours.spec.heads] == ["classifier", "pooler"]
    tensors = to_hugging_face(ours)[1]
    assert all(torch.equal(tensors[name], tensor) for name, tensor in pooler.items())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"position_embedding_type": "relative_key_query"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"hidden_act": "selu"}, "hidden_act"),
        ({"architectures": ["RobertaForCausalLM"]}, "architectures"),
    ],
)
def test_what_is_not_supported_is_named(changes, named):
    hf_model = tiny("RobertaForMaskedLM")
    with pytest.raises(CheckpointError, match=f'"{named}"'):
        from_hugging_face({**options_of(hf_model), **changes}, hf_model.state_dict())


def test_every_spec_it_describes_comes_back():
    check_exports(ROBERTA, ours_of(tiny("RobertaForMaskedLM")).spec)
