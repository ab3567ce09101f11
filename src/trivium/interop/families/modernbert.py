"""ModernBERT (Warner et al. 2024): rotary positions, gates, windows between full layers."""

from __future__ import annotations

from typing import Any

from trivium.errors import CheckpointError, SpecError
from trivium.interop.family import (
    QKV,
    Family,
    Hook,
    Option,
    SpecTree,
    Weights,
    activation,
    attention_of,
    encoder_classes,
    head_dim,
    in_layers,
)
from trivium.interop.hf_config import FULL, SLIDING, ConfigReader
from trivium.models.transformer import ModelSpec
from trivium.nn.mixers.attention import Attention
from trivium.nn.patterns import Sliding
from trivium.nn.positions.rotary import Rotary

_BASES = {FULL: 160_000.0, SLIDING: 10_000.0}
_OLD_BASES = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}


def _read_attention(config: ConfigReader, tree: SpecTree) -> None:
    """One attention for each layer: everywhere, or `local_attention` positions around."""
    num_heads = config.require("num_attention_heads")
    full = Attention(
        num_heads=num_heads,
        head_dim=head_dim(tree.get("d_model"), num_heads),
        bias=config.require("attention_bias", False),
        positions=_rotary(config, FULL),
    )
    sliding = full.replace(
        pattern=Sliding(window=config.require("local_attention", 128) // 2),
        positions=_rotary(config, SLIDING),
    )
    every = config.require("global_attn_every_n_layers", 3)
    kinds = config.layer_types(lambda layer: layer % every > 0)
    tree.set_mixers("encoder", [full if kind == FULL else sliding for kind in kinds])


def _rotary(config: ConfigReader, kind: str) -> Rotary:
    """Rotary positions of one kind of layer, from the options of transformers 5 or of before."""
    base = config.require(_OLD_BASES[kind], _BASES[kind])
    options = dict(config.get("rope_parameters", {}).get(kind) or {})
    base = options.pop("rope_theta", base)
    if options.pop("rope_type", "default") != "default" or options:
        raise CheckpointError(
            'config.json: "rope_parameters" of modernbert may have "rope_theta" alone.'
        )
    return Rotary(base=base)


def _write_attention(spec: ModelSpec, config: dict[str, Any]) -> None:
    assert spec.encoder is not None
    bases, window, kinds = dict(_BASES), 64, []
    for attention in spec.encoder.attentions:
        if not isinstance(attention.positions, Rotary):
            raise SpecError("encoder.layers.mixer.positions that are not rotary")
        kinds.append(SLIDING if isinstance(attention.pattern, Sliding) else FULL)
        bases[kinds[-1]] = attention.positions.base
        if isinstance(attention.pattern, Sliding):
            window = attention.pattern.window
    first = attention_of(spec)
    config |= {
        "num_attention_heads": first.num_heads,
        "attention_bias": first.bias,
        "layer_types": kinds,
        "local_attention": 2 * window,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()
        },
    }


def _every_head(path: str) -> tuple[str, ...]:
    return tuple(f"heads.{kind}.{path}" for kind in ("mlm", "classifier", "tagger", "span"))


_DENSE = {"head.dense": "dense.linear", "head.norm": "dense.norm"}

_LAYER: Weights = {
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
        "intermediate_size": "encoder.layers.feed_forward.d_ff",
        "hidden_activation": activation("gelu", "encoder.layers.feed_forward"),
        "mlp_bias": Option("encoder.layers.feed_forward.bias", False),
        "norm_eps": Option(("encoder.layers.norm.eps", "embedding.norm.eps"), 1e-5),
        "norm_bias": Option(("encoder.layers.norm.bias", "embedding.norm.bias"), False),
        "mlp_dropout": Option("encoder.dropout", 0.0),
        "attention_dropout": Option("encoder.dropout", write_only=True),
        "embedding_dropout": Option("encoder.dropout", write_only=True),
        "classifier_dropout": Option("encoder.dropout", write_only=True),
        "classifier_activation": activation("gelu", *_every_head("dense")),
        "classifier_bias": Option(_every_head("dense.bias"), False),
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
        **dict.fromkeys(_every_head("dense.norm"), True),
    },
    weights={
        "model.embeddings.tok_embeddings": "tokens",
        "model.embeddings.norm": "encoder.embedding.norm",
        **in_layers("model.layers.{i}", "encoder", _LAYER),
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
    copies={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    hooks=(Hook(_read_attention, _write_attention),),
)
