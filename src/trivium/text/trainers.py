"""What the trainers of several kinds of tokenizer share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import tokenizers
from pydantic import Field
from tokenizers import AddedToken, normalizers
from tokenizers.trainers import Trainer

from trivium.errors import DataError, TokenizerError
from trivium.text.roles import token_of_role
from trivium.text.tokenizer import TokenizerConfig


class CharacterTokenizerConfig(TokenizerConfig):
    """A kind whose alphabet is the characters of the text."""

    character_coverage: float = Field(
        0.9995,
        gt=0,
        le=1,
        description="share of the text's characters that get tokens; rarer ones become unknown",
    )

    def cover(
        self, texts: Sequence[str], normalizer: normalizers.Normalizer
    ) -> tuple[list[str], list[str]]:
        """Normalized texts with a space for each rare character, and the sorted alphabet left.

        Characters beyond the share `character_coverage` are rare (sentencepiece's rule).

        Raises TokenizerError: the alphabet alone exceeds `vocab_size`.
        """
        texts = [normalizer.normalize_str(text) for text in texts]
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        del counts[" "]
        if not counts:
            raise DataError("There is no text to train a tokenizer on, only invisible characters.")
        target = self.character_coverage * counts.total()
        alphabet: list[str] = []
        covered = 0
        for character in sorted(counts, key=lambda character: (-counts[character], character)):
            if covered >= target:
                break
            alphabet.append(character)
            covered += counts[character]
        self.check_size(len(alphabet) + len(self.special_tokens), at_least=True)
        rare = "".join(counts.keys() - set(alphabet))
        if rare:
            pattern = re.compile(f"[{re.escape(rare)}]")
            texts = [pattern.sub(" ", text) for text in texts]
        return texts, sorted(alphabet)

    def check_size(self, needed: int, *, at_least: bool = False) -> None:
        """Raise TokenizerError where `needed` tokens are more than the vocabulary may have."""
        if needed > self.vocab_size:
            raise TokenizerError(
                f"A {self.kind} vocabulary of {self.vocab_size} cannot hold the alphabet of this "
                f"text: {'at least ' if at_least else ''}{needed} tokens are needed, "
                f"{len(self.special_tokens)} of them special. Give a larger vocab_size, a smaller "
                "character_coverage, or byte-bpe, whose alphabet is 256 bytes."
            )


def unknown_token(config: TokenizerConfig) -> str:
    """The special token for unknown characters. Raises TokenizerError: there is none."""
    unknown = token_of_role("unk", config.special_tokens)
    if unknown is None:
        raise TokenizerError(
            f"A {config.kind} tokenizer needs a token for unknown characters: add [UNK] or <unk> "
            f"to special_tokens (now: {' '.join(config.special_tokens) or 'none'})."
        )
    return unknown


def added_tokens(tokens: Sequence[str], *, spaced: bool) -> list[AddedToken]:
    """Special tokens for a trainer. `spaced`: words begin with their space, and so does a mask."""
    mask = token_of_role("mask", tokens)
    return [
        AddedToken(token, normalized=False, special=True, lstrip=spaced and token == mask)
        for token in tokens
    ]


def run_trainer(
    backend: tokenizers.Tokenizer, trainer: Trainer, texts: Sequence[str], kind: str
) -> None:
    """Train, and raise the library's panics on odd texts as TokenizerError."""
    try:
        backend.train_from_iterator(texts, trainer)
    except Exception as error:
        raise TokenizerError(
            f"No {kind} vocabulary could be learned from this text ({error}). Give more text or "
            "another kind of tokenizer."
        ) from error
