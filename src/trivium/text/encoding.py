"""The result of encoding a text."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Encoding:
    """The tokens of one text or of a pair of texts; every tuple has one entry per token.

    `tokens` are for reading: those of a byte-level vocabulary as the text they are part of, with
    U+2581 for a space and `\\xe5` for a byte of an incomplete character. `symbols` are the entries
    of the vocabulary itself; the two differ in byte-level tokenizers only.
    `offsets` are (start, end) in characters of the original text, (0, 0) for special tokens.
    `type_ids` are 0 for the first text and 1 for the second. `word_ids` number the words of the
    pre-tokenizer within each text, None for special tokens.
    """

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    symbols: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    type_ids: tuple[int, ...]
    word_ids: tuple[int | None, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def to_dict(self, *, symbols: bool = False) -> dict[str, object]:
        """The fields as plain values, for JSON; `symbols` shows vocabulary entries as tokens."""
        fields = dataclasses.asdict(self)
        entries = fields.pop("symbols")
        return fields | {"tokens": entries} if symbols else fields
