"""Tiny models for every tab of the playground, with random weights that make their answers vary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from small_models import small_spec
from their_tokenizers import ours

from trivium import spec
from trivium.errors import CheckpointError
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import build

VOCABULARY, POSITIONS = 337, 61
CLASSES, TAGS = ("bad", "so <so>", "very good"), ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def lively(shape: spec.ModelSpec, tokenizer: str, settings: Settings | None = None):
    """A model whose every weight is random."""
    module = build(shape, seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in module.parameters():
            weight += torch.empty(weight.shape).normal_(0.0, 0.3, generator=generator)
    return LanguageModel(shape, module, ours(tokenizer), settings)


def encoder(head: spec.Head | None = None, settings: Settings | None = None) -> LanguageModel:
    """A small BERT, with a head for a task or to fill masks."""
    shape = small_spec("bert").replace(vocab_size=VOCABULARY)
    positions = spec.Learned(max_length=POSITIONS)
    shape = shape.replace(embedding=shape.embedding.replace(positions=positions))
    return lively(shape if head is None else shape.replace(heads=(head,)), "bert", settings)


def decoder() -> LanguageModel:
    """Small, grouped-query, without an end of positions, byte by byte."""
    return lively(small_spec("llama").replace(vocab_size=VOCABULARY), "gpt2")


def translator() -> LanguageModel:
    """A small T5."""
    shape = small_spec("t5").replace(vocab_size=VOCABULARY)
    return lively(shape, "t5", Settings(config={"decoder_start_token_id": 0}))


def gap_filler() -> LanguageModel:
    """A small BART, whose tokenizer has a mask."""
    shape = small_spec("bart").replace(vocab_size=VOCABULARY)
    return lively(shape, "roberta", Settings(config={"decoder_start_token_id": 2}))


def missing() -> LanguageModel:
    """No model."""
    raise CheckpointError("runs/<gone>: there is no such folder.")


def classifier() -> LanguageModel:
    """Tells three classes apart."""
    head = spec.ClassifierHead(num_labels=len(CLASSES), pooling="first")
    return encoder(head, Settings().with_labels(CLASSES))


def tagger() -> LanguageModel:
    """Finds persons and places."""
    return encoder(spec.TaggerHead(num_labels=len(TAGS)), Settings().with_labels(TAGS))


LOADERS: dict[str, Callable[[], LanguageModel]] = {
    "decoder": decoder,
    "encoder": encoder,
    "translator": translator,
    "gaps": gap_filler,
    "classifier": classifier,
    "tagger": tagger,
    "reader": lambda: encoder(spec.SpanHead()),
    "gone": missing,
}
