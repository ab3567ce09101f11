"""How tokenizers are trained: `TokenizerConfig`, and what the trainers of several kinds share."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import re
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar

import tokenizers
from pydantic import Field, field_validator
from tokenizers import normalizers
from tokenizers.trainers import Trainer

from trivium.choice import Choice, import_submodules
from trivium.config import Config
from trivium.errors import DataError, TokenizerError, TriviumError
from trivium.messages import translated
from trivium.progress import format_duration
from trivium.text.reservoir import cut_text, reservoir_sample
from trivium.text.roles import add_bert_template, added_tokens, role_tokens, token_of_role
from trivium.text.symbols import base_characters
from trivium.text.tokenizer import Progress, Tokenizer
from trivium.text.vocabulary import Vocabulary

SpecialTokens = Annotated[
    tuple[str, ...], Field(description="they get the first ids, in this order")
]
# Seconds of training that is announced, and of training on a part that ends the estimate.
_SLOW_SECONDS, _LONGEST_PROBE = 10.0, 4.0
# Parts of the sample are trained on to estimate the time: the first one has `_PROBE` characters,
# each further one is twice as large, to 1 / `_LEAST_SHARE` of the sample, or until one takes long.
_PROBE, _LEAST_SHARE, _PIECE = 10_000, 8, 1000
_DEFAULT_SIZE = 8192


class TokenizerSource(Choice, Config):
    """Where a tokenizer comes from: it is trained, or read from a file."""


class TokenizerConfig(TokenizerSource, ABC):
    """How to train one kind of tokenizer: the keys of `[tokenizer]` in a recipe.

    A kind is a subclass with its own `kind`, `component_types`, defaults and `build`.
    """

    size_advice: ClassVar[str] = ""  # what else helps where `vocab_size` is too small
    seconds_per_mb: ClassVar[float] = 0.5  # of training, on one core
    prunes: ClassVar[bool] = False  # whether a large vocabulary is pruned, not a small one grown
    component_types: ClassVar[tuple[str, ...]]
    """Types of model, pre-tokenizers and decoders in `tokenizer.json` that mark the kind."""
    vocab_size: int | None = Field(
        None,
        gt=0,
        description="tokens, special ones included, fewer where the text does not give as many; "
        "by the amount of text unless set",
    )
    special_tokens: SpecialTokens = ()
    sample_bytes: int = Field(
        250_000_000,
        gt=0,
        description="most bytes to train on; of a budget in train.minutes 5 MB a minute, unless "
        "set",
    )

    @property
    def special_vocabulary(self) -> Vocabulary:
        """What the special tokens alone are to an objective, known before training."""
        ids = {token: index for index, token in enumerate(self.special_tokens)}
        roles = {role: ids[token] for role, token in role_tokens(ids).items()}
        return Vocabulary.of(ids, roles, size=len(ids), kind=self.kind)

    @property
    def size(self) -> int:
        """Tokens of the vocabulary: `vocab_size`, or 8,192."""
        return self.vocab_size or _DEFAULT_SIZE

    @field_validator("special_tokens")
    @classmethod
    def _check_special_tokens(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(tokens)) < len(tokens) or "" in tokens:
            raise ValueError(f"special tokens must differ and not be empty: {' '.join(tokens)}")
        return tokens

    def train(self, texts: Iterable[str], *, progress: Progress = True) -> Tokenizer:
        """Train on texts, which are read once.

        `progress` takes lines for the user, such as that the vocabulary is smaller than
        `vocab_size` because the text is small; True prints them to stderr.

        Raises:
            TokenizerError: the vocabulary cannot hold the alphabet of the text.
            DataError: there is no text.
        """
        sample = reservoir_sample(texts, self.sample_bytes)
        if not any(text.strip() for text in sample):
            raise DataError("There is no text to train a tokenizer on.")
        self.check_size(len(self.special_tokens) + 1)
        say = progress if callable(progress) else lambda note: print(note, file=sys.stderr)
        if progress is not False and (seconds := self.estimate_seconds(sample)) > _SLOW_SECONDS:
            say(translated("tokenizer.time", time=format_duration(seconds)))
        backend = self.build(sample)
        size, notes = backend.get_vocab_size(), list(self.hints(sample))
        self.check_size(size)
        add_bert_template(backend)
        if size < self.size:
            words = "tokenizer.smaller"
            coverage = getattr(self, "character_coverage", 1.0)
            if coverage < 1:
                words = "tokenizer.smaller_by_coverage"
            notes.append(translated(words, size=size, wanted=self.size, coverage=coverage))
        for note in notes if progress is not False else ():
            say(note)
        return Tokenizer(backend)

    def check_size(self, needed: int) -> None:
        """Raise TokenizerError where `needed` tokens are more than the vocabulary may have."""
        if needed > self.size:
            raise TokenizerError(
                f"A {self.kind} vocabulary of {self.size} is too small: at least {needed} "
                f"tokens are needed, {len(self.special_tokens)} of them special. Give a larger "
                f"vocab_size{self.size_advice}."
            )

    @property
    def unknown_token(self) -> str:
        """The special token for unknown characters. Raises TokenizerError: there is none."""
        unknown = token_of_role("unk", self.special_tokens)
        if unknown is None:
            raise TokenizerError(
                f"A {self.kind} tokenizer needs a token for unknown characters: add [UNK] or <unk> "
                f"to special_tokens (now: {' '.join(self.special_tokens) or 'none'})."
            )
        return unknown

    def run_trainer(
        self,
        backend: tokenizers.Tokenizer,
        trainer_class: Callable[..., Trainer],
        texts: Sequence[str],
        *,
        space_before_words: bool = True,
        more_special_tokens: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """Train `backend` with a trainer of the `tokenizers` library and its `options`.

        `space_before_words`: tokens of words begin with their space, and so does a mask. Names of
        special tokens in the texts are left out: no token that is learned has the same name.

        Raises TokenizerError: the vocabulary is too small for its characters, or the library fails
        on the text.
        """
        characters = [*more_special_tokens, *options.get("initial_alphabet", ())]
        self.check_size(len(self.special_tokens) + len(characters))
        mask = token_of_role("mask", self.special_tokens) if space_before_words else None
        special_tokens = added_tokens(self.special_tokens, with_space=mask)
        trainer = trainer_class(
            vocab_size=self.size,
            special_tokens=[*special_tokens, *more_special_tokens],
            show_progress=False,
            **options,
        )
        names = sorted(self.special_tokens, key=len, reverse=True)
        special = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        texts = [special.sub(" ", text) for text in texts]
        try:
            _run_interruptibly(lambda: backend.train_from_iterator(texts, trainer))
        except Exception as error:
            raise TokenizerError(
                f"No {self.kind} vocabulary could be learned from this text ({error}). Give more "
                "text or another kind of tokenizer."
            ) from error

    @abstractmethod
    def build(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """Train a tokenizer of the `tokenizers` library on a sample of texts."""

    def estimate_seconds(self, texts: Sequence[str]) -> float:
        """Return about how many seconds training on these texts takes on this machine.

        Larger and larger parts of the texts are trained on. Returns 0 where training is short.
        """
        pieces = [piece for text in texts for piece in cut_text(text, _PIECE)]
        random.Random(0).shuffle(pieces)
        # Pruning to a smaller vocabulary takes a part as many rounds as the whole.
        for size in (self.size // _LEAST_SHARE or 1, self.size)[not self.prunes :]:
            with contextlib.suppress(TriviumError):  # it may not hold the alphabet
                return self.replace(vocab_size=size)._extrapolate(pieces)
        return 0.0

    def _extrapolate(self, pieces: Sequence[str]) -> float:
        """Return the seconds of training on all pieces, from the seconds of parts of the pieces."""
        size, seconds, share, power = sum(map(len, pieces)), 0.0, 1, 1.0
        for share in (2**k for k in range(20, 2, -1) if size >> k >= _PROBE):
            before, start = seconds, time.monotonic()
            self.build(pieces[::share])
            seconds = time.monotonic() - start
            if seconds * share**1.5 < _SLOW_SECONDS:
                return 0.0
            # Twice the text took 2 ** growth the time; with more text growth changes, as measured.
            growth = math.log2(seconds / before) if before else 1.0
            power = min(max(growth + (-0.25 if self.prunes else 0.2), 0.8), 1.6)
            if seconds > _LONGEST_PROBE:
                break
        return seconds * share**power

    def hints(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Lines for the user, where the kind does not suit the text."""
        return ()

    @classmethod
    def other_files(cls, tokenizer: Tokenizer) -> dict[str, str]:
        """As `Tokenizer.other_files`."""
        return {}


