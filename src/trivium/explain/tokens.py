"""Code shared by the tokenizer topics. It shows how a tokenizer encodes texts word by word."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from trivium.errors import TokenizerError
from trivium.explain.page import Heading, Page, Part, Token, TokenRow, get_text
from trivium.text import Tokenizer
from trivium.text.loading import convert_library_errors

Word: TypeAlias = tuple[Part, dict[str, Any]]
"""How a word is encoded: a page part, and a dict with the `word` and its `tokens`."""


def choose_texts(texts: list[str] | None, default: list[str]) -> list[str]:
    """Return the user's texts if there are any, otherwise the texts in `default`.

    Raises:
        TokenizerError: the texts are blank or not valid Unicode.
    """
    texts = texts or default
    with convert_library_errors():
        whole = "".join(texts).encode()
    if not whole.strip():
        raise TokenizerError("There is no text to explain.")
    return texts


def load_tokenizer(path: Path, kinds: Container[str]) -> Tokenizer:
    """Load a tokenizer. Raises TokenizerError if its kind is not one of `kinds`."""
    tokenizer = Tokenizer.load(path)
    if tokenizer.kind not in kinds:
        raise TokenizerError(
            f"{path} is a {tokenizer.kind} tokenizer, which has its own topic: "
            f'trivium explain {tokenizer.kind} "some text" --tokenizer {path}'
        )
    return tokenizer


def build_encoding_page(
    tokenizer: Tokenizer, texts: Iterable[str], explain_word: Callable[[str], Word]
) -> Page:
    """Build a page that shows how a tokenizer encodes each word, and the tokens of each text.

    `explain_word` receives a word and returns its page part and data.
    """
    parts, data = list[Part](), []
    for text in texts:
        words = [explain_word(word) for word in tokenizer.split_words(text)]
        encoding = tokenizer.encode(text, add_special_tokens=False)
        tokens = [
            Token(token, str(index), "changed" if index == tokenizer.unk_id else "")
            for token, index in zip(encoding.tokens, encoding.ids)
        ]
        caption = get_text("page.tokens_their_ids")
        parts += [Heading(text), *(part for part, _ in words), TokenRow(tokens, caption)]
        data.append(
            {
                "text": text,
                "words": [word_data for _, word_data in words],
                "tokens": encoding.tokens,
            }
        )
    title = get_text("page.how_tokenizer_encodes", tokenizer=tokenizer.kind)
    return Page(title, parts, {"texts": data})
