"""The Tokenizer class: the five kinds trained, used, saved and loaded again."""

# ruff: noqa: RUF001

import gzip
import json
import lzma
import math
import os
import pickle
import subprocess
import sys

import pytest
import tokenizers
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models
from transformers import AutoTokenizer

from trivium.errors import DataError, TokenizerError, TriviumError
from trivium.text import KINDS, Tokenizer
from trivium.text.sampling import sample_files, sample_texts

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


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    sizes = {"whitespace": 61, "bpe": 307, "byte-bpe": 401, "unigram": 223, "wordpiece": 383}
    return {
        kind: Tokenizer.train(kind, texts=iter(TEXTS), vocab_size=size, progress=False)
        for kind, size in sizes.items()
    }


def test_all_kinds_are_trained(trained):
    assert set(trained) == set(KINDS)
    for kind, tokenizer in trained.items():
        assert tokenizer.kind == kind
        assert len(tokenizer.tokens) == tokenizer.vocab_size == len(tokenizer)
        assert all(tokenizer.token_to_id(t) == i for i, t in enumerate(tokenizer.tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_training_twice_gives_the_same(kind, trained):
    again = Tokenizer.train(
        kind, texts=(text for text in TEXTS), vocab_size=trained[kind].vocab_size, progress=False
    )
    assert again.fingerprint == trained[kind].fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_save_load_and_transformers_agree(kind, trained, tmp_path):
    tokenizer = trained[kind]
    tokenizer.save(tmp_path / "folder")
    tokenizer.save(tmp_path / "deep" / "tokenizer.json")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "folder")
    for path in (tmp_path / "folder", tmp_path / "deep" / "tokenizer.json"):
        ours = Tokenizer.load(path)
        assert ours.fingerprint == tokenizer.fingerprint
        for text in ENGLISH + WORLD:
            assert list(ours.encode(text).ids) == theirs(text)["input_ids"]
        pair = ours.encode(ENGLISH[0], WORLD[0])
        assert list(pair.ids) == theirs(ENGLISH[0], WORLD[0])["input_ids"]
    for role in ("pad", "unk", "cls", "sep", "mask", "bos", "eos"):
        assert getattr(theirs, f"{role}_token_id") == getattr(tokenizer, f"{role}_id"), role
    assert not [name for name in os.listdir(tmp_path / "folder") if name.startswith(".")]


def test_the_textbooks_special_tokens_come_first():
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "<T>"]
    tokenizer = Tokenizer.train(
        "wordpiece", texts=ENGLISH * 3, vocab_size=97, special_tokens=names, progress=False
    )
    assert tokenizer.tokens[:7] == names
    assert tokenizer.special_ids == tuple(range(7))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (5, 6)
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((2,), (3,))
    found = tokenizer.encode("The dog", "a word")
    assert found.tokens[0] == "[CLS]"
    assert found.tokens.count("[SEP]") == 2
    assert found.type_ids[0] == 0
    assert found.type_ids[-1] == 1


def test_offsets_point_into_the_text(trained):
    text = "Caf\u00e9 weather"
    found = trained["wordpiece"].encode(text, add_special_tokens=False)
    rebuilt = "".join(text[start:end] for start, end in found.offsets)
    assert rebuilt == "Caf\u00e9weather"
    assert found.word_ids[0] == 0
    assert found.word_ids[-1] == 1


def test_wordpiece_normalises_like_bert(trained):
    tokens = trained["wordpiece"].encode("CAF\u00c9 天气", add_special_tokens=False).tokens
    assert "".join(tokens).replace("##", "") == "cafe天气"
    assert list(tokens[-2:]) == ["天", "气"]
    cased = Tokenizer.train(
        "wordpiece", texts=ENGLISH * 3, vocab_size=151, lowercase=False, progress=False
    )
    assert cased.encode("The", add_special_tokens=False).tokens[0].startswith("T")


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_byte_level_round_trips_any_text(text, trained):
    tokenizer = trained["byte-bpe"]
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    specials = set(tokenizer.special_ids)
    if not specials & set(ids):
        assert sum(tokenizer.token_bytes(i) for i in ids) == len(text.encode("utf-8"))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_spaces_come_back(kind, trained):
    text = "the quick dog was not amused."
    ids = trained[kind].encode(text).ids
    assert trained[kind].decode(ids) == text
    assert sum(trained[kind].token_bytes(i) for i in ids) == len(text) + 1


def test_batches_equal_single_calls(trained):
    for tokenizer in trained.values():
        batch = tokenizer.encode_batch(WORLD)
        assert batch == [tokenizer.encode(text) for text in WORLD]
        fast = tokenizer.encode_ids_batch(WORLD)
        plain = tokenizer.encode_batch(WORLD, add_special_tokens=False)
        assert fast == [list(found.ids) for found in plain]
        assert tokenizer.decode_batch(fast) == [tokenizer.decode(ids) for ids in fast]


