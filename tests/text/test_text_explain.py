"""The teaching implementations against the libraries and against sums written out."""

import itertools
import json
import math

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from trivium.errors import TokenizerError
from trivium.text import Tokenizer
from trivium.text.explain import (
    encode_bpe,
    explain_bpe_encoding,
    explain_bytes,
    explain_lattice,
    explain_unigram_encoding,
    explain_wordpiece_encoding,
    match_wordpiece,
    train_bpe,
    train_unigram,
)
from trivium.text.explain_unigram import expected_counts

RATS = ["the car", "the cat", "the rat"]
PROSE = [
    "she sells sea shells by the sea shore and the shells she sells are sea shells",
    "how much wood would a woodchuck chuck if a woodchuck could chuck wood",
    "peter piper picked a peck of pickled peppers",
]


def _library_merges(texts: list[str], merges: int) -> list[tuple[str, str]]:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    alphabet = {c for text in texts for c in text if c != " "}
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + merges, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return [tuple(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]


def test_bpe_training_on_the_rats():
    found = train_bpe(RATS, merges=4)
    assert [(merge.pair, merge.count) for merge in found.merges[:3]] == [
        (("h", "e"), 3),
        (("t", "he"), 3),
        (("a", "t"), 2),
    ]
    assert found.merges[0].ties == (("t", "h"),)
    assert found.merges[2].words == (
        (("the",), 3),
        (("c", "a", "r"), 1),
        (("c", "at"), 1),
        (("r", "at"), 1),
    )
    assert found.to_dict()["vocabulary"][:6] == ["a", "c", "e", "h", "r", "t"]
    assert "t + he -> the, 3 times" in found.render()


@pytest.mark.parametrize(("texts", "merges"), [(RATS, 5), (PROSE, 37)])
def test_bpe_training_equals_the_library(texts, merges):
    found = train_bpe(texts, merges=merges)
    # The library skips the rest of a tie once its pairs are gone, so lengths agree as well.
    assert [merge.pair for merge in found.merges] == _library_merges(texts, merges)


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_bpe_encoding_equals_the_library(kind):
    tokenizer = Tokenizer.train(kind, texts=PROSE * 3, vocab_size=331, progress=False)
    for text in [*PROSE, "shellwood peppercorn", "pickle   pepper sea"]:
        found = explain_bpe_encoding(tokenizer.backend, text)
        assert found.tokens == tokenizer.encode(text).tokens
        for word in found.words:
            for merge in word.merges:
                assert "".join(merge.symbols) == "".join(word.symbols)
    assert "rank" in found.render()
    assert encode_bpe("", {}).tokens == ()


def test_bytes():
    found = explain_bytes("\u4eca\u5929")
    assert [c.code_point for c in found.characters] == ["U+4ECA", "U+5929"]
    assert [c.utf8 for c in found.characters] == [(0xE4, 0xBB, 0x8A), (0xE5, 0xA4, 0xA9)]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text in ["\u4eca\u5929", "a b\n\u00e9\U0001f600"]:
        symbols = explain_bytes(text).symbols
        assert symbols == "".join(word for word, _ in level.pre_tokenize_str(text))
    assert "E4 BB 8A" in found.render()


def test_wordpiece_matching():
    vocabulary = {"un", "##aff", "##able", "##a"}
    found = match_wordpiece("unaffable", vocabulary)
    assert found.tokens == ("un", "##aff", "##able")
    assert found.steps[0].tried[0] == "unaffable"
    assert found.steps[-1].token == "##able"
    assert match_wordpiece("unx", vocabulary).tokens == ("[UNK]",)
    assert match_wordpiece("un" * 51, vocabulary).tokens == ("[UNK]",)


def test_wordpiece_equals_the_library():
    tokenizer = Tokenizer.train("wordpiece", texts=PROSE * 3, vocab_size=101, progress=False)
    for text in [*PROSE, "Woodpecker, seashore!", "xylophone \u4eca\u5929"]:
        found = explain_wordpiece_encoding(tokenizer.backend, text)
        assert found.tokens == tokenizer.encode(text, add_special_tokens=False).tokens


def test_lattice_of_the_textbook():
    found = explain_lattice("ababc", {"ab", "c"})
    assert found.likelihood == pytest.approx(4 / 27, rel=1e-14)
    assert found.best.pieces == ("ab", "ab", "c")
    assert found.path_count == 1
    assert "2/3 x 2/3 x 1/3 = 4/27" in found.render()
    assert found.to_dict()["likelihood"] == found.likelihood


def _paths(text: str, probabilities: dict[str, float]) -> dict[tuple[str, ...], float]:
    """Every segmentation, by trying every set of cuts."""
    found = {}
    for cuts in itertools.product([False, True], repeat=len(text) - 1):
        bounds = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(text)]
        pieces = tuple(text[a:b] for a, b in itertools.pairwise(bounds))
        if all(piece in probabilities for piece in pieces):
            found[pieces] = math.prod(probabilities[piece] for piece in pieces)
    return found


LATTICE = {"a": 0.1, "b": 0.13, "ab": 0.2, "ba": 0.17, "aba": 0.07, "c": 0.11, "bc": 0.22}


