"""The language tokens of multilingual translation models: mBART, M2M-100, NLLB and Marian."""

from __future__ import annotations

import re

from trivium.errors import SpecError
from trivium.text.tokenizer import Tokenizer

# en_XX (mBART), eng_Latn (NLLB), __en__ (M2M-100), >>fra<< (Marian).
_LANGUAGE = re.compile(
    r"[a-z]{2,3}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3}|__([a-z]{2,3})__|>>([a-z]{2,3}(?:_\w+)?)<<"
)


def list_languages(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of a tokenizer's language tokens, by language code.

    The code is the token itself, such as `en_XX` or `eng_Latn`, without delimiters: `__en__` and
    `>>fra<<` become `en` and `fra`. The result is empty if there are no language tokens.
    """
    languages: dict[str, int] = {}
    for token, index in tokenizer.special_tokens.items():
        if match := _LANGUAGE.fullmatch(token):
            languages[match[1] or match[2] or token] = index
    return dict(sorted(languages.items()))


def is_source_token(token: str) -> bool:
    """Return whether the token of a target language is prepended to the source, as in Marian."""
    return token.startswith(">>")


def find_language_id(tokenizer: Tokenizer, code: str) -> int:
    """Return the id of the language token for a language code.

    Raises SpecError if the tokenizer has no token for this language.
    """
    languages = list_languages(tokenizer)
    if code in languages:
        return languages[code]
    known = f"the languages are {', '.join(languages)}" if languages else "it has no languages"
    raise SpecError(f'"{code}" is no language of this model: {known}.')
