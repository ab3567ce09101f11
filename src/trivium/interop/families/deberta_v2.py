"""DeBERTa v2 and v3 (He et al. 2021): BERT with disentangled attention.

Published checkpoints contain weights for which `transformers` has no model: the absolute positions
of the enhanced mask decoder, and v3's replaced-token-detection head. Neither is read, so masked
tokens are predicted as in `transformers`. The option `legacy` selects between two names for the MLM
head. Import accepts both; export writes the one that is the default in `transformers`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.bert import BERT, FIXED, LAYER, weight_names
from trivium.interop.family import Hook, Option, SpecTree, activation, attention_of, encoder_classes
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.positions.disentangled import Disentangled

_POSITIONS = "encoder.layers.mixer.positions"


def _read_positions(config: ConfigReader, tree: SpecTree) -> None:
    """Read relative and absolute position embeddings, and whether the MLM head must be tied."""
    longest = config.require("max_position_embeddings", 512)
    if config.require("position_biased_input", True):
        tree.set("embedding.positions", {"kind": "learned", "max_length": longest})
    config.expect("embedding_size", tree.get("d_model"))
    config.expect("pooler_hidden_size", tree.get("d_model"))
    terms = config.get("pos_att_type", [])
    terms = terms.lower().split("|") if isinstance(terms, str) else terms
    terms = sorted(term.strip() for term in terms)
    far = config.require("max_relative_positions", -1)
    if config.require("relative_attention", False):
        far = longest if far < 1 else far
        part = {"kind": "disentangled", "terms": terms, "span": far, "shared": False}
        tree.set(_POSITIONS, part)
    elif terms:
        raise config.unsupported("pos_att_type", expected="none without relative_attention")
    if not config.get("legacy", True):  # the head without `legacy` is always tied
        tree.set("heads.mlm.tied", True)


def _write_positions(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the options for relative and absolute position embeddings."""
    part, absolute = attention_of(spec).positions, spec.embedding.positions
    config |= {
        "relative_attention": part is not None,
        "position_biased_input": absolute is not None,
        "embedding_size": spec.d_model,
        "pooler_hidden_size": spec.d_model,
    }
    longest = None if absolute is None else absolute.max_length
    if isinstance(part, Disentangled):
        far = part.max_distance or part.span
        config |= {"max_relative_positions": far, "pos_att_type": list(part.terms)}
        longest = longest or far
    config["max_position_embeddings"] = longest or 512


POSITIONS_HOOK = Hook(_read_positions, _write_positions)
"""The hook for the position options that DeBERTa v1 and v2 share."""


def _read_v2_options(config: ConfigReader, tree: SpecTree) -> None:
    """Read the options of relative positions that v1 lacks: buckets, shared projections, norm."""
    buckets = config.require("position_buckets", -1)
    shared, norm = config.require("share_att_key", False), config.require("norm_rel_ebd", "none")
    if norm not in ("none", "layer_norm"):
        raise config.unsupported("norm_rel_ebd", "none", "layer_norm")
    if not tree.get(_POSITIONS):
        return
    tree.set(f"{_POSITIONS}.shared", shared)
    if buckets > 0:
        tree.set(f"{_POSITIONS}.max_distance", tree.get(f"{_POSITIONS}.span"))
        tree.set(f"{_POSITIONS}.span", buckets)
    if norm == "layer_norm":
        tree.set(
            f"{_POSITIONS}.norm", {"kind": "layer", "eps": tree.get("encoder.layers.norm.eps")}
        )


def _write_v2_options(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the options of relative positions that v1 lacks: buckets, shared projections, norm."""
    part = attention_of(spec).positions
    if isinstance(part, Disentangled):
        config |= {
            "position_buckets": -1 if part.max_distance is None else part.span,
            "share_att_key": part.shared,
            "norm_rel_ebd": "none" if part.norm is None else "layer_norm",
        }


_LAYER = {
    "attention.self.query_proj": "mixer.query",
    "attention.self.key_proj": "mixer.key",
    "attention.self.value_proj": "mixer.value",
    "attention.self.pos_key_proj": "mixer.positions.key",
    "attention.self.pos_query_proj": "mixer.positions.query",
    **{hf: local for hf, local in LAYER.items() if not hf.startswith("attention.self.")},
}

# Options and fields that are read here, but fixed or read differently in BERT.
_READ = ("max_position_embeddings", "embedding.positions.kind", "heads.classifier.dense.activation")

DEBERTA_V2 = replace(
    BERT,
    model_type="deberta-v2",
    tokenizer_class="DebertaV2Tokenizer",
    architectures=encoder_classes("DebertaV2", "ForMultipleChoice"),
    config={
        **{hf: option for hf, option in BERT.config.items() if hf not in _READ},
        "pooler_hidden_act": activation("gelu", "heads.classifier.dense"),
        "type_vocab_size": Option("embedding.num_token_types", 0),
        "layer_norm_eps": Option(("encoder.layers.norm.eps", "embedding.norm.eps"), 1e-7),
    },
    fixed={path: value for path, value in FIXED.items() if path not in _READ},
    weights={
        **weight_names(_LAYER, "deberta", "deberta.encoder.layer.{i}"),
        "deberta.encoder.rel_embeddings": "encoder.tables.0",
        "deberta.encoder.LayerNorm": "encoder.tables.0.norm",
    },
    heads={
        "mlm": BERT.heads["mlm"],
        "classifier": {"pooler.dense": "dense.linear", "classifier": "classifier"},
    },
    base="deberta.",
    optional_heads=(),
    aliases={
        "lm_predictions.lm_head.dense": "heads.mlm.dense.linear",
        "lm_predictions.lm_head.LayerNorm": "heads.mlm.dense.norm",
        "lm_predictions.lm_head.bias": "heads.mlm.bias",
    },
    expected={"conv_kernel_size": 0},
    ignored="pooler_dropout conv_act conv_groups cls_dropout",
    tied_aliases={
        "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    buffers=(*BERT.buffers, r".*\.position_embeddings\.weight", r"mask_predictions\..*"),
    hooks=(POSITIONS_HOOK, Hook(_read_v2_options, _write_v2_options)),
    is_variant=True,
)
