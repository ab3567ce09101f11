"""Constrained generation: one of several texts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trivium.errors import TriviumError

_Node = dict[int, "_Node"]


class ChoiceTrie:
    """The token sequences that may be generated, as a prefix tree.

    Decoding through it is greedy or sampled per token, so the result need not be the most probable
    choice of all: `score_continuations` ranks whole choices.

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
        self._root: _Node = {}
        self._complete = {tuple(choice) for choice in choices}
        for choice in choices:
            node = self._root
            for token_id in choice:
                node = node.setdefault(token_id, {})
        if not stop_ids and any(self._following(choice) for choice in self._complete):
            raise TriviumError(
                "one choice is the beginning of another, and this model has no token that ends a "
                "text: use choices that differ before either ends."
            )

    def next_ids(self, ids: Sequence[int]) -> list[int]:
        """The tokens allowed after `ids`; none where a choice is complete."""
        following = list(self._following(ids))
        if following and tuple(ids) in self._complete:
            following += sorted(self.stop_ids)
        return following

    def _following(self, ids: Sequence[int]) -> _Node:
        node = self._root
        for token_id in ids:
            node = node.get(token_id, {})
        return node
