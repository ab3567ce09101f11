"""Speculative decoding: draft tokens that the model verifies in one forward pass."""

from __future__ import annotations


class PromptLookup:
    """Draft tokens: what followed the last n-gram where it occurred before (Saxena 2023)."""


class DraftModel:
    """Draft tokens of a smaller decoder with the same vocabulary (Leviathan et al. 2023)."""
