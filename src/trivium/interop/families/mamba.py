"""Mamba (Gu and Dao 2023)."""

from __future__ import annotations

import math

from trivium.interop.family import ACTIVATIONS, Family, Hook, Option, SpecTree, classes, in_layers
from trivium.interop.hf_config import ConfigReader
from trivium.spec import PRE_NORM, ModelSpec
from trivium.spec.mixers.mamba import Mamba


def _read_sizes(config: ConfigReader, tree: SpecTree) -> None:
    """`expand` times the width; a rank that is "auto" is a sixteenth of it."""
    width, rank = config.require("hidden_size"), config.get("time_step_rank", "auto")
    tree.set("decoder.mixer.d_inner", int(config.get("expand", 2) * width))
    tree.set("decoder.mixer.step_rank", math.ceil(width / 16) if rank == "auto" else rank)
    config.ignore("intermediate_size")


def _write_sizes(spec: ModelSpec, config: dict[str, object]) -> None:
    mixer = spec.stacks[0].mixer_of(0)
    if isinstance(mixer, Mamba):
        ratio = mixer.d_inner / spec.d_model
        config["expand"] = int(ratio) if ratio.is_integer() else ratio
        config["time_step_rank"] = mixer.step_rank


_LAYER = {
    "norm": "mixer_residual.{norm}",
    "mixer.in_proj": ("mixer.input", "mixer.gate"),
    "mixer.conv1d": "mixer.convolution",
    "mixer.x_proj": "mixer.selection",
    "mixer.dt_proj": "mixer.step",
    "mixer.A_log": "mixer.log_decay",
    "mixer.D": "mixer.skip",
    "mixer.out_proj": "mixer.output",
}

MAMBA = Family(
    "mamba",
    architectures=classes("Mamba", "ForCausalLM Model"),
    stacks=("decoder",),
    config={
        "vocab_size": Option("vocab_size", 50_280),
        "hidden_size": Option("d_model", 768),
        "num_hidden_layers": Option("decoder.num_layers", 32),
        "state_size": Option("decoder.mixer.d_state", 16),
        "conv_kernel": Option("decoder.mixer.kernel", 4),
        "use_bias": Option("decoder.mixer.bias", False),
        "use_conv_bias": Option("decoder.mixer.convolution_bias", True),
        "hidden_act": Option("decoder.mixer.activation", "silu", ACTIVATIONS),
        "layer_norm_epsilon": Option("decoder.norm.eps", 1e-5),
        "tie_word_embeddings": Option("heads.lm.tied", True),
    },
    fixed={
        "decoder.mixer.kind": "mamba",
        "decoder.feed_forward.kind": "none",
        "decoder.norm.kind": "rms",
        "decoder.norms": PRE_NORM,
        "initialization": {"kind": "normal", "residual_init": "scaled"},
    },
    weights={
        "backbone.embeddings": "tokens",
        **in_layers("backbone.layers.{i}", "decoder", _LAYER),
        "backbone.norm_f": "decoder.norm",
    },
    heads={},
    base="backbone.",
    # Starts of weights, precision of sums, and which of several equal programs computes.
    ignored="time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor "
    "rescale_prenorm_residual residual_in_fp32 use_mambapy use_associative_scan",
    copies={"lm_head.weight": "backbone.embeddings.weight"},
    hooks=(Hook(_read_sizes, _write_sizes),),
)
