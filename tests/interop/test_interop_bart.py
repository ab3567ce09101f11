"""BART in and out of Hugging Face."""

from __future__ import annotations

import pytest
import torch
from hugging_face import check_family, options_of, ours_of, randomize
from translation import PAD, ended_pairs, padded_pairs

from trivium import spec
from trivium.errors import CheckpointError, SpecError
from trivium.interop import from_hugging_face
from trivium.interop.bart import BART
from trivium.interop.config import Config

transformers = pytest.importorskip("transformers")

VOCABULARY, START, END = 43, 1, 2
CONFIG = {
    "vocab_size": VOCABULARY,
    "d_model": 30,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 17,
    "pad_token_id": PAD,
    "bos_token_id": START,
    "eos_token_id": END,
    "decoder_start_token_id": START,
    "forced_eos_token_id": None,
}


def config_of(**changes):
    return transformers.BartConfig(**{**CONFIG, **changes})


@pytest.mark.parametrize(
    "name", ["BartModel", "BartForConditionalGeneration", "BartForQuestionAnswering"]
)
@pytest.mark.parametrize("scaled", [False, True])
def test_every_class_answers_equally_both_ways(name, scaled):
    hf = getattr(transformers, name)(config_of(scale_embedding=scaled))
    ours = check_family(hf, padded_pairs(VOCABULARY))
    assert ours.spec.embedding.scale == (30**0.5 if scaled else 1.0)
    assert ours.spec.encoder is not None
    assert ours.spec.decoder is not None
    assert ours.spec.encoder.attention_of(0).num_heads == 5
    assert ours.spec.decoder.attention_of(0).num_heads == 3


@pytest.mark.parametrize("count", [3, 5])
def test_a_text_classifier(count):
    hf = transformers.BartForSequenceClassification(config_of(num_labels=count))
    check_family(hf, ended_pairs(VOCABULARY, END))


def test_other_activations():
    hf = transformers.BartForConditionalGeneration(config_of(activation_function="relu"))
    check_family(hf, padded_pairs(VOCABULARY))


def test_a_bias_of_logits_other_than_zero_is_refused():
    hf = transformers.BartForConditionalGeneration(config_of())
    options, tensors = options_of(hf), dict(hf.state_dict())
    assert not tensors["final_logits_bias"].any()
    model = from_hugging_face(options, tensors)
    assert model.spec.heads == (spec.LMHead(tied=True),)
    tensors["final_logits_bias"] = torch.ones(1, VOCABULARY)
    with pytest.raises(CheckpointError, match="final_logits_bias is not 0"):
        from_hugging_face(options, tensors)


def test_files_of_the_body_and_of_long_ago():
    hf = randomize(transformers.BartModel(config_of()), seed=2)
    options, tensors = options_of(hf), dict(hf.state_dict())
    del tensors["shared.weight"], tensors["encoder.embed_tokens.weight"]
    tensors["encoder.version"] = torch.ones(1)
    options |= {"normalize_before": False, "normalize_embedding": True, "extra_pos_embeddings": 2}
    model = from_hugging_face(options, tensors)
    assert torch.equal(model.tokens.weight, hf.shared.weight)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("normalize_before", True),
        ("normalize_embedding", False),
        ("add_final_layer_norm", True),
        ("static_position_embeddings", True),
        ("extra_pos_embeddings", 1),
        ("tie_word_embeddings", False),
        ("is_decoder", True),
        ("activation_function", "mish"),
        ("colour", "blue"),
    ],
)
def test_refuses_what_it_does_not_know(option, value):
    hf = transformers.BartForConditionalGeneration(config_of())
    with pytest.raises(CheckpointError, match=f"{option}.*{value}"):
        from_hugging_face({**options_of(hf), option: value}, hf.state_dict())


def test_refuses_a_decoder_cut_out_of_its_model():
    hf = transformers.BartForCausalLM(config_of())
    with pytest.raises(CheckpointError, match="BartForCausalLM"):
        ours_of(hf)


def base_spec(**changes) -> spec.ModelSpec:
    config = Config(options_of(transformers.BartModel(config_of())))
    return BART.read(config, "BartModel", ()).replace(**changes)


@pytest.mark.parametrize(
    "heads",
    [
        (),
        (spec.LMHead(tied=True),),
        (spec.SpanHead(),),
        (spec.ClassifierHead(num_labels=7, pooling="last", dense=spec.Dense(activation="tanh")),),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 30**0.5])
def test_what_is_written_is_what_is_read(heads, scale):
    model = base_spec(heads=heads)
    model = model.replace(embedding=model.embedding.replace(scale=scale))
    assert BART.describes(model)
    architecture, options = BART.write(model)
    assert BART.read(Config({"model_type": "bart", **options}), architecture, ()) == model


def changed(**changes) -> spec.ModelSpec:
    """The decoder with a field of its own, or of its attention or feed-forward, changed."""
    model = base_spec()
    stack = model.decoder
    assert stack is not None
    fields = {
        name: getattr(stack, name).replace(**value) if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return model.replace(decoder=stack.replace(**fields))


def test_describes_no_more_than_the_config_can_say():
    model = base_spec()
    embedding = model.embedding
    assert BART.describes(changed(dropout=0.3))
    assert BART.describes(changed(num_layers=7))
    others = [
        model.replace(encoder=None),
        model.replace(decoder=None),
        model.replace(source_vocab_size=31),
        model.replace(embedding=embedding.replace(scale=2.0)),
        model.replace(embedding=embedding.replace(norm=None)),
        model.replace(embedding=embedding.replace(num_token_types=2)),
        model.replace(embedding=embedding.replace(factorised=spec.Factorised(width=7))),
        model.replace(embedding=embedding.replace(positions=spec.Sinusoidal())),
        model.replace(embedding=embedding.replace(positions=spec.Learned(max_length=17))),
        changed(norm=spec.LayerNorm(eps=1e-12)),
        changed(norm_order="pre"),
        changed(num_distinct=1),
        changed(attention={"bias": False}),
        changed(attention={"head_dim": 7}),
        changed(attention={"num_kv_heads": 1}),
        changed(attention={"positions": spec.Rotary()}),
        changed(feed_forward={"gated": True}),
        changed(feed_forward={"activation": "relu"}),
        changed(feed_forward={"activation": spec.Swish(beta=2.0)}),
    ]
    for other in others:
        assert not BART.describes(other), other


def test_a_head_it_has_no_class_for_is_refused():
    for head in (spec.LMHead(tied=False), spec.LMHead(tied=True, bias=True), spec.MLMHead()):
        with pytest.raises(SpecError, match="BART has no encoder-decoder class"):
            BART.write(base_spec(heads=(head,)))
