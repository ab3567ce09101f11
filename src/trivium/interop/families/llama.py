"""LLaMA 1, 2, 3 and 3.x (Touvron et al. 2023; Grattafiori et al. 2024)."""

from __future__ import annotations

import warnings
from typing import Any

from trivium.errors import SpecError
from trivium.interop.family import (
    Family,
    Hook,
    NameMap,
    Option,
    SpecTree,
    activation,
    attention_of,
    decoder_classes,
    head_dim,
    kv_heads_option,
    per_layer,
)
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.positions import Positions
from trivium.nn.positions.rotary import Rotary, RotaryScaling

# Values of rope_type: "default", or the kind of scaling here.
_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "longrope", "yarn")
ORIGINAL_LENGTH = "original_max_position_embeddings"


def _hf_scaling_name(field: str) -> str:
    """Return the Hugging Face name of a `RotaryScaling` field."""
    return field.replace("frequency", "freq").replace("max_length", "max_position_embeddings")


def read_rotary(config: ConfigReader, tree: SpecTree) -> None:
    """Read the options of RoPE. Partial RoPE (on only some dimensions of a head) is refused."""
    config.expect("partial_rotary_factor", 1.0)
    rope = rope_options(config)
    if rope.get("partial_rotary_factor") == 1.0:
        del rope["partial_rotary_factor"]
    read_rope(config, tree, rope)


def rope_options(config: ConfigReader, kind: str | None = None) -> dict[str, Any]:
    """Return the RoPE options in `rope_parameters` (transformers 5) and `rope_scaling` (earlier).

    `kind`: the layer type, if `rope_parameters` has separate options for each layer type.
    """
    older, given = config.get("rope_scaling", {}), config.get("rope_parameters", {})
    rope = {**(given if kind is None else given.get(kind) or {}), **older}
    if "type" in older:
        rope["rope_type"] = older.get("rope_type", rope.pop("type"))
    if kind is not None:
        drop_truncate(rope, kind)
    return {name: value for name, value in rope.items() if value is not None}


def drop_truncate(rope: dict[str, Any], kind: str) -> None:
    """Remove "truncate" from the options of a layer type, where `transformers` does not read it.

    Warns if the option is false.
    """
    if rope.pop("truncate", True) is False:
        warnings.warn(
            f'config.json: "truncate" in the RoPE options for "{kind}" is not read, because '
            "transformers does not read it in the options of a layer type.",
            stacklevel=2,
        )


def read_rope(
    config: ConfigReader, tree: SpecTree, rope: dict[str, Any], base: float = 1e4
) -> None:
    """Read the base and scaling of RoPE, from options without a part of the head.

    `base` is the base if the file sets none. Raises SpecError for an unknown type or parameter.
    """
    base = config.get("rope_theta", base)
    for name, value in rotary_fields(config, rope, base).items():
        tree.set(f"decoder.layers.mixer.positions.{name}", value)


def rotary_fields(config: ConfigReader, rope: dict[str, Any], base: float) -> dict[str, Any]:
    """Return the fields `base` and, if there is one, `scaling` of a `Rotary` spec.

    `rope` has the RoPE options of the file; `base` is the base if the file sets none. Raises
    SpecError for an unknown type or parameter.
    """
    config.ignore("max_position_embeddings")
    rotary: dict[str, Any] = {"base": rope.pop("rope_theta", base)}
    kind = rope.pop("type", "default")
    kind = rope.pop("rope_type", kind)
    if kind not in _ROPE_TYPES:
        raise SpecError(f'"rope_type" is {kind!r}; supported: {", ".join(_ROPE_TYPES)}.')
    fields = {} if kind == "default" else RotaryScaling.kinds[kind].model_fields
    numbers = {_hf_scaling_name(name): name for name in fields if name != "kind"}
    if ORIGINAL_LENGTH in numbers:
        length = config.require("max_position_embeddings", rope.get(ORIGINAL_LENGTH))
        given = config.get(ORIGINAL_LENGTH, rope.get(ORIGINAL_LENGTH, length))
        rope[ORIGINAL_LENGTH] = length if kind == "dynamic" else given
        if kind in ("longrope", "yarn"):
            rope.setdefault("factor", length / given)
    required = {hf for hf, name in numbers.items() if fields[name].is_required()}
    for name in sorted({*rope}.difference(numbers) | required.difference(rope)):
        problem = "not supported" if name in rope else "missing"
        raise SpecError(f'"{name}" is {problem} for "rope_type" {kind!r}.')
    if fields:
        rotary["scaling"] = {"kind": kind, **{numbers[name]: value for name, value in rope.items()}}
    return rotary


