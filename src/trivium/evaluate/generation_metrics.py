"""How near generated texts are to what people wrote: BLEU, chrF, ROUGE, exact match.

All numbers are per cent. sacrebleu and rouge_score do the arithmetic, and BLEU and chrF come with
sacrebleu's signatures, without which they compare to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trivium.errors import DataError
from trivium.evaluate.metrics import TableRow, check_equal_lengths
from trivium.evaluate.optional import optional_part

# One right text for each prediction, or several.
References = Sequence[str | Sequence[str]]

# sacrebleu's others fetch a model from the network.
BleuTokenizer = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"]
RougeWords = Literal["english", "any"]

# Words of any script; Han and kana, which are written without spaces, one by one.
_ANY_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|(?:(?![\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff])\w)+"
)


@dataclass(frozen=True)
class TranslationMetrics:
    """BLEU and chrF2 of a corpus with their signatures, and the share of exact matches."""

    bleu: float
    chrf: float
    exact_match: float
    bleu_signature: str
    chrf_signature: str
    count: int

    @property
    def main(self) -> tuple[str, float]:
        """BLEU."""
        return "bleu", self.bleu

    def to_dict(self) -> dict[str, float]:
        """Every number by its name."""
        return {
            "bleu": self.bleu,
            "chrf": self.chrf,
            "exact_match": self.exact_match,
            "count": self.count,
        }

    def table(self) -> list[TableRow]:
        """One row a metric below a row of names, with the signatures."""
        return [
            ("Metric", "Value", "Signature"),
            ("BLEU", f"{self.bleu:.2f}", self.bleu_signature),
            ("chrF2", f"{self.chrf:.2f}", self.chrf_signature),
            ("exact match", f"{self.exact_match:.2f}", ""),
        ]


@dataclass(frozen=True)
class SummaryMetrics:
    """Means over all texts of the F1 of ROUGE (Lin 2004), and the share of exact matches."""

    rouge1: float
    rouge2: float
    rouge_l: float
    rouge_lsum: float
    exact_match: float
    count: int

    @property
    def main(self) -> tuple[str, float]:
        """ROUGE-L."""
        return "rouge_l", self.rouge_l

    def to_dict(self) -> dict[str, float]:
        """Every number by its name."""
        return {
            "rouge1": self.rouge1,
            "rouge2": self.rouge2,
            "rouge_l": self.rouge_l,
            "rouge_lsum": self.rouge_lsum,
            "exact_match": self.exact_match,
            "count": self.count,
        }

    def table(self) -> list[TableRow]:
        """One row a metric below a row of names."""
        return [
            ("Metric", "Value"),
            ("ROUGE-1", f"{self.rouge1:.2f}"),
            ("ROUGE-2", f"{self.rouge2:.2f}"),
            ("ROUGE-L", f"{self.rouge_l:.2f}"),
            ("ROUGE-Lsum", f"{self.rouge_lsum:.2f}"),
            ("exact match", f"{self.exact_match:.2f}"),
        ]


@dataclass(frozen=True)
class ExactMatchMetrics:
    """The share of texts that equal a right one but for white space at their ends."""

    exact_match: float
    count: int

    @property
    def main(self) -> tuple[str, float]:
        """Exact match."""
        return "exact_match", self.exact_match

    def to_dict(self) -> dict[str, float]:
        """Every number by its name."""
        return {"exact_match": self.exact_match, "count": self.count}

    def table(self) -> list[TableRow]:
        """One row below a row of names."""
        return [("Metric", "Value"), ("exact match", f"{self.exact_match:.2f}")]


def exact_match_metrics(predicted: Sequence[str], references: References) -> ExactMatchMetrics:
    """Compare texts with the right ones as they are: case and punctuation count.

    Raises:
        DataError: no texts, unequal numbers of them, or a text without a reference.
    """
    several = _several(predicted, references)
    return ExactMatchMetrics(_exact_match(predicted, several), len(predicted))


def translation_metrics(
    predicted: Sequence[str],
    references: References,
    *,
    tokenizer: BleuTokenizer = "13a",
    lowercase: bool = False,
) -> TranslationMetrics:
    """BLEU (Papineni et al. 2002) and chrF2 (Popovic 2015) of a corpus, by sacrebleu (Post 2018).

    Args:
        predicted: the translations.
        references: one or several for each; not all need have equally many.
        tokenizer: sacrebleu's for BLEU: "zh" into Chinese, "ja-mecab" and "ko-mecab" into Japanese
            and Korean, "13a" into languages with spaces.
        lowercase: leave case out, in both metrics.

    Raises:
        DataError: no texts, unequal numbers of them, a text without a reference, or a tokenizer
            that is unknown or needs a dictionary that is not installed.
        MissingExtraError: sacrebleu is not installed.
    """
    with optional_part("Measuring translation"):
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    several = _several(predicted, references)
    if tokenizer not in get_args(BleuTokenizer):
        raise DataError(
            f'"{tokenizer}" is none of the tokenizers for BLEU: '
            f"{', '.join(get_args(BleuTokenizer))}."
        )
    try:
        # force: no advice on standard error about texts that look tokenized.
        bleu = BLEU(tokenize=tokenizer, lowercase=lowercase, force=True)
    except RuntimeError as error:
        part = tokenizer[:2]
        raise DataError(
            f'the BLEU tokenizer "{tokenizer}" needs a dictionary: pip install '
            f"'sacrebleu[{part}]', or choose \"char\"."
        ) from error
    chrf = CHRF(lowercase=lowercase)
    streams = _streams(several)
    return TranslationMetrics(
        bleu=float(bleu.corpus_score(predicted, streams).score),
        chrf=float(chrf.corpus_score(predicted, streams).score),
        exact_match=_exact_match(predicted, several),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        count=len(predicted),
    )


def summary_metrics(
    predicted: Sequence[str],
    references: References,
    *,
    stemmer: bool = False,
    words: RougeWords = "english",
) -> SummaryMetrics:
    """ROUGE-1, -2, -L and -Lsum, by rouge_score; of several references the nearest counts.

    Args:
        predicted: the summaries; for ROUGE-Lsum each line of one is a sentence.
        references: one or several for each.
        stemmer: compare English words by their stems (Porter), as many papers do.
        words: "english" as rouge_score has it: other letters than a to z part words, so that
            nothing is left of Chinese; "any" takes words of all scripts, and Han and kana one by
            one, for numbers that compare only with their like.

    Raises:
        DataError: no texts, unequal numbers of them, a text without a reference, or stems of
            other words than English ones.
        MissingExtraError: rouge_score is not installed.
    """
    with optional_part("Measuring summaries"):
        from rouge_score.rouge_scorer import RougeScorer
    several = _several(predicted, references)
    if stemmer and words != "english":
        raise DataError('the stemmer knows English words only: leave it out, or words="english".')
    kinds = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    tokenizer = _AnyWords() if words == "any" else None
    scorer = RougeScorer(list(kinds), use_stemmer=stemmer, tokenizer=tokenizer)
    totals = dict.fromkeys(kinds, 0.0)
    for text, right in zip(predicted, several):
        found = scorer.score_multi(right, text)
        for kind in kinds:
            totals[kind] += found[kind].fmeasure
    means = [100.0 * float(totals[kind]) / len(predicted) for kind in kinds]
    exact_match = _exact_match(predicted, several)
    return SummaryMetrics(*means, exact_match=exact_match, count=len(predicted))


class _AnyWords:
    """Splits texts of any script for rouge_score."""

    def tokenize(self, text: str) -> list[str]:
        return _ANY_WORD.findall(text.lower())


def _several(predicted: Sequence[str], references: References) -> list[list[str]]:
    """The right texts of each prediction as a list."""
    check_equal_lengths(references, predicted, "references")
    several = [[one] if isinstance(one, str) else list(one) for one in references]
    for number, right in enumerate(several, start=1):
        if not right:
            raise DataError(f"text {number} has no reference to compare it with.")
    return several


def _streams(several: list[list[str]]) -> Any:
    """As sacrebleu takes them: first, second, ... reference of all texts, None where there is none.

    >>> _streams([["a"], ["b", "c"]])
    [['a', 'b'], [None, 'c']]
    """
    most = max(len(right) for right in several)
    return [
        [right[place] if place < len(right) else None for right in several] for place in range(most)
    ]


def _exact_match(predicted: Sequence[str], several: list[list[str]]) -> float:
    hits = (
        text.strip() in [reference.strip() for reference in right]
        for text, right in zip(predicted, several)
    )
    return 100.0 * sum(hits) / len(predicted)
