"""What the playground knows of the models it shows, and how it borrows one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from trivium.errors import TriviumError
from trivium.language_model import LanguageModel
from trivium.spec import ModelSpec
from trivium.text import Tokenizer


@dataclass(frozen=True)
class ModelCard:
    """What a model can do, which is known without its weights.

    Args:
        verbs: `LanguageModel.verbs`.
        attends: whether it is a Transformer, whose attention can be looked at.
        tokenizer: what its texts are read with; None: it came without one.
    """

    verbs: tuple[str, ...]
    attends: bool
    tokenizer: Tokenizer | None

    @classmethod
    def of(cls, model: LanguageModel) -> ModelCard:
        """The card of a model that is there."""
        return cls(model.verbs, isinstance(model.spec, ModelSpec), model.tokenizer)


class Models(Protocol):
    """What a server has to offer the playground."""

    def names(self) -> Sequence[str]:
        """The models, in the order they are shown."""
        ...

    def card(self, name: str) -> ModelCard:
        """What a model can do. Asked once, when the playground is put together.

        Raises:
            TriviumError: the model cannot be used; the playground says so and leaves it out.
        """
        ...

    def use(self, name: str) -> AbstractContextManager[LanguageModel]:
        """The model, for nobody else until the end of the `with`. It may be loaded only now."""
        ...


class LoadedModels:
    """`Models` from functions that load them: each is called once, and used by one at a time."""

    def __init__(self, loaders: Mapping[str, Callable[[], LanguageModel]]) -> None:
        self._loaders = dict(loaders)
        self._locks = {name: threading.Lock() for name in loaders}
        self._loaded: dict[str, LanguageModel] = {}

    def names(self) -> Sequence[str]:
        """The models, in the order given."""
        return tuple(self._loaders)

    def card(self, name: str) -> ModelCard:
        """What a model can do; it is loaded to be asked."""
        with self.use(name) as model:
            return ModelCard.of(model)

    @contextmanager
    def use(self, name: str) -> Iterator[LanguageModel]:
        """The model under its lock."""
        with self._locks[name]:
            if name not in self._loaded:
                self._loaded[name] = self._loaders[name]()
            yield self._loaded[name]


@dataclass(frozen=True)
class Shown:
    """The models of one playground with their cards, and those that cannot be shown, with why."""

    models: Models
    cards: Mapping[str, ModelCard]
    broken: Mapping[str, str]

    @classmethod
    def of(cls, models: Models) -> Shown:
        """Ask every model for its card."""
        cards, broken = {}, {}
        for name in models.names():
            try:
                cards[name] = models.card(name)
            except (TriviumError, OSError) as error:
                broken[name] = str(error)
        return cls(models, cards, broken)

    def use(self, name: str) -> AbstractContextManager[LanguageModel]:
        """The model, for nobody else until the end of the `with`."""
        return self.models.use(name)

    def that_can(self, verb: str) -> list[str]:
        """The models that can do something with texts."""
        return [name for name, card in self.cards.items() if card.tokenizer and verb in card.verbs]

    def that_attend(self) -> list[str]:
        """The models whose attention to a text can be looked at."""
        return [name for name, card in self.cards.items() if card.tokenizer and card.attends]

    def tokenizers(self) -> dict[str, Tokenizer]:
        """The tokenizers there are, by the names of their models."""
        return {name: card.tokenizer for name, card in self.cards.items() if card.tokenizer}
