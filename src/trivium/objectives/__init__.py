"""Objectives: what a model is shown and what it is asked."""

from __future__ import annotations

from trivium.objectives.base import Objective, TensorBatch, TextObjective, to_device
from trivium.objectives.bidirectional import Bidirectional
from trivium.objectives.causal import Causal
from trivium.objectives.denoising import Denoising
from trivium.objectives.masked import Masked
from trivium.objectives.mixture import Mixture
from trivium.objectives.prefix import PrefixLM, PrefixPairs
from trivium.objectives.replaced_token import ReplacedToken
from trivium.objectives.sentence_pairs import SentencePairs
from trivium.objectives.span_corruption import SpanCorruption

__all__ = [
    "Bidirectional",
    "Causal",
    "Denoising",
    "Masked",
    "Mixture",
    "Objective",
    "PrefixLM",
    "PrefixPairs",
    "ReplacedToken",
    "SentencePairs",
    "SpanCorruption",
    "TensorBatch",
    "TextObjective",
    "to_device",
]
