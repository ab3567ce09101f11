"""ELECTRA in and out of Hugging Face."""

from __future__ import annotations

import pytest
from encoder_families import check_choices, check_exports, options, padded_inputs
from hugging_face import check_family, options_of, ours_of

from trivium import spec
from trivium.errors import CheckpointError
from trivium.interop import from_hugging_face, to_hugging_face
from trivium.interop.electra import ELECTRA

transformers = pytest.importorskip("transformers")

CLASSES = [
    "ElectraModel",
    "ElectraForMaskedLM",
    "ElectraForPreTraining",
    "ElectraForSequenceClassification",
    "ElectraForTokenClassification",
    "ElectraForQuestionAnswering",
]


def tiny(name: str, *, embedding_size: int = 7, **changes):
    config = transformers.ElectraConfig(**options(name, **changes), embedding_size=embedding_size)
    return getattr(transformers, name)(config)


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_answers_equally_both_ways(name):
    ours = check_family(tiny(name), padded_inputs())
    assert ours.spec.embedding.factorised == spec.Factorised(width=7)


@pytest.mark.parametrize("name", ["ElectraForPreTraining", "ElectraForSequenceClassification"])
def test_token_vectors_as_wide_as_the_model_are_not_projected(name):
    ours = check_family(tiny(name, embedding_size=22, hidden_act="silu"), padded_inputs())
    assert ours.spec.embedding.factorised is None


def test_untied_and_another_activation():
    hf_model = tiny("ElectraForMaskedLM", tie_word_embeddings=False, hidden_act="relu")
    ours = check_family(hf_model, padded_inputs())
    # Theirs has gelu in the generator's head whatever the blocks have.
    head = spec.MLMHead(dense=spec.Dense(activation="gelu", norm=True), tied=False)
    assert ours.spec.heads == (head,)


def test_multiple_choice_is_a_classifier_of_one_label():
    check_choices(tiny("ElectraForMultipleChoice"))


def test_another_summary_is_read_and_refused_at_the_way_back():
    ours = ours_of(tiny("ElectraForMultipleChoice", summary_activation="tanh"))
    assert ours.spec.heads[0].dense == spec.Dense(activation="tanh")
    with pytest.raises(ValueError, match="cannot be exported"):
        to_hugging_face(ours)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"summary_type": "mean"}, "summary_type"),
        ({"summary_use_proj": False}, "summary_use_proj"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ],
)
def test_what_is_not_supported_is_named(changes, named):
    hf_model = tiny("ElectraForMultipleChoice")
    with pytest.raises(CheckpointError, match=f'"{named}"'):
        from_hugging_face({**options_of(hf_model), **changes}, hf_model.state_dict())


def test_every_spec_it_describes_comes_back():
    check_exports(ELECTRA, ours_of(tiny("ElectraForPreTraining")).spec)
