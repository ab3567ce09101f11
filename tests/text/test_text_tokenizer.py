"""Tokenizers of all kinds: trained, used, saved and loaded again."""

# ruff: noqa: RUF001

import gzip
import json
import lzma
import math
import os
import pickle
import random
import re
import signal
import threading
import types

import pytest
import sentencepiece
import tokenizers
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from own_kinds import own_kinds
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from trivium.errors import DataError, TokenizerError, TriviumError
from trivium.text import Tokenizer, TokenizerConfig, trainers
from trivium.text.reservoir import read_blocks, reservoir_sample
from trivium.text.trainers.byte_bpe import ByteBPE
from trivium.text.trainers.unigram import Unigram
from trivium.text.trainers.wordpiece import WordPiece

ENGLISH = [
    "The quick brown fox jumps over the lazy dog, and the dog was not amused.",
    "A model learns to predict the next word from the words before it.",
    "Yesterday the weather was cloudy; today it is raining on the caf\u00e9.",
]
WORLD = [
    "今天天气很好，我们去公园散步吧。",
    "Übermäßig große Häuser stehen in der Straße.",
    "Быстрая коричневая лиса прыгает через ленивую собаку.",
    "가나다라 마바사 아자차카 타파하",
    "नमस्ते दुनिया, यह एक परीक्षा है।",
    "مرحبا بالعالم",
    "\U0001f469\u200d\U0001f4bb writes code \U0001f680",
]
TEXTS = (ENGLISH * 7 + WORLD) * 5
SIZES = {"whitespace": 61, "bpe": 419, "byte-bpe": 401, "unigram": 337, "wordpiece": 499}


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    return {
        kind: Tokenizer.train(kind, texts=iter(TEXTS), vocab_size=size, progress=False)
        for kind, size in SIZES.items()
    }


@pytest.mark.parametrize("kind", SIZES)
def test_every_kind_is_trained_the_same_way_twice(kind, trained):
    assert set(trained) == set(Tokenizer.kinds)
    tokenizer = trained[kind]
    assert tokenizer.kind == kind
    assert len(tokenizer.tokens) == tokenizer.vocab_size == len(tokenizer)
    assert all(tokenizer.token_to_id(t) == i for i, t in enumerate(tokenizer.tokens))
    config = TokenizerConfig.from_tree({"kind": kind, "vocab_size": SIZES[kind]})
    assert type(config) is Tokenizer.get_config_class(kind)
    again = config.train((text for text in TEXTS), progress=False)
    assert again.fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("kind", SIZES)
def test_save_load_and_transformers_agree(kind, trained, tmp_path):
    tokenizer = trained[kind]
    tokenizer.save(tmp_path / kind)
    file = tokenizer.save(tmp_path / kind / "deep" / "tokenizer.json")
    hf = AutoTokenizer.from_pretrained(tmp_path / kind)
    for path in (tmp_path / kind, file):
        loaded = Tokenizer.load(path)
        assert loaded.fingerprint == tokenizer.fingerprint
        for text in ENGLISH + WORLD:
            assert list(loaded.encode(text).ids) == hf(text)["input_ids"]
        pair = loaded.encode(ENGLISH[0], WORLD[0])
        assert list(pair.ids) == hf(ENGLISH[0], WORLD[0])["input_ids"]
    for role in ("pad", "unk", "cls", "sep", "mask", "bos", "eos"):
        assert getattr(hf, f"{role}_token_id") == getattr(tokenizer, f"{role}_id"), role
    assert not [name for name in os.listdir(tmp_path / kind) if name.startswith(".")]
    assert pickle.loads(pickle.dumps(tokenizer)).fingerprint == tokenizer.fingerprint


def test_special_tokens_come_first():
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "<T>"]
    tokenizer = Tokenizer.train(
        "wordpiece", texts=ENGLISH * 3, vocab_size=131, special_tokens=names, progress=False
    )
    assert tokenizer.tokens[:7] == names
    assert tokenizer.special_ids == tuple(range(7))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (5, 6)
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((2,), (3,))
    encoding = tokenizer.encode("The dog", "a word")
    assert encoding.tokens[0] == "[CLS]"
    assert encoding.tokens.count("[SEP]") == 2
    assert (encoding.type_ids[0], encoding.type_ids[-1]) == (0, 1)


