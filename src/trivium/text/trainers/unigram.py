"""The Unigram language model of subwords (Kudo 2018): a text as a lattice of its segmentations.

A segmentation x = (x_1 .. x_M) has the probability p(x_1) ... p(x_M), a text the sum over all of
its segmentations. Encoding takes the most probable one (Viterbi); training alternates EM steps for
the probabilities with the removal of pieces. `Unigram.build` trains with the library `tokenizers`;
`explain_unigram_training` does the same for a few sentences, to show every step.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import ClassVar, Literal, NamedTuple

import tokenizers
from pydantic import Field
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from trivium.errors import TokenizerError
from trivium.text.explanation import Explanation
from trivium.text.roles import TEXT_SPECIALS
from trivium.text.symbols import SCORE_DIGITS
from trivium.text.tokenizer import Tokenizer
from trivium.text.trainers import CharacterTokenizerConfig, SpecialTokens

_MAX_PIECE_LENGTH = 16  # characters, as in sentencepiece
_EM_STEPS = 100  # for the pieces of a single text
_ROUND_EM_STEPS, _ROUND_KEEPS = 2, 0.8  # of the training that is explained
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
        self.run_trainer(
            backend,
            trainers.UnigramTrainer,
            texts,
            unk_token=self.unknown_token,
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
    def explain_words(cls, tokenizer: Tokenizer, words: Sequence[str]) -> list[Explanation]:
        """Lattices; a character without a piece stands for itself, below the worst piece."""
        scores = dict(tokenizer.model["vocab"])
        unknown = math.exp(min(scores.values(), default=0.0) - _UNKNOWN_PENALTY)
        # A log-probability is at most 0; a file may hold any number, of which exp overflows.
        probabilities = {piece: math.exp(min(score, 99.0)) for piece, score in scores.items()}
        return [
            explain_lattice(word, dict.fromkeys(word, unknown) | probabilities, top=10)
            for word in words
        ]


class _Edge(NamedTuple):
    """A piece that matches the text from `start` to `end` (characters), and its probability."""

    start: int
    end: int
    piece: str
    probability: float


def explain_lattice(
    text: str, vocabulary: Mapping[str, float] | Collection[str], *, top: int = 100
) -> Explanation:
    """The lattice of `text` over pieces and their probabilities, with at most `top` paths.

    Pieces without probabilities get those that maximise the likelihood of the text, by EM from
    equal ones: with {ab, c}, ababc has one segmentation, p(ab) = 2/3, p(c) = 1/3, and the
    likelihood 2/3 x 2/3 x 1/3 = 4/27.

    The facts: the `edges`, `forward[i]`, the probability of the first i characters summed over
    segmentations, whose last is the `likelihood` of the text, `path_count`, the number of
    segmentations, and `paths`, the most probable ones, best first.

    Raises TokenizerError: no path covers the text.
    """
    if isinstance(vocabulary, Mapping):
        probabilities, em_steps = dict(vocabulary), 0
    else:
        probabilities, em_steps = {p: 1.0 / len(vocabulary) for p in vocabulary}, _EM_STEPS
    for _ in range(em_steps):
        probabilities = _normalized(expected_counts(text, probabilities)[0]) or probabilities
    edges = _edges(text, probabilities)
    forward = _forward(text, edges)
    path_count = _forward(text, [edge._replace(probability=1) for edge in edges])[-1]
    if not path_count:
        pieces = " ".join(sorted(vocabulary)[:20])
        raise TokenizerError(f"{text!r} cannot be written with the pieces {pieces}.")
    lines, paths = [f"text: {text}"], []
    if em_steps:
        lines.append(f"probabilities: after {em_steps} EM steps on this text")
    lines += [f"    {e.start}-{e.end} {e.piece}: {_number(e.probability)}" for e in edges]
    for pieces, log_probability in _best_paths(text, edges, top):
        paths.append({"pieces": pieces, "log_probability": log_probability})
        factors = " x ".join(_number(probabilities[piece]) for piece in pieces)
        lines.append(f"path {' '.join(pieces)}: {factors} = {_number(math.exp(log_probability))}")
    if path_count > len(paths):
        lines.append(f"    and {path_count - len(paths)} less probable paths")
    tokens = paths[0]["pieces"]
    lines += [f"best: {' '.join(tokens)}", f"likelihood of the text: {_number(forward[-1])}"]
    facts = {
        "word": text,
        "tokens": tokens,
        "edges": [edge._asdict() for edge in edges],
        "forward": forward,
        "likelihood": forward[-1],
        "path_count": path_count,
        "paths": paths,
        "em_steps": em_steps,
    }
    return Explanation(lines, facts)


def _number(value: float) -> str:
    """A probability as a small fraction where it is one, else as a decimal number."""
    near = Fraction(value).limit_denominator(1000)
    exact = near != 0 and math.isclose(float(near), value, rel_tol=1e-12)
    return str(near) if exact else f"{value:.6g}"


def _edges(text: str, probabilities: Mapping[str, float]) -> list[_Edge]:
    """Every piece that matches somewhere in `text`, sorted by start."""
    longest = max(map(len, probabilities), default=0)
    return [
        _Edge(start, end, text[start:end], probabilities[text[start:end]])
        for start in range(len(text))
        for end in range(start + 1, min(len(text), start + longest) + 1)
        if probabilities.get(text[start:end], 0.0) > 0.0
    ]


def _forward(text: str, edges: Iterable[_Edge]) -> list[float]:
    """The probability of the first i characters, summed over segmentations, for every i.

    Where every piece has 1, the number of segmentations, of any size.
    """
    forward: list[float] = [1, *[0] * len(text)]
    for edge in sorted(edges, key=lambda edge: edge.end):
        forward[edge.end] += forward[edge.start] * edge.probability
    return forward


def _best_paths(text: str, edges: Sequence[_Edge], top: int) -> list[tuple[tuple[str, ...], float]]:
    """The `top` best segmentations and their log-probabilities in nats.

    Viterbi's algorithm, keeping as many up to each character.
    """
    best: list[list[tuple[tuple[str, ...], float]]] = [[((), 0.0)]]
    for end in range(1, len(text) + 1):
        paths = [
            ((*pieces, edge.piece), log_probability + math.log(edge.probability))
            for edge in edges
            if edge.end == end
            for pieces, log_probability in best[edge.start]
        ]
        paths.sort(key=lambda path: (-path[1], len(path[0]), path[0]))
        best.append(paths[:top])
    return best[-1]


def expected_counts(
    text: str, probabilities: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """The E step: how often each piece occurs on average over segmentations, and the likelihood.

    E[count(x)] = sum over matches of x of alpha[start] p(x) beta[end] / likelihood, with alpha and
    beta the summed probabilities of the paths before and after.
    """
    edges, size = _edges(text, probabilities), len(text)
    mirrored = [e._replace(start=size - e.end, end=size - e.start) for e in edges]
    alpha, beta = _forward(text, edges), _forward(text, mirrored)[::-1]
    counts: defaultdict[str, float] = defaultdict(float)
    for edge in edges if alpha[-1] else ():
        counts[edge.piece] += alpha[edge.start] * edge.probability * beta[edge.end] / alpha[-1]
    return dict(counts), alpha[-1]


def _normalized(counts: Mapping[str, float]) -> dict[str, float]:
    total = sum(counts.values())
    return {piece: count / total for piece, count in counts.items()}


def explain_unigram_training(texts: Sequence[str], *, vocab_size: int) -> Explanation:
    """Learn pieces from the whitespace-separated words of small texts, to show how it is done.

    The seed holds every character and every substring that occurs twice. Each round makes two EM
    steps, then keeps 80% of the pieces, those with the greatest loss, and all characters, until
    `vocab_size` pieces are left. As in the paper, and unlike sentencepiece, the M step divides by
    the total and the loss of a piece is the exact change of the log-likelihood.

    The facts: the `seed`, in `rounds` a row for each piece, and the final `probabilities`. The loss
    of a piece is by how many nats the log-likelihood of the corpus falls without it; None for
    characters, which always stay.
    """
    words = Counter(word for text in texts for word in text.split())
    characters = {character for word in words for character in word}
    if not words:
        raise TokenizerError("There is no text to learn pieces from.")
    if vocab_size < len(characters):
        raise TokenizerError(
            f"A vocabulary of {vocab_size} cannot hold {len(characters)} different characters."
        )
    counts: Counter[str] = Counter()
    for word, times in words.items():
        for start, end in itertools.combinations(range(len(word) + 1), 2):
            if end - start <= _MAX_PIECE_LENGTH:
                counts[word[start:end]] += times
    seed = {piece: n for piece, n in counts.items() if len(piece) == 1 or n > 1}
    probabilities, rounds = _normalized(seed), []
    lines = [f"seed ({len(seed)} pieces): {' '.join(seed)}"]
    while True:
        expected: dict[str, float] = {}
        for _ in range(_ROUND_EM_STEPS):
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
        order = sorted(probabilities, key=lambda p: (-probabilities[p], p))
        ranked = sorted(order, key=lambda p: -losses.get(p, math.inf))
        kept = ranked[: max(vocab_size, math.floor(_ROUND_KEEPS * len(order)), len(characters))]
        lines.append(
            f"round {len(rounds) + 1}, after {_ROUND_EM_STEPS} EM steps: piece, expected count, "
            "probability, loss"
        )
        rounds.append([])
        for piece in order:
            row = {
                "piece": piece,
                "expected_count": expected[piece],
                "probability": probabilities[piece],
                "loss": losses.get(piece),
                "kept": piece in kept,
            }
            rounds[-1].append(row)
            loss = f"{losses[piece]:9.4f}" if piece in losses else "character"
            lines.append(
                f"    {piece:<16} {expected[piece]:8.4f} {probabilities[piece]:12.6f} "
                f"{loss} {'' if row['kept'] else ' removed'}".rstrip()
            )
        if len(kept) == len(order):
            break
        probabilities = _normalized({piece: probabilities[piece] for piece in kept})
    final = {piece: probabilities[piece] for piece in order}
    lines.append(f"vocabulary ({len(final)}):")
    lines += [f"    {piece}: {_number(p)}" for piece, p in final.items()]
    facts = {"seed": tuple(seed), "rounds": rounds, "probabilities": final}
    return Explanation(lines, facts | {"em_steps": _ROUND_EM_STEPS})


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
