"""A small real tokenizer, words to ids, without `trivium.text`; and documents."""

from __future__ import annotations

import hashlib
import os

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

WORDS = [
    *("the", "a", "cat", "dog", "car", "rat", "sat", "ran", "on", "under", "mat", "hill"),
    *("and", "then", "slept", "猫", "坐", "。", ".", "été"),
]


class WordTokenizer:
    """The part of a tokenizer that `prepare` uses; counts the texts it encoded."""

    def __init__(self, *, size: int = 0, surrounded: bool = True) -> None:
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
        names += [f"w{n}" for n in range(size)]
        model = models.WordLevel({name: n for n, name in enumerate(names)}, unk_token="[UNK]")
        self.backend = tokenizers.Tokenizer(model)
        self.backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self.vocab_size = len(names)
        self.prefix_ids = (2,) if surrounded else ()
        self.suffix_ids = (3,) if surrounded else ()
        self.special_ids = (0, 1, 2, 3)
        self.fingerprint = hashlib.sha256(self.backend.to_str().encode()).hexdigest()
        self.encoded = 0

    def reading(self, special_tokens, *, control=()):
        return self

    def encode_ids_batch(self, texts):
        self.encoded += len(texts)
        encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def save(self, path):
        file = path / "tokenizer.json" if path.is_dir() else path
        file.write_text(self.backend.to_str(), encoding="utf-8")


@pytest.fixture(scope="session")
def tokenizer():
    return WordTokenizer()


@pytest.fixture
def make_tokenizer():
    return WordTokenizer


@pytest.fixture(scope="session")
def documents():
    """701 different documents of 1 to 23 words, without a random generator."""
    made = []
    for number in range(701):
        count = number * 7 % 23 + 1
        words = [WORDS[(number * 31 + k * k * 7 + k * number) % len(WORDS)] for k in range(count)]
        made.append(" ".join([*words, f"w{number}"]))
    return made


@pytest.fixture(autouse=True)
def no_flushing(monkeypatch):
    """Nothing is flushed to the disk: on a busy machine that is most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
