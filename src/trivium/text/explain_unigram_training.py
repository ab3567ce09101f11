"""Unigram training (Kudo 2018, section 3.2), round by round.

Differs from sentencepiece in two places, to stay with the paper: the M step divides by the total
(sentencepiece subtracts by the digamma function), and the loss of a piece is the exact change of
the log-likelihood (sentencepiece replaces the piece by its own second-best segmentation).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from trivium.errors import TokenizerError
from trivium.text.explain_unigram import (
    expected_counts,
    explain_lattice,
    fitting,
    forward_sums,
    number,
)


@dataclasses.dataclass(frozen=True, slots=True)
class PieceRound:
    """One piece in one round.

    `loss` is by how many nats the log-likelihood of the corpus falls without the piece; characters
    are never removed, theirs is None.
    """

    piece: str
    expected_count: float
    probability: float
    loss: float | None
    kept: bool


@dataclasses.dataclass(frozen=True, slots=True)
class UnigramRound:
    """One round: EM, the loss of each piece, and what is kept.

    `log_likelihoods` are those of the corpus in nats, before each EM step and after the last.
    """

    step: int
    log_likelihoods: tuple[float, ...]
    pieces: tuple[PieceRound, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class UnigramTraining:
    """The course of a training: words with their counts, seed pieces, rounds, and the outcome."""

    words: tuple[tuple[str, int], ...]
    seed: tuple[str, ...]
    rounds: tuple[UnigramRound, ...]
    probabilities: tuple[tuple[str, float], ...]
    segmentations: tuple[tuple[str, ...], ...]

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)

    def render(self) -> str:
        """The seed, a table for each round, and the outcome."""
        words = " ".join(word + (f" x{count}" if count > 1 else "") for word, count in self.words)
        lines = [f"words: {words}", f"seed ({len(self.seed)} pieces): {' '.join(self.seed)}"]
        for found in self.rounds:
            course = " -> ".join(f"{value:.4f}" for value in found.log_likelihoods)
            lines.append(f"round {found.step}: log-likelihood {course}")
            lines.append("    piece            expected  probability     loss")
            for piece in found.pieces:
                loss = "character" if piece.loss is None else f"{piece.loss:9.4f}"
                lines.append(
                    f"    {piece.piece:<16} {piece.expected_count:8.4f} {piece.probability:12.6f} "
                    f"{loss} {'' if piece.kept else ' removed'}".rstrip()
                )
        lines.append(f"vocabulary ({len(self.probabilities)}):")
        lines += [f"    {piece}: {number(value)}" for piece, value in self.probabilities]
        lines.append(f"words as pieces: {' | '.join(' '.join(w) for w in self.segmentations)}")
        return "\n".join(lines)


def train_unigram(
    texts: Sequence[str],
    *,
    vocab_size: int,
    keep: float = 0.8,
    em_steps: int = 2,
    longest: int = 16,
    split: Callable[[str], Sequence[str]] = str.split,
) -> UnigramTraining:
    """Learn a vocabulary from `texts`: seed large, then EM and removal until it is small enough.

    The seed holds every character and every substring of up to `longest` characters that occurs
    twice. Each round makes `em_steps` EM steps, then keeps the share `keep` of the pieces whose
    loss is greatest, all characters among them.
    """
    words = Counter(word for text in texts for word in split(text))
    if not words:
        raise TokenizerError("There is no text to learn pieces from.")
    if not 0.0 < keep < 1.0:
        raise TokenizerError(f"The share to keep lies between 0 and 1, not at {keep}.")
    characters = {character for word in words for character in word}
    if vocab_size < len(characters):
        raise TokenizerError(
            f"A vocabulary of {vocab_size} cannot hold the {len(characters)} characters."
        )
    weights = _seed(words, longest)
    total = sum(weights.values())
    probabilities = {piece: weight / total for piece, weight in weights.items()}
    rounds: list[UnigramRound] = []
    while True:
        course, counts, probabilities = _expectation_maximisation(words, probabilities, em_steps)
        size = len(probabilities)
        target = size if size <= vocab_size else max(vocab_size, math.floor(keep * size))
        losses = _losses(words, probabilities, course[-1])
        kept = _keep(probabilities, losses, max(target, len(characters)))
        pieces = tuple(
            PieceRound(piece, counts[piece], probabilities[piece], losses[piece], piece in kept)
            for piece in sorted(probabilities, key=lambda piece: (-probabilities[piece], piece))
        )
        rounds.append(UnigramRound(len(rounds) + 1, tuple(course), pieces))
        if len(kept) == size:
            break
        total = sum(probabilities[piece] for piece in kept)
        probabilities = {
            piece: value / total for piece, value in probabilities.items() if piece in kept
        }
    return UnigramTraining(
        words=tuple(words.items()),
        seed=tuple(weights),
        rounds=tuple(rounds),
        probabilities=tuple(sorted(probabilities.items(), key=lambda item: (-item[1], item[0]))),
        segmentations=tuple(
            explain_lattice(word, probabilities, top=1).best.pieces for word in words
        ),
    )


def _seed(words: Mapping[str, int], longest: int) -> dict[str, float]:
    """Characters and substrings that occur twice, weighted by how often they occur."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for start in range(len(word)):
            for end in range(start + 1, min(len(word), start + longest) + 1):
                counts[word[start:end]] += count
    found = [piece for piece, count in counts.items() if len(piece) == 1 or count > 1]
    found.sort(key=lambda piece: (-counts[piece] * len(piece), piece))
    return {piece: float(counts[piece]) for piece in found}


