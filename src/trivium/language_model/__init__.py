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

    Each mixin has the methods of one group of capabilities. The base class `TextModel` has what
    follows from the spec, the weights and the settings.
    """

    @classmethod
    def from_module(
        cls, module: nn.Module, tokenizer: Tokenizer | None = None, *, max_length: int | None = None
    ) -> LanguageModel:
        """Wrap your own causal module from ids [B, T] to logits [B, T, V], to generate and score.

        The model can also be served. It reads the whole text again for every token that it
        generates. It cannot be saved or exported: keep the `state_dict` of the module.

        Args:
            module: a module whose logits do not depend on later tokens.
            tokenizer: the tokenizer; None if the model is used with ids only.
            max_length: the largest number of tokens that the module can read; None for any number.

        Raises:
            SpecError: the module returns something else.
        """
        model = LogitsModel(module, max_length=max_length)
        return cls(model.spec, model, tokenizer)  # type: ignore[arg-type]
