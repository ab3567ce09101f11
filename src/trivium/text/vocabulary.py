"""What a training objective needs to know of a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_CLOSING = "\"')]}\u201d\u2019\u00bb\u300d\u300f\uff09"
_SENTENCE_ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f", "\u2026")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Facts about the ids 0 to `size` - 1 of a tokenizer. Arrays over ids are made when first used.

    Args:
        size: ids in the vocabulary, V.
        kind: of the tokenizer, for messages.
        special_ids: ids of special tokens, sorted.
        pad_id, unk_id, cls_id, sep_id, mask_id, bos_id, eos_id: None where there is no such token.
        sentinel_ids: `<extra_id_0>`, `<extra_id_1>`, ... (T5), in this order.
        prefix_ids: put before each document in a training shard.
        suffix_ids: put after each document in a training shard.
        decoder_start_id: first decoder input of an encoder-decoder. A fact of the model, which the
            tokenizer leaves open: `dataclasses.replace(vocabulary, decoder_start_id=...)`.
        word_continuations: returns, for each id, whether the token continues a word.
        texts: returns the text of each id.
    """

    size: int
    kind: str = ""
    special_ids: tuple[int, ...] = ()
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

    @property
    def start_id(self) -> int | None:
        """The token that starts a sequence: [CLS], else the beginning of a text."""
        return self.bos_id if self.cls_id is None else self.cls_id

    @property
    def end_id(self) -> int | None:
        """The token that ends a sequence: [SEP], else the end of a text."""
        return self.eos_id if self.sep_id is None else self.sep_id

    @cached_property
    def is_special(self) -> NDArray[np.bool_]:
        """bool [V]: special tokens."""
        special = np.zeros(self.size, dtype=bool)
        special[list(self.special_ids)] = True
        return special

    @cached_property
    def regular_ids(self) -> NDArray[np.int64]:
        """int64: all ids that are not special, sorted."""
        return np.flatnonzero(~self.is_special)

    @cached_property
    def continues_word(self) -> NDArray[np.bool_]:
        """bool [V]: tokens that continue the word before them; see `Tokenizer.continues_word`."""
        if self.word_continuations is None:
            return np.zeros(self.size, dtype=bool)
        return np.array(self.word_continuations(), dtype=bool)

    @cached_property
    def ends_sentence(self) -> NDArray[np.bool_]:
        """bool [V]: tokens that end with a full stop, question or exclamation mark.

        Closing quotes and brackets may follow it.
        """
        if self.texts is None:
            return np.zeros(self.size, dtype=bool)
        ends = [text.strip().rstrip(_CLOSING).endswith(_SENTENCE_ENDS) for text in self.texts()]
        return np.array(ends, dtype=bool)
