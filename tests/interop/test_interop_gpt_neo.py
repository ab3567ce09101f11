"""GPT-Neo in and out of Hugging Face."""

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

CLASSES = [
    "GPTNeoModel",
    "GPTNeoForCausalLM",
    "GPTNeoForSequenceClassification",
    "GPTNeoForTokenClassification",
    "GPTNeoForQuestionAnswering",
]
TYPES = [
    [[["global"], 3]],
    [[["local"], 3]],
    [[["local", "global"], 1], [["local"], 1]],
    [[["global", "local", "local"], 1]],
]


def config_of(**changes):
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 21, "num_layers": 3, "num_heads": 3}
    sizes |= {"max_position_embeddings": POSITIONS, "window_size": 5}
    types = {"attention_types": [[["global", "local"], 1], [["global"], 1]]}
    return transformers.GPTNeoConfig(**{**sizes, **types, "num_labels": 5, **TOKENS, **changes})


def language_model(**changes):
    return transformers.GPTNeoForCausalLM(config_of(**changes)).eval()


def read(theirs) -> spec.ModelSpec:
    return from_hugging_face(options_of(theirs), theirs.state_dict()).spec


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_answers_equally_both_ways(name, side):
    check_class(getattr(transformers, name), config_of(), side)


@pytest.mark.parametrize("types", TYPES)
def test_every_order_of_layers(types):
    config = config_of(attention_types=types, window_size=2, intermediate_size=29)
    check_class(transformers.GPTNeoForCausalLM, config, "right")


def test_untied_and_another_activation():
    config = config_of(tie_word_embeddings=False, activation_function="relu")
    check_class(transformers.GPTNeoForCausalLM, config, "right")


@pytest.mark.parametrize("window", [2, 5])
def test_greedy_tokens(window):
    check_greedy(language_model(window_size=window))


def test_their_window_counts_the_position_itself():
    stack = read(language_model(window_size=5)).decoder
    assert stack is not None
    assert [a.pattern for a in stack.attentions] == [
        spec.Full(),
        spec.Sliding(window=4),
        spec.Full(),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window_size": 1}, '"window_size" is 1'),
        ({"attention_types": [[["global"], 2]], "attention_layers": None}, '"attention_types"'),
        (
            {"attention_types": [[["global", "sparse", "local"], 1]], "attention_layers": None},
            '"attention_types" has .sparse.',
        ),
        ({"attention_layers": ["global", "global", "global"]}, '"attention_layers"'),
        ({"activation_function": "mish"}, '"activation_function"'),
        ({"rotary": True}, '"rotary"'),
        ({"architectures": ["GPTNeoDoubleHeadsModel"]}, '"architectures"'),
    ],
)
def test_refused_options(changes, message):
    check_refused(language_model(), changes, message)


@settings(max_examples=25, deadline=None)
@given(
    head=heads(),
    num_heads=st.integers(1, 5),
    layers=st.integers(3, 7),
    bands=st.sampled_from([(False,), (True,), (True, False), (False, True, True)]),
    window=st.integers(1, 9),
    d_ff=st.integers(1, 97),
    activation=st.sampled_from(["relu", "gelu", "gelu_tanh", "silu", "tanh"]),
    dropout=st.sampled_from([0.0, 0.1, 0.3]),
)
def test_what_is_written_is_what_is_read(
    head, num_heads, layers, bands, window, d_ff, activation, dropout
):
    plain = spec.Attention(num_heads=num_heads, head_dim=7, bias=False, output_bias=True, scale=1.0)
    banded = plain.replace(pattern=spec.Sliding(window=window))
    attention = tuple(banded if band else plain for band in bands)
    model = spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=7 * num_heads,
        embedding=spec.Embedding(positions=spec.Learned(max_length=POSITIONS)),
        decoder=spec.Stack(
            num_layers=layers,
            attention=attention if len(attention) > 1 else attention[0],
            feed_forward=spec.FeedForward(d_ff=d_ff, activation=activation),
            norm=spec.LayerNorm(eps=1e-6),
            norm_order="pre",
            dropout=dropout,
        ),
        heads=head,
    )
    check_round_trip("gpt_neo", model)


def test_other_attentions_are_not_described():
    model = read(language_model())
    assert model.decoder is not None
    assert FAMILIES["gpt_neo"].describes(model)
    plain = model.decoder.attention_of(0)
    near, far = (plain.replace(pattern=spec.Sliding(window=window)) for window in (2, 3))
    for attention in (
        (near, far),  # one window a model
        plain.replace(bias=True),
        plain.replace(output_bias=False),
        plain.replace(scale=None),
        plain.replace(positions=spec.ALiBi()),
    ):
        changed = model.replace(decoder=model.decoder.replace(attention=attention))
        assert not FAMILIES["gpt_neo"].describes(changed)
