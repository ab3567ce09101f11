"""What encoding a text gives."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Encoding:
    """The tokens of one text or of a pair of texts; every tuple has one entry a token.

    `offsets` are (start, end) in characters of the original text, (0, 0) for tokens that stand for
    no text. `type_ids` are 0 for the first text and 1 for the second. `word_ids` number the words
    of the pre-tokeniser within each text, None for special tokens.
    """

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    type_ids: tuple[int, ...]
    word_ids: tuple[int | None, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def to_dict(self) -> dict[str, object]:
        """The fields as plain lists, for JSON."""
        return {
            "ids": list(self.ids),
            "tokens": list(self.tokens),
            "offsets": [list(pair) for pair in self.offsets],
            "type_ids": list(self.type_ids),
            "word_ids": list(self.word_ids),
        }
