"""Objectives: what a model is shown and what it is asked."""

from __future__ import annotations

from trivium.objectives.base import Objective, TensorBatch, to_device
from trivium.objectives.bidirectional import Bidirectional
from trivium.objectives.causal import Causal
from trivium.objectives.masked import Masked

__all__ = ["Bidirectional", "Causal", "Masked", "Objective", "TensorBatch", "to_device"]
