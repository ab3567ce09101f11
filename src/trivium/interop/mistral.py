"""Mistral (Jiang et al. 2023): LLaMA's body with a sliding window."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trivium import spec
from trivium.interop.config import Config
from trivium.interop.decoders import DecoderHeads, decoder_of
from trivium.interop.exactness import survives
from trivium.interop.family import Family, Row
from trivium.interop.gpt_neo import sliding
from trivium.interop.llama import body_rows, read_body, write_body

_HEADS = DecoderHeads(
    family="Mistral",
    classes={
        "none": "MistralModel",
        "lm": "MistralForCausalLM",
        "classifier": "MistralForSequenceClassification",
        "tagger": "MistralForTokenClassification",
        "span": "MistralForQuestionAnswering",
    },
    tagger="score",
    tied=False,
)


def _read(config: Config, architecture: str, names: Collection[str]) -> spec.ModelSpec:
    config.only("attention_bias", False)
    config.only("mlp_bias", False)
    window = config.optional("sliding_window")
    pattern = spec.Full() if window is None else sliding(window, "sliding_window")
    body = read_body(config, pattern, attention_bias=False, mlp_bias=False)
    return body.replace(heads=_HEADS.read(config, architecture))


def _write(model: spec.ModelSpec) -> tuple[str, dict[str, Any]]:
    pattern = decoder_of(model, "Mistral").attention_of(0).pattern
    window = pattern.window + 1 if isinstance(pattern, spec.Sliding) else None
    architecture, config = _HEADS.write(model)
    return architecture, config | write_body(model, "Mistral") | {"sliding_window": window}


def _table(model: spec.ModelSpec, architecture: str) -> list[Row]:
    return [*body_rows(model, "model.", "Mistral"), *_HEADS.rows(model)]


def _describes(model: spec.ModelSpec) -> bool:
    return survives(model, _read, _write, _table)


MISTRAL = Family(
    model_type="mistral",
    architectures=_HEADS.architectures,
    read=_read,
    write=_write,
    table=_table,
    describes=_describes,
    base="model.",
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    ignored=(r".*\.rotary_emb\.inv_freq",),
)
