"""How well words are tagged: chunks such as names as seqeval counts them, other tags one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trivium.data.labelled.iob import are_chunk_tags
from trivium.errors import DataError
from trivium.evaluate.classification_metrics import ClassificationMetrics, classification_metrics
from trivium.evaluate.metrics import (
    ClassScore,
    TableRow,
    check_equal_lengths,
    class_table,
    listing,
)
from trivium.evaluate.optional import optional_part

Tags = Sequence[Sequence[str]]

# BILOU says last and unit where BIOES says end and single; seqeval's default knows the latter.
_AS_BIOES = {"L": "E", "U": "S"}


@dataclass(frozen=True)
class ChunkMetrics:
    """Of chunks: one is right if its first word, its last word and its type are. Shares of 1.

    `f1`, `precision` and `recall` are those of all chunks together (micro), `macro_f1` is the mean
    over the types that occur, `accuracy` that of the tags. All but the last are 0 without chunks.
    """

    f1: float
    precision: float
    recall: float
    macro_f1: float
    accuracy: float
    per_type: tuple[ClassScore, ...]
    count: int

    @property
    def main(self) -> tuple[str, float]:
        """F1 over all chunks."""
        return "f1", self.f1

    def to_dict(self) -> dict[str, float]:
        """Every overall number by its name; `count` is the number of sentences."""
        return {
            "f1": self.f1,
            "precision": self.precision,
            "recall": self.recall,
            "macro_f1": self.macro_f1,
            "accuracy": self.accuracy,
            "count": self.count,
        }

    def table(self) -> list[TableRow]:
        """One row a type below a row of names."""
        return class_table("Type", self.per_type)


def tagging_metrics(
    gold: Tags,
    predicted: Tags,
    *,
    names: Sequence[str] | None = None,
    chunks: bool | None = None,
    strict: bool = False,
) -> ChunkMetrics | ClassificationMetrics:
    """Compare the tags of sentences, as chunks where they are chunk tags (B-PER, I-PER, O).

    Args:
        gold, predicted: the tags of every sentence, one a word.
        names: the tags that there are; those that occur by default.
        chunks: whether they are chunk tags; told from the names by default.
        strict: chunks must also begin and end as IOB2 (or BIOES) has it. The default is that of
            conlleval and of most papers: a chunk that begins with I- counts as one.

    Raises:
        DataError: no words, sentences of unequal lengths, or tags of both kinds mixed.
        MissingExtraError: seqeval or scikit-learn is not installed.
    """
    right, found = _sentences(gold, predicted)
    words = [tag for sentence in right for tag in sentence]
    tags = [tag for sentence in found for tag in sentence]
    check_equal_lengths(words, tags, "tags")
    occurring = sorted({*words, *tags})
    known = list(names) if names is not None else occurring
    if chunks is None:
        chunks = _mark_chunks(known)
    if not chunks:
        places = {tag: place for place, tag in enumerate(dict.fromkeys([*known, *occurring]))}
        return classification_metrics(
            [places[tag] for tag in words], [places[tag] for tag in tags], list(places)
        )
    odd = _no_chunk_tags(occurring)
    if odd:
        raise DataError(f"{listing(odd)}: no chunk tags, such as B-PER, I-PER and O are.")
    accuracy = float(np.mean([tag == other for tag, other in zip(words, tags)]))
    if not strict:
        return _chunk_metrics(right, found, accuracy, None)
    ended = any(tag[:1] in ("E", "S", "L", "U") for tag in (*known, *occurring))
    return _chunk_metrics(right, found, accuracy, "IOBES" if ended else "IOB2")


def _mark_chunks(names: Sequence[str]) -> bool:
    """Whether tags mark chunks; O alone does, of which there are none.

    Raises:
        DataError: some do and some do not.
    """
    odd = _no_chunk_tags(names)
    if odd and any("-" in name for name in {*names} - {*odd}):
        raise DataError(
            f"chunk tags such as B-PER are mixed with others: {listing(odd)}. Mend them, or score "
            "the tags one by one (chunks=False)."
        )
    return not odd


def _no_chunk_tags(names: Sequence[str]) -> list[str]:
    """Those that say nothing of a chunk."""
    return [name for name in names if not are_chunk_tags(["B", name])]


def _sentences(gold: Tags, predicted: Tags) -> tuple[list[list[str]], list[list[str]]]:
    """Both as lists of lists, of the same lengths."""
    check_equal_lengths(gold, predicted, "sentences")
    for number, (words, tags) in enumerate(zip(gold, predicted), start=1):
        if len(words) != len(tags):
            raise DataError(
                f"sentence {number} has {len(words)} words and {len(tags)} predicted tags."
            )
    return [list(words) for words in gold], [list(tags) for tags in predicted]


def _chunk_metrics(
    gold: list[list[str]],
    predicted: list[list[str]],
    accuracy: float,
    scheme: Literal["IOB2", "IOBES"] | None,
) -> ChunkMetrics:
    with optional_part("Measuring chunks"):
        from seqeval.metrics import sequence_labeling, v1
        from seqeval.scheme import IOB2, IOBES
    right, found = _as_bioes(gold), _as_bioes(predicted)
    score: Any  # Its results have other types with another average.
    if scheme is None:
        score = sequence_labeling.precision_recall_fscore_support
        by_type = score(right, found, average=None, zero_division=0)
        together = score(right, found, average="micro", zero_division=0)
        entities = sequence_labeling.get_entities(right) + sequence_labeling.get_entities(found)
        names = sorted({kind for kind, _, _ in entities})
    else:
        rules = IOB2 if scheme == "IOB2" else IOBES
        score = v1.precision_recall_fscore_support
        by_type = score(right, found, average=None, zero_division=0, scheme=rules)
        together = score(right, found, average="micro", zero_division=0, scheme=rules)
        names = v1.unique_labels(right, found, rules)
    scores = tuple(
        ClassScore(name, float(precision), float(recall), float(f1), int(support))
        for name, precision, recall, f1, support in zip(names, *by_type, strict=True)
    )
    precision, recall, f1 = (float(value) for value in together[:3])
    return ChunkMetrics(
        f1=f1,
        precision=precision,
        recall=recall,
        macro_f1=float(np.mean([score.f1 for score in scores])) if scores else 0.0,
        accuracy=accuracy,
        per_type=scores,
        count=len(gold),
    )


def _as_bioes(sentences: list[list[str]]) -> list[list[str]]:
    return [[_AS_BIOES.get(tag[0], tag[0]) + tag[1:] for tag in tags] for tags in sentences]
