"""`Encoding`: the tokens of a text."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Encoding:
    r"""The tokens of a text or of a pair of texts. Every tuple has one entry per token.

    Args:
        ids: the token ids.
        tokens: the tokens in readable form. A token of a byte-level tokenizer is shown as text, in
            which U+2581 stands for a space, and an escape such as `\xe5` for a byte of an
            incomplete character.
        symbols: the raw tokens, as stored in the vocabulary. They differ from `tokens` only in
            byte-level tokenizers.
        offsets: the character offsets (start, stop) in the original text; (0, 0) for special
            tokens.
        type_ids: the token type ids: 0 for the first text and 1 for the second text.
        word_ids: the index of the word that the token belongs to, as split by the pre-tokenizer;
            None for special tokens.
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

        If `symbols` is True, the entry "tokens" contains the raw tokens instead of the readable
        tokens.
        """
        fields = dataclasses.asdict(self)
        entries = fields.pop("symbols")
        return fields | {"tokens": entries} if symbols else fields