def _expectation_maximisation(
    words: Mapping[str, int], probabilities: dict[str, float], steps: int
) -> tuple[list[float], dict[str, float], dict[str, float]]:
    """Log-likelihoods before each step and after the last, the last expected counts, the outcome.

    Characters keep a tiny probability where nothing uses them, so that every word stays writable.
    """
    course = []
    counts: dict[str, float] = {}
    for _ in range(max(1, steps)):
        counts = dict.fromkeys(probabilities, 0.0)
        for word, times in words.items():
            found, _ = expected_counts(word, probabilities)
            for piece, value in found.items():
                counts[piece] += times * value
        course.append(_log_likelihood(words, probabilities))
        floors = {
            piece: max(value, 1e-12) if len(piece) == 1 else value
            for piece, value in counts.items()
        }
        total = sum(floors.values())
        probabilities = {piece: value / total for piece, value in floors.items()}
    course.append(_log_likelihood(words, probabilities))
    return course, counts, probabilities


def _log_likelihood(words: Mapping[str, int], probabilities: Mapping[str, float]) -> float:
    total = 0.0
    for word, count in words.items():
        likelihood = forward_sums(len(word), fitting(word, probabilities))[-1]
        total += count * math.log(likelihood) if likelihood > 0.0 else -math.inf
    return total


def _losses(
    words: Mapping[str, int], probabilities: Mapping[str, float], whole: float
) -> dict[str, float | None]:
    """What the log-likelihood loses without each piece, the others' probabilities unchanged."""
    losses: dict[str, float | None] = {}
    for piece in probabilities:
        if len(piece) == 1:
            losses[piece] = None
            continue
        without = {other: value for other, value in probabilities.items() if other != piece}
        losses[piece] = whole - _log_likelihood(words, without)
    return losses


def _keep(
    probabilities: Mapping[str, float], losses: Mapping[str, float | None], size: int
) -> set[str]:
    """The characters, and the pieces whose loss is greatest, `size` in all."""

    def value(piece: str) -> tuple[float, float, str]:
        loss = losses[piece]
        return (-math.inf if loss is None else -loss, -probabilities[piece], piece)

    return set(sorted(probabilities, key=value)[:size])
