"""Streamed text is the text: pieces joined equal what decoding everything gives."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.inference.text_stream import StopStrings, TextStream, token_texts
from trivium.text import Tokenizer

pytestmark = pytest.mark.usefixtures("double_precision")

TEXT = [
    "The weather was cloudy yesterday, but today it's rainy.",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u6211\u4eec\u53bb\u516c\u56ed\u3002\U0001f642"
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "O\u00f9 est l'\u00e9t\u00e9 ? na\u00efve fa\u00e7ade \u2014 \u201cquoted\u201d (brackets).",
]
SIZES = {"whitespace": 150, "bpe": 150, "byte-bpe": 300, "unigram": 150, "wordpiece": 150}


@pytest.fixture(scope="module")
def tokenizers():
    return {
        kind: Tokenizer.train(kind, texts=TEXT * 5, vocab_size=size, progress=False)
        for kind, size in SIZES.items()
    }


def pieces_of(tokenizer: Tokenizer, context: list[int], ids: list[int]) -> list[str]:
    stream = TextStream(tokenizer, context)
    return [*(stream.push(token_id) for token_id in ids), stream.finish()]


def test_pieces_join_to_the_text(tokenizers):
    for kind, tokenizer in tokenizers.items():
        for text in TEXT:
            ids = list(tokenizer.encode(text * 3, add_special_tokens=False).ids)
            for cut in (0, 1, 5):
                before, whole = tokenizer.decode(ids[:cut]), tokenizer.decode(ids)
                pieces = pieces_of(tokenizer, ids[:cut], ids[cut:])
                joined = "".join(pieces)
                assert whole in (before + joined, before.rstrip("\ufffd") + joined)
                if kind != "whitespace":  # a Chinese sentence is one unknown word there
                    assert len([piece for piece in pieces if piece]) > len(text) // 10


def test_no_piece_ends_within_a_character(tokenizers):
    tokenizer, text = tokenizers["byte-bpe"], "\U0001f642 \u4eca\u5929 \u00e9 \U0001f643"
    ids = list(tokenizer.encode(text, add_special_tokens=False).ids)
    assert len(ids) > len(text)
    pieces = pieces_of(tokenizer, [], ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    broken = pieces_of(tokenizer, [], ids[:-1])
    assert "".join(broken) == tokenizer.decode(ids[:-1])
    assert broken[-1].endswith("\ufffd")


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_ids_of_bytes(tokenizers, data):
    tokenizer = tokenizers["byte-bpe"]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=70))
    assert "".join(pieces_of(tokenizer, [], ids)) == tokenizer.decode(ids)


@settings(max_examples=100, deadline=None)
@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=9),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_at_the_first(pieces, stop):
    watch, shown = StopStrings(stop), ""
    for number, piece in enumerate([*pieces, ""]):
        shown += watch.push(piece, last=number == len(pieces))
        if watch.matched:
            break
    whole = "".join(pieces)
    results = [whole.index(each) for each in stop if each in whole]
    assert watch.matched == bool(results)
    # Of two stop strings the one that is complete first ends the text.
    ends = [whole.index(each) + len(each) for each in stop if each in whole]
    if results:
        assert shown == whole[: len(shown)]
        assert any(whole.startswith(each, len(shown)) for each in stop)
        assert len(shown) < min(ends)
    else:
        assert shown == whole


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "wordpiece"])
def test_token_texts_join_to_the_text(kind, tokenizers):
    tokenizer = tokenizers[kind]
    ids = list(tokenizer.encode(TEXT[0], add_special_tokens=False).ids)
    texts = token_texts(tokenizer, list(zip([None, *ids], ids)))
    assert "".join(texts) == tokenizer.decode(ids)


def test_tokens_that_are_no_whole_characters_show_their_bytes():
    tokenizer = Tokenizer.train("byte-bpe", texts=["abc"], vocab_size=258, progress=False)
    ids = list(tokenizer.encode("a\u5929b", add_special_tokens=False).ids)
    texts = token_texts(tokenizer, list(zip([None, *ids], ids)))
    assert texts == ["a", r"\xe5", r"\xa4", r"\xa9", "b"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_shown_special_tokens_are_part_of_the_text(data):
    special = ["<|endoftext|>", "<unk>", "[CALL]", "[ARGS]"]
    for kind in ("byte-bpe", "bpe", "unigram"):
        tokenizer = special_tokenizer(kind, tuple(special))
        shown = [tokenizer.token_to_id(name) for name in ("[CALL]", "[ARGS]")]
        hidden = {*tokenizer.special_ids} - {*shown}
        ordinary = st.integers(0, tokenizer.vocab_size - 1)
        ids = data.draw(st.lists(ordinary | st.sampled_from(sorted(tokenizer.special_ids))))
        stream = TextStream(tokenizer, shown_ids=shown)
        text = "".join([*map(stream.push, ids), stream.finish()])
        kept = [token_id for token_id in ids if token_id not in hidden]
        assert text == tokenizer.decode(kept, skip_special_tokens=False)


@functools.cache
def special_tokenizer(kind: str, special: tuple[str, ...]) -> Tokenizer:
    return Tokenizer.train(
        kind, texts=TEXT * 5, vocab_size=300, special_tokens=[*special], progress=False
    )
