"""mT5 (Xue et al. 2020): T5 1.1 with a multilingual vocabulary.

transformers ties the LM head to the token embeddings unless the file has a head of its own, as the
published files do, and never scales the hidden states before the head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.interop.families.t5 import T5, ffn_hook, t5_classes
from trivium.interop.family import Hook, Option, SpecTree
from trivium.interop.hf_config import ConfigReader
from trivium.models.heads.vocabulary import LMHead
from trivium.models.transformer import TransformerSpec


def _read_lm_head(config: ConfigReader, tree: SpecTree) -> None:
    """Read whether the LM head is tied. transformers 5 always says so; the file decides."""
    tied = config.require("tie_word_embeddings", True)
    tree.set("heads.lm.tied", tied and "lm_head.weight" not in config.weights)


def _write_lm_head(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write whether the LM head is tied, and whether the model has a decoder."""
    config["is_encoder_decoder"] = spec.decoder is not None
    for head in spec.heads:
        if isinstance(head, LMHead):
            config["tie_word_embeddings"] = head.tied


LM_HEAD_HOOK = Hook(_read_lm_head, _write_lm_head)

MT5 = replace(
    T5,
    model_type="mt5",
    architectures=t5_classes("MT5"),
    config={
        **T5.config,
        "vocab_size": Option("vocab_size", 250_112),
        "d_model": Option("d_model", 512),
        "d_kv": Option("stacks.layers.mixer.head_dim", 64),
        "d_ff": Option("stacks.layers.feed_forward.d_ff", 1024),
        "num_layers": Option("encoder.num_layers", 8),
        "num_decoder_layers": Option(
            "decoder.num_layers", lambda config: config.get("num_layers", 8)
        ),
        "num_heads": Option("stacks.layers.mixer.num_heads", 6),
    },
    ignored=f"{T5.ignored} tokenizer_class",
    hooks=(ffn_hook("gated-gelu"), LM_HEAD_HOOK),
    is_variant=True,
)
