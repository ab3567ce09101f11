"""The class `LanguageModel`: a spec, weights and a tokenizer, with methods for all tasks."""

from __future__ import annotations

from torch import nn

from trivium.language_model.adapting import AdapterMixin
from trivium.language_model.generating import GenerationMixin
from trivium.language_model.predicting import PredictionMixin
from trivium.language_model.saving import SavingMixin
from trivium.language_model.tasks import TaskMixin
from trivium.models import LogitsModel
from trivium.text import Tokenizer


class LanguageModel(GenerationMixin, PredictionMixin, TaskMixin, AdapterMixin, SavingMixin):
    """A model that is ready to use: weights in evaluation mode, with tokenizer and settings.

    Each mixin contains the methods of one group of tasks. The base class `TextModel` contains the
    properties that are derived from the spec, the weights and the settings.
    """

    @classmethod
    def from_module(
        cls, module: nn.Module, tokenizer: Tokenizer | None = None, *, max_length: int | None = None
    ) -> LanguageModel:
        """Wrap your own causal module (ids [B, T] -> logits [B, T, V]) for generation and scoring.

        The model can also be served. Generation recomputes the whole text for every new token.
        The model cannot be saved or exported; save the `state_dict` of the module instead.

        Args:
            module: a module whose logits do not depend on later tokens.
            tokenizer: the tokenizer; None if the model is used with ids only.
            max_length: the maximum number of tokens that the module can read; None: any number.

        Raises:
            SpecError: the module does not return logits [B, T, V].
        """
        model = LogitsModel(module, max_length=max_length)
        return cls(model.spec, model, tokenizer)  # type: ignore[arg-type]
