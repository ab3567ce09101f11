"""Marian (Junczys-Dowmunt et al. 2018): the first Transformer, as used for translation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trivium import spec
from trivium.errors import CheckpointError, SpecError
from trivium.interop.bart import (
    block_rows,
    ignore_training,
    read_scale,
    read_stack,
    write_stacks,
)
from trivium.interop.config import Config
from trivium.interop.exactness import architecture_of, survives
from trivium.interop.family import Family, Row

_BIAS = "final_logits_bias"


def _heads(lm: spec.LMHead) -> dict[str, tuple[spec.Head, ...]]:
    return {"MarianModel": (), "MarianMTModel": (lm,)}


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    ignore_training(config)
    config.only("normalize_embedding", False)
    config.only("static_position_embeddings", True)
    config.ignore("extra_pos_embeddings")
    source = config.take("vocab_size")
    target = config.take("decoder_vocab_size", source)
    shared = bool(config.take("share_encoder_decoder_embeddings", True))
    tied = bool(config.take("tie_word_embeddings", True))
    if shared and not tied:
        raise CheckpointError(
            'config.json: "tie_word_embeddings" is False, which is not supported for marian where '
            '"share_encoder_decoder_embeddings" is True.'
        )
    if shared and source != target:
        raise CheckpointError(
            f'config.json: "decoder_vocab_size" is {target}, but encoder and decoder share a table '
            f'of "vocab_size" {source}.'
        )
    return spec.ModelSpec(
        vocab_size=target,
        source_vocab_size=None if shared else source,
        d_model=config.take("d_model"),
        embedding=spec.Embedding(
            positions=spec.Sinusoidal(
                layout="halves", max_length=config.take("max_position_embeddings", 1024)
            ),
            scale=read_scale(config),
        ),
        encoder=read_stack(config, "encoder"),
        decoder=read_stack(config, "decoder"),
        heads=_heads(spec.LMHead(tied=tied, bias=_BIAS in names))[architecture],
    )


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    positions = model.embedding.positions
    assert isinstance(positions, spec.Sinusoidal)
    if positions.max_length is None:
        raise SpecError("Marian's positions end somewhere: give them a max_length.")
    config = {
        **write_stacks(model, "Marian"),
        "vocab_size": model.source_vocab_size or model.vocab_size,
        "decoder_vocab_size": model.vocab_size,
        "share_encoder_decoder_embeddings": model.source_vocab_size is None,
        "max_position_embeddings": positions.max_length,
        # Their defaults are ids of the published vocabulary, which this one may not have.
        "pad_token_id": None,
        "eos_token_id": None,
        "forced_eos_token_id": None,
        "decoder_start_token_id": 0,
    }
    lm = spec.LMHead(tied=True)
    for head in model.heads:
        if isinstance(head, spec.LMHead):
            tied = head.tied or model.source_vocab_size is None
            lm = lm.replace(tied=tied, bias=head.bias)
            config["tie_word_embeddings"] = tied
    return architecture_of(model, _heads(lm), "Marian"), config


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    if model.source_vocab_size is None:
        found = [Row("model.shared.weight", ("tokens.weight",))]
    else:
        found = [
            Row("model.encoder.embed_tokens.weight", ("source_tokens.weight",)),
            Row("model.decoder.embed_tokens.weight", ("tokens.weight",)),
        ]
    found += block_rows(model)
    for head in model.heads:
        assert isinstance(head, spec.LMHead)
        if head.bias:
            found.append(Row(_BIAS, ("heads.lm.bias",), flat=True))
        if not head.tied:
            found.append(Row("lm_head.weight", ("heads.lm.weight",)))
    return found


def _describes(model: spec.ModelSpec) -> bool:
    return (
        model.family == "encoder-decoder"
        and isinstance(model.embedding.positions, spec.Sinusoidal)
        and survives(model, _read, _write, _table)
    )


MARIAN = Family(
    model_type="marian",
    architectures=("MarianMTModel", "MarianModel"),
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    base="model.",
    copies={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.decoder.embed_tokens.weight",
    },
    ignored=(r"(model\.)?(encoder|decoder)\.embed_positions\.weight",),
)
