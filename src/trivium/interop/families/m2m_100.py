"""M2M-100 and NLLB (Fan et al. 2020; NLLB Team 2022): one Transformer for many languages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.pegasus import CONFIG, PEGASUS
from trivium.interop.family import Hook, Option, SpecTree, activation, hf_classes
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.positions.sinusoidal import Sinusoidal


def _read_positions(config: ConfigReader, tree: SpecTree) -> None:
    """Read the position offset: position 0 has the sinusoids of `pad_token_id` + 1."""
    tree.set("embedding.positions.offset", config.require("pad_token_id", 1) + 1)
    tree.set("embedding.scale", 1.0)
    if config.require("scale_embedding", True):
        tree.set("embedding.scale", tree.get("d_model") ** 0.5)


def _write_positions(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write `pad_token_id` (offset - 1), and whether embeddings are scaled."""
    positions = spec.embedding.positions
    if not isinstance(positions, Sinusoidal) or positions.offset < 1:
        raise SpecError("embedding.positions.offset = 0")
    config["pad_token_id"] = positions.offset - 1
    config["scale_embedding"] = spec.embedding.scale != 1.0
    config |= {"is_encoder_decoder": True, "attention_dropout": 0.0}


M2M_100 = replace(
    PEGASUS,
    model_type="m2m_100",
    architectures=hf_classes("M2M100", "ForConditionalGeneration Model"),
    config={
        **CONFIG,
        "vocab_size": Option("vocab_size", 128_112),
        "activation_function": activation("relu", "stacks.layers.feed_forward"),
    },
    fixed={
        **PEGASUS.fixed,
        "embedding.positions.spacing": "inclusive",
        "embedding.positions.counted": "not-padding",
    },
    heads={},
    hf_shapes=lambda _: {},
    must_be_zero=(),
    buffers=(r"(model\.)?(encoder|decoder)\.(embed_positions\.weights|version)",),
    hooks=(Hook(_read_positions, _write_positions),),
    tokenizer_class="M2M100Tokenizer",
)
