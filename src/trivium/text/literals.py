"""Encodes special-token names in a text, such as `[SEP]`, as plain text."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import tokenizers

SpecialTokens = Literal["text", "special"]
"""How to encode special-token names in a text, such as `[SEP]`: as text or as special tokens."""

# Unicode reserves these code points for internal use by programs.
_RESERVED = re.compile("[\ufdd0-\ufddf]")
_OPEN, _CLOSE = "\ufdd4", "\ufdd5"  # a placeholder: the token id between these two characters


class ChatText(str):
    """The rendered text of a conversation, with the origin of its special-token names.

    A special-token name in a message is plain text. A name that the chat template wrote is a
    special token. The attribute `protected` is the same text, in which a placeholder replaces each
    name that comes from a message.
    """

    protected: str

    @classmethod
    def from_protected(cls, protected: str, literals: Literals) -> ChatText:
        """Create a `ChatText` from protected text. `literals` restores the names in it."""
        text = cls(literals.restore(protected))
        text.protected = protected
        return text

    @property
    def is_protected(self) -> bool:
        """Whether any message contains the name of a special token."""
        return self.protected != self


class Literals:
    """Encodes text in which some special-token names are plain text, not special tokens.

    In a conversation, names that the chat template writes are special tokens, and names in messages
    are plain text. Before the template is rendered, messages are protected: a placeholder replaces
    each special-token name. Every name in the rendered text therefore comes from the template.

    Args:
        layout: the content of `tokenizer.json`.
        special: the ids of the special tokens by name.
    """

    def __init__(self, layout: Mapping[str, Any], special: Mapping[str, int]) -> None:
        self._layout, self._special = layout, special
        self._names = {str(index): name for name, index in special.items()}
        names = "|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)"
        self._name, self._mark = re.compile(names), re.compile(f"{_OPEN}(\\d+){_CLOSE}")
        self._both = re.compile(f"{_OPEN}(\\d+){_CLOSE}|({names})")

    def build(
        self, control: Iterable[str] = (), *, match_renamed: bool = False
    ) -> tokenizers.Tokenizer:
        """Build a copy of the tokenizer that encodes special-token names as plain text.

        In the copy, special tokens have the same ids but new names. They must be renamed, because
        some models (whole words, Unigram) would find the old names in their vocabulary.

        Args:
            control: the names that are still encoded as special tokens.
            match_renamed: whether the new names in a text are encoded as special tokens.
        """
        new = {
            name: _make_token_name(index)
            for name, index in self._special.items()
            if name not in {*control}
        }
        model = dict(self._layout["model"])
        if isinstance(vocabulary := model["vocab"], dict):
            model["vocab"] = {new.get(token, token): index for token, index in vocabulary.items()}
        else:
            model["vocab"] = [[new.get(piece, piece), score] for piece, score in vocabulary]
        if unknown := model.get("unk_token"):
            model["unk_token"] = new.get(unknown, unknown)
        if merges := model.get("merges"):
            model["merges"] = [(a, b) for a, b in merges if new.keys().isdisjoint((a, b, a + b))]
        added = [
            token
            | {"content": new.get(token["content"], token["content"])}
            | ({} if token["content"] in new else {"special": False})
            for token in self._layout["added_tokens"]
        ]
        content = {**self._layout, "model": model, "added_tokens": added}
        backend = tokenizers.Tokenizer.from_str(json.dumps(content))
        backend.encode_special_tokens = not match_renamed
        return backend

    def protect(self, text: str) -> str:
        """Replace each special-token name in a text with a placeholder."""
        text = _RESERVED.sub("\ufffd", text)
        return self._name.sub(lambda match: f"{_OPEN}{self._special[match[0]]}{_CLOSE}", text)

    def restore(self, text: str) -> str:
        """Replace the placeholders in a protected text with the special-token names."""
        return self._mark.sub(lambda match: self._names[match[1]], text)

    def encode(
        self, text: ChatText, *, add_special_tokens: bool
    ) -> tuple[tokenizers.Encoding, list[tuple[int, int]]]:
        """Encode a conversation, with special-token names in messages as plain text.

        Returns the encoding, and the character offsets of its tokens in `text`.
        """
        parts, positions = [], [0]  # for each character of the encoded text, its offset in `text`
        # Groups of three: plain text, the id in a mark, the name of a control token (or None).
        pieces = [*self._both.split(text.protected), None, None]
        for part, mark, control in zip(pieces[::3], pieces[1::3], pieces[2::3]):
            part += "" if mark is None else self._names[mark]
            parts.append(part)
            positions += range(positions[-1] + 1, positions[-1] + len(part) + 1)
            if control is not None:
                parts.append(name := _make_token_name(self._special[control]))
                positions += [positions[-1] + len(control)] * len(name)
        encoding = self._renamed_copy.encode("".join(parts), add_special_tokens=add_special_tokens)
        return encoding, [(positions[start], positions[stop]) for start, stop in encoding.offsets]

    @functools.cached_property
    def _renamed_copy(self) -> tokenizers.Tokenizer:
        """A copy of the tokenizer that recognizes special tokens by their new names."""
        return self.build(match_renamed=True)


def _make_token_name(token_id: int) -> str:
    """Return the new name of a special token in the copy of a tokenizer.

    The name contains reserved characters, so that it occurs in no text. It also contains a space,
    so that it cannot be an ordinary word of a vocabulary.
    """
    return f"\ufdd2{token_id} \ufdd3"
