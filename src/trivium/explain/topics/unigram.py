"""The Unigram language model of subwords (Kudo 2018): a text as a lattice of its segmentations.

A segmentation x = (x_1 .. x_M) has the probability p(x_1) ... p(x_M), a text the sum over all of
its segmentations. Encoding takes the most probable one (Viterbi); training alternates EM steps for
the probabilities with the removal of pieces. The library `tokenizers` hides these steps.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import TokenizerError
from trivium.explain.page import Bilingual, Formula, Heading, Page, Part, Table
from trivium.explain.tokens import Word, encoding_page, load_tokenizer

SUMMARY = Bilingual(
    "Unigram: a lattice of pieces, EM and pruning", "Unigram：切分的似然值、EM 与剪枝"
)

_MAX_PIECE_LENGTH = 16  # characters, as in sentencepiece
_EM_STEPS, _SHOWN_EM_STEPS = 100, (0, 1, 2, 10, 100)  # for the pieces of a single text
_ROUND_EM_STEPS = 2
_UNKNOWN_PENALTY = 10.0  # nats below the worst piece, as in sentencepiece
_SHOWN_PATHS = 10
_PIECE, _PROBABILITY = Bilingual("piece", "词元"), Bilingual("probability", "概率")
_EXPECTED = Bilingual("expected count", "期望次数")
_LIKELIHOOD = Bilingual("likelihood", "似然值")
_EXAMPLE = ["hug hug hug pug pug pun bun hugs"]
_NOTE = Bilingual(
    "The E step counts each piece over all segmentations, weighted by their probabilities; the M "
    "step divides by the total. The loss of a piece is by how many nats the log-likelihood falls "
    "without it; those with the least go, characters stay. Training here (the library tokenizers) "
    "keeps 75% of the pieces in a round unless the tokenizer's key keep says else.",
    "E 步按各种切分的概率加权，统计每个词元的期望次数；M 步将其除以总数，得到新的概率。"
    "词元的损失是去掉它之后对数似然下降的量（单位为奈特）；损失最小的词元被删去，单个字符始终保留。"
    "实际训练（tokenizers 库）每轮默认保留 75% 的词元，可用词元分析器的 keep 键更改。",
)


def explain(
    texts: list[str] | None = None,
    *,
    vocab: str | None = None,
    vocab_size: int | None = None,
    keep: float = 0.8,
    tokenizer: Path | None = None,
) -> Page:
    """Show the segmentations of a text with their probabilities, or the training on texts.

    Args:
        texts: Texts. Default: ababc with the pieces ab and c, and a training.
        vocab: Pieces of the lattice separated by spaces, or PIECE=PROBABILITY for every one.
        vocab_size: Show how the texts' words are pruned to as many pieces.
        keep: Share of the pieces that a round of pruning keeps.
        tokenizer: Show how this one encodes the texts; a file, or the folder of a run.
    """
    if tokenizer is not None:
        return _encoding(tokenizer, texts or _EXAMPLE)
    formula = Formula("p(x) = p(x_1) * p(x_2) * ... * p(x_M);   p(text) = sum of p(x) over all x")
    parts, facts = [formula], dict[str, Any]()
    if vocab_size is None:
        pieces = _pieces(vocab or "ab c")
        lattices = [lattice(text, pieces) for text in texts or ["ababc"]]
        parts += [part for some, _ in lattices for part in some]
        facts["texts"] = [one for _, one in lattices]
    if vocab_size is not None or texts is None:
        some, facts["training"] = train(texts or _EXAMPLE, vocab_size or 9, keep)
        parts += [*some, _NOTE]
    return Page(Bilingual("The Unigram model", "Unigram 模型"), parts, facts)


def _pieces(vocab: str) -> dict[str, float] | list[str]:
    """Pieces, with probabilities where every one has its own."""
    entries = [entry.rpartition("=") for entry in vocab.split()]
    if not any(equals for _, equals, _ in entries):
        return vocab.split()
    try:
        pieces = {piece: float(value) for piece, _, value in entries}
    except ValueError:
        pieces = {}
    if not pieces or any(not piece or not 0.0 < value <= 1.0 for piece, value in pieces.items()):
        raise TokenizerError(
            f"--vocab takes pieces, or PIECE=PROBABILITY for every one (0 to 1), not {vocab!r}."
        )
    return pieces


def _encoding(path: Path, texts: Sequence[str]) -> Page:
    """Lattices; a character without a piece stands for itself, below the worst piece."""
    tokenizer = load_tokenizer(path, ("unigram",))
    scores = dict(tokenizer.model["vocab"])
    unknown = math.exp(min(scores.values(), default=0.0) - _UNKNOWN_PENALTY)
    # A log-probability is at most 0; a file may hold any number, of which exp overflows.
    probabilities = {piece: math.exp(min(score, 99.0)) for piece, score in scores.items()}

    def explain_word(word: str) -> Word:
        (*_, paths), facts = lattice(word, dict.fromkeys(word, unknown) | probabilities)
        return paths, facts

    return encoding_page(tokenizer, texts, explain_word)


class _Edge(NamedTuple):
    """A piece that matches the text from `start` to `end` (characters), and its probability."""

    start: int
    end: int
    piece: str
    probability: float


def lattice(
    text: str, vocabulary: Mapping[str, float] | Sequence[str]
) -> tuple[list[Part], dict[str, Any]]:
    """The segmentations of a text over pieces and their probabilities.

    Pieces without probabilities get those that maximise the likelihood of the text, by EM from
    equal ones: with {ab, c}, ababc has one segmentation, p(ab) = 2/3, p(c) = 1/3, and the
    likelihood 2/3 x 2/3 x 1/3 = 4/27.

    The facts: the `edges`, `forward[i]`, the probability of the first i characters summed over
    segmentations, whose last is the `likelihood`, the `expected_counts` of the pieces,
    `path_count`, the number of segmentations, and `paths`, the most probable ones, best first.

    Raises TokenizerError: no path covers the text.
    """
    parts: list[Part] = [Heading(text)]
    history = list[list[Any]]()
    if isinstance(vocabulary, Mapping):
        probabilities = dict(vocabulary)
    else:
        probabilities = {piece: 1.0 / len(vocabulary) for piece in vocabulary}
        for step in range(_EM_STEPS + 1):
            counts, likelihood = expected_counts(text, probabilities)
            if step in _SHOWN_EM_STEPS:
                history.append([step, _number(likelihood), *map(_number, probabilities.values())])
            if step < _EM_STEPS and counts:
                total = sum(counts.values())
                probabilities = {piece: counts.get(piece, 0.0) / total for piece in probabilities}
        columns = [Bilingual("step", "步"), _LIKELIHOOD, *(f"p({piece})" for piece in vocabulary)]
        parts.append(
            Table(columns, history, Bilingual("EM on this text alone", "仅在此文本上做 EM"))
        )
    edges = _edges(text, probabilities)
    path_count = _forward(text, [edge._replace(probability=1) for edge in edges])[-1]
    if not path_count:
        pieces = " ".join(sorted(vocabulary)[:20])
        raise TokenizerError(
            f"{text!r} cannot be written with the pieces {pieces}. Give others with --vocab."
        )
    forward, best = _forward(text, edges), _best_paths(text, edges, _SHOWN_PATHS)
    counts, likelihood = expected_counts(text, probabilities)
    rows = [
        [piece, _number(probabilities[piece]), _number(count)] for piece, count in counts.items()
    ]
    parts.append(Table([_PIECE, _PROBABILITY, _EXPECTED], rows))
    columns = [
        Bilingual("segmentation, best first", "切分（由高到低）"),
        Bilingual("product", "乘积"),
        _PROBABILITY,
    ]
    rows = [
        [
            " ".join(pieces),
            " x ".join(_number(probabilities[piece]) for piece in pieces),
            _number(math.exp(nats)),
        ]
        for pieces, nats in best
    ]
    caption = Bilingual(
        f"{text}: segmentations {path_count}, likelihood {_number(likelihood)}",
        f"{text}：共 {path_count} 种切分，似然值 {_number(likelihood)}",
    )
    parts.append(Table(columns, rows, caption))
    return parts, {
        "word": text,
        "tokens": best[0][0],
        "probabilities": probabilities,
        "edges": [edge._asdict() for edge in edges],
        "forward": forward,
        "likelihood": likelihood,
        "expected_counts": counts,
        "path_count": path_count,
        "paths": [{"pieces": pieces, "log_probability": nats} for pieces, nats in best],
    }


def _number(value: float) -> str:
    """A probability as a small fraction where it is one, else as a decimal number."""
    near = Fraction(value).limit_denominator(1000)
    exact = near != 0 and math.isclose(float(near), value, rel_tol=1e-12)
    return str(near) if exact else f"{value:.4g}"


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
            ((*pieces, edge.piece), nats + math.log(edge.probability))
            for edge in edges
            if edge.end == end
            for pieces, nats in best[edge.start]
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


def train(texts: Sequence[str], vocab_size: int, keep: float) -> tuple[list[Part], dict[str, Any]]:
    """Learn pieces from the whitespace-separated words of small texts.

    The seed holds every character and every substring that occurs twice. Each round makes two EM
    steps, then keeps a share of the pieces, those with the greatest loss, and all characters, until
    `vocab_size` pieces are left. As in the paper, and unlike sentencepiece, the M step divides by
    the total and the loss of a piece is the exact change of the log-likelihood.

    The facts: the `seed`, in `rounds` a row for each piece, and the final `probabilities`. The loss
    of a piece is None for characters, which always stay.
    """
    words = Counter(word for text in texts for word in text.split())
    characters = {character for word in words for character in word}
    if not words:
        raise TokenizerError("There is no text to learn pieces from.")
    if not 0 < keep < 1:
        raise TokenizerError(f"--keep is a share between 0 and 1, not {keep}.")
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
    columns = [
        _PIECE,
        _EXPECTED,
        _PROBABILITY,
        Bilingual("loss", "损失"),
        Bilingual("removed", "删去"),
    ]
    character, removed = Bilingual("character", "字符"), Bilingual("removed", "删去")
    parts: list[Part] = [
        Heading(Bilingual("Training", "训练")),
        Bilingual(
            f"seed vocabulary ({len(seed)}): {' '.join(seed)}",
            f"种子词表（{len(seed)} 个词元）：{' '.join(seed)}",
        ),
    ]
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
        kept = ranked[: max(vocab_size, math.floor(keep * len(order)), len(characters))]
        rounds.append(
            [
                {
                    "piece": piece,
                    "expected_count": expected[piece],
                    "probability": probabilities[piece],
                    "loss": losses.get(piece),
                    "kept": piece in kept,
                }
                for piece in order
            ]
        )
        rows = [
            [
                piece,
                expected[piece],
                probabilities[piece],
                losses.get(piece, character),
                "" if piece in kept else removed,
            ]
            for piece in order
        ]
        caption = Bilingual(
            f"round {len(rounds)}, after {_ROUND_EM_STEPS} EM steps: log-likelihood {whole:.4f}, "
            f"{len(kept)} of {len(order)} pieces stay",
            f"第 {len(rounds)} 轮，{_ROUND_EM_STEPS} 步 EM 之后：对数似然 {whole:.4f}，"
            f"{len(order)} 个词元中保留 {len(kept)} 个",
        )
        parts.append(Table(columns, rows, caption))
        if len(kept) == len(order):
            break
        probabilities = _normalized({piece: probabilities[piece] for piece in kept})
    final = {piece: probabilities[piece] for piece in order}
    return parts, {"seed": list(seed), "rounds": rounds, "probabilities": final}


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
