"""Tiny models for every tab of the playground, with random weights that make their answers vary."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from small_models import small_spec
from their_tokenizers import ours

from trivium import spec
from trivium.errors import CheckpointError
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.serve.playground import LoadedModels

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


class SlowModels(LoadedModels):
    """Models that are handed out after a pause, if one is asked for."""

    pause = 0.0

    def use(self, name):
        time.sleep(self.pause)
        return super().use(name)


def write_run(folder: Path, losses: list[float]) -> None:
    """A run folder with a validation loss every ten steps."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text('[model]\npreset = "bert-tiny"\n')
    lines = []
    for number, loss in enumerate(losses, 1):
        where = {"step": 10 * number, "tokens": 1000 * number, "seconds": 2.0 * number}
        lines += [{**where, "train_loss": loss + 0.25, "tokens_per_second": 500.0}]
        lines += [{**where, "valid_loss": loss}]
    text = "\n".join(map(json.dumps, lines))
    (folder / "metrics.jsonl").write_text(text + "\n")