def _run_interruptibly(function: Callable[[], object]) -> None:
    """Call a function of the `tokenizers` library so that Ctrl-C interrupts it.

    The function runs in a thread, for Python handles signals only in the main thread, between its
    own instructions. After an interrupt the thread computes until it is done or the program ends.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            function()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="tokenizer", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)  # on Windows a wait without an end cannot be interrupted
    if errors:
        raise errors[0]


class CharacterTokenizerConfig(TokenizerConfig):
    """A kind whose alphabet is the characters of the text."""

    size_advice: ClassVar[str] = (
        ", a smaller character_coverage (printable ASCII and digits always stay), or byte-bpe, "
        "whose alphabet is 256 bytes"
    )
    character_coverage: float = Field(
        0.9995,
        gt=0,
        le=1,
        description="share of the text's characters that get tokens; rarer ones become unknown, "
        "except printable ASCII and the digits of the text's scripts, which are always in",
    )
    normalize: bool = Field(
        True,
        description="Unicode normalization; false keeps accents and compatibility characters "
        "as they are in the text",
    )

    def cover(
        self, texts: Sequence[str], normalizer: normalizers.Normalizer
    ) -> tuple[list[str], list[str]]:
        """Return normalized texts with a space for each rare character, and the sorted alphabet.

        Characters beyond the share `character_coverage` are rare (sentencepiece's rule). Printable
        ASCII and the digits of the scripts are in every alphabet, as in BERT's vocabulary: a text
        that the model meets later may have a question mark where the training text has none.
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
        alphabet = {character for character, before in zip(ranked, covered) if before < target}
        base = map(normalizer.normalize_str, base_characters(alphabet))
        alphabet.update(character for text in base for character in text if character != " ")
        rare = "".join(counts.keys() - alphabet)
        if rare:
            pattern = re.compile(f"[{re.escape(rare)}]")
            texts = [pattern.sub(" ", text) for text in texts]
        return texts, sorted(alphabet)


import_submodules(__name__, __path__)
Tokenizer.kinds = TokenizerConfig.kinds
