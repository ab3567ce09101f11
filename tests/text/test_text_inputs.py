"""Model inputs against the fast tokenizers of `transformers`."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from their_tokenizers import KINDS as FAMILIES
from their_tokenizers import SAMPLES, TEXT, ours, theirs
from tokenizers import models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from trivium.errors import TokenizerError
from trivium.text import Tokenizer
from trivium.text.inputs import (
    SpecialTokenTemplate,
    encode_inputs,
    encode_plain,
    encode_windows,
    encode_words,
    join_words,
)

# `transformers` takes an empty second text for none.
PAIRS = [(a, b) for a in SAMPLES for b in (TEXT[1], TEXT[2], "it's", " ", SAMPLES[6])]
# Families whose tokenizers add tokens before and after texts by themselves.
FRAMED = ["bert", "roberta", "t5"]


def encoded_by_transformers(family: str, text, pair=None, *, max_length=None):
    """Ids, type ids, offsets and text indices of one text or pair."""
    encoding = theirs(family)(
        text,
        pair,
        return_offsets_mapping=True,
        return_token_type_ids=True,
        max_length=max_length,
        truncation="longest_first" if max_length else False,
    )
    return (
        encoding["input_ids"],
        encoding["token_type_ids"],
        [tuple(pair) for pair in encoding["offset_mapping"]],
        encoding.sequence_ids(0),
    )


def parts(one):
    return one.ids, one.type_ids, one.offsets, one.texts


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_and_pairs_as_transformers_encodes_them(family):
    kept = [text for text in SAMPLES if text or family != "gpt2"]
    texts = [(text, None) for text in kept]
    texts += [(a, b) for a, b in PAIRS if a or b or family != "gpt2"]
    for limit in (None, 7, 8, 13, 31):
        inputs = encode_inputs(ours(family), texts, max_length=limit, as_documents=family in FRAMED)
        for (a, b), one in zip(texts, inputs, strict=True):
            expected = encoded_by_transformers(family, a, b, max_length=limit)
            assert parts(one) == expected, (family, a, b)
        cut = sum(bool(one.cut) for one in inputs)
        assert cut < len(texts)
        assert (limit is None) == (cut == 0)


_PIECES = st.lists(
    st.tuples(st.sampled_from(("<s>", "</s>", "<mask>")), st.integers(0, 2)), max_size=2
)


@st.composite
def templates(draw):
    """Templates of one text and of a pair: any special tokens and type ids around the texts."""

    def tokens():
        return [f"{token}:{kind}" for token, kind in draw(_PIECES)]

    def text(name):
        return f"{name}:{draw(st.integers(0, 2))}"

    first, second = draw(st.permutations(("$A", "$B")))
    single = [*tokens(), text("$A"), *tokens()]
    return single, [*tokens(), text(first), *tokens(), text(second), *tokens()]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(templates(), st.booleans(), st.sampled_from((None, 9, 20)))
def test_every_template_of_a_post_processor_is_followed(template, byte_level, limit):
    single, pair = template
    backend = tokenizers.Tokenizer.from_str(ours("llama").to_json())
    names = ("<s>", "</s>", "<mask>")
    post = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(n, backend.token_to_id(n)) for n in names]
    )
    if byte_level:
        post = processors.Sequence([processors.ByteLevel(trim_offsets=False), post])
    backend.post_processor = post
    their = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>")
    our = Tokenizer(tokenizers.Tokenizer.from_str(backend.to_str()), {"eos": "</s>", "bos": "<s>"})
    texts = [(TEXT[0], None), ("a", TEXT[1]), (TEXT[2], TEXT[1])]
    inputs = encode_inputs(our, texts, max_length=limit)
    for (a, b), one in zip(texts, inputs, strict=True):
        expected = their(
            a, b, return_token_type_ids=True, max_length=limit, truncation=limit is not None
        )
        assert one.ids == expected["input_ids"]
        assert one.type_ids == expected["token_type_ids"]
        assert one.texts == expected.sequence_ids(0)
    if limit is None:
        ((window,),) = encode_windows(our, [TEXT[0]])
        assert (window.ids, window.type_ids) == (inputs[0].ids, inputs[0].type_ids)
        return
    around = len(single) - 1
    (windows,) = encode_windows(our, [TEXT[0]], max_length=limit)
    plain = [i for each in windows for i, text in zip(each.ids, each.texts) if text == 0]
    assert plain == encode_plain(our, [TEXT[0]])[0].ids
    assert all(len(each.ids) <= limit for each in windows)
    assert all(each.texts.count(None) == around for each in windows)


@pytest.mark.parametrize("single", ["$A $A", "$A </s> $A"])
def test_a_template_that_repeats_a_text_is_refused(single):
    backend = tokenizers.Tokenizer.from_str(ours("llama").to_json())
    backend.post_processor = processors.TemplateProcessing(
        single=single, pair="$A $B", special_tokens=[("</s>", 2)]
    )
    with pytest.raises(TokenizerError, match="repeats a text"):
        encode_inputs(Tokenizer(backend), [("a b", None)])


def test_texts_get_the_tokens_of_documents_where_the_tokenizer_adds_none():
    gpt2 = ours("gpt2")
    (one,) = encode_inputs(gpt2, [("a b", None)], max_length=3)
    (plain,) = encode_plain(gpt2, ["a b"])
    assert one.ids == [*plain.ids[:2], gpt2.eos_id]
    assert one.cut == len(plain.ids) - 2


def test_an_empty_text_is_the_end_of_text_token():
    gpt2 = ours("gpt2")
    (one,) = encode_inputs(gpt2, [("", None)], as_documents=False)
    assert (one.ids, one.texts) == ([gpt2.eos_id], [None])
    bare = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(TokenizerError, match="A text is empty"):
        encode_inputs(Tokenizer(bare), [("", None)])


def test_a_vocabulary_without_the_letter_a():
    backend = tokenizers.Tokenizer(models.BPE({"x": 0, "y": 1}, []))
    (one,) = encode_inputs(Tokenizer(backend), [("xyx", None)])
    assert one.ids == [0, 1, 0]


def test_a_length_for_special_tokens_only():
    (one,) = encode_inputs(ours("bert"), [("the weather", "it's")], max_length=2)
    assert [ours("bert").tokens[index] for index in one.ids] == ["[CLS]", "[SEP]", "[SEP]"]
    assert SpecialTokenTemplate(ours("bert")).count_special(paired=False) == 2


def test_other_types_than_text_are_refused():
    for wrong in ("\ud800", None):
        with pytest.raises(TokenizerError):
            encode_inputs(ours("bert"), [(wrong, None)])
    with pytest.raises(TokenizerError):
        encode_words(ours("gpt2"), [["\ud800"]])


WORDS = [
    "The", "weather", ",", "it's", "rainy", "unseen", "wörds", "Été", "😀", "好", "天气", "\u3000",
    " ", "", "e\u0301", "\u200b", "longer-than-all-the-others", "°C", "「", "\u00a0x",
]  # fmt: skip


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=13))
def test_words_of_bert_as_transformers_aligns_them(words):
    ((window,),) = encode_words(ours("bert"), [words])
    encoding = theirs("bert")(words, is_split_into_words=True)
    assert window.ids == encoding["input_ids"]
    first: dict[int, int] = {}
    for position, word in enumerate(encoding.word_ids(0)):
        if word is not None:
            first.setdefault(word, position)
    assert (window.start, window.stop, len(window.first_tokens)) == (0, len(words), len(words))
    for word, position in first.items():
        assert window.first_tokens[word] == position, (words, word)
    # Words without a token share a neighbour's.
    assert all(0 <= position < len(window.ids) for position in window.first_tokens)
    assert window.first_tokens == sorted(window.first_tokens)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(FAMILIES), st.lists(st.sampled_from(WORDS), max_size=23), st.integers(3, 19))
def test_windows_hold_every_word_once_within_the_length(family, words, limit):
    tokenizer = ours(family)
    (windows,) = encode_words(tokenizer, [words], max_length=limit)
    covered = [n for window in windows for n in range(window.start, window.stop)]
    assert covered == list(range(len(words)))
    (whole,) = encode_words(tokenizer, [words])
    around = len(tokenizer.prefix_ids) + len(tokenizer.suffix_ids)
    for window in windows:
        assert len(window.first_tokens) == window.stop - window.start
        assert len(window.ids) <= max(limit, around + 1)
        for at, word in zip(window.first_tokens, range(window.start, window.stop), strict=True):
            # The token is that of the whole sentence, whatever was cut.
            assert window.ids[at] == whole[0].ids[whole[0].first_tokens[word]]


def test_words_that_share_a_token_have_it_in_both_windows():
    backend = tokenizers.Tokenizer(models.WordLevel({" a b ": 0, "x": 1}, unk_token="x"))
    backend.pre_tokenizer = pre_tokenizers.Split("x", "isolated")
    sentence = ["x", "a", "b", "x"]
    for limit, expected in (
        (2, [(0, 3, [1, 0], [0, 1, 1]), (3, 4, [1], [0])]),
        (1, [(0, 1, [1], [0]), (1, 3, [0], [0, 0]), (3, 4, [1], [0])]),
    ):
        (windows,) = encode_words(Tokenizer(backend), [sentence], max_length=limit)
        assert [(w.start, w.stop, w.ids, w.first_tokens) for w in windows] == expected


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "unigram", "wordpiece"])
def test_no_token_is_across_two_words_without_a_space_between(kind):
    texts = ["\u6211\u5728\u5317\u4eac", "\u6211\u5728\u4e0a\u6d77"] * 20
    tokenizer = Tokenizer.train(kind, texts=texts, vocab_size=300, progress=False)
    ((window,),) = encode_words(tokenizer, [["\u6211", "\u5728", "\u5317\u4eac", "x"]])
    first = window.first_tokens
    assert len({*first}) == 4
    # Only the first word of a text, and one after a space, have a space before them.
    assert tokenizer.backend.token_to_id("\u2581") not in window.ids[first[1] : first[2]]


def test_a_word_longer_than_a_window_is_cut():
    word = "yesterdayyesterdayyesterday"
    (windows,) = encode_words(ours("bert"), [["a", word, "b"]], max_length=5)
    assert [(window.start, window.stop) for window in windows] == [(0, 1), (1, 2), (2, 3)]
    assert [len(window.ids) for window in windows] == [3, 5, 3]
    assert all(window.first_tokens == [1] for window in windows)


@pytest.mark.parametrize("family", FAMILIES)
def test_words_of_spaces_alone(family):
    ((window,),) = encode_words(ours(family), [[" "]])
    assert window.first_tokens[0] < len(window.ids)


def test_no_words_and_spaces_without_special_tokens():
    assert encode_words(ours("bert"), [[], ["a"]])[0] == []
    bare = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0, "u": 1}, unk_token="u")))
    bare.backend.pre_tokenizer = pre_tokenizers.Whitespace()
    ((window,),) = encode_words(bare, [[" "]])
    assert (window.ids, window.first_tokens) == ([0], [0])


def test_words_as_running_text():
    for words, text, starts in (
        (["to", "be"], "to be", [0, 3]),
        (["你", "好", "。", "「", "x", "」", "好"], "你好。「 x 」好", [0, 1, 2, 3, 5, 7, 8]),
        (["が", "カ", "ー", "ไทย"], "がカーไทย", [0, 1, 2, 3]),
        (["한국", "말"], "한국 말", [0, 3]),
        (["a", "", "b", " ", "c"], "a b   c", [0, 1, 2, 4, 6]),
        ([], "", []),
    ):
        assert join_words(words) == (text, starts)
