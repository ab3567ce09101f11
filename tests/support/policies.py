"""A policy that draws a few short texts, so that all of them can be counted."""

from __future__ import annotations

import torch
from overfit_tasks import word_tokenizer

from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.objectives.responses import Prompt
from trivium.presets import presets

CPU = torch.device("cpu")
END = 0
PROMPTS = [Prompt(text, {"answer": "b"}, f"x, line {n}") for n, text in enumerate("abc" * 20)]


def model(dtype: torch.dtype = torch.float32) -> LanguageModel:
    """Of five tokens, of which the first ends a text, and more rows; far from uniform."""
    tokenizer = word_tokenizer("gpt2", ["a b c"])
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (5, END)
    spec = presets["gpt2-tiny"].replace(vocab_size=8).with_dropout(0.0)
    module = build(spec, seed=3).to(dtype)
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(4.0 if weight.ndim == 2 else 1.0)
    return LanguageModel(spec, module, tokenizer)
