"""The Unigram language model of subwords (Kudo 2018): a text as a lattice of its segmentations.

A path P = (x_1 .. x_M) has the probability p(x_1) ... p(x_M), a text the sum over its paths.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from fractions import Fraction

import tokenizers

from trivium.errors import TokenizerError
from trivium.text.explain_bpe import split_words

UNKNOWN_PENALTY = 10.0  # nats below the worst piece, as in sentencepiece
SHOWN_PATHS = 100


@dataclasses.dataclass(frozen=True, slots=True)
class LatticeEdge:
    """One piece that fits the text from `start` to `end` (characters), and its probability."""

    start: int
    end: int
    piece: str
    probability: float


@dataclasses.dataclass(frozen=True, slots=True)
class LatticePath:
    """One way to cut the text, and the product of the probabilities of its pieces."""

    pieces: tuple[str, ...]
    log_probability: float

    @property
    def probability(self) -> float:
        """The product itself."""
        return math.exp(self.log_probability)


@dataclasses.dataclass(frozen=True, slots=True)
class Lattice:
    """Every way to cut a text into pieces.

    `forward[i]` is the summed probability of all ways to write the first i characters, so the last
    one is the likelihood of the text. `paths` holds the likeliest ones, best first; `path_count`
    counts all of them. `best` is Viterbi's path.
    """

    text: str
    edges: tuple[LatticeEdge, ...]
    forward: tuple[float, ...]
    path_count: int
    paths: tuple[LatticePath, ...]

    @property
    def likelihood(self) -> float:
        """The probability of the text: the sum over all paths."""
        return self.forward[-1]

    @property
    def best(self) -> LatticePath:
        """The likeliest path."""
        return self.paths[0]

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        found = dataclasses.asdict(self)
        for path, values in zip(self.paths, found["paths"], strict=True):
            values["probability"] = path.probability
        return {**found, "likelihood": self.likelihood, "best": list(self.best.pieces)}

    def render(self) -> str:
        """The pieces that fit, the paths, and their sum."""
        lines = [f"text: {self.text}"]
        lines += [
            f"    {edge.start}-{edge.end} {edge.piece}: {number(edge.probability)}"
            for edge in self.edges
        ]
        probability = {edge.piece: edge.probability for edge in self.edges}
        for path in self.paths:
            factors = " x ".join(number(probability[piece]) for piece in path.pieces)
            lines.append(f"path {' '.join(path.pieces)}: {factors} = {number(path.probability)}")
        if self.path_count > len(self.paths):
            lines.append(f"    and {self.path_count - len(self.paths)} paths less likely")
        lines.append(f"best: {' '.join(self.best.pieces)}")
        lines.append(f"likelihood of the text: {number(self.likelihood)}")
        return "\n".join(lines)


def number(value: float) -> str:
    """A probability as a small fraction where it is one, else as a decimal number."""
    near = Fraction(value).limit_denominator(1000)
    exact = near != 0 and math.isclose(float(near), value, rel_tol=1e-12)
    return str(near) if exact else f"{value:.6g}"


def explain_lattice(
    text: str,
    vocabulary: Mapping[str, float] | Collection[str],
    *,
    top: int = SHOWN_PATHS,
    rounds: int = 100,
) -> Lattice:
    """The lattice of `text` over pieces and their probabilities.

    Pieces without probabilities get those that make the text likeliest, found by `rounds` rounds
    of EM from equal ones: with {ab, c}, ababc can be cut one way only, p(ab) = 2/3, p(c) = 1/3, and
    its likelihood is 2/3 x 2/3 x 1/3 = 4/27. At most `top` paths are listed.

    Raises TokenizerError where no path covers the text.
    """
    if isinstance(vocabulary, Mapping):
        probabilities = dict(vocabulary)
    else:
        probabilities = {piece: 1.0 / len(vocabulary) for piece in vocabulary if piece}
        for _ in range(rounds):
            counts, _ = expected_counts(text, probabilities)
            total = sum(counts.values())
            if not total:
                break
            updated = {piece: count / total for piece, count in counts.items()}
            settled = all(
                abs(updated[piece] - probabilities.get(piece, 0.0)) < 1e-15 for piece in updated
            )
            probabilities = updated
            if settled:
                break
    edges = fitting(text, probabilities)
    forward = forward_sums(len(text), edges)
    if forward[-1] <= 0.0:
        raise TokenizerError(
            f"{text!r} cannot be written with the pieces {' '.join(sorted(vocabulary)[:20])}."
        )
    return Lattice(
        text=text,
        edges=tuple(edges),
        forward=tuple(forward),
        path_count=_count_paths(len(text), edges),
        paths=tuple(_best_paths(len(text), edges, top)),
    )


def fitting(text: str, probabilities: Mapping[str, float]) -> list[LatticeEdge]:
    """Every piece that fits somewhere in `text`, sorted by place."""
    longest = max(map(len, probabilities), default=0)
    return [
        LatticeEdge(start, end, text[start:end], probabilities[text[start:end]])
        for start in range(len(text))
        for end in range(start + 1, min(len(text), start + longest) + 1)
        if probabilities.get(text[start:end], 0.0) > 0.0
    ]


def forward_sums(length: int, edges: Collection[LatticeEdge]) -> list[float]:
    """alpha[i]: the summed probability of the paths from the start to place i."""
    alpha = [1.0] + [0.0] * length
    for edge in sorted(edges, key=lambda edge: edge.end):
        alpha[edge.end] += alpha[edge.start] * edge.probability
    return alpha


def backward_sums(length: int, edges: Collection[LatticeEdge]) -> list[float]:
    """beta[i]: the summed probability of the paths from place i to the end."""
    beta = [0.0] * length + [1.0]
    for edge in sorted(edges, key=lambda edge: -edge.start):
        beta[edge.start] += edge.probability * beta[edge.end]
    return beta


def expected_counts(
    text: str, probabilities: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """How often each piece is used on average over the paths, and the likelihood of the text.

    E[count(x)] = sum over places of x of alpha[start] p(x) beta[end] / likelihood: the E step.
    """
    edges = fitting(text, probabilities)
    alpha, beta = forward_sums(len(text), edges), backward_sums(len(text), edges)
    likelihood = alpha[-1]
    counts: dict[str, float] = {}
    if likelihood > 0.0:
        for edge in edges:
            share = alpha[edge.start] * edge.probability * beta[edge.end] / likelihood
            if share > 0.0:
                counts[edge.piece] = counts.get(edge.piece, 0.0) + share
    return counts, likelihood


def _count_paths(length: int, edges: Collection[LatticeEdge]) -> int:
    ways = [1] + [0] * length
    for edge in sorted(edges, key=lambda edge: edge.end):
        ways[edge.end] += ways[edge.start]
    return ways[-1]


def _best_paths(length: int, edges: Collection[LatticeEdge], top: int) -> list[LatticePath]:
    """Viterbi's algorithm keeping the `top` best ways to each place instead of one."""
    best: list[list[LatticePath]] = [[LatticePath((), 0.0)]] + [[] for _ in range(length)]
    for end in range(1, length + 1):
        ways = [
            LatticePath(
                (*path.pieces, edge.piece), path.log_probability + math.log(edge.probability)
            )
            for edge in edges
            if edge.end == end
            for path in best[edge.start]
        ]
        ways.sort(key=lambda path: (-path.log_probability, len(path.pieces), path.pieces))
        best[end] = ways[: max(1, top)]
    return best[-1]


