"""T5 and T5 1.1 in and out of Hugging Face."""

from __future__ import annotations

import pytest
import torch
from hugging_face import check_family, options_of, our_answers, ours_of, randomize, their_answers
from safetensors.torch import save_file
from translation import END, PAD, START, ended_pairs, padded_pairs

from trivium import spec
from trivium.errors import CheckpointError, SpecError
from trivium.interop import from_hugging_face, to_hugging_face
from trivium.interop.config import Config, labels
from trivium.interop.t5 import T5

transformers = pytest.importorskip("transformers")

VOCABULARY = 43
CONFIG = {
    "vocab_size": VOCABULARY,
    "d_model": 22,
    "d_kv": 7,
    "d_ff": 29,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 5,
    "relative_attention_num_buckets": 14,
    "relative_attention_max_distance": 11,
    "layer_norm_epsilon": 1e-5,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "decoder_start_token_id": START,
}
PROJECTIONS = ["relu", "gated-gelu", "gated-silu", "gelu", "gated-relu"]


def config_of(**changes):
    return transformers.T5Config(**{**CONFIG, **changes})


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_tied_and_scaled_with_every_projection(projection):
    config = config_of(feed_forward_proj=projection)
    ours = check_family(transformers.T5ForConditionalGeneration(config), padded_pairs(VOCABULARY))
    assert ours.spec.heads == (spec.LMHead(tied=True, scale=22**-0.5),)
    assert ours.spec.decoder is not None
    assert ours.spec.decoder.num_layers == 2


def test_the_bodies():
    pairs = padded_pairs(VOCABULARY)
    check_family(transformers.T5Model(config_of()), pairs)
    alone = {name: pairs[name] for name in ("input_ids", "attention_mask")}
    ours = check_family(transformers.T5EncoderModel(config_of()), alone)
    assert ours.spec.family == "encoder-only"


def test_every_task():
    pairs = padded_pairs(VOCABULARY)
    check_family(transformers.T5ForQuestionAnswering(config_of()), pairs)
    alone = {name: pairs[name] for name in ("input_ids", "attention_mask")}
    check_family(transformers.T5ForTokenClassification(config_of(num_labels=5)), alone)
    classifier = transformers.T5ForSequenceClassification(config_of(num_labels=5))
    check_family(classifier, ended_pairs(VOCABULARY, END))


def untied():
    """T5 1.1 as it is when loaded: theirs ties the two matrices only where a file has one."""
    config = config_of(tie_word_embeddings=False, feed_forward_proj="gated-gelu")
    model = transformers.T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(torch.empty(VOCABULARY, 22))
    return randomize(model, seed=3)


def test_untied_and_unscaled(tmp_path):
    hf, pairs = untied(), padded_pairs(VOCABULARY)
    ours = ours_of(hf)
    assert ours.spec.heads == (spec.LMHead(tied=False),)
    [mine], [other] = our_answers(ours, pairs), their_answers(hf, pairs)
    real = pairs["decoder_attention_mask"].bool()
    torch.testing.assert_close(mine[real], other[real], rtol=1e-4, atol=1e-4)
    mine[real].sum().backward()
    other[real].sum().backward()
    gradients = [
        (ours.heads["lm"].weight, hf.lm_head.weight),
        (ours.tokens.weight, hf.shared.weight),
    ]
    for found, expected in gradients:
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-3)
    options, tensors = to_hugging_face(ours)
    assert options["tie_word_embeddings"] is False
    config = transformers.T5Config(**options)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(tmp_path)
    again = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert not torch.equal(again.lm_head.weight, again.shared.weight)
    torch.testing.assert_close(their_answers(again, pairs)[0][real], other[real])


def test_a_config_of_long_ago_says_untied():
    options, tensors = to_hugging_face(ours_of(untied()))
    del options["scale_decoder_outputs"]
    options |= {"n_positions": 512, "output_past": True, "task_specific_params": {"a": {}}}
    assert from_hugging_face(options, tensors).spec.heads == (spec.LMHead(tied=False),)


