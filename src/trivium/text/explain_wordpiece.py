"""WordPiece encoding (Schuster and Nakajima 2012, BERT's form): greedy longest match first."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection

import tokenizers

from trivium.errors import TokenizerError
from trivium.text.explain_bpe import split_words
from trivium.text.symbols import WORDPIECE_PREFIX

LONGEST_WORD = 100  # characters; longer words are unknown, as in BERT


@dataclasses.dataclass(frozen=True, slots=True)
class MatchStep:
    """One match: what was left of the word, what was tried, and the token found, if any."""

    rest: str
    tried: tuple[str, ...]
    token: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class WordMatching:
    """How one word becomes tokens."""

    word: str
    steps: tuple[MatchStep, ...]
    tokens: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)

    def render(self) -> str:
        """What was tried and found."""
        lines = [f"{self.word} -> {' '.join(self.tokens)}"]
        for step in self.steps:
            tried = step.tried if step.token is None else step.tried[:-1]
            missed = f" (not in the vocabulary: {' '.join(tried)})" if tried else ""
            lines.append(f"    {step.rest}: {step.token or 'no match'}{missed}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True, slots=True)
class WordPieceMatching:
    """How the words of a text become tokens."""

    text: str
    words: tuple[WordMatching, ...]

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens of the text."""
        return tuple(token for word in self.words for token in word.tokens)

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {**dataclasses.asdict(self), "tokens": list(self.tokens)}

    def render(self) -> str:
        """Each word, and all tokens."""
        lines = [word.render() for word in self.words]
        return "\n".join([*lines, f"tokens: {' '.join(self.tokens)}"])


def match_wordpiece(
    word: str,
    vocabulary: Collection[str],
    *,
    unknown: str = "[UNK]",
    prefix: str = WORDPIECE_PREFIX,
    longest: int = LONGEST_WORD,
) -> WordMatching:
    """Take the longest token that starts the rest of the word until nothing is left.

    Where no token fits at some place, the whole word is unknown.
    """
    steps: list[MatchStep] = []
    tokens: list[str] = []
    place = 0
    while place < len(word) and len(word) <= longest:
        ends = range(len(word), place, -1)
        candidates = [(prefix if place else "") + word[place:end] for end in ends]
        hit = next((at for at, text in enumerate(candidates) if text in vocabulary), None)
        if hit is None:
            steps.append(MatchStep(word[place:], tuple(candidates), None))
            break
        steps.append(MatchStep(word[place:], tuple(candidates[: hit + 1]), candidates[hit]))
        tokens.append(candidates[hit])
        place = ends[hit]
    if place < len(word):
        tokens = [unknown]
    return WordMatching(word, tuple(steps), tuple(tokens))


def explain_wordpiece_encoding(backend: tokenizers.Tokenizer, text: str) -> WordPieceMatching:
    """Encode `text` with a loaded WordPiece tokenizer, match by match.

    Raises TokenizerError where the model is not WordPiece.
    """
    model = json.loads(backend.to_str())["model"]
    if model["type"] != "WordPiece":
        raise TokenizerError(f"This explains WordPiece tokenizers; this one is {model['type']}.")
    words = tuple(
        match_wordpiece(
            word,
            model["vocab"],
            unknown=model["unk_token"],
            prefix=model["continuing_subword_prefix"],
            longest=model["max_input_chars_per_word"],
        )
        for word in split_words(backend, text)
    )
    return WordPieceMatching(text, words)