@dataclasses.dataclass(frozen=True, slots=True)
class UnigramEncoding:
    """The lattices of the words of a text, for a loaded tokenizer."""

    text: str
    words: tuple[Lattice, ...]

    @property
    def tokens(self) -> tuple[str, ...]:
        """The pieces of the best paths."""
        return tuple(piece for word in self.words for piece in word.best.pieces)

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {
            "text": self.text,
            "words": [word.to_dict() for word in self.words],
            "tokens": list(self.tokens),
        }

    def render(self) -> str:
        """Each lattice and the tokens."""
        parts = [word.render() for word in self.words]
        return "\n".join([*parts, f"tokens: {' '.join(self.tokens)}"])


def explain_unigram_encoding(
    backend: tokenizers.Tokenizer, text: str, *, top: int = 10
) -> UnigramEncoding:
    """The lattice of every word of `text` for a loaded Unigram tokenizer, with `top` paths each.

    A character that no piece covers stands for itself, ten nats below the worst piece.

    Raises TokenizerError where the model is not Unigram.
    """
    model = json.loads(backend.to_str())["model"]
    if model["type"] != "Unigram":
        raise TokenizerError(f"Lattices exist in Unigram tokenizers only, not in {model['type']}.")
    scores = dict(model["vocab"])
    unknown = min(scores.values(), default=0.0) - UNKNOWN_PENALTY
    words = []
    for word in split_words(backend, text):
        fits = {
            word[start:end]
            for start in range(len(word))
            for end in range(start + 1, len(word) + 1)
            if word[start:end] in scores
        }
        probabilities = {piece: math.exp(scores[piece]) for piece in fits}
        for character in word:
            probabilities.setdefault(character, math.exp(unknown))
        words.append(explain_lattice(word, probabilities, top=top))
    return UnigramEncoding(text, tuple(words))
