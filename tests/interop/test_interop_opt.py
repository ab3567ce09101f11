"""OPT in and out of Hugging Face."""

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
from trivium.errors import SpecError
from trivium.interop import FAMILIES, from_hugging_face

transformers = pytest.importorskip("transformers")

CLASSES = [
    "OPTModel",
    "OPTForCausalLM",
    "OPTForSequenceClassification",
    "OPTForQuestionAnswering",
]
CHANGES = {
    "post-norm": {"do_layer_norm_before": False, "_remove_final_layer_norm": True},
    "no-bias": {"enable_bias": False},
    "untied": {"tie_word_embeddings": False},
    "factorised": {"word_embed_proj_dim": 11},
    "350m": {"word_embed_proj_dim": 11, "do_layer_norm_before": False},
    "factorised-untied": {"word_embed_proj_dim": 23, "tie_word_embeddings": False},
    "activation": {"activation_function": "gelu"},
}


def config_of(**changes):
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 21, "ffn_dim": 29}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 3}
    positions = {"max_position_embeddings": POSITIONS}
    return transformers.OPTConfig(**{**sizes, **positions, "num_labels": 5, **TOKENS, **changes})


def language_model(**changes):
    return transformers.OPTForCausalLM(config_of(**changes)).eval()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_answers_equally_both_ways(name, side):
    check_class(getattr(transformers, name), config_of(), side)


@pytest.mark.parametrize("name", CHANGES)
def test_options(name):
    check_class(transformers.OPTForCausalLM, config_of(**CHANGES[name]), "right")


@pytest.mark.parametrize("name", ["post-norm", "350m"])
def test_other_heads_after_the_last_layer(name):
    changes = {**CHANGES[name], "word_embed_proj_dim": 21}
    check_class(transformers.OPTForSequenceClassification, config_of(**changes), "right")


@pytest.mark.parametrize("changes", [{}, CHANGES["350m"]])
def test_greedy_tokens(changes):
    check_greedy(language_model(**changes))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("layer_norm_elementwise_affine", False),
        ("_remove_final_layer_norm", True),
        ("activation_function", "mish"),
        ("qk_norm", True),
    ],
)
def test_refused_options(option, value):
    check_refused(language_model(), {option: value}, f'"{option}"')


@pytest.mark.parametrize("name", ["OPTModel", "OPTForQuestionAnswering"])
def test_narrowed_states_are_refused_for_other_heads(name):
    theirs = getattr(transformers, name)(config_of(word_embed_proj_dim=11))
    check_refused(theirs, {}, f'"word_embed_proj_dim" is 11.*{name}')


@settings(max_examples=25, deadline=None)
@given(
    head=heads(classes=("none", "lm", "classifier", "span")),
    num_heads=st.integers(1, 5),
    layers=st.integers(1, 3),
    d_ff=st.integers(1, 97),
    bias=st.booleans(),
    order=st.sampled_from(["pre", "post"]),
    activation=st.sampled_from(["relu", "gelu", "gelu_tanh", "silu", "tanh"]),
    width=st.sampled_from([None, 5, 11]),
    dropout=st.sampled_from([0.0, 0.1, 0.3]),
)
def test_what_is_written_is_what_is_read(
    head, num_heads, layers, d_ff, bias, order, activation, width, dropout
):
    factorised = None
    if width is not None and head and head[0].kind == "lm":
        factorised = spec.Factorised(width=width, bias=False, projected="tokens")
    model = spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=7 * num_heads,
        embedding=spec.Embedding(
            positions=spec.Learned(max_length=POSITIONS, offset=2), factorised=factorised
        ),
        decoder=spec.Stack(
            num_layers=layers,
            attention=spec.Attention(num_heads=num_heads, head_dim=7, bias=bias),
            feed_forward=spec.FeedForward(d_ff=d_ff, activation=activation, bias=bias),
            norm=spec.LayerNorm(),
            norm_order=order,
            dropout=dropout,
        ),
        heads=head,
    )
    check_round_trip("opt", model)


def described(**changes) -> spec.ModelSpec:
    theirs = language_model(**changes)
    return from_hugging_face(options_of(theirs), theirs.state_dict()).spec


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": spec.Learned(max_length=31)},
        {"norm": spec.LayerNorm()},
        {"factorised": spec.Factorised(width=11, projected="tokens")},
        {"factorised": spec.Factorised(width=11, bias=False)},
        {"factorised": spec.Factorised(width=21, bias=False, projected="tokens")},
    ],
)
def test_other_embeddings_are_not_described(changes):
    model = described(word_embed_proj_dim=11)
    assert FAMILIES["opt"].describes(model)
    changed = model.replace(embedding=model.embedding.replace(**changes))
    assert not FAMILIES["opt"].describes(changed)


def test_one_bias_for_attention_and_feed_forward():
    model = described()
    assert model.decoder is not None
    attention = model.decoder.attention_of(0).replace(bias=False)
    changed = model.replace(decoder=model.decoder.replace(attention=attention))
    assert not FAMILIES["opt"].describes(changed)


def test_a_classifier_of_narrowed_states_cannot_be_written():
    head = spec.ClassifierHead(num_labels=5, pooling="last", bias=False)
    model = described(word_embed_proj_dim=11).replace(heads=(head,))
    with pytest.raises(SpecError, match="OPTForSequenceClassification cannot have"):
        FAMILIES["opt"].write(model)
