"""`Encoding`: the tokens of a text."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Encoding:
    r"""The tokens of a text or of a pair of texts. Every tuple has one entry per token.

    Args:
        ids: the token ids.
        tokens: the tokens in readable form. For byte-level tokenizers, this is the text of the
            token, with U+2581 for a space and `\xe5` for a byte of an incomplete character.
        symbols: the tokens as stored in the vocabulary. They differ from `tokens` only in
            byte-level tokenizers.
        offsets: (start, end) in characters of the original text; (0, 0) for special tokens.
        type_ids: 0 for the first text and 1 for the second.
        word_ids: the index of the pre-tokenizer's word within each text; None for special tokens.
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
        """Return the encoding as a dictionary for JSON.

        With `symbols`, `tokens` contains the tokens as stored in the vocabulary.
        """
        fields = dataclasses.asdict(self)
        entries = fields.pop("symbols")
        return fields | {"tokens": entries} if symbols else fields
