"""ModernBERT in and out of Hugging Face."""

from __future__ import annotations

import pytest
from encoder_families import check_choices, check_exports, padded_inputs
from hugging_face import check_family, options_of, ours_of

from trivium import spec
from trivium.errors import CheckpointError
from trivium.interop import from_hugging_face
from trivium.interop.modernbert import MODERNBERT

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 43,
    "hidden_size": 42,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "local_attention": 7,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
CLASSES = [
    "ModernBertModel",
    "ModernBertForMaskedLM",
    "ModernBertForSequenceClassification",
    "ModernBertForTokenClassification",
    "ModernBertForQuestionAnswering",
]
BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
INPUTS = padded_inputs(types=False)


def tiny(name: str, **changes):
    labels = 2 if name.endswith("Answering") else 5
    config = transformers.ModernBertConfig(**{**SIZES, "num_labels": labels, **changes})
    return getattr(transformers, name)(config)


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_answers_equally_both_ways(name):
    ours = check_family(tiny(name), INPUTS)
    full, near, again = ours.spec.encoder.attention
    assert full.positions == spec.Rotary(base=160_000.0)
    assert full.pattern == spec.Full()
    assert near == again
    assert near.positions == spec.Rotary(base=10_000.0)
    assert near.pattern == spec.Sliding(window=3)


@pytest.mark.parametrize("name", CLASSES)
def test_every_bias(name):
    changes = {**dict.fromkeys(BIASES, True), "decoder_bias": False}
    check_family(tiny(name, **changes), INPUTS)


@pytest.mark.parametrize("bias", BIASES)
def test_one_bias_alone(bias):
    check_family(tiny("ModernBertForMaskedLM", **{bias: True}), INPUTS)


def test_untied_and_other_activations():
    hf_model = tiny(
        "ModernBertForMaskedLM",
        tie_word_embeddings=False,
        hidden_activation="silu",
        classifier_activation="relu",
    )
    check_family(hf_model, INPUTS)


def test_a_classifier_of_the_mean():
    ours = check_family(
        tiny("ModernBertForSequenceClassification", classifier_pooling="mean"), INPUTS
    )
    assert ours.spec.heads[0].pooling == "mean"


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_multiple_choice_is_a_classifier_of_one_label(pooling):
    check_choices(tiny("ModernBertForMultipleChoice", classifier_pooling=pooling), types=False)


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"global_attn_every_n_layers": 2}, "fs"),
        ({"global_attn_every_n_layers": 1}, "f"),
        ({"global_attn_every_n_layers": 7}, "fssss"),
        ({"layer_types": "s s f f s"}, "ssff"),
    ],
)
def test_where_attention_is_local(changes, pattern):
    names = {"f": "full_attention", "s": "sliding_attention"}
    if "layer_types" in changes:
        changes = {"layer_types": [names[kind] for kind in changes["layer_types"].split()]}
    ours = check_family(tiny("ModernBertModel", **changes), INPUTS)
    found = ours.spec.encoder.attention
    found = found if isinstance(found, tuple) else (found,)
    kinds = {"full": "f", "sliding": "s"}
    assert "".join(kinds[attention.pattern.kind] for attention in found) == pattern


def test_the_published_options_of_before():
    hf_model = tiny(
        "ModernBertForMaskedLM",
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 700.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
        },
    )
    new = check_family(hf_model, INPUTS).spec
    old = {
        name: value
        for name, value in options_of(hf_model).items()
        if name not in ("rope_parameters", "layer_types")
    }
    old |= {
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 700.0,
        "local_rope_theta": 30.0,
        "position_embedding_type": "absolute",
        "reference_compile": True,
        "repad_logits_with_grad": False,
    }
    assert from_hugging_face(old, hf_model.state_dict()).spec == new


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"classifier_pooling": "max"}, "classifier_pooling"),
        ({"layer_types": ["full_attention"] * 4 + ["chunked_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}},
            "rope_parameters",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"hidden_activation": "selu"}, "hidden_activation"),
    ],
)
def test_what_is_not_supported_is_named(changes, named):
    hf_model = tiny("ModernBertModel")
    with pytest.raises(CheckpointError, match=f'"{named}"'):
        from_hugging_face({**options_of(hf_model), **changes}, hf_model.state_dict())


def test_every_spec_it_describes_comes_back():
    check_exports(MODERNBERT, ours_of(tiny("ModernBertForMaskedLM")).spec)
