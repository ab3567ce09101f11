"""LLaMA 1, 2, 3 and 3.x (Touvron et al. 2023; Grattafiori et al. 2024)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trivium import spec
from trivium.errors import CheckpointError, SpecError
from trivium.interop.config import ACTIVATIONS, Config
from trivium.interop.decoders import DecoderHeads, decoder_of, layer_rows, their_activation
from trivium.interop.exactness import survives
from trivium.interop.family import Family, Row, rows

_HEADS = DecoderHeads(
    family="LLaMA",
    classes={
        "none": "LlamaModel",
        "lm": "LlamaForCausalLM",
        "classifier": "LlamaForSequenceClassification",
        "tagger": "LlamaForTokenClassification",
        "span": "LlamaForQuestionAnswering",
    },
    tagger="score",
    tied=False,
)

_LAYER = {
    "input_layernorm": ("attention_residual.norm",),
    "self_attn.q_proj": ("attention.query",),
    "self_attn.k_proj": ("attention.key",),
    "self_attn.v_proj": ("attention.value",),
    "self_attn.o_proj": ("attention.output",),
    "post_attention_layernorm": ("feed_forward_residual.norm",),
    "mlp.gate_proj": ("feed_forward.gate",),
    "mlp.up_proj": ("feed_forward.up",),
    "mlp.down_proj": ("feed_forward.down",),
}

# Their kinds of rope scaling -> ours, and their names of its numbers -> ours.
_SCALINGS: dict[str, tuple[type[spec.LinearScaling | spec.Llama3Scaling] | None, dict[str, str]]]
_SCALINGS = {
    "default": (None, {}),
    "linear": (spec.LinearScaling, {"factor": "factor"}),
    "llama3": (
        spec.Llama3Scaling,
        {
            "factor": "factor",
            "low_freq_factor": "low_frequency_factor",
            "high_freq_factor": "high_frequency_factor",
            "original_max_position_embeddings": "original_max_length",
        },
    ),
}


def read_rotary(config: Config) -> spec.Rotary:
    """Rotary positions: all in rope_parameters, or as of old in rope_theta and rope_scaling.

    Raises:
        CheckpointError: a kind of scaling that is not supported, or a number it does not know.
    """
    new, old = config.optional("rope_parameters"), config.optional("rope_scaling")
    length = config.take("max_position_embeddings", 2048)
    config.only("partial_rotary_factor", 1.0)
    given = {name: value for name, value in (old or new or {}).items() if value is not None}
    base = given.pop("rope_theta", config.take("rope_theta", (new or {}).get("rope_theta", 1e4)))
    kind = given.pop("type", "default")
    kind = given.pop("rope_type", kind)
    if given.pop("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError('config.json: "partial_rotary_factor" is supported only as 1.0.')
    if kind not in _SCALINGS:
        known = ", ".join(map(repr, _SCALINGS))
        raise CheckpointError(
            f'config.json: "rope_type" is {kind!r}, which is not supported for '
            f"{config.model_type}; supported: {known}."
        )
    scaling, numbers = _SCALINGS[kind]
    if scaling is spec.Llama3Scaling:
        given.setdefault("original_max_position_embeddings", length)
    if given.keys() != numbers.keys():
        name = min(given.keys() ^ numbers.keys())
        problem = "not supported" if name in given else "missing"
        raise CheckpointError(f'config.json: "{name}" is {problem} for rope_type {kind!r}.')
    ours = {numbers[name]: value for name, value in given.items()}
    return spec.Rotary(base=base, scaling=scaling(**ours) if scaling else None)


def write_rotary(rotary: spec.Rotary) -> dict[str, Any]:
    """The same in both spellings: releases of theirs before 5 know the old one alone."""
    kind = next(
        kind
        for kind, (scaling, _) in _SCALINGS.items()
        if isinstance(rotary.scaling, scaling or type(None))
    )
    numbers = _SCALINGS[kind][1]
    scaling = {theirs: getattr(rotary.scaling, ours) for theirs, ours in numbers.items()}
    new = {"rope_type": kind, "rope_theta": rotary.base, **scaling}
    config: dict[str, Any] = {"rope_theta": rotary.base, "rope_parameters": new}
    if scaling:
        config["rope_scaling"] = {"rope_type": kind, **scaling}
    if isinstance(rotary.scaling, spec.Llama3Scaling):
        longest = rotary.scaling.original_max_length * rotary.scaling.factor
        config["max_position_embeddings"] = int(longest)
    return config


def read_body(
    config: Config, pattern: spec.Pattern, *, attention_bias: bool, mlp_bias: bool
) -> spec.ModelSpec:
    """The body that LLaMA and Mistral have in common."""
    config.ignore("attention_dropout")
    width, heads = config.take("hidden_size"), config.take("num_attention_heads")
    groups = config.take("num_key_value_heads", heads)
    return spec.ModelSpec(
        vocab_size=config.take("vocab_size"),
        d_model=width,
        embedding=spec.Embedding(),
        decoder=spec.Stack(
            num_layers=config.take("num_hidden_layers"),
            attention=spec.Attention(
                num_heads=heads,
                head_dim=config.take("head_dim", width // heads),
                num_kv_heads=None if groups == heads else groups,
                bias=attention_bias,
                pattern=pattern,
                positions=read_rotary(config),
            ),
            feed_forward=spec.FeedForward(
                d_ff=config.take("intermediate_size"),
                activation=config.choose("hidden_act", ACTIVATIONS, "silu"),
                gated=True,
                bias=mlp_bias,
            ),
            norm=spec.RMSNorm(eps=config.take("rms_norm_eps", 1e-6)),
            norm_order="pre",
        ),
        initialization=spec.Normal(branches="scaled"),
    )


def write_body(model: spec.ModelSpec, family: str) -> dict[str, Any]:
    """The inverse of `read_body`, without pattern and biases."""
    decoder = decoder_of(model, family)
    attention = decoder.attention_of(0)
    if not isinstance(attention.positions, spec.Rotary):
        raise SpecError(f"{family} has rotary positions, which this model has not.")
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": decoder.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "intermediate_size": decoder.feed_forward.d_ff,
        "hidden_act": their_activation(decoder.feed_forward, family),
        "rms_norm_eps": decoder.norm.eps,
        "attention_dropout": decoder.dropout,
        **write_rotary(attention.positions),
    }


def body_rows(model: spec.ModelSpec, base: str, family: str) -> list[Row]:
    """The rows of the body, whose names begin with `base`."""
    return [
        Row(f"{base}embed_tokens.weight", ("tokens.weight",)),
        *layer_rows(decoder_of(model, family), f"{base}layers", _LAYER),
        *rows("decoder.norm", f"{base}norm", bias=False),
    ]


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    config.only("rope_interleaved", False)
    config.ignore("is_llama_config", "max_sequence_length")
    body = read_body(
        config,
        spec.Full(),
        attention_bias=bool(config.take("attention_bias", False)),
        mlp_bias=bool(config.take("mlp_bias", False)),
    )
    return body.replace(heads=_HEADS.read(config, architecture))


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    decoder = decoder_of(model, "LLaMA")
    attention = decoder.attention_of(0)
    if model.d_model % attention.num_heads:
        raise SpecError(
            f"LLaMA's d_model is a multiple of its heads, but this model has "
            f"{model.d_model} and {attention.num_heads}."
        )
    architecture, config = _HEADS.write(model)
    biases = {"attention_bias": attention.bias, "mlp_bias": decoder.feed_forward.bias}
    return architecture, config | write_body(model, "LLaMA") | biases


# Their class for questions was written before the body was called "model".
_BASES = {"LlamaForQuestionAnswering": "transformer."}


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    base = _BASES.get(architecture, "model.")
    return [*body_rows(model, base, "LLaMA"), *_HEADS.rows(model)]


def _describes(model: spec.ModelSpec) -> bool:
    return survives(model, _read, _write, _table)


LLAMA = Family(
    model_type="llama",
    architectures=_HEADS.architectures,
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    base="model.",
    bases=_BASES,
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    ignored=(r".*\.rotary_emb\.inv_freq",),
)
