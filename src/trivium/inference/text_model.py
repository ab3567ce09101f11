"""What inference needs of a language model: weights, tokenizers, how texts begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trivium.errors import SpecError, TokenizerError
from trivium.inference.sampling_params import DecodingParams
from trivium.models import LanguageModule
from trivium.text import Tokenizer


@dataclass(frozen=True)
class GenerationRules:
    """What holds for every text a model generates, from its tokenizer and its settings.

    Args:
        vocab_size: ids from here on are padding of the embedding matrix and are never generated.
        stop_ids: ids that end a text.
        banned_ids: ids that are never generated, such as Marian's padding.
        begin_banned_ids: ids that no text begins with.
        decoder_start: what the decoder of an encoder-decoder reads first; not part of its output.
        forced_start: the ids that every output begins with, such as mBART's language.
        forced_end: the id generated last where `max_new_tokens` is reached (BART); None: any.
        encoder_no_repeat_ngram: no n-gram of this size of the source is generated; 0: any may.
    """

    vocab_size: int
    stop_ids: frozenset[int] = frozenset()
    banned_ids: frozenset[int] = frozenset()
    begin_banned_ids: frozenset[int] = frozenset()
    decoder_start: tuple[int, ...] = ()
    forced_start: tuple[int, ...] = ()
    forced_end: int | None = None
    encoder_no_repeat_ngram: int = 0

    @property
    def target_start(self) -> tuple[int, ...]:
        """What a target of an encoder-decoder begins with."""
        return self.decoder_start + self.forced_start

    def max_tokens(
        self, prompt: Sequence[int], max_new_tokens: int, context_length: int | None
    ) -> int:
        """Tokens to generate for a prompt at most; the last one is not read: it needs no position.

        Args:
            prompt: ids of the prompt, or of the source of an encoder-decoder.
            max_new_tokens: as the user sets it.
            context_length: tokens that the decoder can read; None: any number.
        """
        if context_length is None:
            return max_new_tokens
        return min(max_new_tokens, context_length - len(self.decoder_start or prompt) + 1)

    def check_bias(self, params: DecodingParams) -> None:
        """Raise SpecError for a bias of an id that does not exist."""
        for token_id in params.logit_bias:
            if not 0 <= token_id < self.vocab_size:
                raise SpecError(
                    f"logit_bias has id {token_id}, but ids are 0 to {self.vocab_size - 1}."
                )

    def forced_id(self, length: int, limit: int) -> int | None:
        """The id that must follow the `length` tokens of a text of at most `limit`; None: any."""
        if length < len(self.forced_start):
            return self.forced_start[length]
        return self.forced_end if length + 1 >= limit else None


class TextModel(Protocol):
    """The part of `trivium.LanguageModel` that the functions of this package use."""

    @property
    def module(self) -> LanguageModule:
        """The weights, in evaluation mode."""
        ...

    @property
    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer of what a decoder reads and of every target."""
        ...

    @property
    def source_tokenizer(self) -> Tokenizer:
        """The tokenizer of what an encoder reads; often the same."""
        ...

    @property
    def max_length(self) -> int | None:
        """Tokens that are read at once; None: any number."""
        ...

    @property
    def generation_rules(self) -> GenerationRules:
        """How generated texts begin and end."""
        ...


def document_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text between the special tokens that begin and end documents in training."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return [*tokenizer.prefix_ids, *ids, *tokenizer.suffix_ids]


def prompt_ids(lm: TextModel, text: str) -> list[int]:
    """The ids of a text for an encoder to read, or for a decoder to continue.

    A decoder's prompt begins as documents begin in training; where nothing begins them, an empty
    prompt is the end of the document before.

    Raises:
        TokenizerError: an empty prompt, and no special token to begin with.
    """
    if lm.module.spec.family == "encoder-decoder":
        return document_ids(lm.source_tokenizer, text)
    tokenizer = lm.text_tokenizer
    ids = begun(tokenizer, tokenizer.encode(text, add_special_tokens=False).ids)
    ids = ids or start_ids(tokenizer)
    if not ids:
        raise TokenizerError(
            "the prompt is empty, and this tokenizer has no token that begins or ends a text: "
            "start with some text."
        )
    return ids


def begun(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Ids of a text, after the ids that begin documents in training unless they are there.

    A chat template may write the first token itself.
    """
    prefix = list(tokenizer.prefix_ids)
    return [*ids] if [*ids[: len(prefix)]] == prefix else [*prefix, *ids]


def start_ids(tokenizer: Tokenizer) -> list[int]:
    """What the first token of a text is predicted from: ids that begin documents in training.

    Where nothing begins them, the token that ends the document before; empty with neither.
    """
    if tokenizer.prefix_ids:
        return list(tokenizer.prefix_ids)
    ends = [tokenizer.eos_id, *tokenizer.suffix_ids[-1:]]
    return [end for end in ends if end is not None][:1]


def end_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that end a text: eos, and what ends a document in training."""
    ends = (tokenizer.eos_id, *tokenizer.suffix_ids)
    return frozenset(index for index in ends if index is not None)
