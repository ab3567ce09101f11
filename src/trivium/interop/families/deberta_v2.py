"""DeBERTa v2 and v3 (He et al. 2021)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.errors import CheckpointError, SpecError
from trivium.interop.families.bert import BERT, CONFIG, FIXED, LAYER, body
from trivium.interop.family import ACTIVATIONS, Hook, Option, SpecTree, attention_of, classes
from trivium.interop.family import head_dim as head_width
from trivium.interop.hf_config import ConfigReader
from trivium.spec import Disentangled, Learned, ModelSpec

_POSITIONS = "encoder.mixer.positions"


def _read_positions(config: ConfigReader, tree: SpecTree) -> None:
    """Distances, and absolute positions in the input where there are any."""
    longest = config.require("max_position_embeddings", 512)
    far = config.require("max_relative_positions", -1)
    far = longest if far < 1 else far
    buckets = config.require("position_buckets", -1)
    terms = config.require("pos_att_type", [])
    terms = terms.lower().split("|") if isinstance(terms, str) else terms
    terms = [term for term in ("c2p", "p2c") if term in [each.strip() for each in terms]]
    norm = config.require("norm_rel_ebd", "none").lower()
    if norm not in ("none", "layer_norm"):
        raise CheckpointError(f"config.json: norm_rel_ebd = {norm!r}")
    width = head_width(tree.get("d_model"), tree.get("encoder.mixer.num_heads"))
    tree.set(f"{_POSITIONS}.terms", terms)
    tree.set(f"{_POSITIONS}.span", buckets if buckets > 0 else far)
    tree.set(f"{_POSITIONS}.max_distance", far if buckets > 0 else None)
    tree.set(f"{_POSITIONS}.shared", config.require("share_att_key", False))
    if norm == "layer_norm":
        eps = tree.get("encoder.norm.eps")
        tree.set(f"{_POSITIONS}.norm", {"kind": "layer", "eps": eps})
    tree.set("encoder.mixer.scale", (width * (1 + len(terms))) ** -0.5)
    if config.require("position_biased_input", True):
        tree.set("embedding.positions", {"kind": "learned", "max_length": longest})
    config.expect("embedding_size", tree.get("d_model"))
    config.expect("pooler_hidden_size", tree.get("d_model"))


def _write_positions(spec: ModelSpec, config: dict[str, Any]) -> None:
    attention, absolute = attention_of(spec), spec.embedding.positions
    part = attention.positions
    if not isinstance(part, Disentangled):
        raise SpecError(f"encoder.mixer.positions = {part!r}")
    scale = (attention.head_dim * (1 + len(part.terms))) ** -0.5
    if attention.scale is None or abs(attention.scale / scale - 1) > 1e-9:
        raise SpecError(f"encoder.mixer.scale = {attention.scale!r}")
    stack = spec.encoder
    if part.norm is not None and (stack is None or part.norm != stack.norm):
        raise SpecError(f"encoder.mixer.positions.norm = {part.norm!r}")
    if absolute is not None and absolute != Learned(max_length=absolute.max_length or 1):
        raise SpecError(f"embedding.positions = {absolute!r}")
    far = part.max_distance or part.span
    config |= {
        "relative_attention": True,
        "position_biased_input": absolute is not None,
        "max_position_embeddings": far if absolute is None else absolute.max_length,
        "max_relative_positions": far,
        "position_buckets": -1 if part.max_distance is None else part.span,
        "pos_att_type": list(part.terms),
        "share_att_key": part.shared,
        "norm_rel_ebd": "none" if part.norm is None else "layer_norm",
        "embedding_size": spec.d_model,
        "pooler_hidden_size": spec.d_model,
    }


_LAYER = {
    "attention.self.query_proj": "mixer.query",
    "attention.self.key_proj": "mixer.key",
    "attention.self.value_proj": "mixer.value",
    "attention.self.pos_key_proj": "mixer.positions.key",
    "attention.self.pos_query_proj": "mixer.positions.query",
    **{hf: local for hf, local in LAYER.items() if not hf.startswith("attention.self.")},
}

_OWN = ("max_position_embeddings",)

DEBERTA_V2 = replace(
    BERT,
    model_type="deberta-v2",
    architectures=classes(
        "DebertaV2",
        "Model ForMaskedLM ForSequenceClassification ForMultipleChoice ForTokenClassification "
        "ForQuestionAnswering",
    ),
    config={
        **{hf: option for hf, option in CONFIG.items() if hf not in _OWN},
        "hidden_act": Option(
            ("encoder.feed_forward.activation", "heads.mlm.dense.activation"), "gelu", ACTIVATIONS
        ),
        "pooler_hidden_act": Option("heads.classifier.dense.activation", "gelu", ACTIVATIONS),
        "type_vocab_size": Option("embedding.num_token_types", 0),
        "layer_norm_eps": Option(("encoder.norm.eps", "embedding.norm.eps"), 1e-7),
    },
    fixed={
        **{
            path: value
            for path, value in FIXED.items()
            if path not in ("embedding.positions.kind", "heads.classifier.dense.activation")
        },
        f"{_POSITIONS}.kind": "disentangled",
    },
    weights={
        **body(_LAYER, "deberta", "deberta.encoder.layer.{i}"),
        "deberta.encoder.rel_embeddings": "encoder.tables.0",
        "deberta.encoder.LayerNorm": "encoder.tables.0.norm",
    },
    heads={
        "mlm": {
            "cls.predictions.transform.dense": "dense.linear",
            "cls.predictions.transform.LayerNorm": "dense.norm",
            "cls.predictions.bias": "bias",
            "cls.predictions.decoder": "",
        },
        "classifier": {"pooler.dense": "dense.linear", "classifier": "classifier"},
    },
    base="deberta.",
    optional_heads=(),
    expected={"relative_attention": True, "conv_kernel_size": 0, "legacy": True},
    ignored="pooler_dropout conv_act conv_groups cls_dropout",
    copies={"cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight"},
    hooks=(Hook(_read_positions, _write_positions),),
)
