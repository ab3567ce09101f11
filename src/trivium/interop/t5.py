"""T5 and T5 1.1 (Raffel et al. 2019; Shazeer 2020 for the gates)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trivium import spec
from trivium.errors import CheckpointError, SpecError
from trivium.interop.bart import classifier, head_rows
from trivium.interop.config import ACTIVATIONS, Config, labels
from trivium.interop.exactness import architecture_of, survives
from trivium.interop.family import Family, Row, rows

# Their names of feed-forward networks -> activation, gated. "gelu" means the exact one only where
# it stands alone.
_PROJECTIONS: dict[str, tuple[spec.Activation, bool]] = {
    "relu": ("relu", False),
    "gated-gelu": ("gelu_tanh", True),
    "gated-silu": ("silu", True),
    "gated-relu": ("relu", True),
    "gated-tanh": ("tanh", True),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_tanh", False),
    "silu": ("silu", False),
    "tanh": ("tanh", False),
    "gated-gelu_new": ("gelu_tanh", True),
    "gated-swish": ("silu", True),
}
_THEIR_PROJECTIONS = {ours: theirs for theirs, ours in reversed(_PROJECTIONS.items())}
_ENCODERS = ("T5EncoderModel", "T5ForTokenClassification")
_INSIDE = ("T5ForSequenceClassification", "T5ForTokenClassification")
_UNUSED_BIAS = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"


def _heads(labels: int, lm: spec.LMHead, family: str) -> dict[str, tuple[spec.Head, ...]]:
    """Every class of theirs with the heads it has, over both stacks or over the encoder alone."""
    if family == "encoder-only":
        return {
            "T5EncoderModel": (),
            "T5ForTokenClassification": (spec.TaggerHead(num_labels=labels),),
        }
    return {
        "T5Model": (),
        "T5ForConditionalGeneration": (lm,),
        "T5ForSequenceClassification": (classifier(labels),),
        "T5ForQuestionAnswering": (spec.SpanHead(),),
    }


def _lm_head(config: Config, names: Collection[str], width: int) -> spec.LMHead:
    """1.1 has a matrix of its own and no scale; its configs have said so in two ways.

    Written long ago: not tied (and so not scaled). Written lately: always tied, not scaled, and a
    second matrix in the file all the same.
    """
    tied = bool(config.take("tie_word_embeddings", True))
    scaled = bool(config.take("scale_decoder_outputs", tied))
    tied = tied and (scaled or "lm_head.weight" not in names)
    return spec.LMHead(tied=tied, scale=width**-0.5 if scaled else 1.0)


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    config.only("is_decoder", False)
    config.ignore("classifier_dropout", "output_past", "n_positions")
    projection = config.choose("feed_forward_proj", {name: name for name in _PROJECTIONS}, "relu")
    activation, gated = _PROJECTIONS[projection]
    config.only("is_gated_act", gated)
    config.only("dense_act_fn", *(name for name, ours in ACTIVATIONS.items() if ours == activation))
    width, layers = config.take("d_model"), config.take("num_layers")
    stack = spec.Stack(
        num_layers=layers,
        attention=spec.Attention(
            num_heads=config.take("num_heads"),
            head_dim=config.take("d_kv"),
            bias=False,
            scale=1.0,
            positions=spec.RelativeBias(
                num_buckets=config.take("relative_attention_num_buckets", 32),
                max_distance=config.take("relative_attention_max_distance", 128),
            ),
        ),
        feed_forward=spec.FeedForward(
            d_ff=config.take("d_ff"), activation=activation, gated=gated, bias=False
        ),
        norm=spec.RMSNorm(eps=config.take("layer_norm_epsilon", 1e-6)),
        norm_order="pre",
        dropout=config.take("dropout_rate", 0.1),
    )
    depth = config.take("num_decoder_layers", layers)
    decoder = None if architecture in _ENCODERS else stack.replace(num_layers=depth)
    lm = _lm_head(config, names, width)
    if architecture == "T5ForQuestionAnswering" and config.num_labels != 2:
        raise CheckpointError(
            f"config.json: {architecture} has 2 labels (where an answer begins and where it ends), "
            f"but {config.num_labels} are given."
        )
    family = "encoder-decoder" if decoder else "encoder-only"
    return spec.ModelSpec(
        vocab_size=config.take("vocab_size"),
        d_model=width,
        embedding=spec.Embedding(),
        encoder=stack,
        decoder=decoder,
        heads=_heads(config.num_labels, lm, family)[architecture],
        initialization=spec.FanIn(),
    )


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    encoder = model.encoder
    assert encoder is not None
    attention, feed_forward = encoder.attention_of(0), encoder.feed_forward
    bias, norm = attention.positions, encoder.norm
    projection = _THEIR_PROJECTIONS.get((feed_forward.activation, feed_forward.gated))  # type: ignore[arg-type]
    if not isinstance(bias, spec.RelativeBias) or projection is None:
        gated = "gated " if feed_forward.gated else ""
        raise SpecError(f"T5 has no {gated}{feed_forward.activation} or no such positions.")
    config: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "d_model": model.d_model,
        "d_kv": attention.head_dim,
        "d_ff": feed_forward.d_ff,
        "num_layers": encoder.num_layers,
        "num_heads": attention.num_heads,
        "relative_attention_num_buckets": bias.num_buckets,
        "relative_attention_max_distance": bias.max_distance,
        "feed_forward_proj": projection,
        "layer_norm_epsilon": norm.eps,
        "dropout_rate": encoder.dropout,
        "is_encoder_decoder": model.decoder is not None,
    }
    if model.decoder:
        config["num_decoder_layers"] = model.decoder.num_layers
    lm, count = spec.LMHead(tied=True, scale=model.d_model**-0.5), 2
    for head in model.heads:
        if isinstance(head, spec.ClassifierHead | spec.TaggerHead):
            count = head.num_labels
            config |= labels(count)
        if isinstance(head, spec.LMHead) and head.scale in (1.0, lm.scale):
            config["scale_decoder_outputs"] = head.scale == lm.scale
            config["tie_word_embeddings"] = head.tied
            lm = lm.replace(tied=head.tied, scale=head.scale)
    return architecture_of(model, _heads(count, lm, model.family), "T5"), config


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    base = "transformer." if architecture in _INSIDE else ""
    found = [Row(f"{base}shared.weight", ("tokens.weight",))]
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is None:
            continue
        bias = f"{base}{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found += [
            Row(bias, (f"{side}.bias.weight",)),
            *rows(f"{side}.norm", f"{base}{side}.final_layer_norm", bias=False),
        ]
        for i in range(stack.num_layers):
            names = f"{side}.layers.{i}", f"{base}{side}.block.{i}.layer"
            found += _block_rows(*names, stack, crosses=side == "decoder")
    for head in model.heads:
        found += head_rows(head, "T5")
    return found


def _block_rows(ours: str, theirs: str, stack: spec.Stack, *, crosses: bool) -> list[Row]:
    feed_forward = {"up": "wi", "down": "wo"}
    if stack.feed_forward.gated:
        feed_forward = {"gate": "wi_0", "up": "wi_1", "down": "wo"}
    attention = {"query": "q", "key": "k", "value": "v", "output": "o"}
    parts = [
        ("attention", "attention_residual", "SelfAttention", attention),
        ("cross_attention", "cross_residual", "EncDecAttention", attention),
        ("feed_forward", "feed_forward_residual", "DenseReluDense", feed_forward),
    ]
    found: list[Row] = []
    for i, (part, residual, name, layers) in enumerate(parts if crosses else parts[::2]):
        for mine, other in layers.items():
            found += rows(f"{ours}.{part}.{mine}", f"{theirs}.{i}.{name}.{other}", bias=False)
        found += rows(f"{ours}.{residual}.norm", f"{theirs}.{i}.layer_norm", bias=False)
    return found


def _describes(model: spec.ModelSpec) -> bool:
    return model.encoder is not None and survives(model, _read, _write, _table)


T5 = Family(
    model_type="t5",
    architectures=(
        "T5ForConditionalGeneration",
        "T5Model",
        "T5EncoderModel",
        "T5ForSequenceClassification",
        "T5ForTokenClassification",
        "T5ForQuestionAnswering",
    ),
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    copies={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
        "transformer.encoder.embed_tokens.weight": "transformer.shared.weight",
        "transformer.decoder.embed_tokens.weight": "transformer.shared.weight",
    },
    ignored=(rf"(transformer\.)?{_UNUSED_BIAS}",),
)