def test_a_file_with_every_copy_and_one_with_a_copy_alone():
    hf = randomize(transformers.T5ForConditionalGeneration(config_of()), seed=1)
    options, tensors = options_of(hf), dict(hf.state_dict())
    assert {"encoder.embed_tokens.weight", "lm_head.weight"} <= tensors.keys()
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors[unused] = torch.ones(14, 5)
    whole = from_hugging_face(options, tensors)
    copy = tensors.pop("shared.weight")
    del tensors["lm_head.weight"], tensors["decoder.embed_tokens.weight"]
    torch.testing.assert_close(from_hugging_face(options, tensors).tokens.weight, copy)
    assert torch.equal(whole.tokens.weight, copy)
    tensors["lm_head.weight"] = copy + 1
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs"):
        from_hugging_face(options, {**tensors, "shared.weight": copy})


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("feed_forward_proj", "gated-mish", "feed_forward_proj.*gated-mish.*gated-gelu"),
        ("is_decoder", True, "is_decoder.*True"),
        ("dense_act_fn", "relu6", "dense_act_fn.*relu6"),
        ("is_gated_act", True, "is_gated_act.*True"),
        ("colour", "blue", "colour.*blue"),
    ],
)
def test_refuses_what_it_does_not_know(option, value, said):
    hf = transformers.T5ForConditionalGeneration(config_of())
    options = {**options_of(hf), option: value}
    with pytest.raises(CheckpointError, match=said):
        from_hugging_face(options, hf.state_dict())


def base_spec(**changes) -> spec.ModelSpec:
    config = Config(options_of(transformers.T5Model(config_of())))
    return T5.read(config, "T5Model", ()).replace(**changes)


def described(model: spec.ModelSpec) -> spec.ModelSpec:
    architecture, options = T5.write(model)
    names = {row.theirs for row in T5.table(model, architecture)}
    return T5.read(Config({"model_type": "t5", **options}), architecture, names)


HEADS = [
    (),
    (spec.LMHead(tied=True, scale=22**-0.5),),
    (spec.LMHead(tied=False),),
    (spec.LMHead(tied=True),),
    (spec.LMHead(tied=False, scale=22**-0.5),),
    (spec.SpanHead(),),
    (spec.ClassifierHead(num_labels=7, pooling="last", dense=spec.Dense(activation="tanh")),),
]


def test_an_answer_has_two_ends():
    hf = transformers.T5ForQuestionAnswering(config_of())
    with pytest.raises(CheckpointError, match=r"2 labels.*3 are given"):
        from_hugging_face({**options_of(hf), **labels(3)}, hf.state_dict())


def test_a_tagger_is_written_as_it_is_read():
    model = base_spec(decoder=None, heads=(spec.TaggerHead(num_labels=7),))
    assert described(model) == model


@pytest.mark.parametrize("heads", HEADS)
def test_what_is_written_is_what_is_read(heads):
    model = base_spec(heads=heads)
    assert T5.describes(model)
    assert described(model) == model


def changed(**changes) -> spec.ModelSpec:
    """Both stacks with a field of theirs, or of their attention or feed-forward, changed."""
    model = base_spec()
    assert model.encoder is not None
    assert model.decoder is not None

    def change(stack: spec.Stack) -> spec.Stack:
        fields = {
            name: getattr(stack, name).replace(**value) if isinstance(value, dict) else value
            for name, value in changes.items()
        }
        return stack.replace(**fields)

    return model.replace(encoder=change(model.encoder), decoder=change(model.decoder))


def test_describes_no_more_than_the_config_can_say():
    model = base_spec()
    encoder, decoder = model.encoder, model.decoder
    assert encoder is not None
    assert decoder is not None
    for same in (model, model.replace(decoder=None), changed(dropout=0.3)):
        assert T5.describes(same), same
    others = [
        model.replace(encoder=None),
        model.replace(source_vocab_size=31),
        model.replace(embedding=spec.Embedding(scale=2.0)),
        model.replace(embedding=spec.Embedding(positions=spec.Sinusoidal())),
        model.replace(decoder=decoder.replace(norm=spec.RMSNorm(eps=1e-3))),
        changed(norm=spec.LayerNorm()),
        changed(norm_order="post"),
        changed(first_norm=False),
        changed(num_distinct=1),
        changed(attention={"bias": True}),
        changed(attention={"output_bias": True}),
        changed(attention={"scale": None}),
        changed(attention={"num_kv_heads": 1}),
        changed(attention={"positions": None}),
        changed(attention={"pattern": spec.Sliding(window=3)}),
        changed(feed_forward={"bias": True}),
        changed(feed_forward={"activation": "gelu", "gated": True}),
        changed(feed_forward={"activation": spec.Swish(beta=2.0)}),
    ]
    for other in others:
        assert not T5.describes(other), other


def test_a_head_it_has_no_class_for_is_refused():
    tied = spec.LMHead(tied=True, scale=22**-0.5)
    for head in (tied.replace(scale=0.5), tied.replace(bias=True), spec.MLMHead()):
        with pytest.raises(SpecError, match="T5 has no encoder-decoder class"):
            T5.write(base_spec(heads=(head,)))
