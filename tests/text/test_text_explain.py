"""Explanations against the libraries and against sums over all segmentations."""

import itertools
import json
import math
import random

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from trivium.errors import TokenizerError
from trivium.text import Tokenizer
from trivium.text.trainers.bpe import explain_bpe_training, explain_merges
from trivium.text.trainers.byte_bpe import explain_bytes
from trivium.text.trainers.unigram import expected_counts, explain_lattice, explain_unigram_training
from trivium.text.trainers.wordpiece import match_wordpiece

RATS = ["the car", "the cat", "the rat"]
PROSE = [
    "she sells sea shells by the sea shore and the shells she sells are sea shells",
    "how much wood would a woodchuck chuck if a woodchuck could chuck wood",
    "peter piper picked a peck of pickled peppers",
]
LATTICE = {"a": 0.1, "b": 0.13, "ab": 0.2, "ba": 0.17, "aba": 0.07, "c": 0.11, "bc": 0.22}


def _library_merges(texts: list[str], merges: int) -> list[tuple[str, str]]:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    alphabet = {c for text in texts for c in text if c != " "}
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + merges, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return [tuple(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]


def test_bpe_training():
    training = explain_bpe_training(RATS, merges=4)
    merges = training.facts["merges"]
    first = [(merge["pair"], merge["count"]) for merge in merges[:3]]
    assert first == [(("h", "e"), 3), (("t", "he"), 3), (("a", "t"), 2)]
    assert merges[0]["ties"] == [("t", "h")]
    words = ((("the",), 3), (("c", "a", "r"), 1), (("c", "at"), 1), (("r", "at"), 1))
    assert merges[2]["words"] == words
    assert training.facts["vocabulary"][:6] == ("a", "c", "e", "h", "r", "t")
    assert "t + he -> the, 3 times" in training.render()
    for texts, most in [(RATS, 5), (PROSE, 37)]:
        merges = explain_bpe_training(texts, merges=most).facts["merges"]
        assert [merge["pair"] for merge in merges] == _library_merges(texts, most)
    with pytest.raises(TokenizerError, match="no text"):
        explain_bpe_training(["  "])


def test_explained_tokens_are_those_of_the_library():
    texts = [
        *PROSE,
        "shellwood peppercorn",
        "Pickle   pepper, sea!",
        "xylophone \u4eca\u5929 q sea",
    ]
    for kind, size in [("bpe", 83), ("byte-bpe", 331), ("wordpiece", 101), ("whitespace", 31)]:
        tokenizer = Tokenizer.train(kind, texts=PROSE * 3, vocab_size=size, progress=False)
        for text in texts if kind not in ("bpe",) else texts[:-2]:
            explanation = tokenizer.explain(text)
            assert explanation.tokens == tokenizer.encode(text, add_special_tokens=False).tokens
            assert explanation.render().endswith("tokens: " + " ".join(explanation.tokens))
            assert json.loads(json.dumps(explanation.facts))["text"] == text
    unigram = Tokenizer.train("unigram", texts=PROSE * 3, vocab_size=59, progress=False)
    for text in [*texts[:-1], "xylophone \u4eca q sea"]:
        # The library shows an unknown piece as it is in the text.
        assert unigram.explain(text).tokens == tuple(unigram.backend.encode(text).tokens)


def test_unigram_pieces_are_the_most_probable_whatever_their_scores():
    content = json.loads(
        Tokenizer.train("unigram", texts=PROSE * 3, vocab_size=59, progress=False).to_json()
    )
    rng = random.Random(3)
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = [[piece, -rng.uniform(1, 12)] for piece, _ in vocabulary]
    unigram = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)))
    for text in PROSE:
        assert unigram.explain(text).tokens == tuple(unigram.backend.encode(text).tokens)


def test_bpe_encoding_step_by_step():
    ranks = {("h", "e"): 0, ("t", "he"): 1}
    word = explain_merges("the", ranks)
    assert [step["symbols"] for step in word.facts["merges"]] == [("t", "he"), ("the",)]
    assert "t + he (rank 1): the" in word.render()
    assert explain_merges("", {}).tokens == ()
    word = explain_merges("aaaaa", {("a", "a"): 0})  # of equal pairs the leftmost first
    assert [" ".join(step["symbols"]) for step in word.facts["merges"]] == ["aa a a a", "aa aa a"]
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "aa": 1}, [("a", "a")]))
    assert list(word.tokens) == backend.encode("aaaaa").tokens
    vocabulary = {i: bytes([i]) for i in range(256)} | {256: b"he"}
    tokenizer = Tokenizer.from_merges(vocabulary, [(b"h", b"e")])
    assert tokenizer.explain("the\u00e9").tokens == ("t", "he", "\\xc3", "\\xa9")


def test_bytes():
    explanation = explain_bytes("\u4eca\u5929")
    characters = explanation.facts["characters"]
    assert [c["code_point"] for c in characters] == ["U+4ECA", "U+5929"]
    assert [c["utf8"] for c in characters] == [(0xE4, 0xBB, 0x8A), (0xE5, 0xA4, 0xA9)]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text in ["\u4eca\u5929", "a b\n\u00e9\U0001f600"]:
        expected = "".join(word for word, _ in level.pre_tokenize_str(text))
        assert explain_bytes(text).facts["symbols"] == expected
    assert "E4 BB 8A" in explain_bytes("\u4eca").render()


