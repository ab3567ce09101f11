"""Attention maps: a model's attention weights for a text, with the tokens as labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from trivium.errors import TriviumError
from trivium.inference.text_model import encoder_ids, prompt_ids
from trivium.language_model import LanguageModel

MAX_TOKENS = 64
"""The maximum number of tokens in an attention map."""
_TARGET_TOKENS = 32


class AttentionMap(NamedTuple):
    """Attention weights [layers, heads, queries, keys], with the query tokens and key tokens."""

    queries: list[str]
    keys: list[str]
    weights: np.ndarray


def compute_attention_maps(
    lm: LanguageModel, source: str, target: str = ""
) -> dict[str, AttentionMap]:
    """Compute the attention weights of a model for a text.

    Args:
        lm: the model.
        source: the text.
        target: the target text; used only by an encoder-decoder. If it is blank, the model
            generates it.

    Returns:
        A dict of attention kind ("encoder", "decoder" or "cross") -> attention map. It contains
        only the kinds that the model has.

    Raises:
        TriviumError: the text or the target has more than `MAX_TOKENS` tokens.
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
        raise TriviumError(
            f"the text has more than {MAX_TOKENS} tokens, the most that fit in a figure."
        )
    attention = lm.attention_weights([ids], decoder_input_ids=[targets] if has_both else None)
    keys = [reader.readable_tokens[index] for index in ids]
    queries = [tokenizer.readable_tokens[index] for index in targets] if has_both else keys
    axes = {"encoder": (keys, keys), "decoder": (queries, queries), "cross": (queries, keys)}
    attention_maps: dict[str, AttentionMap] = {}
    for kind, tokens in axes.items():
        if layers := getattr(attention, kind):
            weights = torch.stack([layer[0] for layer in layers]).float().cpu().numpy()
            attention_maps[kind] = AttentionMap(*tokens, weights)
    return attention_maps
