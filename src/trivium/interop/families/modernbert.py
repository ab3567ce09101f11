"""ModernBERT (Warner et al. 2024): RoPE, gated FFNs, full and sliding-window attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.llama import (
    ORIGINAL_LENGTH,
    drop_truncate,
    rope_parameters,
    rotary_fields,
)
from trivium.interop.families.qwen2 import read_layer_types, write_layer_types
from trivium.interop.family import (
    QKV,
    Family,
    Hook,
    NameMap,
    Option,
    SpecTree,
    activation,
    encoder_classes,
    per_layer,
)
from trivium.interop.hf_config import FULL, SLIDING, ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.patterns import Sliding
from trivium.nn.positions.rotary import Rotary

BASES = {FULL: 160_000.0, SLIDING: 10_000.0}


def _read_attention(config: ConfigReader, tree: SpecTree) -> None:
    """Read each layer's attention: full, or `local_attention` // 2 positions on each side."""
    full = read_layer_rotary(config, FULL, "global_rope_theta", BASES[FULL])
    sliding = read_layer_rotary(config, SLIDING, "local_rope_theta", BASES[SLIDING])
    tree.set("encoder.layers.mixer.positions", full)
    every = config.require("global_attn_every_n_layers", 3)
    window, option = config.require("local_attention", 128) // 2 + 1, "local_attention"
    read_layer_types(config, tree, window, lambda i: i % every > 0, option, positions=sliding)


def read_layer_rotary(
    config: ConfigReader, kind: str, old_name: str, default: float, *, older: str = ""
) -> Rotary:
    """Return the RoPE of the layers of one type.

    Args:
        config: the options of the `config.json`.
        kind: the layer type.
        old_name: the option for the RoPE base before transformers 5, if there is one.
        default: the base if the file does not set any.
        older: the option for the RoPE scaling before transformers 5, if it is for this layer type.

    Raises:
        CheckpointError: "rope_parameters" has no separate options for each layer type.
    """
    kinds = config.get("rope_parameters", {})
    if not {*kinds} <= {*BASES}:
        expected = f'options for "{FULL}" and for "{SLIDING}"'
        raise config.unsupported("rope_parameters", expected=expected)
    base = config.require(old_name, default) if old_name else default
    rope = {**(kinds.get(kind) or {}), **(config.get(older, {}) if older else {})}
    drop_truncate(rope, kind)
    if ORIGINAL_LENGTH in rope:  # each layer type has its own
        config = config.with_option(ORIGINAL_LENGTH, rope[ORIGINAL_LENGTH])
    return Rotary.model_validate(rotary_fields(config, rope, base))


def rotary_by_layer_type(spec: TransformerSpec, bases: Mapping[str, float]) -> dict[str, Rotary]:
    """Return layer type ("full_attention" or "sliding_attention") -> RoPE.

    For a type that no layer has, the RoPE has the base in `bases`. Raises SpecError for a YaRN
    scaling without `truncate`, which `transformers` does not read for a layer type.
    """
    rotary = {kind: Rotary(base=base) for kind, base in bases.items()}
    for mixer in spec.stacks[0].attentions:
        if isinstance(mixer.positions, Rotary):  # others differ when the config is read back
            rotary[SLIDING if isinstance(mixer.pattern, Sliding) else FULL] = mixer.positions
    for positions in rotary.values():
        if not getattr(positions.scaling, "truncate", True):
            raise SpecError("positions.scaling.truncate = False for a layer type")
    return rotary


def _write_attention(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the layer types, the window, and the RoPE base of each layer type."""
    rotary = rotary_by_layer_type(spec, BASES)
    window = write_layer_types(spec, config) or 65
    config |= {
        "local_attention": 2 * (window - 1),
        "rope_parameters": {
            kind: rope_parameters(positions, config) for kind, positions in rotary.items()
        },
    }


def _path_in_all_heads(path: str) -> tuple[str, ...]:
    """Return the dotted paths of the field `path` in all kinds of heads."""
    return tuple(f"heads.{kind}.{path}" for kind in ("mlm", "classifier", "tagger", "span"))


_DENSE = {"head.dense": "dense.linear", "head.norm": "dense.norm"}

_LAYER: NameMap = {
    "attn_norm": "mixer_residual.{norm}",
    "attn.Wqkv": QKV,
    "attn.Wo": "mixer.output",
    "mlp_norm": "feed_forward_residual.{norm}",
    "mlp.Wi": ("feed_forward.gate", "feed_forward.up"),
    "mlp.Wo": "feed_forward.down",
}

MODERNBERT = Family(
    "modernbert",
    architectures=encoder_classes("ModernBert", "ForMultipleChoice"),
    stacks=("encoder",),
    config={
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder.num_layers",
        "num_attention_heads": "encoder.layers.mixer.num_heads",
        "attention_bias": Option("encoder.layers.mixer.bias", False),
        "intermediate_size": "encoder.layers.feed_forward.d_ff",
        "hidden_activation": activation("gelu", "encoder.layers.feed_forward"),
        "mlp_bias": Option("encoder.layers.feed_forward.bias", False),
        "norm_eps": Option(("encoder.layers.norm.eps", "embedding.norm.eps"), 1e-5),
        "norm_bias": Option(("encoder.layers.norm.bias", "embedding.norm.bias"), False),
        "mlp_dropout": Option("encoder.dropout", 0.0),
        "attention_dropout": Option("encoder.dropout", write_only=True),
        "embedding_dropout": Option("encoder.dropout", write_only=True),
        "classifier_dropout": Option("encoder.dropout", write_only=True),
        "classifier_activation": activation("gelu", *_path_in_all_heads("dense")),
        "classifier_bias": Option(_path_in_all_heads("dense.bias"), False),
        "classifier_pooling": Option(
            "heads.classifier.pooling", "cls", {"cls": "first", "mean": "mean"}
        ),
        "decoder_bias": Option("heads.mlm.bias", True),
        "tie_word_embeddings": Option("heads.mlm.tied", True),
    },
    fixed={
        "embedding.norm.kind": "layer",
        "encoder.layers.norm.kind": "layer",
        "encoder.layers.norm_placement": "pre",
        "encoder.first_norm": False,
        "encoder.layers.feed_forward.gated": True,
        **dict.fromkeys(_path_in_all_heads("dense.norm"), True),
    },
    weights={
        "model.embeddings.tok_embeddings": "tokens",
        "model.embeddings.norm": "encoder.embedding.norm",
        **per_layer("model.layers.{i}", "encoder", _LAYER),
        "model.final_norm": "encoder.norm",
    },
    heads={
        "mlm": {**_DENSE, "decoder": ""},
        "classifier": {**_DENSE, "classifier": "classifier"},
        "tagger": {**_DENSE, "classifier": "classifier"},
        "span": {**_DENSE, "classifier": "classifier"},
    },
    base="model.",
    # Positions are always rotary, and norms have `norm_eps`.
    ignored="position_embedding_type max_position_embeddings layer_norm_eps "
    "initializer_cutoff_factor deterministic_flash_attn reference_compile repad_logits_with_grad "
    "sparse_prediction sparse_pred_ignore_index",
    tied_aliases={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    hooks=(Hook(_read_attention, _write_attention),),
)
