"""Topics on tokenizers against the libraries and against sums over all segmentations."""

import itertools
import json
import math
import random

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from trivium.errors import TokenizerError
from trivium.explain import explain
from trivium.explain.merges import apply_merges
from trivium.explain.topics.unigram import compute_expected_counts, explain_lattice
from trivium.text import Tokenizer

RATS = ["the car", "the cat", "the rat"]
PROSE = [
    "she sells sea shells by the sea shore and the shells she sells are sea shells",
    "how much wood would a woodchuck chuck if a woodchuck could chuck wood",
    "peter piper picked a peck of pickled peppers",
]
LATTICE = {"a": 0.1, "b": 0.13, "ab": 0.2, "ba": 0.17, "aba": 0.07, "c": 0.11, "bc": 0.22}


def _steps(**options):
    """The merges that the topic learns, as (symbols merged, count)."""
    data = explain("bpe", **options).data
    return [("+".join(step["pair"]), step["count"]) for step in data["merges"]]


def _library_merges(texts: list[str], merges: int, split) -> list[tuple[str, str]]:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = split
    words = [word for text in texts for word, _ in split.pre_tokenize_str(text)]
    size = len({*"".join(words)}) + merges
    backend.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    return [tuple(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]


def test_bpe_merges_the_rats_as_the_textbook():
    assert _steps(merges=3) == [("t+h", 3), ("th+e", 3), ("c+a", 2)]
    assert _steps(merges=3, spaces=True) == [("t+h", 3), ("th+e", 3), ("the+\u2581", 3)]
    assert _steps(merges=3, ties="lowest-ids") == [("h+e", 3), ("t+he", 3), ("a+t", 2)]
    data = explain("bpe", ties="lowest-ids", merges=3).data
    assert data["merges"][0]["ties"] == [("t", "h")]
    assert data["merges"][2]["words"] == {
        "the": ["the"],
        "car": ["c", "a", "r"],
        "cat": ["c", "at"],
        "rat": ["r", "at"],
    }
    assert data["vocabulary"] == ["a", "c", "e", "h", "r", "t", "he", "the", "at"]
    assert "th + e -> the" in explain("bpe").text()


@pytest.mark.parametrize("topic", ["bpe", "byte-bpe"])
def test_ties_by_bytes_are_those_of_a_course(topic):
    """The example of Stanford's CS336, assignment 1, section 2.4."""
    counts = {"low": 5, "lower": 2, "widest": 3, "newest": 6}
    text = " ".join(" ".join([word] * count) for word, count in counts.items())
    merges = "s+t e+st o+w l+ow w+est n+e ne+west w+i wi+d wid+est low+e lowe+r"
    texts = [text] if topic == "bpe" else text.split()
    data = explain(topic, texts, merges=12, ties="frequent-then-bytes").data
    assert " ".join("+".join(step["pair"]) for step in data["merges"]) == merges


@pytest.mark.parametrize(
    ("topic", "split"),
    [
        ("bpe", pre_tokenizers.WhitespaceSplit()),
        ("byte-bpe", pre_tokenizers.ByteLevel(add_prefix_space=False)),
    ],
    ids=["bpe", "byte-bpe"],
)
def test_merges_are_those_of_the_library(topic, split):
    rng = random.Random(0)
    noise = ["".join(rng.choices("abc\u4eca\u5929 ", k=300))]
    for texts, most in [(RATS, 5), (PROSE, 37), (noise, 60)]:
        page = explain(topic, texts, merges=most, ties="lowest-ids")
        merges = [step["pair"] for step in page.data["merges"]]
        assert merges == _library_merges(texts, most, split)


@pytest.mark.parametrize(
    ("kind", "size"),
    [("bpe", 127), ("byte-bpe", 331), ("wordpiece", 149), ("whitespace", 31), ("unigram", 127)],
)
def test_tokens_are_those_of_the_library(kind, size, tmp_path):
    texts = [
        *PROSE,
        "shellwood peppercorn",
        "Pickle   pepper, sea!",
        "xylophone \u4eca\u5929 q sea",
    ]
    tokenizer = Tokenizer.train(kind, texts=PROSE * 3, vocab_size=size, progress=False)
    path = tokenizer.save(tmp_path / kind)
    inside = texts[:-2] if kind == "bpe" else texts
    for text, data in zip(inside, explain(kind, inside, tokenizer=path).data["texts"]):
        words = data.get("words", [data])
        tokens = [token for word in words for token in word["tokens"]]
        encoding = tokenizer.encode(text, add_special_tokens=False)
        # The library shows an unknown piece as it is in the text.
        library = tokenizer.backend.encode(text, add_special_tokens=False).tokens
        if kind != "unigram":
            assert tokens == list(encoding.tokens)
        elif "\u5929" not in text:
            assert tokens == library


def test_a_tokenizer_of_another_kind_names_its_topic(tmp_path):
    tokenizer = Tokenizer.train("unigram", texts=PROSE * 3, vocab_size=127, progress=False)
    path = tokenizer.save(tmp_path / "unigram")
    with pytest.raises(TokenizerError, match="trivium explain unigram"):
        explain("bpe", ["a"], tokenizer=path)


def test_unigram_pieces_are_the_most_probable_whatever_their_scores(tmp_path):
    content = json.loads(
        Tokenizer.train("unigram", texts=PROSE * 3, vocab_size=129, progress=False).to_json()
    )
    rng = random.Random(3)
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = [[piece, -rng.uniform(1, 12)] for piece, _ in vocabulary]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    for data in explain("unigram", PROSE, tokenizer=path).data["texts"]:
        tokens = [token for word in data["words"] for token in word["tokens"]]
        assert tokens == Tokenizer.load(path).backend.encode(data["text"]).tokens


def test_bpe_encoding_step_by_step(tmp_path):
    steps = apply_merges("the", {("h", "e"): 0, ("t", "he"): 1})
    assert [symbols for _, symbols in steps] == [["t", "he"], ["the"]]
    assert apply_merges("", {}) == []
    steps = apply_merges("aaaaa", {("a", "a"): 0})  # of equal pairs the leftmost first
    assert [" ".join(symbols) for _, symbols in steps] == ["aa a a a", "aa aa a"]
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "aa": 1}, [("a", "a")]))
    assert steps[-1][1] == backend.encode("aaaaa").tokens
    vocabulary = {i: bytes([i]) for i in range(256)} | {256: b"he"}
    path = Tokenizer.from_merges(vocabulary, [(b"h", b"e")]).save(tmp_path)
    page = explain("bpe", ["the\u00e9"], tokenizer=path)
    assert page.data["texts"][0]["words"][0]["tokens"] == ["t", "he", "\\xc3", "\\xa9"]
    assert "h + e     0  t he \\xc3 \\xa9" in page.text()


