"""Streamed text is the text: pieces joined equal what decoding everything gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.inference import TextStream
from trivium.text import KINDS, Tokenizer

TEXT = [
    "The weather was cloudy yesterday, but today it's rainy.",
    "今天天气很好。我们去公园。🙂👩‍👩‍👧",
    "Où est l'été ? naïve façade — “quoted” (brackets).",
]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    sizes = {"byte-bpe": 300, "unigram": 120}
    return Tokenizer.train(
        request.param, texts=TEXT * 5, vocab_size=sizes.get(request.param, 150), progress=False
    )


@pytest.fixture(scope="module")
def byte_bpe():
    return Tokenizer.train("byte-bpe", texts=TEXT * 5, vocab_size=300, progress=False)


def pieces_of(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> list[str]:
    stream = TextStream(tokenizer, prompt)
    return [*(stream.push(index) for index in ids), stream.finish()]


@pytest.mark.parametrize("text", TEXT)
@pytest.mark.parametrize("cut", [0, 1, 5])
def test_pieces_join_to_the_text(tokenizer, text, cut):
    ids = list(tokenizer.encode(text * 3, add_special_tokens=False).ids)
    before, whole = tokenizer.decode(ids[:cut]), tokenizer.decode(ids)
    pieces = pieces_of(tokenizer, ids[:cut], ids[cut:])
    assert before.rstrip("\ufffd") + "".join(pieces) == whole or before + "".join(pieces) == whole
    if tokenizer.kind != "whitespace":  # to which a Chinese sentence is one unknown word
        assert len([piece for piece in pieces if piece]) > len(text) // 10


def test_never_half_a_character(byte_bpe):
    text = "🙂 今天 é 👩‍👩‍👧 🙃"
    ids = list(byte_bpe.encode(text, add_special_tokens=False).ids)
    assert len(ids) > len(text)
    pieces = pieces_of(byte_bpe, [], ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_broken_bytes_come_at_the_end(byte_bpe):
    ids = list(byte_bpe.encode("a🙃", add_special_tokens=False).ids)[:-1]
    pieces = pieces_of(byte_bpe, [], ids)
    assert "".join(pieces) == byte_bpe.decode(ids)
    assert pieces[-1].endswith("\ufffd")


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_ids_of_bytes(byte_bpe, data):
    ids = data.draw(st.lists(st.integers(0, byte_bpe.vocab_size - 1), max_size=70))
    assert "".join(pieces_of(byte_bpe, [], ids)) == byte_bpe.decode(ids)