def test_wordpiece_offsets_and_normalization(trained):
    text = "Caf\u00e9 weather"
    encoding = trained["wordpiece"].encode(text, add_special_tokens=False)
    assert "".join(text[start:end] for start, end in encoding.offsets) == "Caf\u00e9weather"
    assert (encoding.word_ids[0], encoding.word_ids[-1]) == (0, 1)
    tokens = trained["wordpiece"].encode("CAF\u00c9 天气", add_special_tokens=False).tokens
    assert "".join(tokens).replace("##", "") == "cafe天气"
    assert list(tokens[-2:]) == ["天", "气"]
    cased = WordPiece(vocab_size=211, lowercase=False).train(ENGLISH * 3, progress=False)
    assert cased.encode("The", add_special_tokens=False).tokens[0].startswith("T")


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_byte_level_round_trips_any_text(text, trained):
    tokenizer = trained["byte-bpe"]
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert b"".join(tokenizer.token_bytes[i] for i in ids) == text.encode()


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_spaces_come_back(kind, trained):
    text = "the quick dog was not amused."
    ids = trained[kind].encode(text).ids
    assert trained[kind].decode(ids) == text
    assert b"".join(trained[kind].token_bytes[i] for i in ids) == b" " + text.encode()


@pytest.fixture(scope="module")
def spaced() -> dict[str, Tokenizer]:
    """Tokenizers whose training text contains line ends and indentation."""
    texts = [*ENGLISH, "\n    ".join(ENGLISH), "  ".join(ENGLISH)]
    return {
        kind: Tokenizer.train(kind, texts=texts, vocab_size=SIZES[kind], progress=False)
        for kind in ("bpe", "byte-bpe", "unigram")
    }


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=[" ", " ", "\n", *"thedog,."], max_size=20))
@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_kinds_that_keep_spaces_round_trip(kind, text, spaced):
    """A space at the start of a text was lost by `bpe`."""
    tokenizer = spaced[kind]
    special = tokenizer.roles["eos"]
    for whole in (text, f"{text}{special}{text}"):
        encoding = tokenizer.encode(whole, add_special_tokens=False)
        assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == whole
        for start, end in encoding.offsets:
            assert 0 <= start <= end <= len(whole)


_SPACED = ["the dog", " the dog", "    the dog", "the  dog ", " ", "\nthe", " \n the", "the\n  dog"]


