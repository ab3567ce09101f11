"""What the tests of the encoder families share."""

from __future__ import annotations

from typing import Any

import torch
from hugging_face import TOLERANCE, ours_of, randomize
from safetensors.torch import load, save

from trivium import spec
from trivium.interop import from_hugging_face, to_hugging_face
from trivium.interop.config import Config
from trivium.interop.exactness import plain
from trivium.interop.family import Family
from trivium.models import build

VOCABULARY, LENGTH = 43, 13
CONFIG = {
    "vocab_size": VOCABULARY,
    "hidden_size": 22,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 29,
    "max_position_embeddings": 31,
    "type_vocab_size": 3,
}


def options(name: str, **changes: Any) -> dict[str, Any]:
    """The small configuration of a class, with as many labels as it can have."""
    two = name.endswith(("QuestionAnswering", "ForPreTraining"))
    return {**CONFIG, "num_labels": 2 if two else 5, **changes}


def padded_inputs(*, types: bool = True, padding: int | None = None) -> dict[str, torch.Tensor]:
    """Rows of 13, 7 and 2 tokens; `padding` is the token behind them, anything if None."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [2]])
    ids = torch.randint(5, VOCABULARY, (3, LENGTH), generator=generator)
    inputs = {
        "input_ids": ids if padding is None else ids.where(mask, padding),
        "attention_mask": mask.long(),
    }
    if types:
        inputs["token_type_ids"] = torch.randint(0, 3, (3, LENGTH), generator=generator)
    return inputs


def check_choices(hf_model: Any, *, types: bool = True) -> None:
    """Multiple choice: equal scores, and again as a classifier of one label."""
    randomize(hf_model, seed=1)
    inputs = padded_inputs(types=types)
    ours = ours_of(hf_model)
    theirs = hf_model(**{name: tensor[None] for name, tensor in inputs.items()}).logits[0]
    mask = inputs["attention_mask"]
    mine = ours.logits(ours(**inputs), attention_mask=mask)[:, 0]
    assert (mine - theirs).abs().max() / theirs.abs().max() < TOLERANCE
    config, tensors = to_hugging_face(ours)
    assert config["architectures"][0].endswith("ForSequenceClassification")
    again = from_hugging_face(config, tensors).eval()
    assert torch.equal(again.logits(again(**inputs), attention_mask=mask)[:, 0], mine)


def check_exports(family: Family, model: spec.ModelSpec) -> None:
    """What a family describes is the same when read again; any other part is not described."""
    assert family.describes(model)
    architecture, config = family.write(model)
    names = {row.theirs for row in family.table(model, architecture)}
    again = family.read(Config(config), architecture, names)
    assert plain(again) == plain(model)
    options, tensors = to_hugging_face(build(model, seed=3))
    copy = from_hugging_face(options, load(save(tensors)))
    for mine, other in zip(build(model, seed=3).parameters(), copy.parameters(), strict=True):
        assert torch.equal(mine, other)
    described = 0
    for other in variations(model):
        if family.describes(other):
            described += 1
            architecture, config = family.write(other)
            names = {row.theirs for row in family.table(other, architecture)}
            assert plain(family.read(Config(config), architecture, names)) == plain(other)
            options, tensors = to_hugging_face(build(other))
            assert from_hugging_face(options, load(save(tensors))).spec.heads == other.heads
    assert described > 2


def variations(model: spec.ModelSpec) -> list[spec.ModelSpec]:
    """The same model with one part changed, over every part that a spec has."""
    encoder, embedding = model.encoder, model.embedding
    assert encoder is not None
    attention, forward = encoder.attention_of(0), encoder.feed_forward
    norms = (spec.LayerNorm(eps=3e-3), spec.LayerNorm(bias=False), spec.RMSNorm())
    attentions: list[spec.Attention] = [
        attention.replace(**change)
        for change in (
            {"bias": not attention.bias},
            {"output_bias": not attention.has_output_bias},
            {"num_kv_heads": 1},
            {"scale": 0.7},
            {"pattern": spec.Sliding(window=3)},
            {"positions": spec.ALiBi()},
            {"positions": spec.Rotary(base=77.0) if attention.head_dim % 2 == 0 else None},
            {"positions": None},
        )
    ]
    encoders = [
        *(encoder.replace(attention=each) for each in attentions),
        *(
            encoder.replace(feed_forward=forward.replace(**change))
            for change in (
                {"gated": not forward.gated},
                {"bias": not forward.bias},
                {"activation": "relu"},
                {"activation": spec.Swish(beta=1.7)},
            )
        ),
        *(encoder.replace(norm=norm) for norm in norms),
        encoder.replace(norm_order="pre" if encoder.norm_order == "post" else "post"),
        encoder.replace(dropout=0.3),
        encoder.replace(first_norm=not encoder.first_norm),
    ]
    if isinstance(encoder.attention, spec.Attention):
        encoders += [encoder.replace(num_distinct=count) for count in (None, 1, 2)]
        encoders.append(encoder.replace(num_distinct=None, attention=(attention, attentions[4])))
    embeddings = [
        embedding.replace(**change)
        for change in (
            {"factorised": None},
            {"factorised": spec.Factorised(width=7)},
            {"factorised": spec.Factorised(width=7, bias=False)},
            {"factorised": spec.Factorised(width=7, projected="tokens")},
            {"positions": None},
            {"positions": spec.Sinusoidal()},
            {"positions": spec.Learned(max_length=17)},
            {"positions": spec.Learned(max_length=17, offset=4)},
            {"num_token_types": 0},
            {"num_token_types": 5},
            {"norm": None},
            {"norm": spec.LayerNorm(eps=1e-3)},
            {"scale": 3.0},
        )
    ]
    dense = spec.Dense(activation="relu", norm=True)
    heads: list[tuple[spec.Head, ...]] = [
        (),
        (spec.LMHead(tied=True),),
        (spec.MLMHead(dense=None),),
        (spec.MLMHead(dense=dense),),
        (spec.MLMHead(tied=False), spec.PoolerHead()),
        (spec.MLMHead(bias=False),),
        (spec.NSPHead(), spec.PoolerHead()),
        (spec.TaggerHead(num_labels=7),),
        (spec.TaggerHead(num_labels=7, dense=dense),),
        (spec.SpanHead(), spec.TaggerHead(num_labels=3)),
        (spec.ReplacedTokenHead(activation="relu"),),
        *(
            (spec.ClassifierHead(num_labels=3, pooling=pooling, dense=each, bias=bias),)
            for pooling in ("first", "last", "mean")
            for each in (None, spec.Dense(activation="tanh"), spec.Dense(activation="gelu"), dense)
            for bias in (True, False)
        ),
    ]
    decoder = encoder.replace(num_distinct=None)
    return [
        *(model.replace(encoder=each) for each in encoders),
        *(model.replace(embedding=each) for each in embeddings),
        *(model.replace(heads=each) for each in heads),
        model.replace(encoder=None, decoder=decoder, heads=()),
        model.replace(decoder=decoder, heads=()),
    ]
