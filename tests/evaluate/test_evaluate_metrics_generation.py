"""Generated texts against sacrebleu and rouge_score called directly, and ROUGE by its formulas."""

from __future__ import annotations

import json
import sys
from collections import Counter

import numpy as np
import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from trivium.errors import DataError, MissingExtraError
from trivium.evaluate.generation_metrics import (
    exact_match_metrics,
    summary_metrics,
    translation_metrics,
)

WORDS = ["The", "cats,", "running;", "ran\nover", "3.5", "lazily-sleeping", "dogs'", "U.S."]
WORDS += ["\u00e9t\u00e9", "(", "."]
HAN = list("\u6211\u4eec\u5728\u5317\u4eac\u5927\u5b66\u3002AI 4")


def texts(
    seed: int, *, words: list[str] = WORDS, count: int = 23
) -> tuple[list[str], list[list[str]]]:
    """Texts and two references of each that have much in common with it."""
    chance = np.random.default_rng(seed)

    def changed(parts: list[str]) -> str:
        others = [words[place] for place in chance.integers(0, len(words), len(parts))]
        kept = chance.random(len(parts)) < 0.8
        return " ".join(part if keep else other for part, other, keep in zip(parts, others, kept))

    predicted, references = [], []
    for _ in range(count):
        parts = [words[place] for place in chance.integers(0, len(words), chance.integers(0, 17))]
        predicted.append(" ".join(parts))
        references.append([changed(parts), changed(parts)])
    return predicted, references


