"""Mamba 2 (Dao and Gu 2024)."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

from trivium.errors import SpecError
from trivium.interop.families.mamba import MAMBA
from trivium.interop.family import Hook, Option, SpecTree, activation, hf_classes, per_layer
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.mixers.mamba2 import Mamba2

_MIXER = "decoder.layers.mixer"


def _read_sizes(config: ConfigReader, tree: SpecTree) -> None:
    """Read the limits of the step sizes. Checks that the heads have all inner channels.

    Warns if there are limits, which `transformers` leaves out where it generates.
    """
    channels = config.get("expand", 2) * tree.get("d_model")
    if channels != tree.get(f"{_MIXER}.num_heads") * tree.get(f"{_MIXER}.head_dim"):
        raise config.unsupported("expand", expected="num_heads * head_dim / hidden_size")
    low, high = config.get("time_step_limit", (0.0, math.inf))
    if (low, high) != (0.0, math.inf):
        warnings.warn(
            f'config.json: "time_step_limit" is {[low, high]}. Here it limits the step sizes of '
            "all tokens, in transformers not those of generated tokens: texts may differ.",
            stacklevel=2,
        )
    tree.set(f"{_MIXER}.dt_min", float(low))
    tree.set(f"{_MIXER}.dt_max", None if float(high) == math.inf else float(high))


def _write_sizes(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write `expand` and the limits of the step sizes."""
    mixer = spec.stacks[0].mixers[0]
    if not isinstance(mixer, Mamba2) or mixer.d_inner % spec.d_model:
        raise SpecError("a mixer other than Mamba2 whose width is a multiple of d_model")
    config["expand"] = mixer.d_inner // spec.d_model
    if mixer.dt_min > 0.0 or mixer.dt_max is not None:  # the default is infinite, JSON is not
        config["time_step_limit"] = [mixer.dt_min, mixer.dt_max or math.inf]


_LAYER = {
    "norm": "mixer_residual.{norm}",
    "mixer.in_proj": ("mixer.gate", "mixer.input", "mixer.dt"),
    "mixer.conv1d": "mixer.conv",
    "mixer.dt_bias": "mixer.dt_bias",
    "mixer.A_log": "mixer.A_log",
    "mixer.D": "mixer.D",
    "mixer.norm.weight": "mixer.norm",
    "mixer.out_proj": "mixer.output",
}

MAMBA2 = replace(
    MAMBA,
    model_type="mamba2",
    architectures=hf_classes("Mamba2", "ForCausalLM Model"),
    peft_unsupported=("out_proj",),
    config={
        "vocab_size": Option("vocab_size", 32_768),
        "hidden_size": Option("d_model", 4096),
        "num_hidden_layers": Option("decoder.num_layers", 64),
        "num_heads": Option(f"{_MIXER}.num_heads", 128),
        "head_dim": Option(f"{_MIXER}.head_dim", 64),
        "state_size": Option(f"{_MIXER}.d_state", 128),
        "conv_kernel": Option(f"{_MIXER}.d_conv", 4),
        "n_groups": Option(f"{_MIXER}.num_groups", 8),
        "use_bias": Option(f"{_MIXER}.bias", False),
        "use_conv_bias": Option(f"{_MIXER}.conv_bias", True),
        "hidden_act": activation("silu", _MIXER),
        "layer_norm_epsilon": Option(("decoder.layers.norm.eps", f"{_MIXER}.norm_eps"), 1e-5),
        "tie_word_embeddings": Option("heads.lm.tied", False),
    },
    fixed={**MAMBA.fixed, f"{_MIXER}.kind": "mamba2"},
    weights={
        "backbone.embeddings": "tokens",
        **per_layer("backbone.layers.{i}", "decoder", _LAYER),
        "backbone.norm_f": "decoder.norm",
    },
    expected={"rms_norm": True, "norm_before_gate": False},
    ignored=(
        "time_step_min time_step_max time_step_floor time_step_rank rescale_prenorm_residual "
        "residual_in_fp32 chunk_size intermediate_size layer_types"
    ),
    hooks=(Hook(_read_sizes, _write_sizes),),
)
