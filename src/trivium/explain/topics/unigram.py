"""Explanation of the Unigram language model of subwords (Kudo 2018).

A segmentation x = (x_1 .. x_M) of a text into pieces has the probability p(x_1) ... p(x_M). The
probability of the text is the sum over all its segmentations, which form a lattice. Encoding
selects the most probable segmentation (Viterbi). Training alternates between EM steps for the
probabilities and the removal of pieces. The library `tokenizers` does not expose these steps.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from trivium.errors import TokenizerError
from trivium.explain.page import Formula, Heading, Page, Part, Table, get_text
from trivium.explain.tokens import Word, build_encoding_page, choose_texts, load_tokenizer

_MAX_PIECE_LENGTH = 16  # characters, as in sentencepiece
_UNKNOWN_PENALTY = 10.0  # nats below the worst piece, as in sentencepiece
_EM_STEPS, _SHOWN_EM_STEPS = 100, (0, 1, 2, 10, 100)  # for the segmentation of a single text
_ROUND_EM_STEPS = 2
_SHOWN_PATHS = 10
_EXAMPLE = ["hug hug hug pug pug pun bun hugs"]
_PROBABILITY, _REMOVED = get_text("unigram.probability"), get_text("unigram.removed")
_FITTING = [get_text("unigram.em_steps"), get_text("unigram.likelihood")]
_PATHS = [get_text("unigram.segmentation"), get_text("unigram.product"), _PROBABILITY]
_PIECES = [get_text("unigram.piece"), get_text("unigram.expected_count"), _PROBABILITY]
_FORMULA = Formula("p(x) = p(x_1) * p(x_2) * ... * p(x_M)\np(text) = sum of p(x) over all x")
_NOTE = get_text("unigram.em_note")


def explain(
    texts: list[str] | None = None,
    *,
    vocab: str | None = None,
    vocab_size: int | None = None,
    keep: float = 0.8,
    tokenizer: Path | None = None,
) -> Page:
    """Train on the words of texts, or show all segmentations of texts.

    Args:
        texts: Short texts. Default: the segmentations of ababc, and an example of training.
        vocab: Show the segmentations into these pieces, separated by spaces.
        vocab_size: Number of pieces after training. Default: number of characters plus two.
        keep: Fraction of the pieces that each round of pruning keeps.
        tokenizer: A tokenizer file or run folder; show how this tokenizer encodes the texts
            instead.
    """
    if tokenizer is not None:
        return _build_tokenizer_page(tokenizer, choose_texts(texts, _EXAMPLE))
    parts, data = list[Part]([_FORMULA]), dict[str, Any]()
    if vocab is not None or texts is None:
        data["texts"] = []
        for text in choose_texts(texts, ["ababc"]):
            probabilities, fitting = fit_probabilities(text, (vocab or "ab c").split())
            paths, text_data = explain_lattice(text, probabilities)
            parts += [Heading(text), fitting, paths]
            data["texts"].append(text_data)
    if vocab is None:
        rounds, data["training"] = train_unigram(choose_texts(texts, _EXAMPLE), vocab_size, keep)
        parts += [Heading(get_text("unigram.training")), *rounds, _NOTE]
    return Page(get_text("unigram.unigram_model"), parts, data)


def _build_tokenizer_page(path: Path, texts: Sequence[str]) -> Page:
    """Build a page that shows how a trained Unigram tokenizer segments each word.

    A character that is not in the vocabulary becomes its own piece, with a lower probability than
    all other pieces.
    """
    tokenizer = load_tokenizer(path, ("unigram",))
    scores = dict(tokenizer.model["vocab"])
    unknown = math.exp(min(scores.values(), default=0.0) - _UNKNOWN_PENALTY)
    # A log-probability is at most 0, but a file may contain larger numbers, and exp would overflow.
    probabilities = {piece: math.exp(min(score, 99.0)) for piece, score in scores.items()}

    def explain_word(word: str) -> Word:
        """Return the segmentations of a word, as a table and as data."""
        return explain_lattice(word, dict.fromkeys(word, unknown) | probabilities)

    return build_encoding_page(tokenizer, texts, explain_word)


def fit_probabilities(text: str, pieces: Sequence[str]) -> tuple[dict[str, float], Table]:
    """Fit the probabilities of pieces to a text by EM, starting from equal probabilities.

    Returns the probabilities and a table of the EM steps.

    Example: the text ababc and the pieces {ab, c}. There is one segmentation, so p(ab) = 2/3, p(c)
    = 1/3, and the likelihood is 2/3 x 2/3 x 1/3 = 4/27.
    """
    probabilities, rows = dict.fromkeys(pieces, 1.0 / max(1, len(pieces))), []
    for step in range(_EM_STEPS + 1):
        counts, likelihood = compute_expected_counts(text, probabilities)
        if step in _SHOWN_EM_STEPS:
            rows.append([step, *map(_format_probability, (likelihood, *probabilities.values()))])
        if step < _EM_STEPS and counts:
            probabilities = dict.fromkeys(pieces, 0.0) | _normalize(counts)
    names = [f"p({piece})" for piece in probabilities]
    return probabilities, Table([*_FITTING, *names], rows, get_text("unigram.em"))


def explain_lattice(text: str, probabilities: Mapping[str, float]) -> Word:
    """Return the most probable segmentations of a text, as a table and as data.

    The data contains the `likelihood` of the text (the sum over all segmentations), the number of
    segmentations (`path_count`), and the most probable segmentations (`paths`). `probabilities`
    maps each piece to its probability.

    Raises:
        TokenizerError: the pieces do not cover the text.
    """
    path_count = _sum_segmentations(text, {p: 1 for p, value in probabilities.items() if value})[-1]
    if not path_count:
        pieces = " ".join(sorted(probabilities)[:20])
        raise TokenizerError(
            f"{text!r} cannot be segmented into the pieces {pieces}. Give others with --vocab."
        )
    likelihood = _sum_segmentations(text, probabilities)[-1]
    best = _find_best_paths(text, probabilities)
    rows = []
    for pieces, nats in best:
        product = " x ".join(_format_probability(probabilities[piece]) for piece in pieces)
        rows.append([" ".join(pieces), product, _format_probability(math.exp(nats))])
    caption = get_text(
        "unigram.likelihood_segmentations",
        text=text,
        likelihood=_format_probability(likelihood),
        path_count=path_count,
    )
    return Table(_PATHS, rows, caption), {
        "word": text,
        "tokens": best[0][0],
        "likelihood": likelihood,
        "path_count": path_count,
        "paths": [{"pieces": pieces, "log_probability": nats} for pieces, nats in best],
    }


def _format_probability(value: float) -> str:
    """Format a probability as a fraction if its denominator is small, otherwise as a decimal."""
    near = Fraction(value).limit_denominator(1000)
    exact = near != 0 and math.isclose(float(near), value, rel_tol=1e-12)
    return str(near) if exact else f"{value:.4g}"


def _match_pieces(text: str, pieces: Mapping[str, float]) -> list[tuple[int, int]]:
    """Find all occurrences of the pieces in a text.

    Returns their (start, end) spans, sorted by end.
    """
    longest = max(map(len, pieces), default=0)
    return [
        (start, end)
        for end in range(1, len(text) + 1)
        for start in range(max(0, end - longest), end)
        if pieces.get(text[start:end], 0.0) > 0.0
    ]


def _sum_segmentations(text: str, pieces: Mapping[str, float]) -> list[float]:
    """Return the probability of each prefix of a text, for prefix lengths 0 to the text's length.

    The probability of a prefix is the sum over all its segmentations into pieces. If every piece
    has the value 1, the result is the number of segmentations of each prefix instead.
    """
    forward: list[float] = [1, *[0] * len(text)]
    for start, end in _match_pieces(text, pieces):
        forward[end] += forward[start] * pieces[text[start:end]]
    return forward


def _find_best_paths(text: str, pieces: Mapping[str, float]) -> list[tuple[tuple[str, ...], float]]:
    """Return the ten most probable segmentations of a text, with their log-probabilities in nats.

    This is the Viterbi algorithm, extended to keep the ten best paths to each character.
    """
    best: list[list[tuple[tuple[str, ...], float]]] = [[((), 0.0)], *([] for _ in text)]
    for end, spans in itertools.groupby(_match_pieces(text, pieces), key=lambda span: span[1]):
        paths = [
            ((*path, text[start:end]), nats + math.log(pieces[text[start:end]]))
            for start, _ in spans
            for path, nats in best[start]
        ]
        paths.sort(key=lambda path: (-path[1], len(path[0]), path[0]))
        best[end] = paths[:_SHOWN_PATHS]
    return best[-1]


def compute_expected_counts(
    text: str, pieces: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """Compute the expected count of each piece over all segmentations of a text (the E step).

    E[count(x)] is the sum of alpha[start] p(x) beta[end] / likelihood over all occurrences of piece
    x. alpha[start] is the total probability of the text before the occurrence, and beta[end] is
    that of the text after the occurrence. Returns the counts and the likelihood of the text.
    """
    alpha = _sum_segmentations(text, pieces)
    mirrored = {piece[::-1]: probability for piece, probability in pieces.items()}
    beta = _sum_segmentations(text[::-1], mirrored)[::-1]
    counts: defaultdict[str, float] = defaultdict(float)
    for start, end in _match_pieces(text, pieces) if alpha[-1] else ():
        piece = text[start:end]
        counts[piece] += alpha[start] * pieces[piece] * beta[end] / alpha[-1]
    return dict(counts), alpha[-1]


def _normalize(counts: Mapping[str, float]) -> dict[str, float]:
    """Divide counts by their sum. Returns a dict of piece -> probability."""
    total = sum(counts.values())
    return {piece: count / total for piece, count in counts.items()}


def train_unigram(
    texts: Sequence[str], vocab_size: int | None, keep: float
) -> tuple[list[Part], dict[str, Any]]:
    """Train a Unigram model on the whitespace-separated words of short texts.

    The seed vocabulary contains every character and every substring that occurs at least twice.
    Each round performs two EM steps and then removes pieces. It keeps all characters and the
    fraction `keep` of the pieces with the greatest loss. Rounds are repeated until `vocab_size`
    pieces are left. The loss of a piece is the decrease in log-likelihood when the piece is
    removed. As in the paper but unlike in sentencepiece, this loss is exact, and the M step divides
    by the total count.

    Returns:
        The page parts and a dict of data. The dict contains the `seed` pieces, the `rounds` (each a
        list with a row per piece), and the final `probabilities`. The loss of a character is None,
        because characters are always kept.
    """
    words = Counter(" ".join(texts).split())
    characters = {*"".join(words)}
    vocab_size = len(characters) + 2 if vocab_size is None else vocab_size
    if vocab_size < len(characters):
        raise TokenizerError(
            f"A vocabulary of {vocab_size} is too small for {len(characters)} different characters."
        )
    if not 0 < keep < 1:
        raise TokenizerError(f"--keep is a fraction between 0 and 1, not {keep}.")
    counts: Counter[str] = Counter()
    for word, times in words.items():
        for start, end in itertools.combinations(range(len(word) + 1), 2):
            if end - start <= _MAX_PIECE_LENGTH:
                counts[word[start:end]] += times
    seed = {piece: n for piece, n in counts.items() if len(piece) == 1 or n > 1}
    probabilities, rounds = _normalize(seed), []
    listed = f"({len(seed)}): {' '.join(seed)}"
    parts: list[Part] = [get_text("unigram.seed_vocabulary", listed=listed)]
    while True:
        expected: dict[str, float] = {}
        for _ in range(_ROUND_EM_STEPS):
            expected, _ = _count_in_corpus(words, probabilities)
            # Characters keep a tiny probability, so that every word can be segmented.
            floor = {p: max(n, 1e-12) if len(p) == 1 else n for p, n in expected.items()}
            probabilities = _normalize(floor)
        _, whole = _count_in_corpus(words, probabilities)
        losses = {
            piece: whole - _count_in_corpus(words, {**probabilities, piece: 0.0})[1]
            for piece in probabilities
            if len(piece) > 1
        }
        order = sorted(probabilities, key=lambda p: (-probabilities[p], p))
        ranked = sorted(order, key=lambda p: -losses.get(p, math.inf))
        kept = ranked[: max(vocab_size, math.floor(keep * len(order)), len(characters))]
        names = ("piece", "expected_count", "probability", "loss", "kept")
        rows = [(p, expected[p], probabilities[p], losses.get(p), p in kept) for p in order]
        rounds.append([dict(zip(names, row)) for row in rows])
        caption = get_text(
            "unigram.round",
            round=len(rounds),
            steps=_ROUND_EM_STEPS,
            whole=whole,
            kept=len(kept),
            pieces=len(order),
        )
        shown = [[*row[:3], row[3] or "", "" if row[4] else _REMOVED] for row in rows]
        parts.append(Table([*_PIECES, get_text("shared.loss"), _REMOVED], shown, caption))
        if len(kept) == len(order):
            break
        probabilities = _normalize({piece: probabilities[piece] for piece in kept})
    final = {piece: probabilities[piece] for piece in order}
    return parts, {"seed": list(seed), "rounds": rounds, "probabilities": final}


def _count_in_corpus(
    words: Mapping[str, int], probabilities: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """Return the expected count of each piece in a corpus, and the corpus log-likelihood in nats.

    `words` contains each word of the corpus and its count. `probabilities` maps each piece to its
    probability.
    """
    totals, log_likelihood = dict.fromkeys(probabilities, 0.0), 0.0
    for word, times in words.items():
        counts, likelihood = compute_expected_counts(word, probabilities)
        log_likelihood += times * math.log(likelihood) if likelihood else -math.inf
        for piece, count in counts.items():
            totals[piece] += times * count
    return totals, log_likelihood