def test_continues_word(trained):
    wordpiece = trained["wordpiece"]
    for token, inner in zip(wordpiece.tokens, wordpiece.continues_word(), strict=True):
        assert inner == token.startswith("##")
    for kind in ("byte-bpe", "unigram", "bpe"):
        inner = dict(zip(trained[kind].tokens, trained[kind].continues_word(), strict=True))
        assert inner["e"]
        assert not inner["."]
        assert not any(v for t, v in inner.items() if t.startswith(("\u0120", "\u2581")))
        assert not any(inner[trained[kind].tokens[i]] for i in trained[kind].special_ids)
    assert not any(trained["whitespace"].continues_word())


def test_tokens_are_those_of_the_ids(trained):
    for tokenizer in trained.values():
        found = tokenizer.encode("the \u2603 dog <mask> [MASK]")
        assert found.tokens == tuple(tokenizer.id_to_token(index) for index in found.ids)


def test_frames_of_documents(trained):
    assert trained["byte-bpe"].prefix_ids == ()
    assert trained["byte-bpe"].suffix_ids == (trained["byte-bpe"].eos_id,) == (0,)
    assert trained["unigram"].prefix_ids == ()
    assert trained["unigram"].suffix_ids == (trained["unigram"].eos_id,)


def test_pickle_keeps_everything(trained):
    for tokenizer in trained.values():
        assert pickle.loads(pickle.dumps(tokenizer)).fingerprint == tokenizer.fingerprint


def test_vocabulary_shrinks_with_one_line():
    for kind in KINDS:
        lines: list[str] = []
        tokenizer = Tokenizer.train(kind, texts=ENGLISH, vocab_size=5003, progress=lines.append)
        assert tokenizer.vocab_size < 5003
        assert len(lines) == 1, kind
        assert "5003" in lines[0]
        assert str(tokenizer.vocab_size) in lines[0]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_alphabet_too_large_says_how_many_are_needed(kind):
    with pytest.raises(TokenizerError, match=r"needed") as caught:
        Tokenizer.train(kind, texts=ENGLISH * 2, vocab_size=19, progress=False)
    assert any(int(word) > 19 for word in str(caught.value).split() if word.isdigit())


@pytest.mark.parametrize("size", range(36, 49))
def test_unigram_never_exceeds_its_size(size):
    text = ["the cat sat on the mat and the dog sat on the log by the quiet brook"] * 3
    tokenizer = Tokenizer.train("unigram", texts=text, vocab_size=size, progress=False)
    assert tokenizer.vocab_size <= size
    assert tokenizer.unk_id not in tokenizer.encode(text[0]).ids


def test_rare_characters_become_unknown():
    texts = ["plain words only here"] * 400 + ["one \u2603 snowman"]
    covered = Tokenizer.train("bpe", texts=texts, vocab_size=61, progress=False)
    whole = Tokenizer.train(
        "bpe", texts=texts, vocab_size=61, character_coverage=1.0, progress=False
    )
    assert covered.token_to_id("\u2603") is None
    assert whole.token_to_id("\u2603") is not None


def _too_small():
    Tokenizer.train("byte-bpe", texts=ENGLISH, vocab_size=256)


def _wrong_kind():
    Tokenizer.train("wordpeice", texts=ENGLISH, vocab_size=99)


def _no_unknown():
    Tokenizer.train("bpe", texts=ENGLISH, vocab_size=99, special_tokens=["[PAD]"])


def _twice():
    Tokenizer.train("bpe", texts=ENGLISH, vocab_size=99, special_tokens=["<unk>", "<unk>"])


def _nothing():
    Tokenizer.train("bpe", texts=iter(["", "  \n"]), vocab_size=99)


def _no_source():
    Tokenizer.train("bpe", vocab_size=99)


def _one_string():
    Tokenizer.train("bpe", texts="abc", vocab_size=99)


def _missing_file():
    Tokenizer.train("bpe", files=["does-not-exist.txt"], vocab_size=99)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (_too_small, "257"),
        (_wrong_kind, "wordpiece"),
        (_no_unknown, "UNK"),
        (_twice, "differ"),
        (_nothing, "no text"),
        (_no_source, "files or"),
        (_one_string, "one string"),
        (_missing_file, "does-not-exist"),
    ],
)
def test_mistakes_are_named(call, says):
    with pytest.raises(TriviumError, match=says):
        call()


