"""Names of special tokens that occur in a text, where they are plain text or control tokens."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import tokenizers

SpecialTokens = Literal["text", "special"]
"""Whether a name such as `[SEP]` or `<|im_end|>` in a text is plain text or the special token."""

# Unicode reserves these code points for the use inside of programs.
_RESERVED = re.compile("[\ufdd0-\ufddf]")
_OPEN, _CLOSE = "\ufdd4", "\ufdd5"  # around a mark, the id of a token whose name is text


class ChatText(str):
    """The text of a conversation, in which the names of special tokens have two meanings.

    A name that a message contains is plain text; `protected` is the conversation with marks in
    place of these names. A name that the chat template writes is a control token.
    """

    protected: str

    @classmethod
    def of(cls, protected: str, literals: Literals) -> ChatText:
        """Create the text of a conversation from its protected text."""
        text = cls(literals.restore(protected))
        text.protected = protected
        return text

    @property
    def is_protected(self) -> bool:
        """Return whether a message contains the name of a special token."""
        return self.protected != self


class Literals:
    """The names of a tokenizer's special tokens, and encoders that read these names as plain text.

    In a conversation, the names that the chat template writes are control tokens, and the names in
    messages are plain text. Messages are therefore protected (each name is replaced by a mark)
    before the template is rendered. Every name in the rendered text then comes from the template.

    Args:
        layout: the content of `tokenizer.json`.
        special: the ids of the special tokens by their names.
    """

    def __init__(self, layout: Mapping[str, Any], special: Mapping[str, int]) -> None:
        self._layout, self._special = layout, special
        self._names = {str(index): name for name, index in special.items()}
        names = "|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)"
        self._name, self._mark = re.compile(names), re.compile(f"{_OPEN}(\\d+){_CLOSE}")
        self._both = re.compile(f"{_OPEN}(\\d+){_CLOSE}|({names})")

    def backend(
        self, control: Iterable[str] = (), *, renamed: bool = False
    ) -> tokenizers.Tokenizer:
        """Return a backend with the same ids, for which the names of special tokens are plain text.

        The special tokens get new names, because some models (whole words, Unigram) find the old
        names in their vocabulary even if special tokens are not matched.

        Args:
            control: names that stay control tokens.
            renamed: match the special tokens by their new names.
        """
        new = {
            name: _control_name(index)
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
        backend.encode_special_tokens = not renamed
        return backend

    def protect(self, text: str) -> str:
        """Return a text with marks in place of the names of special tokens."""
        text = _RESERVED.sub("\ufffd", text)
        return self._name.sub(lambda match: f"{_OPEN}{self._special[match[0]]}{_CLOSE}", text)

    def restore(self, text: str) -> str:
        """Return a text with the names in place of their marks."""
        return self._mark.sub(lambda match: self._names[match[1]], text)

    def encode(
        self, text: ChatText, *, add_special_tokens: bool
    ) -> tuple[tokenizers.Encoding, list[tuple[int, int]]]:
        """Return the encoding of a conversation, and the character offsets of its tokens."""
        parts, places = [], [0]  # places in `text`, by place in the text that is encoded
        # Plain text, then the id of a mark or the name of a control token, and so on.
        pieces = [*self._both.split(text.protected), None, None]
        for part, mark, control in zip(pieces[::3], pieces[1::3], pieces[2::3]):
            part += "" if mark is None else self._names[mark]
            parts.append(part)
            places += range(places[-1] + 1, places[-1] + len(part) + 1)
            if control is not None:
                parts.append(name := _control_name(self._special[control]))
                places += [places[-1] + len(control)] * len(name)
        encoding = self._renamed.encode("".join(parts), add_special_tokens=add_special_tokens)
        return encoding, [(places[start], places[stop]) for start, stop in encoding.offsets]

    @functools.cached_property
    def _renamed(self) -> tokenizers.Tokenizer:
        return self.backend(renamed=True)


def _control_name(index: int) -> str:
    """Return a new name for a special token, which cannot occur in a text.

    The name contains a space. No word of a vocabulary does, so that no model finds the name.
    """
    return f"\ufdd2{index} \ufdd3"
