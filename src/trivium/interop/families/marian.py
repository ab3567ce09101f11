"""Marian (Junczys-Dowmunt et al. 2018): the original Transformer architecture, for translation."""

from __future__ import annotations

from typing import Any

from trivium.interop.families.bart import ALLOWED, CONFIG, FIXED, IGNORED, LAYERS, SCALE_HOOK
from trivium.interop.family import Architecture, Family, Hook, NameMap, Option, SpecTree
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec


def _read_vocab_sizes(config: ConfigReader, tree: SpecTree) -> None:
    """Read the size of a vocabulary shared by source and target, or the size of each of the two."""
    source = config.require("vocab_size")
    target = config.require("decoder_vocab_size", source)
    shared = config.require("share_encoder_decoder_embeddings", True)
    if shared and not tree.get("heads.lm.tied"):
        raise config.unsupported(
            "tie_word_embeddings", expected="True where the sides share a vocabulary"
        )
    if shared and source != target:
        raise config.unsupported(
            "decoder_vocab_size", expected="vocab_size where the sides share it"
        )
    tree.set("vocab_size", target)
    if not shared:
        tree.set("source_vocab_size", source)
    tree.set("heads.lm.bias", "final_logits_bias" in config.weights)


def _write_vocab_sizes(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the vocabulary sizes, and token ids to replace the defaults of `transformers`."""
    config |= {
        "vocab_size": spec.source_vocab_size or spec.vocab_size,
        "decoder_vocab_size": spec.vocab_size,
        "share_encoder_decoder_embeddings": spec.source_vocab_size is None,
        # The defaults are ids of the published vocabulary, which may not exist in this one.
        "pad_token_id": None,
        "eos_token_id": None,
        "forced_eos_token_id": None,
        "decoder_start_token_id": 0,
    }


def _weight_names(spec: TransformerSpec) -> NameMap:
    """Return the mapping of weight names for a spec.

    Encoder and decoder share an embedding matrix, or each has its own.
    """
    if spec.source_vocab_size is None:
        return {"model.shared": "tokens", **LAYERS}
    return {
        "model.encoder.embed_tokens": "source_tokens",
        "model.decoder.embed_tokens": "tokens",
        **LAYERS,
    }


MARIAN = Family(
    "marian",
    architectures={"MarianMTModel": Architecture(("lm",)), "MarianModel": Architecture()},
    stacks=("encoder", "decoder"),
    config={**CONFIG, "tie_word_embeddings": Option("heads.lm.tied", True)},
    fixed={
        **FIXED,
        "embedding.positions.kind": "sinusoidal",
        "embedding.positions.layout": "halves",
    },
    weights=_weight_names,
    heads={"lm": {"lm_head.weight": "weight", "final_logits_bias": "bias"}},
    base="model.",
    expected={**ALLOWED, "normalize_embedding": False, "static_position_embeddings": True},
    ignored=f"{IGNORED} extra_pos_embeddings",
    hf_shapes=lambda spec: {"final_logits_bias": (1, spec.vocab_size)},
    tied_aliases={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.decoder.embed_tokens.weight",
    },
    buffers=(r"(model\.)?(encoder|decoder)\.embed_positions\.weight",),
    hooks=(SCALE_HOOK, Hook(_read_vocab_sizes, _write_vocab_sizes)),
)
