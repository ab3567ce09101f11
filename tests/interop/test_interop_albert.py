"""ALBERT in and out of Hugging Face."""

from __future__ import annotations

import pytest
from encoder_families import check_choices, check_exports, options, padded_inputs
from hugging_face import check_family, options_of, ours_of

from trivium import spec
from trivium.errors import CheckpointError
from trivium.interop import from_hugging_face
from trivium.interop.albert import ALBERT

transformers = pytest.importorskip("transformers")

CLASSES = [
    "AlbertModel",
    "AlbertForMaskedLM",
    "AlbertForPreTraining",
    "AlbertForSequenceClassification",
    "AlbertForTokenClassification",
    "AlbertForQuestionAnswering",
]


def tiny(name: str, **changes):
    config = transformers.AlbertConfig(**options(name, embedding_size=7, **changes))
    return getattr(transformers, name)(config)


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_answers_equally_both_ways(name):
    ours = check_family(tiny(name), padded_inputs())
    assert ours.spec.encoder.num_distinct == 1
    assert ours.spec.embedding.factorised == spec.Factorised(width=7)


@pytest.mark.parametrize(("layers", "groups"), [(5, 2), (5, 5), (7, 3)])
def test_groups_of_layers_share_weights(layers, groups):
    hf_model = tiny("AlbertForMaskedLM", num_hidden_layers=layers, num_hidden_groups=groups)
    ours = check_family(hf_model, padded_inputs())
    assert len(ours.encoder.layers) == groups


@pytest.mark.parametrize("name", ["AlbertForMaskedLM", "AlbertForPreTraining"])
def test_untied_and_another_activation(name):
    check_family(tiny(name, tie_word_embeddings=False, hidden_act="gelu"), padded_inputs())


def test_token_vectors_as_wide_as_the_model_are_projected_too():
    config = transformers.AlbertConfig(**options("AlbertModel"), embedding_size=22)
    ours = check_family(transformers.AlbertModel(config), padded_inputs())
    assert ours.spec.embedding.factorised == spec.Factorised(width=22)


def test_multiple_choice_is_a_classifier_of_one_label():
    check_choices(tiny("AlbertForMultipleChoice"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"inner_group_num": 2}, "inner_group_num"),
        ({"num_hidden_groups": 4}, "num_hidden_groups"),
        ({"num_memory_blocks": 1}, "num_memory_blocks"),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, "num_labels"),
    ],
)
def test_what_is_not_supported_is_named(changes, named):
    hf_model = tiny("AlbertForPreTraining")
    with pytest.raises(CheckpointError, match=f'"{named}"'):
        from_hugging_face({**options_of(hf_model), **changes}, hf_model.state_dict())


def test_every_spec_it_describes_comes_back():
    check_exports(ALBERT, ours_of(tiny("AlbertForPreTraining")).spec)
