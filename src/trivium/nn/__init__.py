"""The parts of models, each with its equation and paper; usable alone."""

from __future__ import annotations

from trivium.nn.attention import MultiHeadAttention, attend, attention_weights
from trivium.nn.feed_forward import FeedForwardNetwork, GatedFeedForwardNetwork
from trivium.nn.kv_cache import KVCache
from trivium.nn.loss import Loss, linear_cross_entropy
from trivium.nn.mask import Mask
from trivium.nn.positions import LearnedPositions, Rotation, SinusoidalPositions

__all__ = [
    "FeedForwardNetwork",
    "GatedFeedForwardNetwork",
    "KVCache",
    "LearnedPositions",
    "Loss",
    "Mask",
    "MultiHeadAttention",
    "Rotation",
    "SinusoidalPositions",
    "attend",
    "attention_weights",
    "linear_cross_entropy",
]