def test_wordpiece_matching():
    vocabulary = {"un", "##aff", "##able", "##a"}
    match = match_wordpiece("unaffable", vocabulary)
    assert match.tokens == ("un", "##aff", "##able")
    steps = match.facts["steps"]
    assert steps[0]["tried"][0] == "unaffable"
    assert steps[-1]["token"] == "##able"
    assert "not in the vocabulary: unaffable" in match.render()
    assert match_wordpiece("unx", vocabulary).tokens == ("[UNK]",)
    assert "x: no match" in match_wordpiece("unx", vocabulary).render()
    assert match_wordpiece("un" * 51, vocabulary).tokens == ("[UNK]",)


def _paths(text: str, probabilities: dict[str, float]) -> dict[tuple[str, ...], float]:
    """Every segmentation, by trying every set of cuts."""
    paths = {}
    for cuts in itertools.product([False, True], repeat=len(text) - 1):
        bounds = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(text)]
        pieces = tuple(text[a:b] for a, b in itertools.pairwise(bounds))
        if all(piece in probabilities for piece in pieces):
            paths[pieces] = math.prod(probabilities[piece] for piece in pieces)
    return paths


def test_lattice_of_the_textbook():
    lattice = explain_lattice("ababc", {"ab", "c"})
    assert lattice.facts["likelihood"] == pytest.approx(4 / 27, rel=1e-14)
    assert lattice.tokens == ("ab", "ab", "c")
    assert lattice.facts["path_count"] == 1
    assert "2/3 x 2/3 x 1/3 = 4/27" in lattice.render()
    assert "probabilities: after 100 EM steps on this text" in lattice.render()
    assert "EM" not in explain_lattice("ababc", {"ab": 0.6, "c": 0.4}).render()
    with pytest.raises(TokenizerError, match="cannot be written"):
        explain_lattice("abd", {"ab", "c"})


def test_lattice_equals_enumeration():
    text = "abababc"
    expected = _paths(text, LATTICE)
    lattice = explain_lattice(text, LATTICE)
    paths = lattice.facts["paths"]
    assert lattice.facts["path_count"] == len(expected) == len(paths) > 10
    for path in paths:
        probability = math.exp(path["log_probability"])
        assert probability == pytest.approx(expected[path["pieces"]], rel=1e-12)
    assert lattice.facts["likelihood"] == pytest.approx(sum(expected.values()), rel=1e-12)
    assert expected[lattice.tokens] == pytest.approx(max(expected.values()), rel=1e-12)
    top = explain_lattice(text, LATTICE, top=3)
    assert top.facts["paths"] == paths[:3]
    assert "less probable paths" in top.render()
    total = sum(expected.values())
    counts, likelihood = expected_counts(text, LATTICE)
    assert likelihood == pytest.approx(total, rel=1e-12)
    for piece in LATTICE:
        share = sum(p * pieces.count(piece) for pieces, p in expected.items()) / total
        assert counts.get(piece, 0.0) == pytest.approx(share, abs=1e-13)
    assert expected_counts("x", LATTICE) == ({}, 0.0)
    scores = [("<unk>", 0.0), *((piece, math.log(p)) for piece, p in LATTICE.items())]
    backend = tokenizers.Tokenizer(models.Unigram(scores, unk_id=0))
    for text in ["abababc", "ababc", "bcbcba", "aabbcc"]:
        assert explain_lattice(text, LATTICE).tokens == tuple(backend.encode(text).tokens)


def test_the_ways_to_cut_a_long_word_are_counted_exactly():
    ways = [1, 1]  # a Fibonacci number beyond what a float holds
    for _ in range(1500):
        ways.append(ways[-1] + ways[-2])
    lattice = explain_lattice("a" * 1501, {"a": 0.5, "aa": 0.25}, top=1)
    assert lattice.facts["path_count"] == ways[1501]


def test_unigram_training_rounds():
    words = {"hug": 3, "pug": 2, "pun": 1, "bun": 1, "hugs": 1}
    text = " ".join(word for word, count in words.items() for _ in range(count))
    training = explain_unigram_training([text], vocab_size=9)
    final = training.facts["probabilities"]
    assert len(final) == 9
    assert sum(final.values()) == pytest.approx(1.0)
    assert len(training.facts["rounds"]) > 1
    for rows in training.facts["rounds"]:
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
    assert "removed" in training.render()
    assert "round 1, after 2 EM steps: piece, expected count" in training.render()
    json.dumps(training.facts)
    with pytest.raises(TokenizerError, match="characters"):
        explain_unigram_training(["abc"], vocab_size=2)
    with pytest.raises(TokenizerError, match="no text"):
        explain_unigram_training([" "], vocab_size=2)


def test_em_steps_are_exact():
    """Probabilities are the expected counts over their sum."""
    training = explain_unigram_training(["abab ab"], vocab_size=100)
    probabilities = {"a": 1 / 3, "b": 1 / 3, "ab": 1 / 3}  # each occurs three times, others once
    assert set(training.facts["seed"]) == set(probabilities)
    counts = {}
    for _ in range(2):
        counts = dict.fromkeys(probabilities, 0.0)
        for word in ("abab", "ab"):
            paths = _paths(word, probabilities)
            for pieces, p in paths.items():
                for piece in pieces:
                    counts[piece] += p / sum(paths.values())
        probabilities = {piece: count / sum(counts.values()) for piece, count in counts.items()}
    for row in training.facts["rounds"][0]:
        assert row["expected_count"] == pytest.approx(counts[row["piece"]], rel=1e-12)
        assert row["probability"] == pytest.approx(probabilities[row["piece"]], rel=1e-12)
