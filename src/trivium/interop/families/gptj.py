"""GPT-J (Wang and Komatsuzaki 2021): parallel blocks with one norm, and interleaved RoPE."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.gpt2 import CONFIG, GPT2, IGNORED, PRE_NORM
from trivium.interop.family import (
    Hook,
    NameMap,
    Option,
    SpecTree,
    activation,
    attention_of,
    hf_classes,
    per_layer,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.positions.rotary import Rotary

_POSITIONS = "decoder.layers.mixer.positions"


def _read_rotary(config: ConfigReader, tree: SpecTree) -> None:
    """Read the number of rotary dimensions of a head."""
    rotary = config.require("rotary_dim", 64)
    head = tree.get("d_model") // tree.get("decoder.layers.mixer.num_heads")
    factor = rotary / max(head, 1)
    if int(head * factor) < rotary:  # the quotient was rounded down
        factor = math.nextafter(factor, 2.0)
    tree.set(f"{_POSITIONS}.partial_rotary_factor", factor)


def _write_rotary(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the number of rotary dimensions of a head."""
    attention = attention_of(spec)
    if not isinstance(attention.positions, Rotary):
        raise SpecError(f"{_POSITIONS} that are not rotary")
    config["rotary_dim"] = attention.positions.rotary_dim(attention.head_dim)


_LAYER: NameMap = {
    "ln_1": "mixer_residual.pre_norm",
    "attn.q_proj": "mixer.query",
    "attn.k_proj": "mixer.key",
    "attn.v_proj": "mixer.value",
    "attn.out_proj": "mixer.output",
    "mlp.fc_in": "feed_forward.up",
    "mlp.fc_out": "feed_forward.down",
}

GPTJ = replace(
    GPT2,
    model_type="gptj",
    architectures=hf_classes(
        "GPTJ", "ForCausalLM Model ForSequenceClassification ForQuestionAnswering"
    ),
    config={
        **CONFIG,
        "vocab_size": Option("vocab_size", 50_400),
        "n_embd": Option("d_model", 4096),
        "n_layer": Option("decoder.num_layers", 28),
        "n_head": Option("decoder.layers.mixer.num_heads", 16),
        "n_inner": Option(
            "decoder.layers.feed_forward.d_ff", lambda config: 4 * config.get("n_embd", 4096)
        ),
        "activation_function": activation("gelu_new", "decoder.layers.feed_forward"),
        "resid_pdrop": Option("decoder.dropout", 0.0),
        "tie_word_embeddings": Option("heads.lm.tied", False),
    },
    fixed={
        **PRE_NORM,
        "decoder.layers.mixer.bias": False,
        f"{_POSITIONS}.kind": "rotary",
        f"{_POSITIONS}.layout": "interleaved",
        "decoder.layers.block.kind": "parallel",
        "heads.lm.bias": True,
    },
    weights={
        "transformer.wte": "tokens",
        **per_layer("transformer.h.{i}", "decoder", _LAYER),
        "transformer.ln_f": "decoder.norm",
    },
    expected={},
    ignored=f"{IGNORED} n_positions rotary scale_attn_weights gradient_checkpointing",
    transposed=(),
    buffers=(r".*\.attn\.(masked_bias|bias|embed_positions)",),
    hooks=(Hook(_read_rotary, _write_rotary),),
    tokenizer_class="GPT2Tokenizer",
)
