"""What the trainers of several kinds of tokenizer share."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tokenizers
from pydantic import Field
from tokenizers import normalizers
from tokenizers.trainers import Trainer

from trivium.errors import DataError, TokenizerError
from trivium.text.roles import added_tokens, token_of_role
from trivium.text.tokenizer import TokenizerConfig


class CharacterTokenizerConfig(TokenizerConfig):
    """A kind whose alphabet is the characters of the text."""

    size_advice: ClassVar[str] = (
        ", a smaller character_coverage, or byte-bpe, whose alphabet is 256 bytes"
    )
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
        ranked = sorted(counts, key=lambda character: (-counts[character], character))
        covered = itertools.accumulate((counts[character] for character in ranked), initial=0)
        alphabet = [character for character, before in zip(ranked, covered) if before < target]
        self.check_size(len(self.special_tokens) + len(alphabet))
        rare = "".join(counts.keys() - set(alphabet))
        if rare:
            pattern = re.compile(f"[{re.escape(rare)}]")
            texts = [pattern.sub(" ", text) for text in texts]
        return texts, sorted(alphabet)


def unknown_token(config: TokenizerConfig) -> str:
    """The special token for unknown characters. Raises TokenizerError: there is none."""
    unknown = token_of_role("unk", config.special_tokens)
    if unknown is None:
        raise TokenizerError(
            f"A {config.kind} tokenizer needs a token for unknown characters: add [UNK] or <unk> "
            f"to special_tokens (now: {' '.join(config.special_tokens) or 'none'})."
        )
    return unknown


def run_trainer(
    config: TokenizerConfig,
    backend: tokenizers.Tokenizer,
    trainer_class: Callable[..., Trainer],
    texts: Sequence[str],
    *,
    space_before_words: bool = True,
    more_special_tokens: Sequence[str] = (),
    **options: Any,
) -> None:
    """Train `backend` with a trainer of the `tokenizers` library and its `options`.

    `space_before_words`: tokens of words begin with their space, and so does a mask.

    Raises TokenizerError: the library fails on the text.
    """
    mask = token_of_role("mask", config.special_tokens) if space_before_words else None
    special_tokens = added_tokens(config.special_tokens, with_space=mask)
    trainer = trainer_class(
        vocab_size=config.size,
        special_tokens=[*special_tokens, *more_special_tokens],
        show_progress=False,
        **options,
    )
    try:
        backend.train_from_iterator(texts, trainer)
    except Exception as error:
        raise TokenizerError(
            f"No {config.kind} vocabulary could be learned from this text ({error}). Give more "
            "text or another kind of tokenizer."
        ) from error
