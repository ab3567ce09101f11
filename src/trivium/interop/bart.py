"""BART (Lewis et al. 2019), and what Marian's translation models have in common with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from trivium import spec
from trivium.errors import SpecError
from trivium.interop.config import ACTIVATIONS, THEIR_ACTIVATIONS, Config, labels
from trivium.interop.exactness import architecture_of, survives
from trivium.interop.family import Family, Row, rows

_OFFSET = 2


def _heads(labels: int) -> dict[str, tuple[spec.Head, ...]]:
    return {
        "BartModel": (),
        "BartForConditionalGeneration": (spec.LMHead(tied=True),),
        "BartForSequenceClassification": (classifier(labels),),
        "BartForQuestionAnswering": (spec.SpanHead(),),
    }


def classifier(labels: int) -> spec.ClassifierHead:
    """That of texts: theirs reads the state where the source ends, which is the target's last."""
    dense = spec.Dense(activation="tanh")
    return spec.ClassifierHead(num_labels=labels, pooling="last", dense=dense)


def head_rows(head: spec.Head, family: str) -> list[Row]:
    """The names of a head's weights."""
    match head:
        case spec.LMHead(tied=tied):
            return [] if tied else [Row("lm_head.weight", ("heads.lm.weight",))]
        case spec.ClassifierHead():
            return [
                *rows("heads.classifier.dense.linear", "classification_head.dense"),
                *rows("heads.classifier.classifier", "classification_head.out_proj"),
            ]
        case spec.TaggerHead():
            return rows("heads.tagger.classifier", "classifier")
        case spec.SpanHead():
            return rows("heads.span.classifier", "qa_outputs")
        case _:
            raise SpecError(f"{family} has no {head.kind} head.")


def read_stack(config: Config, side: str) -> spec.Stack:
    """The `side` ("encoder" or "decoder") of a model whose blocks are BART's."""
    width, heads = config.take("d_model"), config.take(f"{side}_attention_heads")
    return spec.Stack(
        num_layers=config.take(f"{side}_layers"),
        attention=spec.Attention(num_heads=heads, head_dim=width // heads),
        feed_forward=spec.FeedForward(
            d_ff=config.take(f"{side}_ffn_dim"),
            activation=config.choose("activation_function", ACTIVATIONS, "gelu"),
        ),
        norm=spec.LayerNorm(),
        norm_order="post",
        dropout=config.take("dropout", 0.1),
    )


def read_scale(config: Config) -> float:
    """What token vectors are multiplied with."""
    return config.take("d_model") ** 0.5 if config.take("scale_embedding", False) else 1.0


def ignore_training(config: Config) -> None:
    """Options of both families that change training alone, and refusals of what none has used."""
    config.ignore(
        "attention_dropout",
        "activation_dropout",
        "classifier_dropout",
        "classif_dropout",
        "encoder_layerdrop",
        "decoder_layerdrop",
        "init_std",
        "num_hidden_layers",
        "force_bos_token_to_be_generated",
        "save_step",
        "_num_labels",
    )
    config.only("is_decoder", False)
    config.only("normalize_before", False)
    config.only("add_final_layer_norm", False)
    config.only("add_bias_logits", False)


def write_stacks(model: spec.ModelSpec, family: str) -> dict[str, Any]:
    """The inverse of `read_stack` and `read_scale`, for both sides."""
    config: dict[str, Any] = {
        "d_model": model.d_model,
        "scale_embedding": model.embedding.scale != 1.0,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
    }
    for side, stack in sides(model):
        activation = THEIR_ACTIVATIONS.get(str(stack.feed_forward.activation))
        if activation is None:
            raise SpecError(f"{family} has no activation {stack.feed_forward.activation}.")
        config |= {
            f"{side}_layers": stack.num_layers,
            f"{side}_attention_heads": stack.attention_of(0).num_heads,
            f"{side}_ffn_dim": stack.feed_forward.d_ff,
            "activation_function": activation,
            "dropout": stack.dropout,
        }
    return config


def sides(model: spec.ModelSpec) -> Iterator[tuple[str, spec.Stack]]:
    """The names of both stacks, and the stacks."""
    assert model.encoder is not None
    assert model.decoder is not None
    yield "encoder", model.encoder
    yield "decoder", model.decoder


def block_rows(model: spec.ModelSpec) -> list[Row]:
    """The names of all blocks of both stacks."""
    found: list[Row] = []
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    for side, stack in sides(model):
        parts = {"attention": ("self_attn", "attention_residual")}
        if model.crosses(stack):
            parts["cross_attention"] = ("encoder_attn", "cross_residual")
        for i in range(stack.num_layers):
            ours, theirs = f"{side}.layers.{i}", f"model.{side}.layers.{i}"
            for part, (name, residual) in parts.items():
                for mine, other in names.items():
                    found += rows(f"{ours}.{part}.{mine}", f"{theirs}.{name}.{other}")
                found += rows(f"{ours}.{residual}.norm", f"{theirs}.{name}_layer_norm")
            found += [
                *rows(f"{ours}.feed_forward.up", f"{theirs}.fc1"),
                *rows(f"{ours}.feed_forward.down", f"{theirs}.fc2"),
                *rows(f"{ours}.feed_forward_residual.norm", f"{theirs}.final_layer_norm"),
            ]
    return found


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    ignore_training(config)
    config.only("normalize_embedding", True)
    config.only("static_position_embeddings", False)
    config.only("extra_pos_embeddings", _OFFSET)
    config.only("tie_word_embeddings", True)
    named = config.has("id2label") or config.has("num_labels")
    count = config.num_labels if named else 3
    return spec.ModelSpec(
        vocab_size=config.take("vocab_size"),
        d_model=config.take("d_model"),
        embedding=spec.Embedding(
            positions=spec.Learned(
                max_length=config.take("max_position_embeddings", 1024), offset=_OFFSET
            ),
            norm=spec.LayerNorm(),
            scale=read_scale(config),
        ),
        encoder=read_stack(config, "encoder"),
        decoder=read_stack(config, "decoder"),
        heads=_heads(count)[architecture],
    )


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    positions = model.embedding.positions
    assert isinstance(positions, spec.Learned)
    config = {
        "vocab_size": model.vocab_size,
        "max_position_embeddings": positions.max_length,
        **write_stacks(model, "BART"),
    }
    count = 3
    for head in model.heads:
        if isinstance(head, spec.ClassifierHead):
            count = head.num_labels
            config |= labels(count)
    return architecture_of(model, _heads(count), "BART"), config


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    found = [Row("model.shared.weight", ("tokens.weight",)), *block_rows(model)]
    for side, _ in sides(model):
        ours, theirs = f"{side}.embedding", f"model.{side}"
        found += [
            Row(f"{theirs}.embed_positions.weight", (f"{ours}.positions.weight",)),
            *rows(f"{ours}.norm", f"{theirs}.layernorm_embedding"),
        ]
    for head in model.heads:
        found += head_rows(head, "BART")
    return found


def _describes(model: spec.ModelSpec) -> bool:
    return (
        model.family == "encoder-decoder"
        and isinstance(model.embedding.positions, spec.Learned)
        and survives(model, _read, _write, _table)
    )


BART = Family(
    model_type="bart",
    architectures=(
        "BartForConditionalGeneration",
        "BartModel",
        "BartForSequenceClassification",
        "BartForQuestionAnswering",
    ),
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    base="model.",
    copies={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
    ignored=(r"(model\.)?(encoder|decoder)\.version",),
    zeros=("final_logits_bias",),
)
