"""GPT-2 in and out of Hugging Face."""

from __future__ import annotations

import pytest
import torch
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
    padded_inputs,
)
from hugging_face import options_of, ours_of, randomize
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium import spec
from trivium.errors import CheckpointError, SpecError
from trivium.interop import FAMILIES, from_hugging_face
from trivium.models import build

transformers = pytest.importorskip("transformers")

CLASSES = [
    "GPT2Model",
    "GPT2LMHeadModel",
    "GPT2ForSequenceClassification",
    "GPT2ForTokenClassification",
    "GPT2ForQuestionAnswering",
]
CHANGES = {
    "untied": {"tie_word_embeddings": False},
    "inner": {"n_inner": 29, "activation_function": "relu"},
    "unscaled": {"scale_attn_weights": False},
    "upcast": {"reorder_and_upcast_attn": True, "attn_implementation": "eager"},
}


def config_of(**changes):
    sizes = {"vocab_size": VOCABULARY, "n_embd": 21, "n_layer": 2, "n_head": 3}
    options = {**sizes, "n_positions": POSITIONS, "num_labels": 5, **TOKENS, **changes}
    return transformers.GPT2Config(**options)


def language_model(**changes):
    return transformers.GPT2LMHeadModel(config_of(**changes)).eval()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_answers_equally_both_ways(name, side):
    check_class(getattr(transformers, name), config_of(), side)


@pytest.mark.parametrize("name", CHANGES)
def test_options(name):
    check_class(transformers.GPT2LMHeadModel, config_of(**CHANGES[name]), "right")


def test_greedy_tokens():
    check_greedy(language_model())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("scale_attn_by_inverse_layer_idx", True),
        ("add_cross_attention", True),
        ("activation_function", "mish"),
        ("rotary_dim", 8),
    ],
)
def test_refused_options(option, value):
    check_refused(language_model(), {option: value}, f'"{option}"')


def test_two_heads_at_once_are_refused():
    message = '"architectures" is .GPT2DoubleHeadsModel'
    check_refused(language_model(), {"architectures": ["GPT2DoubleHeadsModel"]}, message)


def test_files_without_the_prefix_and_with_old_buffers():
    theirs = randomize(language_model(), seed=5)
    body = dict(theirs.transformer.state_dict())
    body |= {"h.0.attn.bias": torch.ones(1, 1, 3, 3), "h.1.attn.masked_bias": torch.tensor(-1e4)}
    inputs = padded_inputs("right")
    found = from_hugging_face(options_of(theirs), body).eval()
    expected = ours_of(theirs)
    with torch.no_grad():
        logits = [model.logits(model(**inputs)) for model in (found, expected)]
    torch.testing.assert_close(*logits)
    assert all(weight.is_contiguous() for weight in found.parameters())


def test_a_tied_matrix_that_differs_is_refused():
    theirs = language_model()
    tensors = dict(theirs.state_dict())
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    with pytest.raises(
        CheckpointError, match=r"lm_head\.weight differs from transformer\.wte\.weight"
    ):
        from_hugging_face(options_of(theirs), tensors)


@settings(max_examples=25, deadline=None)
@given(
    head=heads(),
    num_heads=st.integers(1, 5),
    layers=st.integers(1, 3),
    d_ff=st.integers(1, 97),
    activation=st.sampled_from(["relu", "gelu", "gelu_tanh", "silu", "tanh"]),
    scale=st.sampled_from([None, 1.0]),
    dropout=st.sampled_from([0.0, 0.1, 0.3]),
)
def test_what_is_written_is_what_is_read(head, num_heads, layers, d_ff, activation, scale, dropout):
    stack = spec.Stack(
        num_layers=layers,
        attention=spec.Attention(num_heads=num_heads, head_dim=7, scale=scale),
        feed_forward=spec.FeedForward(d_ff=d_ff, activation=activation),
        norm=spec.LayerNorm(eps=1e-6),
        norm_order="pre",
        dropout=dropout,
    )
    model = spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=7 * num_heads,
        embedding=spec.Embedding(positions=spec.Learned(max_length=POSITIONS)),
        decoder=stack,
        heads=head,
    )
    check_round_trip("gpt2", model)


def described() -> spec.ModelSpec:
    theirs = language_model()
    return from_hugging_face(options_of(theirs), theirs.state_dict()).spec


@pytest.mark.parametrize(
    "changes",
    [
        {"d_model": 22},
        {"embedding": spec.Embedding(positions=spec.Sinusoidal())},
        {"embedding": spec.Embedding(positions=spec.Learned(max_length=31), scale=2.0)},
        {"embedding": spec.Embedding(positions=spec.Learned(max_length=31), num_token_types=2)},
    ],
)
def test_other_models_are_not_described(changes):
    assert FAMILIES["gpt2"].describes(described())
    assert not FAMILIES["gpt2"].describes(described().replace(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": spec.Attention(num_heads=3, head_dim=7, bias=False)},
        {"attention": spec.Attention(num_heads=3, head_dim=7, num_kv_heads=1)},
        {"attention": spec.Attention(num_heads=3, head_dim=7, scale=0.5)},
        {"attention": spec.Attention(num_heads=3, head_dim=7, pattern=spec.Sliding(window=2))},
        {"feed_forward": spec.FeedForward(d_ff=29, activation="gelu", gated=True)},
        {"feed_forward": spec.FeedForward(d_ff=29, activation=spec.Swish(beta=2.0))},
        {"norm": spec.RMSNorm()},
        {"norm_order": "post"},
        {"num_distinct": 1},
    ],
)
def test_other_stacks_are_not_described(changes):
    model = described()
    assert model.decoder is not None
    changed = model.replace(decoder=model.decoder.replace(**changes))
    assert not FAMILIES["gpt2"].describes(changed)


@pytest.mark.parametrize(
    "head",
    [
        spec.LMHead(tied=True, bias=True),
        spec.LMHead(tied=True, scale=2.0),
        spec.ClassifierHead(num_labels=5, pooling="mean", bias=False),
        spec.ClassifierHead(num_labels=5, pooling="last"),
        spec.PoolerHead(),
    ],
)
def test_other_heads_are_refused(head):
    model = described().replace(heads=(head,))
    with pytest.raises(SpecError, match="GPT-2 has no"):
        FAMILIES["gpt2"].write(build(model, device="meta").spec)