def _write_rotary(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Write the RoPE options of the first layer's attention."""
    write_rope(attention_of(spec).positions, config)


def write_rope(rotary: Positions | None, config: dict[str, Any]) -> None:
    """Write the RoPE options twice: for transformers 5, and under the names of earlier releases."""
    options = rope_parameters(rotary, config)
    config["rope_theta"] = options["rope_theta"]
    config["rope_parameters"] = options
    scaling = {name: value for name, value in options.items() if name != "rope_theta"}
    if len(scaling) > 1:
        config["rope_scaling"] = scaling
    if options["rope_type"] == "longrope":  # where releases of transformers before 5 read it
        config[ORIGINAL_LENGTH] = options[ORIGINAL_LENGTH]


def rope_parameters(rotary: Positions | None, config: dict[str, Any]) -> dict[str, Any]:
    """Return the RoPE options for transformers 5. Writes the lengths that they depend on.

    Raises SpecError for positions that are not RoPE, or whose scaling `transformers` does not have.
    """
    if not isinstance(rotary, Rotary):
        raise SpecError("decoder.layers.mixer.positions that are not rotary")
    fields = rotary.scaling.model_dump(mode="json", exclude_none=True) if rotary.scaling else {}
    kind = fields.pop("kind", "default")
    if kind not in _ROPE_TYPES:
        raise SpecError(f'decoder.layers.mixer.positions.scaling of kind "{kind}"')
    scaling = {_hf_scaling_name(name): value for name, value in fields.items()}
    if kind == "dynamic":
        config["max_position_embeddings"] = scaling.pop(ORIGINAL_LENGTH)
    elif ORIGINAL_LENGTH in scaling:  # another layer type may have "dynamic", which needs its own
        longest = int(scaling[ORIGINAL_LENGTH] * scaling["factor"])
        config.setdefault("max_position_embeddings", longest)
    return {"rope_type": kind, "rope_theta": rotary.base, **scaling}


def partial_rope_hook(default: float, base: float = 1e4) -> Hook:
    """Return the hook for RoPE that rotates a part of every head, by default `default` of it.

    `base` is the RoPE base if the file sets none.

    Files have the part beside the other RoPE options or, before transformers 5, in `config.json`.
    """

    def read(config: ConfigReader, tree: SpecTree) -> None:
        """Read the options of RoPE."""
        rope = rope_options(config)
        factor = config.get("partial_rotary_factor", default)
        factor = rope.pop("partial_rotary_factor", factor)
        tree.set("decoder.layers.mixer.positions.partial_rotary_factor", factor)
        read_rope(config, tree, rope, base)

    def write(spec: TransformerSpec, config: dict[str, Any]) -> None:
        """Write the options of RoPE for transformers 5 and for earlier releases."""
        _write_rotary(spec, config)
        rotary = attention_of(spec).positions
        if isinstance(rotary, Rotary):
            config["partial_rotary_factor"] = factor = rotary.partial_rotary_factor
            config["rope_parameters"]["partial_rotary_factor"] = factor

    return Hook(read, write)


def _check_width(spec: TransformerSpec, config: dict[str, Any]) -> None:
    """Raise SpecError if d_model is not a multiple of num_heads, as `transformers` requires."""
    if spec.d_model % attention_of(spec).num_heads:
        raise SpecError("d_model that is not a multiple of decoder.layers.mixer.num_heads")


CONFIG = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "decoder.num_layers",
    "num_attention_heads": "decoder.layers.mixer.num_heads",
    "num_key_value_heads": kv_heads_option(),
    "head_dim": Option(
        "decoder.layers.mixer.head_dim",
        lambda config: head_dim(
            config.require("hidden_size"), config.require("num_attention_heads")
        ),
    ),
    "intermediate_size": "decoder.layers.feed_forward.d_ff",
    "hidden_act": activation("silu", "decoder.layers.feed_forward"),
    "rms_norm_eps": Option("decoder.layers.norm.eps", 1e-6),
    "attention_dropout": Option("decoder.dropout", write_only=True),
    "tie_word_embeddings": Option("heads.lm.tied", False),
}

FIXED = {
    "decoder.layers.mixer.positions.kind": "rotary",
    "decoder.layers.feed_forward.gated": True,
    "decoder.layers.norm.kind": "rms",
    "decoder.layers.norm_placement": "pre",
    "heads.classifier.pooling": "last",
    "heads.classifier.bias": False,
    "initialization": {"kind": "normal", "residual_init": "scaled"},
}

ROPE_HOOK = Hook(read_rotary, _write_rotary)
WIDTH_HOOK = Hook(write=_check_width)

_LAYER: NameMap = {
    "input_layernorm": "mixer_residual.{norm}",
    "self_attn.q_proj": "mixer.query",
    "self_attn.k_proj": "mixer.key",
    "self_attn.v_proj": "mixer.value",
    "self_attn.o_proj": "mixer.output",
    "post_attention_layernorm": "feed_forward_residual.{norm}",
}
"""The weight names of a layer, except its feed-forward network."""

_FEED_FORWARD: NameMap = {
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.up",
    "mlp.down_proj": "feed_forward.down",
}


def weight_names(ffn_weights: NameMap) -> NameMap:
    """Return the mapping of weight names for everything except the heads.

    `ffn_weights` is the mapping of the weight names of a layer's feed-forward network.
    """
    return {
        "model.embed_tokens": "tokens",
        **per_layer("model.layers.{i}", "decoder", {**_LAYER, **ffn_weights}),
        "model.norm": "decoder.norm",
    }


LLAMA = Family(
    "llama",
    architectures=decoder_classes("Llama", span_base="transformer."),
    stacks=("decoder",),
    config={
        **CONFIG,
        "attention_bias": Option("decoder.layers.mixer.bias", False),
        "mlp_bias": Option("decoder.layers.feed_forward.bias", False),
    },
    fixed=FIXED,
    weights=weight_names(_FEED_FORWARD),
    heads={kind: {"score": "classifier"} for kind in ("classifier", "tagger")},
    base="model.",
    expected={"rope_interleaved": False},
    ignored="is_llama_config max_sequence_length",
    tied_aliases={"lm_head.weight": "model.embed_tokens.weight"},
    buffers=(r".*\.rotary_emb\.inv_freq",),
    hooks=(ROPE_HOOK, WIDTH_HOOK),
    tokenizer_class="LlamaTokenizer",
)
