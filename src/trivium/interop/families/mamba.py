"""Mamba (Gu and Dao 2023)."""

from __future__ import annotations

import math
from typing import Any

from trivium.errors import SpecError
from trivium.interop.family import Family, Hook, Option, SpecTree, activation, hf_classes, per_layer
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.mixers.mamba import Mamba


def _read_sizes(config: ConfigReader, tree: SpecTree) -> None:
    """Read `d_inner` and `dt_rank`; a rank of "auto" means hidden_size / 16, rounded up."""
    width = config.require("hidden_size")
    inner, rank = int(config.get("expand", 2) * width), config.get("time_step_rank", "auto")
    if isinstance(rank, str) and rank != "auto":
        raise config.unsupported("time_step_rank", expected='a number, or "auto"')
    tree.set("decoder.layers.mixer.d_inner", inner)
    tree.set("decoder.layers.mixer.dt_rank", math.ceil(width / 16) if rank == "auto" else rank)


def _write_sizes(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write `expand` (d_inner / d_model), `intermediate_size` and `time_step_rank`."""
    mixer = spec.stacks[0].mixers[0]
    if not isinstance(mixer, Mamba):
        raise SpecError(f"mixer = {mixer.kind!r}")
    if mixer.d_inner % spec.d_model:
        raise SpecError("decoder.layers.mixer.d_inner that is not a multiple of d_model")
    config["expand"] = mixer.d_inner // spec.d_model
    config["intermediate_size"], config["time_step_rank"] = mixer.d_inner, mixer.dt_rank


_LAYER = {
    "norm": "mixer_residual.{norm}",
    "mixer.in_proj": ("mixer.input", "mixer.gate"),
    "mixer.conv1d": "mixer.conv",
    "mixer.x_proj": "mixer.x_proj",
    "mixer.dt_proj": "mixer.dt_proj",
    "mixer.A_log": "mixer.A_log",
    "mixer.D": "mixer.D",
    "mixer.out_proj": "mixer.output",
}

MAMBA = Family(
    "mamba",
    architectures=hf_classes("Mamba", "ForCausalLM Model"),
    stacks=("decoder",),
    peft_unsupported=("dt_proj", "out_proj"),
    config={
        "vocab_size": Option("vocab_size", 50_280),
        "hidden_size": Option("d_model", 768),
        "num_hidden_layers": Option("decoder.num_layers", 32),
        "state_size": Option("decoder.layers.mixer.d_state", 16),
        "conv_kernel": Option("decoder.layers.mixer.d_conv", 4),
        "use_bias": Option("decoder.layers.mixer.bias", False),
        "use_conv_bias": Option("decoder.layers.mixer.conv_bias", True),
        "hidden_act": activation("silu", "decoder.layers.mixer"),
        "layer_norm_epsilon": Option("decoder.layers.norm.eps", 1e-5),
        "tie_word_embeddings": Option("heads.lm.tied", True),
    },
    fixed={
        "decoder.layers.mixer.kind": "mamba",
        "decoder.layers.feed_forward": None,
        "decoder.layers.norm.kind": "rms",
        "decoder.layers.norm_placement": "pre",
        "initialization": {"kind": "normal", "residual_init": "scaled"},
    },
    weights={
        "backbone.embeddings": "tokens",
        **per_layer("backbone.layers.{i}", "decoder", _LAYER),
        "backbone.norm_f": "decoder.norm",
    },
    heads={},
    base="backbone.",
    expected={"rms_norm": True, "ssm_cfg": {}},
    # Options for initialization and kernels, and options that `transformers` does not read.
    ignored=(
        "time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor "
        "rescale_prenorm_residual residual_in_fp32 use_mambapy use_associative_scan "
        "intermediate_size d_inner d_model n_layer fused_add_norm pad_vocab_size_multiple"
    ),
    tied_aliases={"lm_head.weight": "backbone.embeddings.weight"},
    hooks=(Hook(_read_sizes, _write_sizes),),
)