@pytest.mark.parametrize("tokenizer", ["13a", "intl", "char", "none"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_translations_agree_with_sacrebleu(tokenizer: str, lowercase: bool):
    predicted, references = texts(1)
    streams = [list(stream) for stream in zip(*references)]
    found = translation_metrics(predicted, references, tokenizer=tokenizer, lowercase=lowercase)
    expected = sacrebleu.corpus_bleu(predicted, streams, tokenize=tokenizer, lowercase=lowercase)
    assert found.bleu == expected.score
    assert 0 < found.bleu < 100
    metric = sacrebleu.CHRF(lowercase=lowercase)
    assert found.chrf == metric.corpus_score(predicted, streams).score
    assert found.chrf_signature == str(metric.get_signature())
    case = "lc" if lowercase else "mixed"
    assert found.bleu_signature == (
        f"nrefs:2|case:{case}|eff:no|tok:{tokenizer}|smooth:exp|version:{sacrebleu.__version__}"
    )
    assert found.main == ("bleu", found.bleu)
    json.dumps(found.to_dict(), allow_nan=False)


def test_chinese_is_cut_into_characters():
    predicted, references = texts(2, words=HAN)
    found = translation_metrics(predicted, [several[0] for several in references], tokenizer="zh")
    streams = [[several[0] for several in references]]
    assert found.bleu == sacrebleu.corpus_bleu(predicted, streams, tokenize="zh").score
    assert "nrefs:1|" in found.bleu_signature
    assert "tok:zh" in found.bleu_signature


def test_texts_may_have_different_numbers_of_references():
    predicted, references = texts(3)
    uneven: list = [right[:1] if place % 3 else right for place, right in enumerate(references)]
    streams = [
        [several[0] for several in uneven],
        [several[1] if len(several) > 1 else None for several in uneven],
    ]
    found = translation_metrics(predicted, uneven)
    assert found.bleu == sacrebleu.corpus_bleu(predicted, streams).score
    assert "nrefs:var" in found.bleu_signature
    assert found.chrf == sacrebleu.corpus_chrf(predicted, streams).score


def test_an_empty_translation_scores_nothing():
    found = translation_metrics(["", ""], ["a b", "c"])
    assert (found.bleu, found.chrf, found.exact_match) == (0.0, 0.0, 0.0)


def test_perfect_translations():
    found = translation_metrics(["the cat sat on a mat ."] * 3, ["the cat sat on a mat ."] * 3)
    assert found.bleu == pytest.approx(100)
    assert (found.chrf, found.exact_match) == (100.0, 100.0)
    head, bleu, *_ = found.table()
    assert head == ("Metric", "Value", "Signature")
    assert bleu[:2] == ("BLEU", "100.00")


def test_texts_that_look_tokenized_are_taken_without_advice(caplog):
    translation_metrics(["it is ."] * 101, ["it is ."] * 101)
    assert not caplog.records


def test_an_unknown_tokenizer_is_told_with_the_known_ones():
    with pytest.raises(DataError, match=r'"zn" is none of.*zh'):
        translation_metrics(["a"], ["a"], tokenizer="zn")  # type: ignore[arg-type]
    # This one would be fetched from the network.
    with pytest.raises(DataError, match="none of the tokenizers"):
        translation_metrics(["a"], ["a"], tokenizer="flores200")  # type: ignore[arg-type]


def test_a_tokenizer_without_its_dictionary_says_what_to_install(monkeypatch):
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(DataError, match=r"sacrebleu\[ja\]"):
        translation_metrics(["a"], ["a"], tokenizer="ja-mecab")


@pytest.mark.parametrize("stemmer", [False, True])
def test_summaries_agree_with_rouge_score(stemmer: bool):
    predicted, references = texts(4)
    found = summary_metrics(predicted, references, stemmer=stemmer)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=stemmer)
    scores = [scorer.score_multi(right, text) for text, right in zip(predicted, references)]
    for ours, theirs in (
        (found.rouge1, "rouge1"),
        (found.rouge2, "rouge2"),
        (found.rouge_l, "rougeL"),
        (found.rouge_lsum, "rougeLsum"),
    ):
        assert ours == pytest.approx(100 * np.mean([one[theirs].fmeasure for one in scores]))
    assert found.main == ("rouge_l", found.rouge_l)
    assert found.rouge_l != found.rouge_lsum
    assert found.table()[1] == ("ROUGE-1", f"{found.rouge1:.2f}")
    json.dumps(found.to_dict(), allow_nan=False)


def test_summaries_in_any_script_by_the_formulas_of_rouge():
    predicted, references = texts(5, words=HAN)

    def parts(text: str) -> list[str]:
        spaced = "".join(f" {sign} " if "\u4e00" <= sign <= "\u9fff" else sign for sign in text)
        return spaced.lower().replace("\u3002", " ").split()

    def f1(common: int, right: int, found: int) -> float:
        return 2 * common / (right + found) if common else 0.0

    def rouge(n: int, reference: str, text: str) -> float:
        right, found = (
            Counter(zip(*(parts(one)[start:] for start in range(n)))) for one in (reference, text)
        )
        return f1((right & found).total(), right.total(), found.total())

    found = summary_metrics(predicted, references, words="any")
    for n, ours in ((1, found.rouge1), (2, found.rouge2)):
        theirs = [
            max(rouge(n, reference, text) for reference in several)
            for text, several in zip(predicted, references)
        ]
        assert ours == pytest.approx(100 * np.mean(theirs))
    assert 50 < found.rouge1 < 100
    assert summary_metrics(["\u5317\u4eac"], ["\u5317\u4eac"], words="any").rouge2 == 100.0
    assert summary_metrics(["\u5317\u4eac"], ["\u5317\u4eac"]).rouge2 == 0.0


def test_stems_are_of_english_words():
    assert summary_metrics(["running cats"], ["run cat"], stemmer=True).rouge1 == 100.0
    with pytest.raises(DataError, match="English"):
        summary_metrics(["a"], ["a"], stemmer=True, words="any")


def test_an_empty_summary_scores_nothing():
    found = summary_metrics(["", "!"], ["a b", "c"])
    assert (found.rouge1, found.rouge2, found.rouge_l, found.rouge_lsum) == (0, 0, 0, 0)


def test_exact_matches():
    found = exact_match_metrics([" yes ", "No", "", "b"], ["yes", "no", "", ["a", "b"]])
    assert found.main == ("exact_match", 75.0)
    assert found.to_dict() == {"exact_match": 75.0, "count": 4}
    assert found.table()[1] == ("exact match", "75.00")


@pytest.mark.parametrize("measure", [translation_metrics, summary_metrics, exact_match_metrics])
def test_texts_that_cannot_be_compared(measure):
    with pytest.raises(DataError, match="no references"):
        measure([], [])
    with pytest.raises(DataError, match="1 predictions for 2 references"):
        measure(["a"], ["a", "b"])
    with pytest.raises(DataError, match="text 2 has no reference"):
        measure(["a", "b"], [["a"], []])


@pytest.mark.parametrize(
    ("measure", "missing"),
    [
        (translation_metrics, "sacrebleu.metrics.bleu"),
        (summary_metrics, "rouge_score.rouge_scorer"),
    ],
)
def test_a_missing_library_is_told_with_what_installs_it(monkeypatch, measure, missing: str):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=r"trivium\[metrics\]"):
        measure(["a"], ["a"])
