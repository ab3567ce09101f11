"""What a preset is: a spec with its name's paper."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from trivium.spec import Spec


@dataclass(frozen=True)
class Preset:
    """A named size of the literature.

    Args:
        spec: the model, initialised as published.
        paper: where it was published.
        context: longest training input in tokens; None where no length is published.
        tokens: seen in training, repetitions counted, where published.
        lr: the peak learning rate, where published.
        batch: tokens of a step, where published; the last, where it grows.
        text_bytes: of the text that it was trained on, where published.
        training: the other keys of a recipe that the paper gives, as a nested dict, where it gives
            all that matter; else None.
    """

    spec: Spec
    paper: str
    context: int | None
    tokens: float | None = None
    lr: float | None = None
    batch: float | None = None
    text_bytes: float | None = None
    training: Any = None

    @property
    def recipe(self) -> dict[str, Any]:
        """The keys of a recipe that trains it as published; none where the paper lacks some.

        >>> from trivium.presets import catalogue
        >>> catalogue["llama-7b"].recipe["optimizer"]["lr"], catalogue["bert-base"].recipe
        (0.0003, {})
        """
        if not (self.training and self.lr and self.batch and self.context and self.tokens):
            return {}
        tree: dict[str, Any] = copy.deepcopy(self.training)
        tree["optimizer"]["lr"] = self.lr
        tree["data"] = {"length": self.context}
        tree["train"] = {
            **tree["train"],
            "batch_tokens": int(self.batch),
            "tokens": int(self.tokens),
        }
        return tree
