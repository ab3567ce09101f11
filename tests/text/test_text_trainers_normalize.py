"""Unicode normalization of the kinds that normalize, and turning it off."""

from __future__ import annotations

from typing import Any

import pytest

from trivium.text import Tokenizer
from trivium.text.trainers import CharacterTokenizerConfig

WORDS = [
    "o\ufb01ce",
    "\u2460",
    "e\u0301te\u0301",
    "\u00e9t\u00e9",
    "\uff21\uff22",
    "\u212b",
    "\u1112\u1161\u11ab",
]
KINDS = sorted(
    kind
    for kind in Tokenizer.kinds
    if issubclass(Tokenizer.get_config_class(kind), CharacterTokenizerConfig)
    and "normalize" in Tokenizer.get_config_class(kind).model_fields
)


def train(kind: str, **options: Any) -> Tokenizer:
    texts = [" ".join(WORDS)] * 20
    return Tokenizer.train(
        kind, texts=texts, vocab_size=300, character_coverage=1.0, progress=False, **options
    )


@pytest.mark.parametrize("kind", KINDS)
def test_text_stays_as_it_is_without_normalization(kind, tmp_path):
    cased = {"lowercase": False} if kind == "wordpiece" else {}
    tokenizer = train(kind, normalize=False, **cased)
    for word in WORDS:
        assert tokenizer.decode(tokenizer.encode(word).ids, skip_special_tokens=True) == word
    path = tokenizer.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(path).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_normalized_unless_turned_off(kind):
    tokenizer = train(kind)
    composed, decomposed = (tokenizer.encode(word).ids for word in (WORDS[3], WORDS[2]))
    assert composed == decomposed


def test_lower_casing_without_normalization_keeps_accents():
    tokenizer = train("wordpiece", normalize=False)
    assert (
        tokenizer.decode(tokenizer.encode("e\u0301te\u0301").ids, skip_special_tokens=True)
        == "e\u0301te\u0301"
    )
    assert tokenizer.encode("\u00c9T\u00c9").ids == tokenizer.encode("\u00e9t\u00e9").ids
