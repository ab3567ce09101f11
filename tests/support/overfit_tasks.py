"""Tiny models that overfit a handful of labelled examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trivium.data.encoded import EncodedExamples
from trivium.data.row_order import RowRandom
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.objectives import LabelledObjective, to_device
from trivium.objectives.preference import ReferenceObjective
from trivium.presets import presets
from trivium.text import Tokenizer
from trivium.train.distributed import SINGLE_PROCESS

CPU = torch.device("cpu")
SPECIALS = {
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "gpt2": ["<|endoftext|>", "<unk>"],
    "elmo": ["<|endoftext|>", "<unk>"],
    "t5": ["<pad>", "</s>", "<unk>"],
}


def word_tokenizer(family: str, texts: Sequence[str]) -> Tokenizer:
    """Whole words of some texts, with the special tokens of a family."""
    return Tokenizer.train(
        "whitespace",
        texts=list(texts),
        vocab_size=500,
        special_tokens=SPECIALS[family],
        progress=False,
    )


def untrained(
    objective: LabelledObjective, examples: Sequence[Any], family: str, **changes: Any
) -> tuple[LabelledObjective, LanguageModel]:
    """The resolved objective and a tiny model with its heads and settings."""
    tokenizer = word_tokenizer(family, list(objective.texts(examples)))
    spec = presets[f"{family}-tiny"].replace(vocab_size=tokenizer.vocab_size, **changes)
    spec = spec.with_dropout(0.0)
    objective = objective.infer_keys(spec, examples)
    settings = objective.add_settings(Settings(), examples)
    spec = spec.with_heads(objective.heads(spec, settings.labels))
    objective.check_tokens(tokenizer.vocabulary)
    module = objective.build(spec, seed=0, device=CPU)
    return objective, LanguageModel(spec, module, tokenizer, settings)


def encode_with_references(
    objective: LabelledObjective, examples: Sequence[Any], lm: LanguageModel
) -> EncodedExamples:
    """Encode examples as a run does: the model is its own reference."""
    encoded = objective.encode(examples, lm)
    if isinstance(objective, ReferenceObjective):
        objective.add_references(encoded, lm, SINGLE_PROCESS.map)
    return encoded


def overfit(
    objective: LabelledObjective,
    examples: Sequence[Any],
    family: str,
    *,
    steps: int = 100,
    lr: float = 1e-3,
) -> tuple[LabelledObjective, LanguageModel, float]:
    """The model after some steps on one batch of all examples, and its last loss."""
    objective, lm = untrained(objective, examples, family)
    encoded = encode_with_references(objective, examples, lm)
    objective.remember_encoded(examples, encoded)
    rows = encoded.take(range(len(encoded)))
    batch = objective.prepare(rows, RowRandom(0, [0]), lm.tokenizer.vocabulary)
    tensors, counts = to_device(batch, CPU), objective.loss_denominators(batch)
    optimizer = torch.optim.AdamW(lm.module.parameters(), lr=lr)
    lm.module.train()
    loss = torch.zeros(())
    for _ in range(steps):
        terms = objective.loss(lm.module, tensors)
        assert terms.keys() == counts.keys()
        weights = objective.term_weights()
        loss = sum(weights.get(name, 1.0) * t / counts[name] for name, t in terms.items())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    lm.module.eval()
    return objective, lm, float(loss.detach())