def test_decode_refuses_what_is_no_id(trained):
    with pytest.raises(TokenizerError):
        trained["bpe"].decode([-1])
    assert trained["bpe"].decode([10**6]) == ""
    with pytest.raises(TokenizerError, match="str"):
        trained["bpe"].encode(None)
    with pytest.raises(TokenizerError, match="Unicode"):
        trained["bpe"].encode("lone \ud800 surrogate")


def test_what_cannot_be_written_is_named(trained, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TokenizerError, match="cannot be written"):
        trained["bpe"].save(tmp_path / "file" / "tokenizer.json")


def test_sample_is_even_bounded_and_deterministic():
    texts = [f"{number:06d}" for number in range(10_007)]
    kept = [int(text) for text in sample_texts(iter(texts), 6_000, 3)()]
    assert len(kept) == 1000
    assert kept == sorted(kept)
    for quarter in range(4):
        share = sum(quarter * 2502 <= number < (quarter + 1) * 2502 for number in kept)
        assert 190 < share < 310
    assert kept == [int(text) for text in sample_texts(iter(texts), 6_000, 3)()]
    assert kept != [int(text) for text in sample_texts(iter(texts), 6_000, 4)()]
    assert list(sample_texts(iter(texts), 10**6, 3)()) == texts


def test_a_long_text_is_sampled_in_parts():
    text = " ".join(f"{number:06d}" for number in range(20_011))
    assert "".join(sample_texts([text], 10**9, 0)()) == text
    kept = "".join(sample_texts([text], 50_000, 0)())
    assert 30_000 < len(kept) <= 50_000


def test_files_are_sought_evenly(tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"{number:07d}\u00e9\n" for number in range(100_003)), "utf-8")
    lines = "".join(sample_files([path], 50_000, 1)()).splitlines()
    numbers = [int(line[:7]) for line in lines if len(line) == 8]
    assert len(numbers) == len(lines)
    assert 2_500 < len(lines) <= 5_100
    for quarter in range(4):
        share = sum(quarter * 25_001 <= n < (quarter + 1) * 25_001 for n in numbers)
        assert 0.15 < share / len(numbers) < 0.35
    whole = "".join(sample_files([path], 10**9, 1)())
    assert whole == path.read_text("utf-8")


def test_packed_files_train_as_plain_ones(tmp_path):
    data = "\n".join(TEXTS).encode()
    (tmp_path / "a.txt").write_bytes(data)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(data))
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(data))
    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress(data))
    prints = {
        Tokenizer.train("bpe", files=path, vocab_size=307, progress=False).fingerprint
        for path in sorted(tmp_path.iterdir())
    }
    assert len(prints) == 1


def test_bytes_that_are_no_text_are_named_with_their_place(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"plain\nca\xe9 here\n")
    with pytest.raises(DataError, match=r"0xe9 at offset 8"):
        Tokenizer.train("bpe", files=[path], vocab_size=99, progress=False)
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"hello " * 99)[:-9])
    with pytest.raises(DataError, match=r"cut\.txt\.gz"):
        Tokenizer.train("bpe", files=[tmp_path / "cut.txt.gz"], vocab_size=99, progress=False)


def test_a_forked_child_encodes_without_a_warning():
    code = (
        "import os; from trivium.text import Tokenizer\n"
        "t = Tokenizer.train('byte-bpe', texts=['a b'] * 9, vocab_size=257, progress=False)\n"
        "t.encode_ids_batch(['a b'] * 99)\n"
        "pid = os.fork()\n"
        "t.encode_ids_batch(['a b'] * 99)\n"
        "pid and os.waitpid(pid, 0)\n"
        "assert not pid or 'TOKENIZERS_PARALLELISM' not in os.environ\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stderr == ""


def test_long_scores_survive_saving(tmp_path):
    """The library reads decimals of 17 digits inexactly; here they are rounded at loading."""
    scores = [["<unk>", 0.0], *([chr(97 + n), -math.sqrt(2 + n * math.pi)] for n in range(23))]
    backend = tokenizers.Tokenizer(models.Unigram([tuple(s) for s in scores], unk_id=0))
    content = json.loads(backend.to_str())
    content["model"]["vocab"] = scores
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    first = Tokenizer.load(tmp_path)
    seen = {first.fingerprint, pickle.loads(pickle.dumps(first)).fingerprint}
    for step in range(3):
        first.save(tmp_path / f"{step}.json")
        first = Tokenizer.load(tmp_path / f"{step}.json")
        seen.add(first.fingerprint)
    assert len(seen) == 1


def test_truncation_in_a_file_is_switched_off(trained, tmp_path):
    content = json.loads(trained["bpe"].to_json())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert len(Tokenizer.load(tmp_path).encode(ENGLISH[0])) > 2
