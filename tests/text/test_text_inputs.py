"""What models read, against the fast tokenizers of `transformers`."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from their_tokenizers import KINDS, SAMPLES, TEXT, ours, theirs
from tokenizers import models, pre_tokenizers

from trivium.errors import TokenizerError
from trivium.text import Tokenizer
from trivium.text.inputs import Frame, encode_inputs, encode_plain, encode_words, join_words

transformers = pytest.importorskip("transformers")

# Theirs takes an empty second text for none.
PAIRS = [(a, b) for a in SAMPLES for b in (TEXT[1], TEXT[2], "it's", " ", SAMPLES[6])]
# Families whose tokenizers begin and end texts by themselves.
FRAMED = ["bert", "roberta", "t5"]


def encoded_by_them(family: str, text, pair=None, *, max_length=None, truncation="longest_first"):
    """Ids, type ids, offsets and text numbers of one text or pair."""
    found = theirs(family)(
        text,
        pair,
        return_offsets_mapping=True,
        return_token_type_ids=True,
        max_length=max_length,
        truncation=truncation if max_length else False,
    )
    return (
        found["input_ids"],
        found["token_type_ids"],
        [tuple(pair) for pair in found["offset_mapping"]],
        found.sequence_ids(0),
    )


def parts(found):
    return found.ids, found.type_ids, found.offsets, found.texts


@pytest.mark.parametrize("family", KINDS)
def test_texts_as_transformers_encodes_them(family):
    kept = [text for text in SAMPLES if text or family != "gpt2"]
    documents = family in FRAMED
    found = encode_inputs(ours(family), [(text, None) for text in kept], as_documents=documents)
    for text, each in zip(kept, found, strict=True):
        assert parts(each) == encoded_by_them(family, text), text
        assert each.cut == 0


@pytest.mark.parametrize("family", KINDS)
def test_pairs_as_transformers_encodes_them(family):
    found = encode_inputs(ours(family), PAIRS, as_documents=family in FRAMED)
    for (a, b), each in zip(PAIRS, found, strict=True):
        if a or b or family != "gpt2":
            assert parts(each) == encoded_by_them(family, a, b), (a, b)


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("limit", [7, 8, 13, 20, 31])
def test_pairs_that_are_too_long_are_cut_as_theirs(family, limit):
    found = encode_inputs(ours(family), PAIRS, max_length=limit, as_documents=family in FRAMED)
    cut = 0
    for (a, b), each in zip(PAIRS, found, strict=True):
        if a or b or family != "gpt2":
            assert parts(each) == encoded_by_them(family, a, b, max_length=limit), (a, b)
        cut += bool(each.cut)
    assert 0 < cut < len(PAIRS)


@pytest.mark.parametrize("family", FRAMED)
def test_only_the_second_is_cut(family):
    pairs = [("it's", b) for b in TEXT]
    found = encode_inputs(ours(family), pairs, max_length=17, keep_first=True)
    for (a, b), each in zip(pairs, found, strict=True):
        wanted = encoded_by_them(family, a, b, max_length=17, truncation="only_second")
        assert parts(each) == wanted
        assert len(each.ids) == 17
        whole = encode_inputs(ours(family), [(a, b)])[0]
        assert each.cut == len(whole.ids) - 17


@pytest.mark.parametrize("family", KINDS)
def test_single_texts_lose_their_ends(family):
    for text in SAMPLES:
        if text or family != "gpt2":
            (found,) = encode_inputs(
                ours(family), [(text, None)], max_length=9, as_documents=family in FRAMED
            )
            assert parts(found) == encoded_by_them(family, text, max_length=9)


def test_what_the_tokenizer_does_not_frame_is_framed_as_documents_are():
    llama, gpt2 = ours("llama"), ours("gpt2")
    (plain,) = encode_plain(llama, ["a b"])
    (found,) = encode_inputs(llama, [("a b", None)])
    assert found.ids == [1, *plain.ids, 2]
    (found,) = encode_inputs(llama, [("a b", "a b")])
    size = len(plain.ids)
    assert found.ids == [1, *plain.ids, 2, *plain.ids, 2]
    assert found.type_ids == [0] * (size + 2) + [1] * (size + 1)
    assert found.texts == [None, *[0] * size, None, *[1] * size, None]
    (found,) = encode_inputs(gpt2, [("a b", None)], max_length=3)
    (plain,) = encode_plain(gpt2, ["a b"])
    assert found.ids == [*plain.ids[:2], gpt2.eos_id]
    assert found.cut == len(plain.ids) - 2


def test_an_empty_text_is_read_as_an_end():
    gpt2 = ours("gpt2")
    (found,) = encode_inputs(gpt2, [("", None)], as_documents=False)
    assert (found.ids, found.texts) == ([gpt2.eos_id], [None])
    bare = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(TokenizerError, match="a text is empty"):
        encode_inputs(Tokenizer(bare), [("", None)])


def test_a_tokenizer_that_cannot_write_an_a():
    backend = tokenizers.Tokenizer(models.BPE({"x": 0, "y": 1}, []))
    (found,) = encode_inputs(Tokenizer(backend), [("xyx", None)])
    assert found.ids == [0, 1, 0]


def test_room_for_nothing_leaves_the_special_tokens():
    (found,) = encode_inputs(ours("bert"), [("the weather", "it's")], max_length=2)
    assert [ours("bert").tokens[index] for index in found.ids] == ["[CLS]", "[SEP]", "[SEP]"]
    assert Frame(ours("bert")).num_special(paired=False) == 2


@pytest.mark.parametrize("wrong", ["\ud800", None])
def test_what_is_no_text_is_refused(wrong):
    with pytest.raises(TokenizerError):
        encode_inputs(ours("bert"), [(wrong, None)])
    with pytest.raises(TokenizerError):
        encode_words(ours("gpt2"), [["\ud800"]])


WORDS = [
    "The", "weather", ",", "it's", "rainy", "unseen", "wörds", "Été", "😀", "好", "天气", "\u3000",
    " ", "", "e\u0301", "\u200b", "longer-than-all-the-others", "°C", "「", "\u00a0x",
]  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=13))
def test_words_of_bert_as_transformers_aligns_them(words):
    (runs,) = encode_words(ours("bert"), [words])
    (run,) = runs
    found = theirs("bert")(words, is_split_into_words=True)
    assert run.ids == found["input_ids"]
    first: dict[int, int] = {}
    for place, word in enumerate(found.word_ids(0)):
        if word is not None:
            first.setdefault(word, place)
    assert (run.start, run.stop, len(run.places)) == (0, len(words), len(words))
    for word, place in first.items():
        assert run.places[word] == place, (words, word)
    # Words without a token take a neighbour's.
    assert all(0 <= place < len(run.ids) for place in run.places)
    assert run.places == sorted(run.places)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.sampled_from(KINDS),
    st.lists(st.sampled_from(WORDS), max_size=23),
    st.integers(3, 19),
)
def test_runs_hold_every_word_once_within_the_room(family, words, limit):
    tokenizer = ours(family)
    (runs,) = encode_words(tokenizer, [words], max_length=limit)
    assert [n for run in runs for n in range(run.start, run.stop)] == list(range(len(words)))
    (whole,) = encode_words(tokenizer, [words])
    around = len(tokenizer.prefix_ids) + len(tokenizer.suffix_ids)
    for run in runs:
        assert len(run.places) == run.stop - run.start
        assert len(run.ids) <= max(limit, around + 1)
        assert all(0 <= place < len(run.ids) for place in run.places)
        for place, word in zip(run.places, range(run.start, run.stop), strict=True):
            # The token is that of the whole sentence, whatever was cut.
            assert run.ids[place] == whole[0].ids[whole[0].places[word]]


def test_words_that_share_a_token_have_it_in_both_runs():
    backend = tokenizers.Tokenizer(models.WordLevel({"你好": 0, "x": 1}, unk_token="x"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    (runs,) = encode_words(Tokenizer(backend), [["x", "你", "好", "x"]], max_length=2)
    assert [(run.start, run.stop, run.ids, run.places) for run in runs] == [
        (0, 3, [1, 0], [0, 1, 1]),
        (3, 4, [1], [0]),
    ]
    (runs,) = encode_words(Tokenizer(backend), [["x", "你", "好", "x"]], max_length=1)
    assert [(run.start, run.stop, run.ids, run.places) for run in runs] == [
        (0, 1, [1], [0]),
        (1, 3, [0], [0, 0]),
        (3, 4, [1], [0]),
    ]


def test_a_word_longer_than_the_room_is_cut():
    word = "yesterdayyesterdayyesterday"
    (runs,) = encode_words(ours("bert"), [["a", word, "b"]], max_length=5)
    assert [(run.start, run.stop) for run in runs] == [(0, 1), (1, 2), (2, 3)]
    assert [len(run.ids) for run in runs] == [3, 5, 3]
    assert all(run.places == [1] for run in runs)


def test_no_words_and_words_of_spaces_alone():
    assert encode_words(ours("bert"), [[], ["a"]])[0] == []
    for family in KINDS:
        ((run,),) = encode_words(ours(family), [[" "]])
        assert len(run.ids) > 0
        assert run.places[0] < len(run.ids)
    bare = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0, "u": 1}, unk_token="u")))
    bare.backend.pre_tokenizer = pre_tokenizers.Whitespace()
    ((run,),) = encode_words(bare, [[" "]])
    assert (run.ids, run.places) == ([0], [0])


@pytest.mark.parametrize(
    ("words", "text", "starts"),
    [
        (["to", "be"], "to be", [0, 3]),
        (["你", "好", "。", "「", "x", "」", "好"], "你好。「 x 」好", [0, 1, 2, 3, 5, 7, 8]),
        (["が", "カ", "ー", "ไทย"], "がカーไทย", [0, 1, 2, 3]),
        (["한국", "말"], "한국 말", [0, 3]),
        (["a", "", "b", " ", "c"], "a b   c", [0, 1, 2, 4, 6]),
        ([], "", []),
    ],
)
def test_words_as_running_text(words, text, starts):
    assert join_words(words) == (text, starts)
