"""`LanguageModel`: a description, weights and a tokenizer, ready to be asked."""

from __future__ import annotations

from trivium.language_model.reading import Reading
from trivium.language_model.writing import Writing


class LanguageModel(Reading, Writing):
    """A model one can ask: fill a mask, continue a text, score one, or give logits.

    Args:
        spec: the description of `module`.
        module: the weights; put into evaluation mode (no dropout).
        tokenizer: None allowed; what needs text then says that it is missing.
        settings: how it generates, what its labels are called: kept, saved and exported.
        own_source_tokenizer: of what an encoder reads, where sources and targets are not of one
            vocabulary.

    Raises:
        SpecError: the tokenizer has more ids than the model.
    """
