"""Training of tokenizers: `TokenizerConfig`, and code that several kinds of tokenizers share."""

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
from trivium.text.reservoir import reservoir_sample, split_text
from trivium.text.roles import add_bert_template, find_token_for_role, infer_roles, to_added_tokens
from trivium.text.symbols import list_base_characters
from trivium.text.tokenizer import Progress, Tokenizer
from trivium.text.vocabulary import Vocabulary

SpecialTokens = Annotated[
    tuple[str, ...], Field(description="the special tokens, which get the first ids in this order")
]
# Training that takes longer than `_SLOW_SECONDS` is announced. Time estimation stops after a part
# that took longer than `_MAX_PROBE_SECONDS`.
_SLOW_SECONDS, _MAX_PROBE_SECONDS = 10.0, 4.0
# The time is estimated by training on parts of the sample. The first part has `_FIRST_PROBE`
# characters, and each further part is twice as large, up to 1 / `_PROBE_DIVISOR` of the sample.
_FIRST_PROBE, _PROBE_DIVISOR, _PIECE_LENGTH = 10_000, 8, 1000
_DEFAULT_SIZE = 8192


class TokenizerSource(Choice, Config):
    """Base class of the recipe section `[tokenizer]`, which trains or loads a tokenizer."""


class TokenizerConfig(TokenizerSource, ABC):
    """Base class of the settings for training a tokenizer, the keys of `[tokenizer]` in a recipe.

    Each kind of tokenizer is a subclass that sets `kind` and `component_types` and implements
    `train_backend`.
    """

    size_advice: ClassVar[str] = ""  # other remedies if `vocab_size` is too small
    seconds_per_mb: ClassVar[float] = 0.5  # training time on one core
    prunes: ClassVar[bool] = False  # whether training prunes, instead of growing a vocabulary
    component_types: ClassVar[tuple[str, ...]]
    """The types of model, pre-tokenizer and decoder in `tokenizer.json` that define the kind."""
    vocab_size: int | None = Field(
        None,
        gt=0,
        description="number of tokens, including special tokens; fewer if there is little text; "
        "chosen by the amount of text unless set",
    )
    special_tokens: SpecialTokens = ()
    sample_bytes: int = Field(
        250_000_000,
        gt=0,
        description="maximum number of bytes to train on; unless set, a budget in train.minutes "
        "limits it to 5 MB per minute",
    )

    @property
    def special_vocabulary(self) -> Vocabulary:
        """A vocabulary of only the special tokens.

        It is known before training. Objectives use it to check whether the special tokens that they
        need exist.
        """
        ids = {token: index for index, token in enumerate(self.special_tokens)}
        roles = {role: ids[token] for role, token in infer_roles(ids).items()}
        return Vocabulary.from_special_tokens(ids, roles, size=len(ids), kind=self.kind)

    @property
    def size(self) -> int:
        """The requested vocabulary size: `vocab_size`, or 8,192 if it is not set."""
        return self.vocab_size or _DEFAULT_SIZE

    @field_validator("special_tokens")
    @classmethod
    def _check_special_tokens(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        """Raise ValueError if the special tokens contain duplicates or an empty name."""
        if len(set(tokens)) < len(tokens) or "" in tokens:
            raise ValueError(f"special tokens must differ and not be empty: {' '.join(tokens)}")
        return tokens

    def train(self, texts: Iterable[str], *, progress: Progress = True) -> Tokenizer:
        """Train a tokenizer on texts. Returns the tokenizer.

        Args:
            texts: the texts, which are iterated once.
            progress: a function that is called with each message for the user, for example that the
                vocabulary is smaller than `vocab_size` because there is little text. True prints
                the messages to stderr, False discards them.

        Raises:
            TokenizerError: the vocabulary size is smaller than the alphabet of the text.
            DataError: there is no text.
        """
        sample = reservoir_sample(texts, self.sample_bytes)
        if not any(text.strip() for text in sample):
            raise DataError("There is no text to train a tokenizer on.")
        self.check_size(len(self.special_tokens) + 1)
        print_line = progress if callable(progress) else lambda note: print(note, file=sys.stderr)
        if progress is not False and (seconds := self.estimate_seconds(sample)) > _SLOW_SECONDS:
            print_line(translated("tokenizer.time", time=format_duration(seconds)))
        backend = self.train_backend(sample)
        size, notes = backend.get_vocab_size(), list(self.make_hints(sample))
        self.check_size(size)
        add_bert_template(backend)
        if size < self.size:
            words = "tokenizer.smaller"
            coverage = getattr(self, "character_coverage", 1.0)
            if coverage < 1:
                words = "tokenizer.smaller_by_coverage"
            notes.append(translated(words, size=size, wanted=self.size, coverage=coverage))
        for note in notes if progress is not False else ():
            print_line(note)
        return Tokenizer(backend)

    def check_size(self, num_tokens: int) -> None:
        """Raise TokenizerError if the vocabulary size is less than `num_tokens` required tokens."""
        if num_tokens > self.size:
            raise TokenizerError(
                f"A {self.kind} vocabulary of {self.size} is too small: at least {num_tokens} "
                f"tokens are needed, {len(self.special_tokens)} of them special. Give a larger "
                f"vocab_size{self.size_advice}."
            )

    @property
    def unknown_token(self) -> str:
        """The special token for unknown characters, such as `[UNK]`.

        Raises TokenizerError if the special tokens do not contain one.
        """
        unknown = find_token_for_role("unk", self.special_tokens)
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
        extra_tokens: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """Train `backend` with a trainer of the `tokenizers` library.

        Special-token names are removed from the texts, so that they are not learned as ordinary
        tokens.

        Args:
            backend: the tokenizer to train.
            trainer_class: the class of the trainer.
            texts: the texts.
            space_before_words: whether a token includes the space before its word. If so, the mask
                token also includes the space before it.
            extra_tokens: tokens that are added to the vocabulary after the special tokens.
            options: other arguments of the trainer class.

        Raises TokenizerError if the vocabulary size is smaller than the alphabet, or if the library
        cannot learn a vocabulary from the texts.
        """
        characters = [*extra_tokens, *options.get("initial_alphabet", ())]
        self.check_size(len(self.special_tokens) + len(characters))
        mask = find_token_for_role("mask", self.special_tokens) if space_before_words else None
        special_tokens = to_added_tokens(self.special_tokens, with_space=mask)
        trainer = trainer_class(
            vocab_size=self.size,
            special_tokens=[*special_tokens, *extra_tokens],
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
    def train_backend(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """Train and return a tokenizer of the `tokenizers` library on a sample of texts."""

    def estimate_seconds(self, texts: Sequence[str]) -> float:
        """Return the estimated training time on these texts on this machine, in seconds.

        The time is extrapolated from training on increasingly large parts of the texts. Returns 0
        if training probably takes less than ten seconds.
        """
        pieces = [piece for text in texts for piece in split_text(text, _PIECE_LENGTH)]
        random.Random(0).shuffle(pieces)
        # Pruning a part to a smaller vocabulary takes as many rounds as pruning the whole text.
        for size in (self.size // _PROBE_DIVISOR or 1, self.size)[not self.prunes :]:
            with contextlib.suppress(TriviumError):  # the size may be too small for the alphabet
                return self.replace(vocab_size=size)._extrapolate_seconds(pieces)
        return 0.0

    def _extrapolate_seconds(self, pieces: Sequence[str]) -> float:
        """Return the estimated training time on pieces of text, in seconds.

        The time is extrapolated from training on increasing numbers of shuffled `pieces`.
        """
        size, seconds, ratio, power = sum(map(len, pieces)), 0.0, 1, 1.0
        for ratio in (2**k for k in range(20, 2, -1) if size >> k >= _FIRST_PROBE):
            before, start = seconds, time.monotonic()
            self.train_backend(pieces[::ratio])
            seconds = time.monotonic() - start
            if seconds * ratio**1.5 < _SLOW_SECONDS:
                return 0.0
            # Twice the text took 2 ** growth times as long. The corrections for larger texts were
            # measured.
            growth = math.log2(seconds / before) if before else 1.0
            power = min(max(growth + (-0.25 if self.prunes else 0.2), 0.8), 1.6)
            if seconds > _MAX_PROBE_SECONDS:
                break
        return seconds * ratio**power

    def make_hints(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return messages for the user if this kind of tokenizer does not suit the texts.

        Returns () if it does.
        """
        return ()

    @classmethod
    def other_files(cls, tokenizer: Tokenizer) -> dict[str, str]:
        """Return the contents of files that other programs read, by file name.

        An example is BERT's `vocab.txt`.
        """
        return {}


def _run_interruptibly(function: Callable[[], object]) -> None:
    """Run a function of the `tokenizers` library so that Ctrl-C can interrupt it.

    The function runs in a thread, because Python handles signals only in the main thread, between
    bytecode instructions. After an interrupt, the thread continues until the function returns or
    the program ends.
    """
    errors: list[Exception] = []

    def run() -> None:
        """Call the function in the thread, and store its exception for the main thread."""
        try:
            function()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="tokenizer", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)  # on Windows, a wait without a timeout cannot be interrupted
    if errors:
        raise errors[0]


class CharacterTokenizerConfig(TokenizerConfig):
    """Base class of tokenizer kinds with an alphabet of characters that occur in the text."""

    size_advice: ClassVar[str] = (
        ", a smaller character_coverage (printable ASCII and digits always stay), or byte-bpe, "
        "whose alphabet is 256 bytes"
    )
    character_coverage: float = Field(
        0.9995,
        gt=0,
        le=1,
        description="fraction of the text covered by the alphabet; rarer characters become unknown "
        "except printable ASCII and the digits of the text's scripts",
    )
    normalize: bool = Field(
        True, description="Unicode normalization; false keeps accents and compatibility characters"
    )

    def choose_alphabet(
        self, texts: Sequence[str], normalizer: normalizers.Normalizer
    ) -> tuple[list[str], list[str]]:
        """Choose the alphabet, and replace all other characters in the texts with spaces.

        The texts are normalized first. The alphabet consists of the most frequent characters, which
        together make up the fraction `character_coverage` of the text (sentencepiece's rule). As in
        BERT's vocabulary, it also contains printable ASCII and the digits of the text's scripts:
        later texts may contain, for example, a question mark that the training text lacks.

        Returns:
            The normalized texts with the replacements, and the alphabet as a sorted list.

        Raises DataError if the texts contain no visible character.
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
        base = map(normalizer.normalize_str, list_base_characters(alphabet))
        alphabet.update(character for text in base for character in text if character != " ")
        rare = "".join(counts.keys() - alphabet)
        if rare:
            pattern = re.compile(f"[{re.escape(rare)}]")
            texts = [pattern.sub(" ", text) for text in texts]
        return texts, sorted(alphabet)


import_submodules(__name__, __path__)
Tokenizer.kinds = TokenizerConfig.kinds
