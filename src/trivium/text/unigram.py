"""The Unigram language model of subwords (Kudo 2018): a text as a lattice of its segmentations.

A segmentation x = (x_1 .. x_M) has the probability p(x_1) ... p(x_M), a text the sum over all of
its segmentations. Encoding takes the most probable one (Viterbi); training alternates EM steps for
the probabilities with the removal of pieces. `Unigram.build` trains with the library `tokenizers`;
`explain_unigram_training` does the same for a few sentences, to show every step.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from typing import ClassVar, Literal

import tokenizers
from pydantic import Field
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from trivium.errors import TokenizerError
from trivium.text.explanation import Explanation, WordExplanation
from trivium.text.roles import TEXT_SPECIALS
from trivium.text.symbols import SCORE_DIGITS
from trivium.text.tokenizer import SpecialTokens, Tokenizer
from trivium.text.trainers import CharacterTokenizerConfig, run_trainer, unknown_token

_MAX_PIECE_LENGTH = 16  # characters, as in sentencepiece
_EM_STEPS = 100  # for the pieces of a single text
_UNKNOWN_PENALTY = 10.0  # nats below the worst piece, as in sentencepiece


class Unigram(CharacterTokenizerConfig):
    """Pieces with probabilities, after normalization as sentencepiece's: nmt, NFKC, one space.

    Unlike there, a space at the start of a text stays: after a special token it starts a word.

    Source: Kudo 2018, section 3.2.
    """

    kind: Literal["unigram"] = "unigram"
    component_types: ClassVar[tuple[str, ...]] = ("Unigram",)
    seconds_per_mb: ClassVar[float] = 8.0
    special_tokens: SpecialTokens = TEXT_SPECIALS
    sample_bytes: int = Field(
        30_000_000,
        gt=0,
        description="most bytes to train on; of a budget in train.minutes 1.5 MB "
        "a minute, unless set",
    )

    def build(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """Learn pieces and their probabilities."""
        backend = tokenizers.Tokenizer(models.Unigram())
        backend.normalizer = normalizers.Sequence(
            [
                normalizers.Nmt(),
                normalizers.NFKC(),
                normalizers.Replace(Regex(" {2,}"), " "),
                # Not on the left: the space after a special token starts a word.
                normalizers.Strip(left=False, right=True),
            ]
        )
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
        texts, _ = self.cover(texts, backend.normalizer)
        run_trainer(
            self,
            backend,
            trainers.UnigramTrainer,
            texts,
            unk_token=unknown_token(self),
            max_piece_length=_MAX_PIECE_LENGTH,
        )
        return self._reorder(backend)

    def _reorder(self, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """Pieces by score, at most `vocab_size` in all, every character among them.

        The trainer gives characters that are no piece its lowest score plus a ten-thousandth for
        each one before it, in random order; here all of them get the lowest score.
        """
        content = json.loads(backend.to_str())
        count = len(self.special_tokens)
        pieces = content["model"]["vocab"][count:]
        lowest = min(score for _, score in pieces)
        for piece in pieces:
            steps = (piece[1] - lowest) * 1e4
            if len(piece[0]) == 1 and steps < len(pieces) and abs(steps - round(steps)) < 1e-4:
                piece[1] = lowest
            piece[1] = round(piece[1], SCORE_DIGITS)
        pieces.sort(key=lambda piece: (len(piece[0]) > 1, -piece[1], piece[0]))
        pieces = pieces[: self.size - count]
        pieces.sort(key=lambda piece: (-piece[1], piece[0]))
        content["model"]["vocab"][count:] = pieces
        return tokenizers.Tokenizer.from_str(json.dumps(content))

    @classmethod
    def word_explainer(cls, tokenizer: Tokenizer) -> Callable[[str], WordExplanation]:
        """Lattices; a character without a piece stands for itself, below the worst piece."""
        scores = dict(tokenizer.model["vocab"])
        unknown = math.exp(min(scores.values(), default=0.0) - _UNKNOWN_PENALTY)

        def explain(word: str) -> WordExplanation:
            pieces = {p for s in range(len(word)) for p in _prefixes(word[s:]) if p in scores}
            # A log-probability is at most 0; a file may hold any number, of which exp overflows.
            probabilities = {piece: math.exp(min(scores[piece], 99.0)) for piece in pieces}
            return explain_lattice(word, dict.fromkeys(word, unknown) | probabilities, top=10)

        return explain


def _prefixes(text: str) -> list[str]:
    return [text[:end] for end in range(1, len(text) + 1)]


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
    """A piece that matches the text from `start` to `end` (characters), and its probability."""

    start: int
    end: int
    piece: str
    probability: float


@dataclasses.dataclass(frozen=True, slots=True)
class Segmentation:
    """One path through the lattice, and its log-probability in nats."""

    pieces: tuple[str, ...]
    log_probability: float


@dataclasses.dataclass(frozen=True)
class Lattice(WordExplanation):
    """Every way to segment a text.

    `forward[i]` is the probability of the first i characters, summed over segmentations; the last
    one is the `likelihood` of the text. `paths` holds the most probable segmentations, best
    first; `path_count` counts all of them.
    """

    edges: tuple[Edge, ...]
    forward: tuple[float, ...]
    likelihood: float
    path_count: int
    paths: tuple[Segmentation, ...]
    em_steps: int
    """By which the probabilities were estimated from the text; 0 where they were given."""

    def render(self) -> str:
        """The pieces that match, the segmentations, and their sum."""
        lines = [f"text: {self.word}"]
        if self.em_steps:
            lines.append(f"probabilities: after {self.em_steps} EM steps on this text")
        lines += [f"    {e.start}-{e.end} {e.piece}: {_number(e.probability)}" for e in self.edges]
        probability = {edge.piece: edge.probability for edge in self.edges}
        for path in self.paths:
            factors = " x ".join(_number(probability[piece]) for piece in path.pieces)
            product = _number(math.exp(path.log_probability))
            lines.append(f"path {' '.join(path.pieces)}: {factors} = {product}")
        if self.path_count > len(self.paths):
            lines.append(f"    and {self.path_count - len(self.paths)} less probable paths")
        lines.append(f"best: {' '.join(self.tokens)}")
        lines.append(f"likelihood of the text: {_number(self.likelihood)}")
        return "\n".join(lines)


def _number(value: float) -> str:
    """A probability as a small fraction where it is one, else as a decimal number."""
    near = Fraction(value).limit_denominator(1000)
    exact = near != 0 and math.isclose(float(near), value, rel_tol=1e-12)
    return str(near) if exact else f"{value:.6g}"


def explain_lattice(
    text: str, vocabulary: Mapping[str, float] | Collection[str], *, top: int = 100
) -> Lattice:
    """The lattice of `text` over pieces and their probabilities, with at most `top` paths.

    Pieces without probabilities get those that maximise the likelihood of the text, by EM from
    equal ones: with {ab, c}, ababc has one segmentation, p(ab) = 2/3, p(c) = 1/3, and the
    likelihood 2/3 x 2/3 x 1/3 = 4/27.

    Raises TokenizerError: no path covers the text.
    """
    if isinstance(vocabulary, Mapping):
        probabilities = dict(vocabulary)
    else:
        probabilities = {piece: 1.0 / len(vocabulary) for piece in vocabulary}
        for _ in range(_EM_STEPS):
            probabilities = _normalized(expected_counts(text, probabilities)[0]) or probabilities
    edges = _edges(text, probabilities)
    forward, ways = [1.0] + [0.0] * len(text), [1] + [0] * len(text)
    for edge in sorted(edges, key=lambda edge: edge.end):
        forward[edge.end] += forward[edge.start] * edge.probability
        ways[edge.end] += ways[edge.start]
    if not ways[-1]:
        pieces = " ".join(sorted(vocabulary)[:20])
        raise TokenizerError(f"{text!r} cannot be written with the pieces {pieces}.")
    paths = tuple(_best_paths(len(text), edges, top))
    em_steps = 0 if isinstance(vocabulary, Mapping) else _EM_STEPS
    return Lattice(
        word=text,
        tokens=paths[0].pieces,
        edges=tuple(edges),
        forward=tuple(forward),
        likelihood=forward[-1],
        path_count=ways[-1],
        paths=paths,
        em_steps=em_steps,
    )


def _edges(text: str, probabilities: Mapping[str, float]) -> list[Edge]:
    """Every piece that matches somewhere in `text`, sorted by start."""
    longest = max(map(len, probabilities), default=0)
    return [
        Edge(start, end, text[start:end], probabilities[text[start:end]])
        for start in range(len(text))
        for end in range(start + 1, min(len(text), start + longest) + 1)
        if probabilities.get(text[start:end], 0.0) > 0.0
    ]


def _best_paths(length: int, edges: Sequence[Edge], top: int) -> list[Segmentation]:
    """Viterbi's algorithm, keeping the `top` best segmentations up to each character."""
    best: list[list[Segmentation]] = [[Segmentation((), 0.0)]] + [[] for _ in range(length)]
    for end in range(1, length + 1):
        paths = [
            Segmentation(
                (*path.pieces, edge.piece), path.log_probability + math.log(edge.probability)
            )
            for edge in edges
            if edge.end == end
            for path in best[edge.start]
        ]
        paths.sort(key=lambda path: (-path.log_probability, len(path.pieces), path.pieces))
        best[end] = paths[: max(1, top)]
    return best[-1]