@pytest.mark.parametrize(("kind", "clean"), [("bpe", False), ("unigram", True)])
def test_spaces_are_those_of_sentencepiece(kind, clean, spaced, tmp_path):
    """`clean`: sentencepiece's `remove_extra_whitespaces`, False in Llama's BPE."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH),
        model_prefix=str(tmp_path / "m"),
        vocab_size=101,
        hard_vocab_limit=False,
        model_type=kind,
        user_defined_symbols=["\n"],
        remove_extra_whitespaces=clean,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    for text in _SPACED:
        if clean and "\n" in text:
            continue  # Unigram's normalization makes it a space, a defined symbol there
        ours = spaced[kind].encode(text, add_special_tokens=False).symbols
        assert "".join(ours) == "".join(theirs.encode(text, out_type=str)), text


def test_bpe_with_leading_spaces_in_transformers(spaced, tmp_path):
    tokenizer = spaced["bpe"]
    tokenizer.save(tmp_path / "folder")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "folder")
    special = tokenizer.roles["eos"]
    for text in [*_SPACED, f"the{special}dog", f"{special} the", f" {special}  the"]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert theirs.encode(text, add_special_tokens=False) == list(ids), text


def test_words_of_a_text_with_leading_spaces_have_their_offsets(spaced):
    text = "   the dog, too"
    encoding = spaced["bpe"].encode(text, add_special_tokens=False)
    words: dict[int, str] = {}
    for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
        words[word] = words.get(word, "") + text[start:end]
    assert [word.strip() for word in words.values() if word.strip()] == ["the", "dog", ",", "too"]


@pytest.mark.parametrize("kind", SIZES)
def test_slow_training_is_announced_and_gives_the_same_tokenizer(kind, monkeypatch):
    """In a text without spaces, too; here any training counts as slow."""
    letters = random.Random(0)
    texts = ["".join(letters.choices("ACGT", k=1000)) for _ in range(90)]
    config = TokenizerConfig.kinds[kind]()
    silent, notes = config.train(texts, progress=False), []
    monkeypatch.setattr(trainers, "_SLOW_SECONDS", math.inf)
    assert config.train(texts, progress=notes.append).to_json() == silent.to_json()
    monkeypatch.setattr(trainers, "_SLOW_SECONDS", 0.0)
    short = notes.copy()
    assert config.train(texts, progress=notes.append).to_json() == silent.to_json()
    assert re.fullmatch(r"training the tokenizer takes about \w+", notes[len(short)])
    assert notes[len(short) + 1 :] == short


def timed_kind(monkeypatch, kind, seconds, needed=0):
    """A kind whose training takes `seconds(characters, vocabulary)` on a clock that only it moves.

    Its alphabet has `needed` tokens.
    """
    calls, clock = [], [0.0]
    # Of this module alone: a server in another thread could sleep for hours on such a clock.
    monkeypatch.setattr(trainers, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))

    def train_backend(self, texts):
        self.check_size(needed)
        calls.append(sum(map(len, texts)))
        clock[0] += seconds(calls[-1], self.size)
        return tokenizers.Tokenizer(models.BPE({"a": 0}, []))

    monkeypatch.setattr(kind, "train_backend", train_backend)
    return kind(), calls


def pruning_work(size, vocab_size):
    """Reading the text once a round; a round of pruning keeps three quarters of the pieces."""
    return size * (1 + max(0.0, math.log(size / 4 / vocab_size, 4 / 3)))


@pytest.mark.parametrize(
    ("kind", "work", "needed"),
    [
        (ByteBPE, lambda size, _: size**0.8, 0),
        (ByteBPE, lambda size, _: size, 0),
        (ByteBPE, lambda size, _: size**1.2, 5000),
        (Unigram, pruning_work, 100),
        (Unigram, pruning_work, 5000),
    ],
    ids=["few new words", "linear", "many new words", "pruned", "pruned, large alphabet"],
)
@pytest.mark.parametrize("length", [300, 16_000])
@pytest.mark.parametrize("size", [400_000, 4_000_000])
def test_the_announced_time_is_right_within_a_factor_of_two(
    size, length, kind, work, needed, monkeypatch
):
    texts = ["x" * length] * (size // length)
    size = length * len(texts)
    second = work(size, 8192) / 40
    config, calls = timed_kind(monkeypatch, kind, lambda *of: work(*of) / second, needed)
    notes: list[str] = []
    config.train(texts, progress=notes.append)
    (announced,) = re.findall(r"takes about (?:(\d+)m)?(\d+)s", "".join(notes))
    assert 20 <= 60 * int(announced[0] or 0) + int(announced[1]) <= 80
    assert calls[-1] == size
    assert sum(calls[:-1]) <= size / 3


def test_short_training_is_not_announced(monkeypatch):
    for count, per_character in ((100, 1.0), (3000, 1e-5)):
        config, calls = timed_kind(
            monkeypatch, ByteBPE, lambda size, _, one=per_character: one * size
        )
        notes: list[str] = []
        config.train(["x" * 100] * count, progress=notes.append)
        assert "about" not in "".join(notes)
        assert calls[-1] == 100 * count
        assert sum(calls[:-1]) < 100 * count / 5


def test_an_interrupt_while_the_time_is_estimated_is_not_swallowed(monkeypatch):
    def interrupted(self, texts):
        raise KeyboardInterrupt

    monkeypatch.setattr(ByteBPE, "train_backend", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ByteBPE().estimate_seconds(["x" * 1000] * 200)


@pytest.mark.parametrize("kind", SIZES)
def test_batches_and_iterables_equal_single_calls(kind, trained):
    tokenizer = trained[kind]
    assert tokenizer.encode_batch(WORLD) == [tokenizer.encode(text) for text in WORLD]
    fast = tokenizer.encode_ids_batch(WORLD)
    plain = tokenizer.encode_batch(WORLD, add_special_tokens=False)
    assert fast == [list(encoding.ids) for encoding in plain]
    assert tokenizer.decode_batch(fast) == [tokenizer.decode(ids) for ids in fast]
    many = [text for text in WORLD for _ in range(41)]  # more than one internal batch
    ids = tokenizer.encode_iterable(iter(many))
    assert next(ids) == fast[0][0]
    assert [fast[0][0], *ids] == [i for text in fast for _ in range(41) for i in text]


def test_byte_level_tokens_are_readable(trained):
    """Fault 27: byte-level tokens were shown as the symbols of the vocabulary."""
    encoding = trained["byte-bpe"].encode("the the\n<|endoftext|>")
    assert encoding.tokens == ("the", "▁the", "\\n", "<|endoftext|>")
    assert encoding.symbols == ("the", "\u0120the", "\u010a", "<|endoftext|>")
    assert encoding.to_dict()["tokens"] == encoding.tokens
    assert encoding.to_dict(symbols=True)["tokens"] == encoding.symbols
    word = Tokenizer.train("byte-bpe", texts=["北京"] * 9, vocab_size=262, progress=False)
    assert word.encode("北京北京").tokens == ("北京", "北京")
    assert word.encode("北").tokens == ("\\xe5\\x8c", "\\x97")
    assert set(word.encode("天").tokens) == {"\\xe5", "\\xa4", "\\xa9"}


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "whitespace"])
def test_tokens_of_other_kinds_are_their_symbols(kind, trained):
    encoding = trained[kind].encode("the \u2603 dog <mask> [MASK]")
    assert encoding.tokens == encoding.symbols
    assert encoding.symbols == tuple(trained[kind].tokens[i] for i in encoding.ids)


def test_a_tokenizer_from_merges_in_memory(trained):
    """Fault 21: a vocabulary and merges in memory, with special tokens of any name."""
    source = trained["byte-bpe"]
    rebuilt = Tokenizer.from_merges(
        dict(enumerate(source.token_bytes)), source.merges, ["<|endoftext|>", "<<né w>>"]
    )
    for text in [*ENGLISH, *WORLD, "a<|endoftext|>b"]:
        assert rebuilt.encode(text).ids == source.encode(text).ids
    ids = rebuilt.encode("a<<né w>><|endoftext|>").ids
    assert ids[1:] == (source.vocab_size, 0)
    assert rebuilt.decode(ids, skip_special_tokens=False) == "a<<né w>><|endoftext|>"
    assert trained["unigram"].merges == []


def test_a_vocabulary_in_memory_is_checked():
    single = {i: bytes([i]) for i in range(256)}
    gap = Tokenizer.from_merges(single | {257: b"he"}, [(b"h", b"e")], ["<a>", "<b>"])
    assert gap.encode("he<a><b>").ids == (257, 258, 259), "ids after the largest"
    for vocabulary, merges, special_tokens, message in (
        ({i: bytes([i]) for i in range(255)}, [], [], "1 of 256 bytes"),
        (single, [(b"h", b"e")], [], "Token `he` out of vocabulary"),
        (single | {256: b"he"}, [("h", "e")], [], "needs its two parts"),
        (single | {256: b"a"}, [], [], "b'a' has two ids, 97 and 256"),
        (single, [], ["<a>", "<a>"], "must differ and not be empty"),
    ):
        with pytest.raises(TokenizerError, match=message):
            Tokenizer.from_merges(vocabulary, merges, special_tokens)


@pytest.mark.parametrize("kind", ["byte-bpe", "unigram", "bpe"])
def test_tokens_that_continue_a_word_of_a_kind(kind, trained):
    tokenizer = trained[kind]
    inner = dict(zip(tokenizer.tokens, tokenizer.continues_word(), strict=True))
    assert inner["e"]
    assert not inner["."]
    assert not any(v for t, v in inner.items() if t.startswith(("\u0120", "\u2581")))
    assert not any(inner[tokenizer.tokens[i]] for i in tokenizer.special_ids)


def test_continues_word(trained):
    wordpiece = trained["wordpiece"]
    for token, inner in zip(wordpiece.tokens, wordpiece.continues_word(), strict=True):
        assert inner == token.startswith("##")
    words = ["e", "\u4eca", "\u5929\u6c14", "\u00e9", "\u0939"]  # a Chinese character is a word
    units = tokenizers.Tokenizer(models.Unigram([(word, -1.0) for word in words]))
    units.decoder = decoders.Metaspace()
    assert Tokenizer(units).continues_word() == [True, False, False, True, True]
    assert not any(trained["whitespace"].continues_word())
    bare = Tokenizer(tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, [])))
    assert bare.continues_word() == [False, False]


def test_the_vocabulary_for_objectives(trained):
    vocabulary = trained["wordpiece"].vocabulary
    tokenizer = trained["wordpiece"]
    assert vocabulary.size == 499
    assert (vocabulary.start_id, vocabulary.end_id) == (tokenizer.cls_id, tokenizer.sep_id)
    assert vocabulary.regular_ids.tolist() == list(range(5, 499))
    assert vocabulary.continues_word.tolist() == tokenizer.continues_word()
    ends = {tokenizer.tokens[i] for i in vocabulary.ends_sentence.nonzero()[0]}
    assert ends == {".", "!", "?", "。"}
    vocabulary = trained["byte-bpe"].vocabulary
    assert (vocabulary.start_id, vocabulary.end_id) == (0, 0)
    bare = type(vocabulary)(size=7)
    assert not bare.continues_word.any()
    assert not bare.ends_sentence.any()
    assert bare.regular_ids.tolist() == list(range(7))
    sentinels = ("<pad>", "<unk>", "</s>", "<extra_id_0>", "<extra_id_1>")
    t5 = Tokenizer.train(
        "unigram", texts=TEXTS, vocab_size=331, special_tokens=sentinels, progress=False
    )
    assert t5.vocabulary.sentinel_ids == (3, 4)


def test_documents_get_their_special_tokens(trained):
    assert trained["byte-bpe"].prefix_ids == ()
    assert trained["byte-bpe"].suffix_ids == (trained["byte-bpe"].eos_id,) == (0,)
    assert trained["unigram"].prefix_ids == ()
    assert trained["unigram"].suffix_ids == (trained["unigram"].eos_id,)


@pytest.mark.parametrize("kind", Tokenizer.kinds)
def test_a_vocabulary_larger_than_the_text_allows_shrinks_with_one_line(kind):
    lines: list[str] = []
    tokenizer = Tokenizer.train(kind, texts=ENGLISH, vocab_size=5003, progress=lines.append)
    assert tokenizer.vocab_size < 5003
    assert len(lines) == 1
    assert "5,003" in lines[0]
    assert str(tokenizer.vocab_size) in lines[0]


def test_that_a_vocabulary_shrinks_is_printed(capsys):
    Tokenizer.train("whitespace", texts=ENGLISH, vocab_size=5003)
    assert "instead of 5,003" in capsys.readouterr().err


def test_a_whitespace_tokenizer_of_chinese_text_gets_a_hint():
    """Fault 23: such a tokenizer has whole sentences for words."""
    for texts, hinted in ((WORLD[:1], True), (ENGLISH, False)):
        lines: list[str] = []
        Tokenizer.train("whitespace", texts=texts, progress=lines.append)
        assert any("unigram" in line for line in lines) == hinted


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_an_alphabet_too_large_says_how_many_are_needed(kind):
    with pytest.raises(TokenizerError, match=r"needed") as error:
        Tokenizer.train(kind, texts=ENGLISH * 2, vocab_size=19, progress=False)
    assert any(int(word) > 19 for word in str(error.value).split() if word.isdigit())


def test_unigram_never_exceeds_its_size():
    text = ["the cat sat on the mat and the dog sat on the log by the quiet brook"] * 3
    for size in range(99, 112):
        tokenizer = Tokenizer.train("unigram", texts=text, vocab_size=size, progress=False)
        assert tokenizer.vocab_size <= size
        assert tokenizer.unk_id not in tokenizer.encode(text[0]).ids


def test_rare_characters_become_unknown():
    texts = ["plain words only here"] * 400 + ["one \u2603 snowman"]
    options = {"texts": texts, "vocab_size": 127, "progress": False}
    assert Tokenizer.train("bpe", **options).token_to_id("\u2603") is None
    whole = Tokenizer.train("bpe", character_coverage=1.0, **options)
    assert whole.token_to_id("\u2603") is not None


def test_mistakes_are_named():
    calls = [
        ("257", lambda: Tokenizer.train("byte-bpe", texts=ENGLISH, vocab_size=256)),
        ("wordpiece", lambda: Tokenizer.train("wordpeice", texts=ENGLISH, vocab_size=99)),
        ("mean vocab_size", lambda: Tokenizer.train("bpe", texts=ENGLISH, vocab_sise=99)),
        ("UNK", lambda: Tokenizer.train("bpe", texts=ENGLISH, special_tokens=["[PAD]"])),
        ("differ", lambda: Tokenizer.train("bpe", texts=ENGLISH, special_tokens=["<u>", "<u>"])),
        ("5 of them special", lambda: Tokenizer.train("bpe", texts=ENGLISH, vocab_size=5)),
        ("no text", lambda: Tokenizer.train("bpe", texts=iter(["", "  \n"]))),
        ("invisible", lambda: Tokenizer.train("unigram", texts=["\u200b"])),
        ("files or", lambda: Tokenizer.train("bpe", vocab_size=99)),
        ("one string", lambda: Tokenizer.train("bpe", texts="abc")),
        ("does-not-exist", lambda: Tokenizer.train("bpe", files=["does-not-exist.txt"])),
    ]
    for words, call in calls:
        with pytest.raises(TriviumError, match=words):
            call()


def test_decode_and_encode_refuse_other_types(trained):
    with pytest.raises(TokenizerError, match="whole numbers"):
        trained["bpe"].decode([-1])
    assert trained["bpe"].decode([10**6]) == ""
    for wrong in (None, 3, "lone \ud800 surrogate"):
        for call in (
            trained["bpe"].encode,
            lambda text: trained["bpe"].encode_batch([text]),
            lambda text: trained["bpe"].encode_ids_batch([text]),
        ):
            with pytest.raises(TokenizerError, match="str of valid Unicode"):
                call(wrong)


def test_a_tokenizer_that_cannot_be_saved_says_so(trained, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TokenizerError, match="cannot be written"):
        trained["bpe"].save(tmp_path / "file" / "tokenizer.json")


def test_a_sample_is_uniform_bounded_and_deterministic():
    texts = [f"{number:06d}" for number in range(10_007)]
    kept = [int(text) for text in reservoir_sample(iter(texts), 6_000, seed=3)]
    assert len(kept) == 1000
    assert kept == sorted(kept)
    for quarter in range(4):
        share = sum(quarter * 2502 <= number < (quarter + 1) * 2502 for number in kept)
        assert 190 < share < 310
    assert kept == [int(text) for text in reservoir_sample(iter(texts), 6_000, seed=3)]
    assert kept != [int(text) for text in reservoir_sample(iter(texts), 6_000, seed=4)]
    assert reservoir_sample(iter(texts), 10**6) == texts
    long = " ".join(f"{number:06d}" for number in range(20_011))
    assert "".join(reservoir_sample([long], 10**9)) == long
    assert 30_000 < len("".join(reservoir_sample([long], 50_000))) <= 50_000


def test_files_are_read_in_blocks_of_whole_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("trivium.text.reservoir.BLOCK", 11)
    texts = ["\n".join("word " * (n % 5) for n in range(start, 60)) for start in (0, 7)]
    paths = [tmp_path / name for name in "ab"]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    blocks = list(read_blocks(paths))
    assert "".join(blocks) == "".join(texts)
    unfinished = [block for block in blocks if not block.endswith("\n")]
    assert unfinished == [text[text.rindex("\n") + 1 :] for text in texts]


def test_compressed_files_train_as_plain_ones(tmp_path):
    data = "\n".join(TEXTS).encode()
    (tmp_path / "a.txt").write_bytes(data)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(data))
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(data))
    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress(data))
    fingerprints = {
        Tokenizer.train("bpe", files=path, vocab_size=307, progress=False).fingerprint
        for path in sorted(tmp_path.iterdir())
    }
    assert len(fingerprints) == 1
    (tmp_path / "latin.txt").write_bytes(b"plain\nca\xe9 here\n")
    with pytest.raises(DataError, match=r"latin\.txt"):
        Tokenizer.train("bpe", files=[tmp_path / "latin.txt"], vocab_size=99, progress=False)


def test_long_scores_survive_saving(tmp_path):
    """The library reads decimals of 17 digits inexactly; here they are rounded at loading."""
    scores = [["<unk>", 0.0], *([chr(97 + n), -math.sqrt(2 + n * math.pi)] for n in range(23))]
    backend = tokenizers.Tokenizer(models.Unigram([tuple(s) for s in scores], unk_id=0))
    content = json.loads(backend.to_str())
    content["model"]["vocab"] = scores
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    first = Tokenizer.load(tmp_path)
    fingerprints = {first.fingerprint, pickle.loads(pickle.dumps(first)).fingerprint}
    for step in range(3):
        first.save(tmp_path / f"{step}.json")
        first = Tokenizer.load(tmp_path / f"{step}.json")
        fingerprints.add(first.fingerprint)
    assert len(fingerprints) == 1


def test_truncation_in_a_file_is_switched_off(trained, tmp_path):
    content = json.loads(trained["bpe"].to_json())
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    content["truncation"] = truncation
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert len(Tokenizer.load(tmp_path).encode(ENGLISH[0])) > 2


def test_a_kind_of_ones_own_needs_no_edit_of_the_package():
    with own_kinds():

        class Letters(ByteBPE):
            kind: str = "letters"

            def train_backend(self, texts):
                backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
                backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
                return backend

        tokenizer = Tokenizer.train("letters", texts=["abc"], progress=False)
        assert tokenizer.encode("aab").ids == (0, 0, 1)


SCRIPTS = {
    "english": "the cat sat on the mat ",
    "chinese": "今天天气很好，我们去公园散步吧。",
    "russian": "Быстрая коричневая лиса прыгает ",
    "hindi": "नमस्ते दुनिया, यह एक परीक्षा है ",
    "arabic": "مرحبا بالعالم ",
    "thai": "สวัสดีชาวโลก ",
    "bengali": "ওহে বিশ্ব ",
}
DIGITS = {
    "chinese": "一二三四五六七八九〇", "hindi": "०१२३४५६७८९", "arabic": "٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹",
    "thai": "๐๑๒๓๔๕๖๗๘๙", "bengali": "০১২৩৪৫৬৭৮৯",
}  # fmt: skip


@pytest.mark.parametrize("coverage", [1.0, 0.9995, 0.2])
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "wordpiece", "wordpiece-cased"])
def test_printable_ascii_and_digits_are_in_every_vocabulary(kind, script, coverage):
    """The rarest character of a text is a question mark: no share of coverage may drop it."""
    options = {} if kind == "byte-bpe" else {"character_coverage": coverage}
    if kind.startswith("wordpiece"):
        options["lowercase"] = kind == "wordpiece"
    texts = [SCRIPTS[script] * 40] * 30 + ["?"]
    tokenizer = Tokenizer.train(
        kind.removesuffix("-cased"), texts=texts, vocab_size=700, progress=False, **options
    )
    ascii_characters = "".join(map(chr, range(0x21, 0x7F)))
    for character in ascii_characters + DIGITS.get(script, ""):
        for text in (character, f"{character}{character}", f"x {character} x", f"x{character}"):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assert tokenizer.unk_id is None or tokenizer.unk_id not in ids, (text, kind)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_a_vocabulary_too_small_for_the_base_characters_says_what_is_needed(kind):
    for size in (60, 89, 98):
        with pytest.raises(TokenizerError, match=rf"{size} is too small: at least \d+ tokens"):
            Tokenizer.train(kind, texts=ENGLISH, vocab_size=size, progress=False)


@pytest.mark.parametrize("kind", TokenizerConfig.kinds)
def test_training_a_tokenizer_can_be_interrupted(kind):
    """The library's trainer runs beside the main thread, which gets the signal."""
    ended = threading.Event()

    class Backend:
        def train_from_iterator(self, texts, trainer):
            os.kill(os.getpid(), signal.SIGINT)
            ended.wait()

    config = TokenizerConfig.kinds[kind]()
    with pytest.raises(KeyboardInterrupt):
        config.run_trainer(Backend(), lambda **options: None, ["a"])
    ended.set()
