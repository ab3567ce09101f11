"""Explanation of whole-word vocabularies: frequent words are tokens, all others are unknown."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from trivium.errors import TokenizerError
from trivium.explain.page import Page, Table, Token, TokenRow, get_text
from trivium.explain.tokens import choose_texts, load_tokenizer
from trivium.text import Tokenizer

_COLUMNS = [get_text("whitespace.word"), get_text("shared.count"), get_text("whitespace.kept")]
_YES, _NO = get_text("whitespace.yes"), get_text("whitespace.no")
_NOTE = get_text("whitespace.note")


def explain(
    texts: list[str] | None = None, *, kept: int = 3, tokenizer: Path | None = None
) -> Page:
    """Count the words of texts, keep the most frequent words, and encode the texts with them.

    Args:
        texts: Short texts. Default: the mouse ate the cheese, the cat ate the mouse.
        kept: Number of words in the vocabulary.
        tokenizer: A tokenizer file or run folder; show how this tokenizer encodes the texts
            instead.
    """
    texts = choose_texts(texts, ["the mouse ate the cheese", "the cat ate the mouse"])
    counts = Counter(" ".join(texts).split())
    if kept < 1:
        raise TokenizerError(f"A vocabulary must keep at least one word, not {kept}.")
    if tokenizer is not None:
        loaded = load_tokenizer(tokenizer, ("whitespace",))
    else:
        options = {"vocab_size": kept + 1, "special_tokens": ["<unk>"], "progress": False}
        loaded = Tokenizer.train("whitespace", texts=texts, **options)
    known, unknown = loaded.model["vocab"], str(loaded.model["unk_token"])
    encoded = [
        [(word, word if word in known else unknown) for word in loaded.split_words(text)]
        for text in texts
    ]
    rows = [
        TokenRow([Token(w, token, "" if w in known else "changed") for w, token in words])
        for words in encoded
    ]
    numbers = [[word, n, _YES if word in known else _NO] for word, n in counts.most_common()]
    tokens = [{"tokens": [token for _, token in words]} for words in encoded]
    return Page(
        get_text("whitespace.words_between_spaces"),
        [Table(_COLUMNS, numbers), *rows, _NOTE],
        {"counts": dict(counts), "vocabulary": list(known), "texts": tokens},
    )
