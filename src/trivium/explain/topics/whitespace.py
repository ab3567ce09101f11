"""A vocabulary of whole words: the most frequent are kept, all others are one unknown token."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from trivium.errors import TokenizerError
from trivium.explain.page import Bilingual, Page, Part, Table, Token, TokenRow
from trivium.explain.tokens import load_tokenizer
from trivium.text import Tokenizer

SUMMARY = Bilingual("words between spaces and their counts", "基于空格的分词与词频")

_NOTE = Bilingual(
    "Words beyond the vocabulary share one token, and words of one stem share nothing. Text "
    "without spaces, such as Chinese, is one word a clause.",
    "词表以外的词都变成同一个未知词元，词干相同的词也毫无共享。中文等不写空格的文本，整句只算一个词。",
)


def explain(
    texts: list[str] | None = None, *, kept: int = 3, tokenizer: Path | None = None
) -> Page:
    """Count the words of texts, keep the most frequent, and encode the texts with them.

    Args:
        texts: Small texts. Default: the mouse ate the cheese, the cat ate the mouse.
        kept: Words in the vocabulary.
        tokenizer: Show how this one encodes the texts; a file, or the folder of a run.
    """
    texts = texts or ["the mouse ate the cheese", "the cat ate the mouse"]
    counts = Counter(word for text in texts for word in text.split())
    if not counts or kept < 1:
        raise TokenizerError("A vocabulary of words needs a text with words, and to keep one.")
    if tokenizer is None:
        loaded = Tokenizer.train(
            "whitespace", texts=texts, vocab_size=kept + 1, special_tokens=["<unk>"], progress=False
        )
    else:
        loaded = load_tokenizer(tokenizer, ("whitespace",))
    known, unknown = loaded.model["vocab"], str(loaded.model["unk_token"])

    rows, facts = list[Part](), []
    for text in texts:
        words = loaded.split_words(text)
        tokens = [word if word in known else unknown for word in words]
        row = [Token(w, t, "" if w in known else "changed") for w, t in zip(words, tokens)]
        rows.append(TokenRow(row, text))
        facts.append({"text": text, "tokens": tokens})
    columns = [
        Bilingual("word", "词"),
        Bilingual("count", "次数"),
        Bilingual("in the vocabulary", "在词表中"),
    ]
    yes, no = Bilingual("yes", "是"), Bilingual("no", "否")
    numbers = [[word, n, yes if word in known else no] for word, n in counts.most_common()]
    return Page(
        Bilingual("Words between spaces", "基于空格的分词"),
        [Table(columns, numbers), *rows, _NOTE],
        {"counts": dict(counts), "vocabulary": list(known), "texts": facts},
    )
