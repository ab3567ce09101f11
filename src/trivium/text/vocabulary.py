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
from trivium.text.roles import role_of, sentinel

_CLOSING = "\"')]}\u201d\u2019\u00bb\u300d\u300f\uff09"
_SENTENCE_ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f", "\u2026")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The properties of a tokenizer's ids that training objectives use.

    Arrays over all ids are computed when they are first needed.

    Args:
        size: V, the number of ids in the vocabulary.
        kind: the kind of the tokenizer, for messages.
        special_ids: the ids of the special tokens, sorted.
        special_tokens: the ids of the special tokens by name.
        pad_id, unk_id, cls_id, sep_id, mask_id, bos_id, eos_id: the id of the special token with
            this role, or None if there is none.
        sentinel_ids: the ids of `<extra_id_0>`, `<extra_id_1>`, ... (T5), in this order.
        prefix_ids: the ids before each document in a training shard.
        suffix_ids: the ids after each document in a training shard.
        decoder_start_id: the first decoder input of an encoder-decoder. It belongs to the model, so
            that a tokenizer does not set it.
        word_continuations: a function that returns, for each id, whether the token continues a
            word.
        texts: a function that returns the text of each id.
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

    @classmethod
    def from_special_tokens(
        cls, special_tokens: Mapping[str, int], roles: Mapping[str, int | None], **fields: Any
    ) -> Vocabulary:
        """Create a vocabulary from its special tokens.

        Args:
            special_tokens: the ids of the special tokens by name.
            roles: the ids of the special tokens by role.
            fields: the other fields of the class.
        """
        sentinels = takewhile(special_tokens.__contains__, map(sentinel, count()))
        return cls(
            special_tokens=special_tokens,
            special_ids=tuple(sorted(special_tokens.values())),
            sentinel_ids=tuple(special_tokens[name] for name in sentinels),
            **{f"{role}_id": index for role, index in roles.items()},
            **fields,
        )

    def find(self, token: str) -> int | None:
        """Return the id of a special token, found by its name or by the role of that name.

        `<s>` and `[CLS]` both begin a sequence, `</s>` and `[SEP]` both end it. For example,
        `[CLS]` finds the token `<s>` if only that one exists. Returns None if the vocabulary has no
        such token.
        """
        if token in self.special_tokens:
            return self.special_tokens[token]
        named = dict(zip(map(sentinel, count()), self.sentinel_ids, strict=False))
        if token in named:
            return named[token]
        role = role_of(token)
        usual = {"cls": "start", "bos": "start", "sep": "end", "eos": "end"}
        return None if role is None else getattr(self, f"{usual.get(role, role)}_id")

    def id_of(self, token: str) -> int:
        """Return the id of a special token, found by its name or role as in `find`.

        Raises TokenizerError if the vocabulary has no such token.
        """
        index = self.find(token)
        if index is None:
            raise TokenizerError(f"this {self.kind} tokenizer has no special token {token}.")
        return index

    @property
    def start_id(self) -> int | None:
        """The id of the token that begins a sequence: cls, or else bos."""
        return self.bos_id if self.cls_id is None else self.cls_id

    @property
    def end_id(self) -> int | None:
        """The id of the token that ends a sequence: sep, or else eos."""
        return self.eos_id if self.sep_id is None else self.sep_id

    @cached_property
    def is_special(self) -> NDArray[np.bool_]:
        """Whether each token is a special token, bool [V]."""
        special = np.zeros(self.size, dtype=bool)
        special[list(self.special_ids)] = True
        return special

    @cached_property
    def regular_ids(self) -> NDArray[np.int64]:
        """The ids of all tokens that are not special, sorted, int64."""
        return np.flatnonzero(~self.is_special)

    @cached_property
    def continues_word(self) -> NDArray[np.bool_]:
        """Whether each token continues the word before it, bool [V].

        `Tokenizer.continues_word` defines this.
        """
        if self.word_continuations is None:
            return np.zeros(self.size, dtype=bool)
        return np.array(self.word_continuations(), dtype=bool)

    @cached_property
    def ends_sentence(self) -> NDArray[np.bool_]:
        """Whether each token ends with a full stop, question mark or exclamation mark, bool [V].

        Closing quotes and brackets may follow the mark.
        """
        if self.texts is None:
            return np.zeros(self.size, dtype=bool)
        ends = [text.strip().rstrip(_CLOSING).endswith(_SENTENCE_ENDS) for text in self.texts()]
        return np.array(ends, dtype=bool)
