"""GPT-Neo (Black et al. 2021): full and banded attention alternate as in GPT-3.

Its attention has no scale and no biases but the output's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from trivium import spec
from trivium.errors import CheckpointError
from trivium.interop.config import ACTIVATIONS, Config
from trivium.interop.decoders import (
    DecoderHeads,
    decoder_of,
    head_dim_of,
    layer_rows,
    learned_of,
    their_activation,
)
from trivium.interop.exactness import survives
from trivium.interop.family import Family, Row, rows

_HEADS = DecoderHeads(
    family="GPT-Neo",
    classes={
        "none": "GPTNeoModel",
        "lm": "GPTNeoForCausalLM",
        "classifier": "GPTNeoForSequenceClassification",
        "tagger": "GPTNeoForTokenClassification",
        "span": "GPTNeoForQuestionAnswering",
    },
)

_LAYER = {
    "ln_1": ("attention_residual.norm",),
    "attn.attention.q_proj": ("attention.query",),
    "attn.attention.k_proj": ("attention.key",),
    "attn.attention.v_proj": ("attention.value",),
    "attn.attention.out_proj": ("attention.output",),
    "ln_2": ("feed_forward_residual.norm",),
    "mlp.c_fc": ("feed_forward.up",),
    "mlp.c_proj": ("feed_forward.down",),
}


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    config.ignore("embed_dropout", "attention_dropout", "classifier_dropout")
    config.ignore("summary_type", "summary_use_proj", "summary_activation")
    config.ignore("summary_proj_to_labels", "summary_first_dropout")
    width, heads = config.take("hidden_size"), config.take("num_heads")
    attention = spec.Attention(
        num_heads=heads, head_dim=head_dim_of(width, heads), bias=False, output_bias=True, scale=1.0
    )
    num_layers = config.take("num_layers")
    return spec.ModelSpec(
        vocab_size=config.take("vocab_size"),
        d_model=width,
        embedding=spec.Embedding(
            positions=spec.Learned(max_length=config.take("max_position_embeddings", 2048))
        ),
        decoder=spec.Stack(
            num_layers=num_layers,
            attention=_repeated(
                [attention.replace(pattern=pattern) for pattern in _patterns(config, num_layers)]
            ),
            feed_forward=spec.FeedForward(
                d_ff=config.take("intermediate_size", 4 * width),
                activation=config.choose("activation_function", ACTIVATIONS, "gelu_new"),
            ),
            norm=spec.LayerNorm(eps=config.take("layer_norm_epsilon", 1e-5)),
            norm_order="pre",
            dropout=config.take("resid_dropout", 0.0),
        ),
        heads=_HEADS.read(config, architecture),
    )


def _patterns(config: Config, num_layers: int) -> list[spec.Pattern]:
    """Who sees whom in every layer."""
    types = config.take("attention_types", [[["global", "local"], 12]])
    kinds = [kind for group, times in types for _ in range(times) for kind in group]
    config.only("attention_layers", kinds)
    if len(kinds) != num_layers:
        raise CheckpointError(
            f'config.json: "attention_types" describes {len(kinds)} layers, but "num_layers" is '
            f"{num_layers}."
        )
    known: dict[str, spec.Pattern] = {"global": spec.Full()}
    window = config.take("window_size", 256)
    if "local" in kinds:
        known["local"] = sliding(window, "window_size")
    unknown = set(kinds) - known.keys()
    if unknown:
        raise CheckpointError(
            f'config.json: "attention_types" has {min(unknown)!r}, which is not supported for '
            f"{config.model_type}; supported: 'global', 'local'."
        )
    return [known[kind] for kind in kinds]


def sliding(window: int, option: str) -> spec.Sliding:
    """Their window, which counts the position itself, as ours, which does not.

    Raises CheckpointError, naming the option, for one that leaves a position alone.
    """
    if window < 2:
        raise CheckpointError(
            f'config.json: "{option}" is {window}, which lets a position see only itself; '
            "supported: 2 or more."
        )
    return spec.Sliding(window=window - 1)


def _repeated(attentions: Sequence[spec.Attention]) -> spec.Attention | tuple[spec.Attention, ...]:
    """The shortest pattern that gives every layer its attention."""
    for length in range(1, len(attentions)):
        if all(a == attentions[i % length] for i, a in enumerate(attentions)):
            return attentions[0] if length == 1 else tuple(attentions[:length])
    return attentions[0] if len(attentions) == 1 else tuple(attentions)


def _attention_types(decoder: spec.Stack) -> dict[str, Any]:
    attentions = list(decoder.attentions)
    repeated = _repeated(attentions)
    group = [repeated] if isinstance(repeated, spec.Attention) else list(repeated)
    times, left = divmod(len(attentions), len(group))
    if left:
        group, times = attentions, 1
    kinds = ["local" if isinstance(a.pattern, spec.Sliding) else "global" for a in group]
    config: dict[str, Any] = {"attention_types": [[kinds, times]]}
    for attention in group:
        if isinstance(attention.pattern, spec.Sliding):
            config["window_size"] = attention.pattern.window + 1
    return config


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    decoder = decoder_of(model, "GPT-Neo")
    architecture, config = _HEADS.write(model)
    return architecture, config | {
        "vocab_size": model.vocab_size,
        "max_position_embeddings": learned_of(model, "GPT-Neo").max_length,
        "hidden_size": model.d_model,
        "num_layers": decoder.num_layers,
        "num_heads": decoder.attention_of(0).num_heads,
        **_attention_types(decoder),
        "intermediate_size": decoder.feed_forward.d_ff,
        "activation_function": their_activation(decoder.feed_forward, "GPT-Neo"),
        "layer_norm_epsilon": decoder.norm.eps,
        "resid_dropout": decoder.dropout,
        "embed_dropout": decoder.dropout,
        "attention_dropout": decoder.dropout,
        "classifier_dropout": decoder.dropout,
    }


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    return [
        Row("transformer.wte.weight", ("tokens.weight",)),
        Row("transformer.wpe.weight", ("decoder.embedding.positions.weight",)),
        *layer_rows(decoder_of(model, "GPT-Neo"), "transformer.h", _LAYER),
        *rows("decoder.norm", "transformer.ln_f"),
        *_HEADS.rows(model),
    ]


def _describes(model: spec.ModelSpec) -> bool:
    return survives(model, _read, _write, _table)


GPT_NEO = Family(
    model_type="gpt_neo",
    architectures=_HEADS.architectures,
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    base="transformer.",
    copies={"lm_head.weight": "transformer.wte.weight"},
    ignored=(r".*\.attn\.attention\.(masked_)?bias",),
)