def test_lattice_equals_enumeration():
    text = "abababc"
    expected = _paths(text, LATTICE)
    found = explain_lattice(text, LATTICE)
    assert found.path_count == len(expected) == len(found.paths) > 10
    for path in found.paths:
        assert path.probability == pytest.approx(expected[path.pieces], rel=1e-12)
    assert found.likelihood == pytest.approx(sum(expected.values()), rel=1e-12)
    assert expected[found.best.pieces] == pytest.approx(max(expected.values()), rel=1e-12)
    top = explain_lattice(text, LATTICE, top=3)
    assert top.paths == found.paths[:3]
    assert "paths less likely" in top.render()


def test_expected_counts_equal_enumeration():
    text = "ababc"
    paths = _paths(text, LATTICE)
    total = sum(paths.values())
    counts, likelihood = expected_counts(text, LATTICE)
    assert likelihood == pytest.approx(total, rel=1e-12)
    for piece in LATTICE:
        share = sum(p * pieces.count(piece) for pieces, p in paths.items()) / total
        assert counts.get(piece, 0.0) == pytest.approx(share, abs=1e-13)


def test_lattice_equals_the_library():
    scores = [("<unk>", 0.0), *((piece, math.log(p)) for piece, p in LATTICE.items())]
    backend = tokenizers.Tokenizer(models.Unigram(scores, unk_id=0))
    for text in ["abababc", "ababc", "bcbcba", "aabbcc"]:
        assert explain_lattice(text, LATTICE).best.pieces == tuple(backend.encode(text).tokens)
    trained = Tokenizer.train("unigram", texts=PROSE * 3, vocab_size=59, progress=False)
    for text in [*PROSE, "wood shells \u00a0 by", "q sea"]:
        found = explain_unigram_encoding(trained.backend, text)
        # The library writes an unknown piece as it stands in the text.
        assert found.tokens == tuple(trained.backend.encode(text).tokens)


def test_lattice_that_cannot_cover_says_so():
    with pytest.raises(TokenizerError, match="cannot be written"):
        explain_lattice("abd", {"ab", "c"})


def test_unigram_training_rounds():
    found = train_unigram(["hug pug pun bun hugs hug hug pug"], vocab_size=9, keep=0.8)
    assert len(found.probabilities) == 9
    assert sum(p for _, p in found.probabilities) == pytest.approx(1.0)
    words = dict(found.words)
    for one in found.rounds:
        before, after = one.log_likelihoods[0], one.log_likelihoods[-1]
        assert after >= before - 1e-9
        kept = sum(piece.kept for piece in one.pieces)
        assert kept == max(9, math.floor(0.8 * len(one.pieces))) or kept == len(one.pieces)
        assert all(piece.kept for piece in one.pieces if len(piece.piece) == 1)
        removed = [p.loss for p in one.pieces if not p.kept and p.loss is not None]
        stays = [p.loss for p in one.pieces if p.kept and p.loss is not None]
        if removed and stays:
            assert max(removed) <= min(stays)
    # The loss of a piece, from sums over all segmentations written out.
    first = found.rounds[0]
    probabilities = {piece.piece: piece.probability for piece in first.pieces}
    whole = sum(n * math.log(sum(_paths(w, probabilities).values())) for w, n in words.items())
    assert first.log_likelihoods[-1] == pytest.approx(whole, rel=1e-10)
    for piece in first.pieces:
        if piece.loss is None:
            continue
        rest = {k: v for k, v in probabilities.items() if k != piece.piece}
        without = sum(n * math.log(sum(_paths(w, rest).values())) for w, n in words.items())
        assert piece.loss == pytest.approx(whole - without, abs=1e-9)
    assert "removed" in found.render()
    json.dumps(found.to_dict())


def test_em_step_is_exact():
    """One round with one EM step: probabilities are the expected counts over their sum."""
    found = train_unigram(["abab ab"], vocab_size=100, em_steps=1)
    seed_total = 3 + 3 + 3  # a, b and ab occur three times each; abab, ba and longer ones once
    start = {"a": 3 / seed_total, "b": 3 / seed_total, "ab": 3 / seed_total}
    assert set(found.seed) == set(start)
    counts = dict.fromkeys(start, 0.0)
    for word in ("abab", "ab"):
        paths = _paths(word, start)
        for pieces, p in paths.items():
            for piece in pieces:
                counts[piece] += p / sum(paths.values())
    total = sum(counts.values())
    for piece in found.rounds[0].pieces:
        assert piece.expected_count == pytest.approx(counts[piece.piece], rel=1e-12)
        assert piece.probability == pytest.approx(counts[piece.piece] / total, rel=1e-12)


def test_explaining_the_wrong_kind_says_so():
    tokenizer = Tokenizer.train("bpe", texts=PROSE, vocab_size=59, progress=False)
    with pytest.raises(TokenizerError, match="BPE"):
        explain_wordpiece_encoding(tokenizer.backend, "x")
    with pytest.raises(TokenizerError, match="BPE"):
        explain_unigram_encoding(tokenizer.backend, "x")
    with pytest.raises(TokenizerError):
        train_bpe(["  "])
    with pytest.raises(TokenizerError, match="characters"):
        train_unigram(["abc"], vocab_size=2)