def expected_counts(
    text: str, probabilities: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """The E step: how often each piece occurs on average over segmentations, and the likelihood.

    E[count(x)] = sum over matches of x of alpha[start] p(x) beta[end] / likelihood, with alpha and
    beta the summed probabilities of the paths before and after.
    """
    edges = _edges(text, probabilities)
    alpha, beta = [1.0] + [0.0] * len(text), [0.0] * len(text) + [1.0]
    for edge in sorted(edges, key=lambda edge: edge.end):
        alpha[edge.end] += alpha[edge.start] * edge.probability
    for edge in sorted(edges, key=lambda edge: -edge.start):
        beta[edge.start] += edge.probability * beta[edge.end]
    counts: defaultdict[str, float] = defaultdict(float)
    for edge in edges if alpha[-1] else ():
        counts[edge.piece] += alpha[edge.start] * edge.probability * beta[edge.end] / alpha[-1]
    return dict(counts), alpha[-1]


def _normalized(counts: Mapping[str, float]) -> dict[str, float]:
    total = sum(counts.values())
    return {piece: count / total for piece, count in counts.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class PieceRow:
    """A piece in one round: its expected count, its probability, and whether it stays.

    `loss` is by how many nats the log-likelihood of the corpus falls without the piece; None for
    characters, which always stay.
    """

    piece: str
    expected_count: float
    probability: float
    loss: float | None
    kept: bool


@dataclasses.dataclass(frozen=True)
class UnigramTraining(Explanation):
    """The seed vocabulary, a table for each round, and the final probabilities."""

    seed: tuple[str, ...]
    rounds: tuple[tuple[PieceRow, ...], ...]
    probabilities: dict[str, float]
    em_steps: int
    """In each round, before pieces are removed."""

    def render(self) -> str:
        """The seed, a table for each round, and the outcome."""
        lines = [f"seed ({len(self.seed)} pieces): {' '.join(self.seed)}"]
        for number, rows in enumerate(self.rounds, start=1):
            lines.append(
                f"round {number}, after {self.em_steps} EM steps: piece, expected count, "
                "probability, loss"
            )
            for row in rows:
                loss = "character" if row.loss is None else f"{row.loss:9.4f}"
                lines.append(
                    f"    {row.piece:<16} {row.expected_count:8.4f} {row.probability:12.6f} "
                    f"{loss} {'' if row.kept else ' removed'}".rstrip()
                )
        lines.append(f"vocabulary ({len(self.probabilities)}):")
        lines += [f"    {piece}: {_number(p)}" for piece, p in self.probabilities.items()]
        return "\n".join(lines)


def explain_unigram_training(
    texts: Sequence[str], *, vocab_size: int, keep: float = 0.8, em_steps: int = 2
) -> UnigramTraining:
    """Learn pieces from the whitespace-separated words of small texts, to show how it is done.

    The seed holds every character and every substring that occurs twice. Each round makes
    `em_steps` EM steps, then keeps the share `keep` of the pieces with the greatest loss, and all
    characters, until `vocab_size` pieces are left. As in the paper, and unlike sentencepiece, the
    M step divides by the total and the loss of a piece is the exact change of the log-likelihood.
    """
    words = Counter(word for text in texts for word in text.split())
    characters = {character for word in words for character in word}
    if not words:
        raise TokenizerError("There is no text to learn pieces from.")
    if not 0 < keep < 1:
        raise TokenizerError(f"keep is {keep}, but must be a share above 0 and below 1.")
    if vocab_size < len(characters):
        raise TokenizerError(
            f"A vocabulary of {vocab_size} cannot hold {len(characters)} different characters."
        )
    counts: Counter[str] = Counter()
    for word, times in words.items():
        for start in range(len(word)):
            for piece in _prefixes(word[start:])[:_MAX_PIECE_LENGTH]:
                counts[piece] += times
    seed = {p: float(n) for p, n in counts.items() if len(p) == 1 or n > 1}
    probabilities = _normalized(seed)
    rounds: list[tuple[PieceRow, ...]] = []
    while True:
        expected: dict[str, float] = {}
        for _ in range(em_steps):
            expected, _ = _corpus_counts(words, probabilities)
            # Characters keep a tiny probability, so that every word can be segmented.
            floor = {p: max(n, 1e-12) if len(p) == 1 else n for p, n in expected.items()}
            probabilities = _normalized(floor)
        _, whole = _corpus_counts(words, probabilities)
        losses = {
            piece: whole - _corpus_counts(words, {**probabilities, piece: 0.0})[1]
            for piece in probabilities
            if len(piece) > 1
        }
        size = len(probabilities)
        target = max(vocab_size, math.floor(keep * size), len(characters))
        ranked = sorted(
            probabilities, key=lambda p: (-losses.get(p, math.inf), -probabilities[p], p)
        )
        kept = set(ranked[:target])
        order = sorted(probabilities, key=lambda p: (-probabilities[p], p))
        rounds.append(
            tuple(
                PieceRow(p, expected[p], probabilities[p], losses.get(p), p in kept) for p in order
            )
        )
        if len(kept) == size:
            final = {piece: probabilities[piece] for piece in order}
            return UnigramTraining(tuple(seed), tuple(rounds), final, em_steps)
        probabilities = _normalized({p: v for p, v in probabilities.items() if p in kept})


def _corpus_counts(
    words: Mapping[str, int], probabilities: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """Expected counts in all words, and their log-likelihood in nats."""
    totals, log_likelihood = dict.fromkeys(probabilities, 0.0), 0.0
    for word, times in words.items():
        counts, likelihood = expected_counts(word, probabilities)
        log_likelihood += times * math.log(likelihood) if likelihood else -math.inf
        for piece, count in counts.items():
            totals[piece] += times * count
    return totals, log_likelihood
