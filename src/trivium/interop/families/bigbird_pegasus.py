"""BigBird-Pegasus (Zaheer et al. 2020): Pegasus with block-sparse attention in the encoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.bart import BART, LAYERS, SCALE_HOOK
from trivium.interop.families.big_bird import read_block_sparse
from trivium.interop.families.mbart import MBART
from trivium.interop.families.pegasus import CONFIG, FIXED, PEGASUS
from trivium.interop.family import Hook, Option, SpecTree, activation
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.mixers.block_sparse_attention import BlockSparseAttention


def _read_attention(config: ConfigReader, tree: SpecTree) -> None:
    """Read the kind of attention in the encoder, and the embedding scale."""
    read_block_sparse(config, tree)
    scaled = config.require("scale_embedding", True)
    tree.set("embedding.scale", tree.get("d_model") ** 0.5 if scaled else 1.0)


def _write_attention(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the kind of attention in the encoder, and the embedding scale."""
    SCALE_HOOK.write(spec, config)
    sparse = isinstance(spec.stacks[0].mixers[0], BlockSparseAttention)
    config["attention_type"] = "block_sparse" if sparse else "original_full"


_ENCODER_ATTENTION = {
    f"model.encoder.layers.{{i}}.self_attn.{hf}": f"encoder.layers.{{i}}.mixer.{local}"
    for hf, local in (
        *((f"self.{part}", part) for part in ("query", "key", "value")),
        ("output", "output"),
    )
}

BIGBIRD_PEGASUS = replace(
    MBART,
    model_type="bigbird_pegasus",
    architectures={
        name.replace("MBart", "BigBirdPegasus"): one for name, one in MBART.architectures.items()
    },
    config={
        **CONFIG,
        "vocab_size": Option("vocab_size", 96_103),
        "encoder_layers": Option("encoder.num_layers", 16),
        "decoder_layers": Option("decoder.num_layers", 16),
        "max_position_embeddings": Option("embedding.positions.max_length", 4096),
        "activation_function": activation("gelu_new", "stacks.layers.feed_forward"),
        "use_bias": Option("stacks.layers.mixer.bias", False),
        "block_size": Option("encoder.layers.mixer.block_size", 64),
        "num_random_blocks": Option("encoder.layers.mixer.num_random", 3),
    },
    fixed={**FIXED, "embedding.positions.kind": "learned"},
    weights={
        "model.shared": "tokens",
        "model.encoder.embed_positions": "encoder.embedding.positions",
        "model.decoder.embed_positions": "decoder.embedding.positions",
        **{
            name: local
            for name, local in LAYERS.items()
            if not (name.startswith("model.encoder") and name.endswith("_proj"))
        },
        **_ENCODER_ATTENTION,
        "model.encoder.layernorm_embedding": "encoder.norm",
        "model.decoder.layernorm_embedding": "decoder.norm",
    },
    expected={"is_decoder": False, "tie_word_embeddings": True},
    ignored=f"{PEGASUS.ignored} attention_probs_dropout_prob",
    hooks=(Hook(_read_attention, _write_attention), BART.hooks[1]),
    tokenizer_class="PegasusTokenizer",
)