def test_bytes():
    page = explain("bytes")
    assert page.data["utf8"] == "e4 bb 8a e5 a4 a9"
    assert page.data["utf16"] == "4e ca 59 29"
    assert "62 11 4e ca" in page.text()
    assert explain("bytes", "\u6211\u4eca").data["utf16"] == "62 11 4e ca"
    assert "U+4ECA      e4 bb 8a  4e ca" in page.text()
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text in ["\u4eca\u5929", "a b\n\u00e9\U0001f600"]:
        expected = "".join(word for word, _ in level.pre_tokenize_str(text))
        assert explain("bytes", text).data["symbols"] == expected


def test_wordpiece_matching():
    page = explain("wordpiece", ["playing"])
    assert page.data["words"][0]["tokens"] == ["play", "##ing"]
    vocabulary = "un ##aff ##able ##a"
    page = explain("wordpiece", ["unaffable unx"], vocab=vocabulary)
    whole, broken = page.data["words"]
    assert whole["tokens"] == ["un", "##aff", "##able"]
    assert "    affable           ##aff   ##affable ##affabl ##affab ##affa" in page.text()
    assert broken["tokens"] == ["[UNK]"]
    assert "no match" in page.text()
    chinese = explain("wordpiece", ["\u4eca\u5929"], vocab="\u4eca \u5929").data["words"]
    assert [word["tokens"] for word in chinese] == [["\u4eca"], ["\u5929"]]
    long = explain("wordpiece", ["un" * 51], vocab="un ##un").data["words"][0]
    assert long["tokens"] == ["[UNK]"]


def test_words_are_cut_by_rules_and_by_every_kind():
    texts = ["don't", "\u6211\u4eca\u5929\u53bb\u4e86\u5546\u5e97\u3002"]
    english, chinese = (explain("words", texts).data[text] for text in texts)
    assert english["Penn Treebank"] == ["do", "n't"]
    assert len(chinese["text.split()"]) == 1
    assert {*Tokenizer.kinds} < {*english}
    assert len(chinese["byte-bpe"]) > 1


def test_words_beyond_the_vocabulary_are_unknown():
    page = explain("whitespace", ["a b a", "a c"], kept=2)
    assert page.data["counts"] == {"a": 2 + 1, "b": 1, "c": 1}
    assert [one["tokens"] for one in page.data["texts"]] == [["a", "b", "a"], ["a", "<unk>"]]


def _paths(text: str, probabilities: dict[str, float]) -> dict[tuple[str, ...], float]:
    """Every segmentation, by trying every set of cuts."""
    paths = {}
    for truncations in itertools.product([False, True], repeat=len(text) - 1):
        bounds = [0, *(i + 1 for i, cut in enumerate(truncations) if cut), len(text)]
        pieces = tuple(text[a:b] for a, b in itertools.pairwise(bounds))
        if all(piece in probabilities for piece in pieces):
            paths[pieces] = math.prod(probabilities[piece] for piece in pieces)
    return paths


def test_lattice_of_the_textbook():
    page = explain("unigram", ["ababc"], vocab="ab c")
    (data,) = page.data["texts"]
    assert data["likelihood"] == pytest.approx(4 / 27, rel=1e-14)
    assert data["tokens"] == ("ab", "ab", "c")
    assert data["path_count"] == 1
    assert "2/3 x 2/3 x 1/3  4/27" in page.text()
    with pytest.raises(TokenizerError, match="cannot be segmented"):
        explain("unigram", ["abd"], vocab="ab c")


