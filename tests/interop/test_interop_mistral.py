"""Mistral in and out of Hugging Face."""

from __future__ import annotations

import pytest
from decoder_families import (
    SIDES,
    TOKENS,
    VOCABULARY,
    check_class,
    check_greedy,
    check_refused,
    check_round_trip,
    heads,
)
from hugging_face import options_of
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium import spec
from trivium.interop import FAMILIES, from_hugging_face

transformers = pytest.importorskip("transformers")

CLASSES = [
    "MistralModel",
    "MistralForCausalLM",
    "MistralForSequenceClassification",
    "MistralForTokenClassification",
    "MistralForQuestionAnswering",
]


def config_of(**changes):
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 23, "intermediate_size": 29, "head_dim": 10}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    length = {"max_position_embeddings": 97, "sliding_window": 5}
    return transformers.MistralConfig(**{**sizes, **length, "num_labels": 5, **TOKENS, **changes})


def language_model(**changes):
    return transformers.MistralForCausalLM(config_of(**changes)).eval()


def read(theirs) -> spec.ModelSpec:
    return from_hugging_face(options_of(theirs), theirs.state_dict()).spec


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_answers_equally_both_ways(name, side):
    check_class(getattr(transformers, name), config_of(), side)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 2},
        {"sliding_window": None},  # a width that LLaMA cannot have: Mistral it stays
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 6, "hidden_act": "gelu"},
    ],
)
def test_options(changes):
    check_class(transformers.MistralForCausalLM, config_of(**changes), "right")


@pytest.mark.parametrize("window", [2, 5, None])
def test_greedy_tokens(window):
    check_greedy(language_model(sliding_window=window))


def test_their_window_counts_the_position_itself():
    stack = read(language_model()).decoder
    assert stack is not None
    assert [a.pattern for a in stack.attentions] == 2 * [spec.Sliding(window=4)]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("sliding_window", 1),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("layer_types", ["sliding_attention", "full_attention"]),
        ("hidden_act", "mish"),
        ("num_local_experts", 2),
    ],
)
def test_refused_options(option, value):
    check_refused(language_model(), {option: value}, f'"{option}"')


def test_other_rotary_positions_are_refused():
    rope = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10.0}
    check_refused(language_model(), {"rope_parameters": rope}, '"rope_type" is .yarn.')


@settings(max_examples=25, deadline=None)
@given(
    head=heads(),
    groups=st.sampled_from([None, 1, 2, 3]),
    half=st.integers(1, 7),
    layers=st.integers(1, 3),
    window=st.integers(1, 5000),
    scaling=st.sampled_from([None, spec.LinearScaling(factor=2.5)]),
)
def test_what_is_written_is_what_is_read(head, groups, half, layers, window, scaling):
    model = spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=23,
        embedding=spec.Embedding(),
        decoder=spec.Stack(
            num_layers=layers,
            attention=spec.Attention(
                num_heads=6,
                head_dim=2 * half,
                num_kv_heads=groups,
                bias=False,
                pattern=spec.Sliding(window=window),
                positions=spec.Rotary(base=1e6, scaling=scaling),
            ),
            feed_forward=spec.FeedForward(d_ff=29, activation="silu", gated=True, bias=False),
            norm=spec.RMSNorm(eps=1e-5),
            norm_order="pre",
        ),
        heads=head,
    )
    check_round_trip("mistral", model)


def test_other_stacks_are_not_described():
    model = read(language_model())
    assert model.decoder is not None
    assert FAMILIES["mistral"].describes(model)
    attention = model.decoder.attention_of(0)
    for changes in (
        {"attention": (attention, attention.replace(pattern=spec.Full()))},
        {"attention": attention.replace(bias=True)},
        {"feed_forward": model.decoder.feed_forward.replace(bias=True)},
    ):
        changed = model.replace(decoder=model.decoder.replace(**changes))
        assert not FAMILIES["mistral"].describes(changed)
