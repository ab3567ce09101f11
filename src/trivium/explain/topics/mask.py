"""Explanation of attention masks: padding, causal, prefix, cross, packed and sliding-window."""

from __future__ import annotations

from typing import Any

import torch

from trivium.errors import TriviumError
from trivium.explain.page import Bilingual, Grid, Page, Part, get_text
from trivium.nn.mask import attention_mask
from trivium.nn.patterns import Sliding
from trivium.nn.sequence_info import SequenceInfo

_PADDING = (get_text("mask.padding"), get_text("mask.padding_note"))
_CAUSAL = (get_text("mask.causal"), get_text("mask.causal_note"))
_BOTH = (get_text("mask.causal_padding"), get_text("mask.causal_padding_note"))
_CROSS = (get_text("mask.cross_attention"), get_text("mask.cross_attention_note"))
_PREFIX = (get_text("mask.prefix"), get_text("mask.prefix_note"))
_PACKED = (get_text("mask.packed_documents"), get_text("mask.packed_note"))
_SLIDING = (get_text("mask.sliding_window"), get_text("mask.sliding_note"))


def explain(text: str = "the cat sat on the mat", *, prefix: int = 3, window: int = 1) -> Page:
    """Show attention masks as grids: rows are queries, and filled squares are visible keys.

    Args:
        text: A text of 4 to 24 words.
        prefix: Length of the prefix with bidirectional attention, for the prefix mask.
        window: Number of previous tokens that a token sees, for the sliding window.
    """
    words = text.split()
    if not 4 <= len(words) <= 24:
        raise TriviumError(
            f"the text has {len(words)} words: give 4 to 24 words, separated by spaces."
        )
    size, half = len(words), (len(words) + 1) // 2
    padded, target = [*words, "[PAD]", "[PAD]"], ["y_1", "y_2", "y_3", "y_4"]
    numbered = [f"{word} ({1 + (i >= half)})" for i, word in enumerate(words)]
    is_token: dict[str, Any] = {"is_token": torch.tensor([[1] * size + [0, 0]])}
    documents = torch.tensor([[1] * half + [2] * (size - half)])
    parts: list[Part] = []
    data: dict[str, Any] = {}
    masks: list[tuple[Any, ...]] = [
        (_PADDING, "", padded, padded, is_token, None),
        (_CAUSAL, "", words, words, {"causal": True}, None),
        (_BOTH, "", padded, padded, {"causal": True, **is_token}, None),
        (_CROSS, "", target, padded, {}, None),
        (_PREFIX, prefix, words, words, {"causal": True, "prefix": torch.tensor([prefix])}, None),
        (_PACKED, "", numbered, numbered, {"causal": True, "documents": documents}, None),
        (_SLIDING, window, words, words, {"causal": True}, Sliding(window=window)),
    ]
    for name, value, rows, columns, limits, pattern in masks:
        queries = SequenceInfo.of_length(len(rows), **limits)
        keys = SequenceInfo.of_length(len(columns), **is_token) if rows is target else queries
        mask = attention_mask(queries, keys, pattern)
        assert mask is not None
        grid = mask.expand(1, 1, len(rows), len(columns))[0, 0].int().tolist()
        caption, note = name
        parts += [
            Grid(grid, rows, columns, caption, digits=False),
            Bilingual(note.en.format(value), note.zh.format(value)),
        ]
        data[caption.en] = {"queries": rows, "keys": columns, "mask": grid}
    return Page(get_text("mask.masks_attention"), parts, data)