def test_lattice_equals_enumeration():
    text = "abababc"
    expected = _paths(text, LATTICE)
    data = explain_lattice(text, LATTICE)[1]
    paths = data["paths"]
    assert data["path_count"] == len(expected) > len(paths) == 10
    best = sorted(expected.values(), reverse=True)
    for path, probability in zip(paths, best):
        assert math.exp(path["log_probability"]) == pytest.approx(probability, rel=1e-12)
        assert expected[path["pieces"]] == pytest.approx(probability, rel=1e-12)
    total = sum(expected.values())
    assert data["likelihood"] == pytest.approx(total, rel=1e-12)
    counts, likelihood = compute_expected_counts(text, LATTICE)
    assert likelihood == pytest.approx(total, rel=1e-12)
    for piece in LATTICE:
        share = sum(p * pieces.count(piece) for pieces, p in expected.items()) / total
        assert counts.get(piece, 0.0) == pytest.approx(share, abs=1e-13)
    assert compute_expected_counts("x", LATTICE) == ({}, 0.0)
    scores = [("<unk>", 0.0), *((piece, math.log(p)) for piece, p in LATTICE.items())]
    backend = tokenizers.Tokenizer(models.Unigram(scores, unk_id=0))
    for text in ["abababc", "ababc", "bcbcba", "aabbcc"]:
        assert explain_lattice(text, LATTICE)[1]["tokens"] == tuple(backend.encode(text).tokens)


def test_the_ways_to_cut_a_long_word_are_counted_exactly():
    ways = [1, 1]  # a Fibonacci number beyond what a float holds
    for _ in range(1500):
        ways.append(ways[-1] + ways[-2])
    _, data = explain_lattice("a" * 1501, {"a": 0.5, "aa": 0.25})
    assert data["path_count"] == ways[1501]


def test_unigram_training_rounds():
    words = {"hug": 3, "pug": 2, "pun": 1, "bun": 1, "hugs": 1}
    text = " ".join(word for word, count in words.items() for _ in range(count))
    page = explain("unigram", [text], vocab_size=9)
    training = page.data["training"]
    final = training["probabilities"]
    assert len(final) == 9
    assert sum(final.values()) == pytest.approx(1.0)
    assert len(training["rounds"]) > 1
    for rows in training["rounds"]:
        probabilities = {row["piece"]: row["probability"] for row in rows}
        whole = sum(n * math.log(sum(_paths(w, probabilities).values())) for w, n in words.items())
        kept = sum(row["kept"] for row in rows)
        assert kept == max(9, math.floor(0.8 * len(rows))) or kept == len(rows)
        assert all(row["kept"] for row in rows if len(row["piece"]) == 1)
        removed = [row["loss"] for row in rows if not row["kept"]]
        stay = [row["loss"] for row in rows if row["kept"] and row["loss"] is not None]
        assert not (removed and stay) or max(removed) <= min(stay)
        for row in rows:
            if row["loss"] is not None:
                rest = {p: v for p, v in probabilities.items() if p != row["piece"]}
                sums = {w: sum(_paths(w, rest).values()) for w in words}
                without = sum(n * math.log(sums[w]) for w, n in words.items())
                assert row["loss"] == pytest.approx(whole - without, abs=1e-9)
    assert "removed" in page.text()
    assert "round 1, after 2 EM steps" in page.text()
    with pytest.raises(TokenizerError, match="characters"):
        explain("unigram", ["abc"], vocab_size=2)


def test_em_steps_are_exact():
    """Probabilities are the expected counts over their sum."""
    training = explain("unigram", ["abab ab"], vocab_size=100).data["training"]
    probabilities = {"a": 1 / 3, "b": 1 / 3, "ab": 1 / 3}  # each occurs three times, others once
    assert set(training["seed"]) == set(probabilities)
    counts = {}
    for _ in range(2):
        counts = dict.fromkeys(probabilities, 0.0)
        for word in ("abab", "ab"):
            paths = _paths(word, probabilities)
            for pieces, p in paths.items():
                for piece in pieces:
                    counts[piece] += p / sum(paths.values())
        probabilities = {piece: count / sum(counts.values()) for piece, count in counts.items()}
    for row in training["rounds"][0]:
        assert row["expected_count"] == pytest.approx(counts[row["piece"]], rel=1e-12)
        assert row["probability"] == pytest.approx(probabilities[row["piece"]], rel=1e-12)


TEXT_TOPICS = ["bpe", "byte-bpe", "wordpiece", "unigram", "whitespace", "words"]


@pytest.mark.parametrize("topic", TEXT_TOPICS)
def test_texts_that_cannot_be_explained_are_refused(topic):
    for texts, message in (([" "], "no text"), (["a\ud800"], "valid Unicode")):
        with pytest.raises(TokenizerError, match=message):
            explain(topic, texts)
