"""Constrained generation: one of several texts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trivium.errors import TriviumError


class Choices:
    """The token sequences that may be generated.

    Decoding is greedy or sampled per token, so the result need not be the most probable choice of
    all: `score_continuations` ranks whole choices.

    Args:
        choices: token ids of each choice.
        stop_ids: ids that end a text, allowed where one choice is the beginning of another.

    Raises:
        TriviumError: an empty choice, or a choice that begins another and no stop id.
    """

    def __init__(self, choices: Sequence[Sequence[int]], stop_ids: Collection[int]) -> None:
        if not all(choices):
            raise TriviumError("a choice has no tokens: give texts that are not empty.")
        self.stop_ids = frozenset(stop_ids)
        self._choices = {tuple(choice) for choice in choices}
        if not stop_ids and any(map(self.next_ids, self._choices)):
            raise TriviumError(
                "one choice is the beginning of another, and this model has no token that ends a "
                "text: use choices that differ before either ends."
            )

    def next_ids(self, ids: Sequence[int]) -> list[int]:
        """The tokens allowed after `ids`; none where a choice is complete."""
        start, length = tuple(ids), len(ids)
        following = {
            choice[length]
            for choice in self._choices
            if len(choice) > length and choice[:length] == start
        }
        if following and start in self._choices:
            following |= self.stop_ids
        return sorted(following)
