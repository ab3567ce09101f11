"""LLaMA in and out of Hugging Face."""

from __future__ import annotations

import pytest
import torch
from decoder_families import (
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
from hugging_face import check_family, options_of, ours_of, randomize
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium import spec
from trivium.interop import FAMILIES, from_hugging_face

transformers = pytest.importorskip("transformers")

CLASSES = [
    "LlamaModel",
    "LlamaForCausalLM",
    "LlamaForSequenceClassification",
    "LlamaForTokenClassification",
    "LlamaForQuestionAnswering",
]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CHANGES = {
    "tied": {"tie_word_embeddings": True},
    "multi-query": {"num_key_value_heads": 1},
    "multi-head": {"num_key_value_heads": 6, "rms_norm_eps": 1e-5},
    "head-dim": {"head_dim": 10},
    "attention-biases": {"attention_bias": True},
    "other-biases": {"mlp_bias": True, "hidden_act": "gelu"},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}},
    "llama3": {"rope_parameters": {**LLAMA3, "rope_theta": 100.0}},
}


def config_of(**changes):
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 6 * 4, "intermediate_size": 29}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    length = {"max_position_embeddings": 97}
    return transformers.LlamaConfig(**{**sizes, **length, "num_labels": 5, **TOKENS, **changes})


def language_model(**changes):
    return transformers.LlamaForCausalLM(config_of(**changes)).eval()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_answers_equally_both_ways(name, side):
    check_class(getattr(transformers, name), config_of(), side)


@pytest.mark.parametrize("name", CHANGES)
def test_options(name):
    check_class(transformers.LlamaForCausalLM, config_of(**CHANGES[name]), "right")


@pytest.mark.parametrize("name", ["linear", "llama3"])
def test_positions_that_neither_start_at_zero_nor_follow_each_other(name):
    inputs = padded_inputs("right")
    inputs["position_ids"] = torch.arange(5, 5 + 2 * 13, 2)[None].expand(3, -1)
    check_family(language_model(**CHANGES[name]), inputs)


@pytest.mark.parametrize("changes", [{}, CHANGES["llama3"], CHANGES["tied"]])
def test_greedy_tokens(changes):
    check_greedy(language_model(**changes))


@pytest.mark.parametrize("scaling", [None, {"type": "linear", "factor": 3.0}, LLAMA3])
def test_the_old_spelling_of_rotary_positions(scaling):
    """As releases before 5 wrote it: theirs, reading it, is the reference."""
    old = {"rope_theta": 100.0, "rope_scaling": scaling}
    theirs = randomize(language_model(**old), seed=7)
    options = {k: v for k, v in options_of(theirs).items() if k != "rope_parameters"} | old
    ours = from_hugging_face(options, theirs.state_dict()).eval()
    inputs = padded_inputs("right")
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        found, expected = ours.logits(ours(**inputs)), theirs(**inputs).logits
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-4)
    # And back: both spellings say the same.
    written = FAMILIES["llama"].write(ours.spec)[1]
    assert written["rope_theta"] == written["rope_parameters"]["rope_theta"] == 100.0
    assert ours.spec == ours_of(theirs).spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, '"rope_type" is .dynamic.'),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, '"rope_type" is .yarn.'),
        ({"rope_scaling": {"type": "longrope"}}, '"rope_type" is .longrope.'),
        ({"rope_parameters": {"rope_type": "linear"}}, '"factor" is missing'),
        ({"rope_scaling": {**LLAMA3, "beta_fast": 32}}, '"beta_fast" is not supported'),
        ({"rope_scaling": {"type": "default", "partial_rotary_factor": 0.5}}, '"partial_rotary'),
        ({"partial_rotary_factor": 0.5}, '"partial_rotary_factor" is 0.5'),
        ({"rope_interleaved": True}, '"rope_interleaved"'),
        ({"hidden_act": "mish"}, '"hidden_act"'),
        ({"sliding_window": 5}, '"sliding_window"'),
        ({"num_local_experts": 2}, '"num_local_experts"'),
        ({"architectures": ["LlamaForMultipleChoice"]}, '"architectures"'),
    ],
)
def test_refused_options(changes, message):
    check_refused(language_model(), changes, message)


def test_old_buffers_are_ignored():
    theirs = language_model()
    tensors = dict(theirs.state_dict())
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
    from_hugging_face(options_of(theirs), tensors)


@settings(max_examples=40, deadline=None)
@given(
    head=heads(),
    groups=st.sampled_from([None, 1, 2, 3]),
    half=st.integers(1, 7),
    layers=st.integers(1, 3),
    d_ff=st.integers(1, 97),
    biases=st.tuples(st.booleans(), st.booleans()),
    activation=st.sampled_from(["relu", "gelu", "gelu_tanh", "silu", "tanh"]),
    base=st.sampled_from([100.0, 10_000.0, 500_000.0]),
    scaling=st.sampled_from([None, spec.LinearScaling(factor=2.5), spec.Llama3Scaling(factor=8.0)]),
)
def test_what_is_written_is_what_is_read(
    head, groups, half, layers, d_ff, biases, activation, base, scaling
):
    model = spec.ModelSpec(
        vocab_size=VOCABULARY,
        d_model=30,
        embedding=spec.Embedding(),
        decoder=spec.Stack(
            num_layers=layers,
            attention=spec.Attention(
                num_heads=6,
                head_dim=2 * half,
                num_kv_heads=groups,
                bias=biases[0],
                positions=spec.Rotary(base=base, scaling=scaling),
            ),
            feed_forward=spec.FeedForward(
                d_ff=d_ff, activation=activation, gated=True, bias=biases[1]
            ),
            norm=spec.RMSNorm(eps=1e-5),
            norm_order="pre",
        ),
        heads=head,
    )
    check_round_trip("llama", model)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": spec.LayerNorm()},
        {"norm_order": "post"},
        {"first_norm": False},
        {"feed_forward": spec.FeedForward(d_ff=29, activation="silu", bias=False)},
        {"attention": spec.Attention(num_heads=6, head_dim=4)},
        {"attention": spec.Attention(num_heads=5, head_dim=4, positions=spec.Rotary())},
        {
            "attention": spec.Attention(
                num_heads=6, head_dim=4, output_bias=False, positions=spec.Rotary()
            )
        },
        {
            "attention": spec.Attention(
                num_heads=6, head_dim=4, pattern=spec.Sliding(window=2), positions=spec.Rotary()
            )
        },
    ],
)
def test_other_stacks_are_not_described(changes):
    theirs = language_model()
    model = from_hugging_face(options_of(theirs), theirs.state_dict()).spec
    assert model.decoder is not None
    assert FAMILIES["llama"].describes(model)
    changed = model.replace(decoder=model.decoder.replace(**changes))
    assert not FAMILIES["llama"].describes(changed)
