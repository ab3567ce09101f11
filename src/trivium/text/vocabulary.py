"""`Vocabulary`: the properties of token ids that training objectives use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.errors import TokenizerError
from trivium.text.roles import get_role, sentinel_name

_CLOSING = "\"')]}\u201d\u2019\u00bb\u300d\u300f\uff09"
_SENTENCE_ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f", "\u2026")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The properties of token ids that training objectives use.

    The arrays [V] are computed when they are first needed.

    Args:
        size: V, the number of ids in the vocabulary.
        kind: the kind of the tokenizer, for messages.
        special_ids: the ids of the special tokens, sorted.
        special_tokens: the id of each special token, by name.
        pad_id, unk_id, cls_id, sep_id, mask_id, bos_id, eos_id: the id of the special token with
            this role, or None if no token has the role.
        sentinel_ids: the ids of T5's sentinels `<extra_id_0>`, `<extra_id_1>`, ..., in this order.
        prefix_ids: the token ids before each document in a token shard.
        suffix_ids: the token ids after each document in a token shard.
        decoder_start_id: the id of the first decoder input of an encoder-decoder. The model sets
            it, not the tokenizer.
        word_continuations: a function that returns for each id whether the token continues the word
            before it.
        texts: a function that returns the decoded text of each id.
        encode: a function that tokenizes a part of a text; None if parts cannot be tokenized
            separately, because the tokenizer is not byte-level.
    """

    size: int
    kind: str = ""
    special_ids: tuple[int, ...] = ()
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    pad_id: int | None = None
    unk_id: int | None = None
    cls_id: int | None = None
    sep_id: int | None = None
    mask_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    sentinel_ids: tuple[int, ...] = ()
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    decoder_start_id: int | None = None
    word_continuations: Callable[[], Sequence[bool]] | None = None
    texts: Callable[[], Sequence[str]] | None = None
    encode: Callable[[str], Sequence[int]] | None = None

    @classmethod
    def from_special_tokens(
        cls, special_tokens: Mapping[str, int], roles: Mapping[str, int | None], **fields: Any
    ) -> Vocabulary:
        """Create a vocabulary from its special tokens.

        Args:
            special_tokens: the id of each special token, by name.
            roles: the id of the special token of each role, by role.
            fields: the values of other fields.
        """
        sentinels = takewhile(special_tokens.__contains__, map(sentinel_name, count()))
        return cls(
            special_tokens=special_tokens,
            special_ids=tuple(sorted(special_tokens.values())),
            sentinel_ids=tuple(special_tokens[name] for name in sentinels),
            **{f"{role}_id": index for role, index in roles.items()},
            **fields,
        )

    def special_token_id(self, token: str) -> int | None:
        """Return the id of a special token, found by its name or by the usual role of the name.

        Roles that begin a sequence (`<s>`, `[CLS]`) count as equal, and so do roles that end it
        (`</s>`, `[SEP]`). For example, `[CLS]` finds the token `<s>` if the vocabulary has no
        `[CLS]`. Returns None if no token is found.
        """
        if token in self.special_tokens:
            return self.special_tokens[token]
        named = dict(zip(map(sentinel_name, count()), self.sentinel_ids, strict=False))
        if token in named:
            return named[token]
        role = get_role(token)
        usual = {"cls": "start", "bos": "start", "sep": "end", "eos": "end"}
        return None if role is None else getattr(self, f"{usual.get(role, role)}_id")

    def id_of(self, token: str) -> int:
        """Return the id of a special token, found by its name or role as in `special_token_id`.

        Raises TokenizerError if no token is found.
        """
        index = self.special_token_id(token)
        if index is None:
            raise TokenizerError(f"this {self.kind} tokenizer has no special token {token}.")
        return index

    @property
    def start_id(self) -> int | None:
        """The id of the token that begins a sequence: `cls_id` if set, otherwise `bos_id`."""
        return self.bos_id if self.cls_id is None else self.cls_id

    @property
    def end_id(self) -> int | None:
        """The id of the token that ends a sequence: `sep_id` if set, otherwise `eos_id`."""
        return self.eos_id if self.sep_id is None else self.sep_id

    @cached_property
    def is_special(self) -> NDArray[np.bool_]:
        """Whether each token is a special token, bool [V]."""
        special = np.zeros(self.size, dtype=bool)
        special[list(self.special_ids)] = True
        return special

    @cached_property
    def regular_ids(self) -> NDArray[np.int64]:
        """The ids of all tokens that are not special tokens, sorted, int64."""
        return np.flatnonzero(~self.is_special)

    @cached_property
    def continues_word(self) -> NDArray[np.bool_]:
        """Whether each token continues the word before it, bool [V].

        The rules are those of `Tokenizer.continues_word`.
        """
        if self.word_continuations is None:
            return np.zeros(self.size, dtype=bool)
        return np.array(self.word_continuations(), dtype=bool)

    @cached_property
    def token_texts(self) -> Sequence[str]:
        """The decoded text of each id; empty strings if they are not known."""
        return [""] * self.size if self.texts is None else self.texts()

    @cached_property
    def num_characters(self) -> NDArray[np.int64]:
        """The number of characters in the text of each token, int64 [V].

        It is 1 for tokens that cannot be split, such as special tokens and incomplete characters.
        """
        texts = self.token_texts if self.encode is not None else [""] * self.size
        counts = [1 if "\ufffd" in text else max(1, len(text)) for text in texts]
        return np.where(self.is_special, 1, np.array(counts, dtype=np.int64))

    def split_token(self, index: int, offset: int) -> tuple[list[int], list[int]]:
        """Split a token after `offset` characters of its text. Returns the ids of both parts.

        If the parts together do not have the text of the token, because the tokenizer adds a space,
        the token is not split, and the first part is empty.
        """
        assert self.encode is not None
        text = self.token_texts[index]
        parts = [list(self.encode(part)) for part in (text[:offset], text[offset:])]
        joined = "".join(self.token_texts[one] for part in parts for one in part)
        return (parts[0], parts[1]) if joined == text else ([], [index])

    @cached_property
    def ends_sentence(self) -> NDArray[np.bool_]:
        """Whether each token ends a sentence, bool [V].

        Such a token ends with a full stop, a question mark, an exclamation mark or an ellipsis.
        Closing quotes and brackets may follow.
        """
        texts = (text.strip().rstrip(_CLOSING) for text in self.token_texts)
        return np.array([text.endswith(_SENTENCE_ENDS) for text in texts], dtype=bool)
