"""Writing one of some given texts: which ids may come next."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trivium.errors import TriviumError

_Branch = dict[int, "_Branch"]


class Choices:
    """The only texts that may be written, as ids.

    Token by token the model takes the branch it prefers, so that what comes out is not always the
    most probable of all: `score_continuations` tells that.

    Args:
        options: the ids of each.
        ends: ids that end a text, allowed where one option is the beginning of another.

    Raises:
        TriviumError: no option, or an empty one.
    """

    def __init__(self, options: Sequence[Sequence[int]], ends: Collection[int]) -> None:
        if not options or not all(options):
            raise TriviumError("choices must be one or more texts, none of them empty.")
        self.ends = frozenset(ends)
        self._root: _Branch = {}
        self._whole = {tuple(option) for option in options}
        for option in options:
            branch = self._root
            for index in option:
                branch = branch.setdefault(index, {})
        cut = [option for option in self._whole if self._after(option)]
        if cut and not self.ends:
            raise TriviumError(
                "one of the choices is the beginning of another, and no token ends a text: make "
                "them differ before either is over."
            )

    def next_ids(self, ids: Sequence[int]) -> list[int]:
        """What may follow the ids written so far; nothing where a choice is whole."""
        following = list(self._after(ids))
        if following and tuple(ids) in self._whole:
            following += sorted(self.ends)
        return following

    def _after(self, ids: Sequence[int]) -> _Branch:
        branch = self._root
        for index in ids:
            branch = branch.get(index, {})
        return branch
