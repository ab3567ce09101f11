"""The attention of a model to a text, with its tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from trivium.errors import TriviumError
from trivium.inference.text_model import encoder_ids, prompt_ids
from trivium.language_model import LanguageModel

MAX_TOKENS = 64
"""The most tokens of a picture."""
_TARGET_TOKENS = 32


class AttentionPicture(NamedTuple):
    """Tokens that attend, tokens attended to, and weights [L, N, T, S]."""

    queries: list[str]
    keys: list[str]
    weights: np.ndarray


def attended_text(lm: LanguageModel, source: str, target: str = "") -> dict[str, AttentionPicture]:
    """The attention of a model to a text, by kind: encoder, decoder, cross.

    An encoder-decoder also reads a target; where that is empty, the text it generates itself.

    Raises:
        TriviumError: more tokens than a picture shows.
    """
    has_both, decodes = lm.spec.family == "encoder-decoder", lm.spec.family == "decoder-only"
    tokenizer, reader = lm.text_tokenizer, lm.source_tokenizer
    ids = prompt_ids(lm.prompting, source) if decodes else encoder_ids(reader, source)
    targets = list[int]()
    if has_both:
        longest = None if target.strip() else _TARGET_TOKENS
        target = target if target.strip() else lm.translate(source, max_new_tokens=longest)
        tokens = tokenizer.encode(target, add_special_tokens=False).ids[:longest]
        targets = [*lm.generation_rules.decoder_start, *tokens]
    if max(len(ids), len(targets)) > MAX_TOKENS:
        raise TriviumError(f"the text has more than the {MAX_TOKENS} tokens that fit a picture.")
    attention = lm.attention_weights([ids], decoder_input_ids=[targets] if has_both else None)
    keys = [reader.readable_tokens[index] for index in ids]
    queries = [tokenizer.readable_tokens[index] for index in targets] if has_both else keys
    axes = {"encoder": (keys, keys), "decoder": (queries, queries), "cross": (queries, keys)}
    pictures: dict[str, AttentionPicture] = {}
    for kind, tokens in axes.items():
        if layers := getattr(attention, kind):
            weights = torch.stack([layer[0] for layer in layers]).float().cpu().numpy()
            pictures[kind] = AttentionPicture(*tokens, weights)
    return pictures
