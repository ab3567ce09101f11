"""T5 and T5 1.1 (Raffel et al. 2019; Shazeer 2020 for the gated feed-forward networks)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.bart import BART
from trivium.interop.family import (
    ACTIVATIONS,
    Architecture,
    Family,
    Hook,
    NameMap,
    Option,
    SpecTree,
    first_mlp,
    hf_classes,
    per_layer,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.heads.vocabulary import LMHead
from trivium.models.transformer import TransformerSpec

# feed_forward_proj -> activation, gated; the first match is written. "gelu" is the exact GELU only
# in networks without gates.
_FFN_ACTIVATIONS = {
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


def ffn_hook(default: str) -> Hook:
    """Return the hook for the activation of the feed-forward networks and their gates.

    `default` is the value of `feed_forward_proj` if the file does not set the option.
    """

    def read(config: ConfigReader, tree: SpecTree) -> None:
        """Read the activation of the feed-forward networks and whether they are gated."""
        activation, gated = config.translate("feed_forward_proj", _FFN_ACTIVATIONS, default)
        config.expect("is_gated_act", gated)
        names = (hf for hf, local in ACTIVATIONS.items() if local == activation)
        config.expect("dense_act_fn", *names)
        tree.set("stacks.layers.feed_forward.activation", activation)
        tree.set("stacks.layers.feed_forward.gated", gated)

    return Hook(read, _write_ffn)


def _write_ffn(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write `feed_forward_proj`. Raises SpecError for activations that T5 does not have."""
    layer = first_mlp(spec)
    for name, local in _FFN_ACTIVATIONS.items():
        if local == (layer.activation, layer.gated):
            config["feed_forward_proj"] = name
            return
    gated = "gated " if layer.gated else ""
    raise SpecError(f"encoder.layers.feed_forward.activation = {gated}{layer.activation!r}")


def _read_lm_head(config: ConfigReader, tree: SpecTree) -> None:
    """Read whether the LM head is tied and scaled.

    T5 1.1 has an untied, unscaled head, which configs express in two ways. Old configs say that the
    head is not tied, which implies that it is not scaled. New configs always say that the head is
    tied and set `scale_decoder_outputs` to false, but the file still has an `lm_head.weight`.
    """
    tied = config.require("tie_word_embeddings", True)
    scaled = config.require("scale_decoder_outputs", tied)
    tree.set("heads.lm.tied", tied and (scaled or "lm_head.weight" not in config.weights))
    tree.set("heads.lm.scale", tree.get("d_model") ** -0.5 if scaled else 1.0)


def _write_lm_head(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write whether the LM head is tied and scaled, and whether the model has a decoder."""
    config["is_encoder_decoder"] = spec.decoder is not None
    for head in spec.heads:
        if isinstance(head, LMHead):
            config["tie_word_embeddings"] = head.tied
            config["scale_decoder_outputs"] = head.scale != 1.0


_ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "output"}


def weight_names(spec: TransformerSpec) -> NameMap:
    """Return the mapping of weight names for a spec.

    The FFN is `layer.1` of an encoder block and `layer.2` of a decoder block.
    """
    gated = first_mlp(spec).gated
    up = {"wi_0": "gate", "wi_1": "up"} if gated else {"wi": "up"}
    attention = _sublayer_names("0", "SelfAttention", "mixer", _ATTENTION)
    cross = _sublayer_names("1", "EncDecAttention", "cross_attention", _ATTENTION)
    weights: dict[str, str | tuple[str, ...]] = {"shared": "tokens"}
    for side, number in (("encoder", "1"), ("decoder", "2")):
        forward = _sublayer_names(number, "DenseReluDense", "feed_forward", {**up, "wo": "down"})
        layer = {**attention, **(cross if side == "decoder" else {}), **forward}
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
        weights |= {bias: f"{side}.tables.0", f"{side}.final_layer_norm": f"{side}.norm"}
        weights |= per_layer(f"{side}.block.{{i}}", side, layer)
    return weights


def _sublayer_names(number: str, hf: str, local: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return the mapping of weight names for a sublayer: its norm, and the projections in `names`.

    `names` is the mapping of the projections' names.
    """
    residual = local.replace("cross_attention", "cross")
    return {
        f"layer.{number}.layer_norm": f"{residual}_residual.{{norm}}",
        **{f"layer.{number}.{hf}.{name}": f"{local}.{part}" for name, part in names.items()},
    }


def t5_classes(family: str) -> dict[str, Architecture]:
    """Return the classes of a family that has the same classes as T5."""
    return {
        **hf_classes(family, "ForConditionalGeneration Model ForQuestionAnswering"),
        f"{family}EncoderModel": Architecture(stacks=("encoder",)),
        f"{family}ForSequenceClassification": Architecture(("classifier",), base="transformer."),
        f"{family}ForTokenClassification": Architecture(
            ("tagger",), stacks=("encoder",), base="transformer."
        ),
    }


T5 = Family(
    "t5",
    architectures=t5_classes("T5"),
    stacks=("encoder", "decoder"),
    config={
        "vocab_size": "vocab_size",
        "d_model": "d_model",
        "d_kv": "stacks.layers.mixer.head_dim",
        "d_ff": "stacks.layers.feed_forward.d_ff",
        "num_layers": "encoder.num_layers",
        "num_decoder_layers": Option(
            "decoder.num_layers", lambda config: config.require("num_layers")
        ),
        "num_heads": "stacks.layers.mixer.num_heads",
        "relative_attention_num_buckets": Option("stacks.layers.mixer.positions.num_buckets", 32),
        "relative_attention_max_distance": Option(
            "stacks.layers.mixer.positions.max_distance", 128
        ),
        "layer_norm_epsilon": Option("stacks.layers.norm.eps", 1e-6),
        "dropout_rate": Option("stacks.dropout", 0.1),
    },
    fixed={
        "stacks.layers.mixer.positions.kind": "relative-bias",
        "stacks.layers.mixer.bias": False,
        "stacks.layers.mixer.scale": 1.0,
        "stacks.layers.feed_forward.bias": False,
        "stacks.layers.norm.kind": "rms",
        "stacks.layers.norm_placement": "pre",
        "heads.classifier.pooling": "last",
        "heads.classifier.dense.activation": "tanh",
        "initialization": {"kind": "fan-in"},
    },
    weights=weight_names,
    heads={"classifier": BART.heads["classifier"]},
    expected={"is_decoder": False},
    ignored="classifier_dropout output_past n_positions",
    tied_aliases={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
        "transformer.encoder.embed_tokens.weight": "transformer.shared.weight",
        "transformer.decoder.embed_tokens.weight": "transformer.shared.weight",
    },
    buffers=(
        r"(transformer\.)?decoder\.block\.0\.layer\.1\.EncDecAttention"
        r"\.relative_attention_bias\.weight",
    ),
    hooks=(ffn_hook("relu"), Hook(_read_lm_head, _write_lm_head)),
    tokenizer_class="T5Tokenizer",
)
