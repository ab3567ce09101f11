"""ModernBERT (Warner et al. 2024): rotary positions, gates, windows between full layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from trivium import spec
from trivium.errors import CheckpointError, SpecError
from trivium.interop.config import ACTIVATIONS, THEIR_ACTIVATIONS, Config
from trivium.interop.encoders import (
    Heads,
    architecture_of,
    head_dim,
    label_options,
    two_labels,
)
from trivium.interop.exactness import survives
from trivium.interop.family import Family, Row, fused_rows, rows

_FULL, _LOCAL = "full_attention", "sliding_attention"
_BASES = {_FULL: 160_000.0, _LOCAL: 10_000.0}
_OLD_BASES = {_FULL: "global_rope_theta", _LOCAL: "local_rope_theta"}
_Pooling = Literal["first", "mean"]
_POOLING: dict[str, _Pooling] = {"cls": "first", "mean": "mean"}


class _Choices(NamedTuple):
    """What a configuration says of heads."""

    tied: bool
    bias: bool
    dense: spec.Dense
    pooling: _Pooling
    num_labels: int


def _heads(choices: _Choices) -> Mapping[str, Heads]:
    dense = choices.dense
    masked = spec.MLMHead(dense=dense, tied=choices.tied, bias=choices.bias)
    classifier = spec.ClassifierHead(
        num_labels=choices.num_labels, pooling=choices.pooling, dense=dense
    )
    return {
        "ModernBertModel": (),
        "ModernBertForMaskedLM": (masked,),
        "ModernBertForSequenceClassification": (classifier,),
        "ModernBertForMultipleChoice": (classifier.replace(num_labels=1),),
        "ModernBertForTokenClassification": (
            spec.TaggerHead(num_labels=choices.num_labels, dense=dense),
        ),
        "ModernBertForQuestionAnswering": (spec.SpanHead(dense=dense),),
    }


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    # Without effect in theirs too: positions are always rotary, and norms have `norm_eps`.
    config.ignore("position_embedding_type", "max_position_embeddings", "layer_norm_eps")
    config.ignore("initializer_cutoff_factor")
    config.ignore("attention_dropout", "embedding_dropout", "classifier_dropout")
    config.ignore("deterministic_flash_attn", "reference_compile", "repad_logits_with_grad")
    config.ignore("sparse_prediction", "sparse_pred_ignore_index")
    two_labels(config, architecture, "ModernBertForQuestionAnswering")
    activation = config.choose("classifier_activation", ACTIVATIONS, "gelu")
    bias = bool(config.take("classifier_bias", False))
    choices = _Choices(
        tied=bool(config.take("tie_word_embeddings", True)),
        bias=bool(config.take("decoder_bias", True)),
        dense=spec.Dense(activation=activation, bias=bias, norm=True),
        pooling=config.choose("classifier_pooling", _POOLING, "cls"),
        num_labels=config.num_labels,
    )
    norm = spec.LayerNorm(
        eps=config.take("norm_eps", 1e-5), bias=bool(config.take("norm_bias", False))
    )
    return spec.ModelSpec(
        vocab_size=config.take("vocab_size"),
        d_model=config.take("hidden_size"),
        embedding=spec.Embedding(norm=norm),
        encoder=spec.Stack(
            num_layers=config.take("num_hidden_layers"),
            attention=_attentions(config),
            feed_forward=spec.FeedForward(
                d_ff=config.take("intermediate_size"),
                activation=config.choose("hidden_activation", ACTIVATIONS, "gelu"),
                gated=True,
                bias=bool(config.take("mlp_bias", False)),
            ),
            norm=norm,
            norm_order="pre",
            first_norm=False,
            dropout=config.take("mlp_dropout", 0.0),
        ),
        heads=_heads(choices)[architecture],
    )


def _attentions(config: Config) -> spec.Attention | tuple[spec.Attention, ...]:
    """The attentions of the layers, as the shortest pattern that repeats to them."""
    num_heads = config.take("num_attention_heads")
    full = spec.Attention(
        num_heads=num_heads,
        head_dim=head_dim(config.take("hidden_size"), num_heads),
        bias=bool(config.take("attention_bias", False)),
        positions=_rotary(config, _FULL),
    )
    window = config.take("local_attention", 128) // 2
    local = full.replace(pattern=spec.Sliding(window=window), positions=_rotary(config, _LOCAL))
    kinds = _layer_types(config)
    period = next(
        p for p in range(1, len(kinds) + 1) if all(k == kinds[i % p] for i, k in enumerate(kinds))
    )
    pattern = tuple({_FULL: full, _LOCAL: local}[kind] for kind in kinds[:period])
    return pattern[0] if period == 1 else pattern


def _layer_types(config: Config) -> list[str]:
    layers = config.take("num_hidden_layers")
    every = config.take("global_attn_every_n_layers", 3)
    found = config.optional("layer_types")
    if found is None:
        return [_LOCAL if i % every else _FULL for i in range(layers)]
    if len(found) != layers or not {*found} <= {_FULL, _LOCAL}:
        raise CheckpointError(
            f'config.json: "layer_types" is {found!r}, which is not supported for modernbert; '
            f'supported: "{_FULL}" or "{_LOCAL}" for each of the {layers} layers.'
        )
    return found


def _rotary(config: Config, kind: str) -> spec.Rotary:
    """The rotary positions of one kind of layer, from the options of today or of before."""
    base = config.take(_OLD_BASES[kind], _BASES[kind])
    options = dict((config.optional("rope_parameters") or {}).get(kind) or {})
    base = options.pop("rope_theta", base)
    scaling = options.pop("rope_type", "default")
    if scaling != "default" or options:
        raise CheckpointError(
            f'config.json: "rope_parameters" has {options | {"rope_type": scaling}} for {kind}, '
            'which is not supported for modernbert; supported: "rope_theta" alone.'
        )
    return spec.Rotary(base=base)


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    encoder = model.encoder
    if encoder is None or not isinstance(encoder.norm, spec.LayerNorm):
        raise SpecError("this model is no encoder with layer norms.")
    choices, feed_forward = _choices_of(model), encoder.feed_forward
    bases, window = dict(_BASES), 64
    kinds = []
    for attention in encoder.attentions:
        kinds.append(_LOCAL if isinstance(attention.pattern, spec.Sliding) else _FULL)
        if isinstance(attention.pattern, spec.Sliding):
            window = attention.pattern.window
        if isinstance(attention.positions, spec.Rotary):
            bases[kinds[-1]] = attention.positions.base
    config: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": encoder.num_layers,
        "num_attention_heads": encoder.attention_of(0).num_heads,
        "intermediate_size": feed_forward.d_ff,
        "hidden_activation": THEIR_ACTIVATIONS.get(str(feed_forward.activation)),
        "norm_eps": encoder.norm.eps,
        "norm_bias": encoder.norm.bias,
        "attention_bias": encoder.attention_of(0).bias,
        "mlp_bias": feed_forward.bias,
        "decoder_bias": choices.bias,
        "layer_types": kinds,
        "local_attention": 2 * window,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()
        },
        "mlp_dropout": encoder.dropout,
        "attention_dropout": encoder.dropout,
        "embedding_dropout": encoder.dropout,
        "classifier_dropout": encoder.dropout,
        "classifier_pooling": {ours: theirs for theirs, ours in _POOLING.items()}[choices.pooling],
        "classifier_bias": choices.dense.bias,
        "classifier_activation": THEIR_ACTIVATIONS[choices.dense.activation],
        "tie_word_embeddings": choices.tied,
        **label_options(model),
    }
    return architecture_of(model, _heads(choices)), config


def _choices_of(model: spec.ModelSpec) -> _Choices:
    choices = _Choices(True, True, spec.Dense(activation="gelu", bias=False, norm=True), "first", 2)
    for head in model.heads:
        if isinstance(head, spec.MLMHead):
            choices = choices._replace(tied=head.tied, bias=head.bias)
        if isinstance(head, spec.ClassifierHead) and head.pooling in _POOLING.values():
            choices = choices._replace(pooling=head.pooling)
        if isinstance(head, spec.ClassifierHead | spec.TaggerHead):
            choices = choices._replace(num_labels=head.num_labels)
        dense = getattr(head, "dense", None)
        if dense is not None:
            choices = choices._replace(dense=dense)
    return choices


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    encoder, norm = model.encoder, model.embedding.norm
    assert encoder is not None
    biased = isinstance(norm, spec.LayerNorm) and norm.bias
    found = [
        Row("model.embeddings.tok_embeddings.weight", ("tokens.weight",)),
        *rows("encoder.embedding.norm", "model.embeddings.norm", bias=biased),
        *rows("encoder.norm", "model.final_norm", bias=biased),
    ]
    for i, attention in enumerate(encoder.attentions):
        ours, theirs = f"encoder.layers.{i}", f"model.layers.{i}"
        inward = tuple(f"{ours}.attention.{name}" for name in ("query", "key", "value"))
        gated = (f"{ours}.feed_forward.gate", f"{ours}.feed_forward.up")
        with_bias = encoder.feed_forward.bias
        if i > 0:
            found += rows(f"{ours}.attention_residual.norm", f"{theirs}.attn_norm", bias=biased)
        found += [
            *fused_rows(inward, f"{theirs}.attn.Wqkv", bias=attention.bias),
            *rows(f"{ours}.attention.output", f"{theirs}.attn.Wo", bias=attention.bias),
            *rows(f"{ours}.feed_forward_residual.norm", f"{theirs}.mlp_norm", bias=biased),
            *fused_rows(gated, f"{theirs}.mlp.Wi", bias=with_bias),
            *rows(f"{ours}.feed_forward.down", f"{theirs}.mlp.Wo", bias=with_bias),
        ]
    for head in model.heads:
        found += _head_rows(head, biased)
    return found


def _head_rows(head: spec.Head, biased: bool) -> list[Row]:
    assert isinstance(head, spec.MLMHead | spec.ClassifierHead | spec.TaggerHead | spec.SpanHead)
    ours = f"heads.{head.kind}"
    assert head.dense is not None
    found = [
        *rows(f"{ours}.dense.linear", "head.dense", bias=head.dense.bias),
        *rows(f"{ours}.dense.norm", "head.norm", bias=biased),
    ]
    if not isinstance(head, spec.MLMHead):
        return found + rows(f"{ours}.classifier", "classifier")
    if not head.tied:
        found.append(Row("decoder.weight", (f"{ours}.weight",)))
    if head.bias:
        found.append(Row("decoder.bias", (f"{ours}.bias",)))
    return found


def _describes(model: spec.ModelSpec) -> bool:
    return survives(model, _read, _write, _table, heads=True)


MODERNBERT = Family(
    model_type="modernbert",
    architectures=tuple(
        _heads(_Choices(True, True, spec.Dense(activation="gelu"), "first", 2)),
    ),
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    base="model.",
    copies={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
)
