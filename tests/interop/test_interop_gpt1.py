"""GPT-1 in and out of Hugging Face."""

from __future__ import annotations

import pytest
from decoder_families import (
    POSITIONS,
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

CLASSES = ["OpenAIGPTModel", "OpenAIGPTLMHeadModel", "OpenAIGPTForSequenceClassification"]


def config_of(**changes):
    sizes = {"vocab_size": VOCABULARY, "n_embd": 21, "n_layer": 2, "n_head": 3}
    options = {**sizes, "n_positions": POSITIONS, "num_labels": 5, **TOKENS, **changes}
    return transformers.OpenAIGPTConfig(**options)


def language_model(**changes):
    return transformers.OpenAIGPTLMHeadModel(config_of(**changes)).eval()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_answers_equally_both_ways(name, side):
    check_class(getattr(transformers, name), config_of(), side)


@pytest.mark.parametrize(
    "changes", [{"tie_word_embeddings": False}, {"afn": "relu"}, {"afn": "swish"}]
)
def test_options(changes):
    check_class(transformers.OpenAIGPTLMHeadModel, config_of(**changes), "right")


def test_greedy_tokens():
    check_greedy(language_model())


@pytest.mark.parametrize(
    ("option", "value"), [("afn", "gelu_new"), ("n_special", 3), ("n_inner", 29)]
)
def test_refused_options(option, value):
    check_refused(language_model(), {option: value}, f'"{option}"')


def test_two_heads_at_once_are_refused():
    message = '"architectures" is .OpenAIGPTDoubleHeadsModel'
    check_refused(language_model(), {"architectures": ["OpenAIGPTDoubleHeadsModel"]}, message)


def test_heads_that_do_not_fill_the_width_are_refused():
    check_refused(language_model(), {"n_head": 5}, "width of 21 is not a multiple of 5 heads")


@settings(max_examples=25, deadline=None)
@given(
    head=heads(classes=("none", "lm", "classifier")),
    num_heads=st.integers(1, 5),
    layers=st.integers(1, 3),
    activation=st.sampled_from(["relu", "gelu_tanh", "silu"]),
    dropout=st.sampled_from([0.0, 0.1, 0.3]),
)
def test_what_is_written_is_what_is_read(head, num_heads, layers, activation, dropout):
    model = spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=7 * num_heads,
        embedding=spec.Embedding(positions=spec.Learned(max_length=POSITIONS)),
        decoder=spec.Stack(
            num_layers=layers,
            attention=spec.Attention(num_heads=num_heads, head_dim=7),
            feed_forward=spec.FeedForward(d_ff=28 * num_heads, activation=activation),
            norm=spec.LayerNorm(eps=1e-6),
            norm_order="post",
            dropout=dropout,
        ),
        heads=head,
    )
    check_round_trip("openai-gpt", model)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_order": "pre"},
        {"feed_forward": spec.FeedForward(d_ff=83, activation="relu")},
        {"feed_forward": spec.FeedForward(d_ff=84, activation="gelu")},
        {"attention": spec.Attention(num_heads=3, head_dim=5)},
        {"norm": spec.LayerNorm(bias=False)},
    ],
)
def test_other_stacks_are_not_described(changes):
    theirs = language_model()
    model = from_hugging_face(options_of(theirs), theirs.state_dict()).spec
    assert model.decoder is not None
    assert FAMILIES["openai-gpt"].describes(model)
    changed = model.replace(decoder=model.decoder.replace(**changes))
    assert not FAMILIES["openai-gpt"].describes(changed)
