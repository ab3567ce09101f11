"""`LanguageModel`: a spec, weights and a tokenizer, with everything the model can do."""

from __future__ import annotations

from torch import nn

from trivium.language_model.generating import GenerationMixin
from trivium.language_model.predicting import PredictionMixin
from trivium.language_model.saving import SavingMixin
from trivium.language_model.tasks import TaskMixin
from trivium.models import LogitsModel
from trivium.text import Tokenizer


class LanguageModel(GenerationMixin, PredictionMixin, TaskMixin, SavingMixin):
    """A model that is ready to use: weights in evaluation mode, with tokenizer and settings.

    Each mixin holds the methods of one capability and lies in a file of its own. What follows
    from the spec, the weights and the settings is in the base class `TextModel`.
    """

    @classmethod
    def from_module(
        cls, module: nn.Module, tokenizer: Tokenizer | None = None, *, max_length: int | None = None
    ) -> LanguageModel:
        """A causal model of one's own, from ids [B, T] to logits [B, T, V], to generate and score.

        It can be served, too. It reads the whole text again for every token that it generates, and
        cannot be saved or exported: keep its `state_dict`.

        Args:
            module: no logits may depend on later tokens.
            tokenizer: None for a model used by ids alone.
            max_length: tokens that it can read; None: any number.

        Raises:
            SpecError: the module gives something else.
        """
        model = LogitsModel(module, max_length=max_length)
        return cls(model.spec, model, tokenizer)  # type: ignore[arg-type]
