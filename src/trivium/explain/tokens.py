"""What topics on tokenizers share: how a tokenizer encodes texts, word by word."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from trivium.errors import TokenizerError
from trivium.explain.page import Heading, Page, Part, Token, TokenRow, bilingual
from trivium.text import Tokenizer
from trivium.text.loading import text_errors

Word: TypeAlias = tuple[Part, dict[str, Any]]
"""How a word becomes tokens, to show, and as facts, which have the `word` and its `tokens`."""


def texts_or_default(texts: list[str] | None, default: list[str]) -> list[str]:
    """The texts to explain. Raises TokenizerError: they are empty, or not valid Unicode."""
    texts = texts or default
    with text_errors():
        whole = "".join(texts).encode()
    if not whole.strip():
        raise TokenizerError("There is no text to explain.")
    return texts


def load_tokenizer(path: Path, kinds: Container[str]) -> Tokenizer:
    """A tokenizer of one of the kinds. Raises TokenizerError: it is of another."""
    tokenizer = Tokenizer.load(path)
    if tokenizer.kind not in kinds:
        raise TokenizerError(
            f"{path} is a tokenizer of another kind, which has its own topic: "
            f'trivium explain {tokenizer.kind} "some text" --tokenizer {path}'
        )
    return tokenizer


def encoding_page(
    tokenizer: Tokenizer, texts: Iterable[str], explain_word: Callable[[str], Word]
) -> Page:
    """How each word of the texts becomes tokens, then all tokens of a text with their ids."""
    parts, data = list[Part](), []
    for text in texts:
        words = [explain_word(word) for word in tokenizer.split_words(text)]
        encoding = tokenizer.encode(text, add_special_tokens=False)
        tokens = [
            Token(token, str(index), "changed" if index == tokenizer.unk_id else "")
            for token, index in zip(encoding.tokens, encoding.ids)
        ]
        caption = bilingual("page.tokens_their_ids")
        parts += [Heading(text), *(part for part, _ in words), TokenRow(tokens, caption)]
        data.append({"text": text, "words": [fact for _, fact in words], "tokens": encoding.tokens})
    title = bilingual("page.how_tokenizer_encodes", tokenizer=tokenizer.kind)
    return Page(title, parts, {"texts": data})
