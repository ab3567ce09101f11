"""Guessing tokens ahead, so that a model checks several in one step (speculative decoding).

A guess is kept only where the model chooses the same token by its own rule, with its own random
numbers: what is written is, token for token, what it is without guesses. For a guess that is
certain this accepts as often as the rule of Leviathan et al. 2023 (appendix A.2) does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from trivium.errors import SpecError, TriviumError
from trivium.inference.decoding import reader
from trivium.inference.request import Written
from trivium.models import LanguageModule


class Draft(Protocol):
    """What guesses ahead; `most` tokens at a time."""

    most: int

    def guess(self, texts: Sequence[Written], most: int) -> list[list[int]]:
        """What may follow each text, at most so many tokens; nothing where it has no idea."""
        ...

    def forget(self, text: Written) -> None:
        """A text has left."""
        ...


class PromptLookup:
    """What followed the last tokens where they stood before in the text (Saxena 2023).

    It costs next to nothing, and helps where much is said again: summaries, corrections, code.

    Args:
        most: tokens guessed at a time.
        longest: so many last tokens are looked for first, then fewer, down to one.
    """

    def __init__(self, most: int = 8, longest: int = 3) -> None:
        _check_most(most)
        if longest < 1:
            raise TriviumError(f"longest is {longest}, but must be 1 or more.")
        self.most, self.longest = most, longest

    def guess(self, texts: Sequence[Written], most: int) -> list[list[int]]:
        """See `Draft`."""
        return [self._following(text.all_ids, most) for text in texts]

    def forget(self, text: Written) -> None:
        """Nothing is kept of any text."""

    def _following(self, ids: Sequence[int], most: int) -> list[int]:
        for size in range(min(self.longest, len(ids) - 1), 0, -1):
            last = ids[-size:]
            for start in range(len(ids) - size - 1, -1, -1):
                if ids[start : start + size] == last:
                    return list(ids[start + size : start + size + most])
        return []


class DraftModel:
    """The most probable tokens by a smaller decoder with the same vocabulary.

    Args:
        model: a decoder, in evaluation mode; it reads every text besides the one that checks.
        most: tokens guessed at a time.

    Raises:
        SpecError: a model that is no decoder, or whose cache cannot go back.
    """

    def __init__(self, model: LanguageModule, most: int = 4) -> None:
        _check_most(most)
        if model.spec.family != "decoder-only" or not model.new_cache(1, 1).can_shorten(most):
            raise SpecError("a draft model must be a Transformer with a decoder alone.")
        self.model, self.most = model, most
        self._caches: dict[Written, tuple[Any, list[int]]] = {}  # and what each has read

    def guess(self, texts: Sequence[Written], most: int) -> list[list[int]]:
        """See `Draft`."""
        return [self._continue(text, most) for text in texts]

    def forget(self, text: Written) -> None:
        """Give up what was read of a text."""
        self._caches.pop(text, None)

    def _continue(self, text: Written, most: int) -> list[int]:
        ids, limit = text.all_ids, self.model.spec.max_length
        if limit is not None:
            most = min(most, limit - len(ids))
        if most < 1:
            return []
        if text not in self._caches:
            self._caches[text] = (self.model.new_cache(1, len(ids) + most), [])
        cache, had = self._caches[text]
        # Of what was guessed before, only what was written stays; the last token is read anew.
        same = next((i for i, pair in enumerate(zip(had, ids)) if pair[0] != pair[1]), len(had))
        cache.length = min(same, len(ids) - 1)
        cache.make_room(len(ids) + most)
        read, new, guess = reader(self.model), ids[cache.length :], []
        for _ in range(most):
            hidden = read(torch.tensor([new], device=self.model.device), cache=cache)
            new = [int(self.model.logits(hidden[:, -1]).argmax())]
            guess += new
        self._caches[text] = (cache, [*ids, *guess[:-1]])
        return guess


def _check_most(most: int) -> None:
    if most < 1:
        raise TriviumError(f"most is {most}, but must be 1 or more tokens.")
