"""What a complete recipe asks of a model: its objectives, made for a tokenizer and its text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trivium.data import Rows
from trivium.errors import RecipeError, TriviumError
from trivium.objectives import (
    Bidirectional,
    Causal,
    Denoising,
    Masked,
    Mixture,
    PrefixLM,
    PrefixPairs,
    ReplacedToken,
    SentencePairs,
    SpanCorruption,
    TextObjective,
)
from trivium.objectives.denoising import ends_sentence
from trivium.objectives.masked import geometric_lengths, harmonic_lengths
from trivium.objectives.mixture import labels_of
from trivium.spec import AnySpec, ModelSpec, RNNSpec
from trivium.text import Tokenizer
from trivium.train.defaults import starts_with_end
from trivium.train.objective_recipe import QuestionSection
from trivium.train.recipe import Recipe

PAIRED = (SpanCorruption, Denoising, PrefixPairs)
"""Objectives of models with an encoder and a decoder."""

# Poisson lengths are told up to 64; their mean may be no more than this.
_LONGEST_POISSON_MEAN = 20.0


def check_kinds(spec: AnySpec, kinds: Sequence[str]) -> None:
    """Raise RecipeError where an objective is for other models, or does not mix with others."""
    both = spec.family == "encoder-decoder"
    two_way = isinstance(spec, RNNSpec) and spec.direction == "two-way"
    encoder = isinstance(spec, ModelSpec) and spec.family == "encoder-only"
    for kind in kinds:
        if kind != "prefix-lm" and both != (kind in ("span-corruption", "denoising")):
            raise RecipeError(
                'objective.kind = "span-corruption" or "denoising" and a model with an encoder and '
                "a decoder (t5-mini, bart-mini) belong together: neither trains with another, but "
                'for "prefix-lm".'
            )
        if two_way != (kind == "bidirectional-lm"):
            raise RecipeError(
                'objective.kind = "bidirectional-lm" and an RNN of direction "two-way" (elmo-mini) '
                "belong together: neither trains with another."
            )
        if kind in ("masked+nsp", "masked+order", "replaced-token") and not encoder:
            raise RecipeError(
                f'objective.kind = "{kind}" is for Transformers that are encoders, such as '
                "bert-mini and electra-mini."
            )
    if "replaced-token" in kinds and len(kinds) > 1:
        raise RecipeError(
            "objective.mix: replaced-token trains two models at once and cannot be mixed with "
            "other objectives."
        )


def build_mixture(
    recipe: Recipe,
    tokenizer: Tokenizer,
    rows: Callable[[], Rows],
    *,
    decoder_start: int | None = None,
) -> Mixture:
    """The objectives of a complete recipe, in most runs one.

    Args:
        recipe: complete.
        tokenizer: of the text.
        rows: gives the training rows, among which sentence pairs look for false ones.
        decoder_start: what the decoder of an encoder-decoder begins with; None: as published.

    Raises:
        RecipeError: the tokenizer lacks a token that an objective needs, or numbers that do not
            fit.
    """
    questions = recipe.objective.questions
    maker = _Maker(recipe, tokenizer, rows, decoder_start)
    return Mixture(
        objectives=tuple(maker.objective(question) for question in questions),
        shares=tuple(question.share for question in questions),
        names=labels_of([question.kind or "" for question in questions]),
    )


def of_source(mixture: Mixture, rows: Rows) -> Mixture:
    """The mixture for another source, whose false sentences come from its own rows.

    Raises:
        RecipeError: it has too few documents.
    """

    def moved(objective: TextObjective) -> TextObjective:
        if isinstance(objective, SentencePairs) and objective.others is not None:
            return _checked(objective.kind, lambda: dataclasses.replace(objective, others=rows))
        return objective

    return dataclasses.replace(mixture, objectives=tuple(map(moved, mixture.objectives)))


class _Maker:
    """Makes objectives, and what several of them need once."""

    def __init__(
        self, recipe: Recipe, tokenizer: Tokenizer, rows: Callable[[], Rows], start: int | None
    ) -> None:
        self.recipe, self.tokenizer, self.rows, self.start = recipe, tokenizer, rows, start

    def objective(self, section: QuestionSection) -> TextObjective:
        match section.kind:
            case "causal":
                return Causal(context=section.context)
            case "prefix-lm":
                return self._prefix()
            case "bidirectional-lm":
                return Bidirectional()
            case "span-corruption":
                return self._span_corruption(section)
            case "denoising":
                return self._denoising(section)
            case "masked+nsp" | "masked+order":
                return self._sentence_pairs(section)
            case "replaced-token":
                return ReplacedToken(self._masked(section), weight=section.discriminator_weight)
        return self._masked(section)

    def _masked(self, section: QuestionSection) -> Masked:
        assert section.probability is not None
        assert section.mask_share is not None
        assert section.random_share is not None
        longest = section.max_span
        harmonic = section.span_lengths == "harmonic"
        tokenizer = self.tokenizer
        return Masked.for_vocabulary(
            tokenizer.vocab_size,
            self._mask("masked language modelling"),
            tokenizer.special_ids,
            probability=section.probability,
            mask_share=section.mask_share,
            random_share=section.random_share,
            continues_word=tokenizer.continues_word() if section.whole_words else None,
            span_lengths=harmonic_lengths(longest) if harmonic else geometric_lengths(longest),
        )

    def _sentence_pairs(self, section: QuestionSection) -> SentencePairs:
        tokenizer, kind = self.tokenizer, section.kind
        first = tokenizer.bos_id if tokenizer.cls_id is None else tokenizer.cls_id
        last, pad = _end(tokenizer), tokenizer.pad_id
        if first is None or last is None or pad is None:
            raise RecipeError(
                f'objective.kind = "{kind}" needs tokens that begin, part and fill up pairs '
                f"([CLS], [SEP] and [PAD]), and this {tokenizer.kind} tokenizer lacks one."
            )
        about = "nsp" if kind == "masked+nsp" else "order"
        return _checked(
            about,
            lambda: SentencePairs(
                masked=self._masked(section),
                kind=about,
                length=self.recipe.data.length,
                cls_id=first,
                sep_id=last,
                pad_id=pad,
                others=self.rows() if about == "nsp" else None,
                sentence_ends=self._sentence_ends,
            ),
        )

    def _prefix(self) -> PrefixLM | PrefixPairs:
        if self.recipe.spec.family != "encoder-decoder":
            return PrefixLM()
        pad, end, start = self._both_stacks("prefix-lm")
        return PrefixPairs(start_id=start, end_id=end, pad_id=pad)

    def _span_corruption(self, section: QuestionSection) -> SpanCorruption:
        length = self.recipe.data.length
        assert section.probability is not None
        pad, end, start = self._both_stacks("span-corruption")
        objective = SpanCorruption(
            sentinels=np.array(self.tokenizer.sentinel_ids, dtype=np.int64),
            start_id=start,
            end_id=end,
            pad_id=pad,
            probability=section.probability,
            mean_span=section.mean_span,
        )
        needed = max(objective.hidden(shorter)[1] for shorter in range(1, length + 1))
        if needed > len(objective.sentinels):
            raise RecipeError(
                f"span corruption hides {needed} spans of a row of {length} tokens, but this "
                f"tokenizer has {len(objective.sentinels)} sentinels (<extra_id_0>, <extra_id_1>, "
                "...): give a tokenizer with more, a shorter data.length or a larger "
                "objective.mean_span."
            )
        return objective

    def _denoising(self, section: QuestionSection) -> Denoising:
        assert section.probability is not None
        pad, end, start = self._both_stacks("denoising")
        if section.mean_span > _LONGEST_POISSON_MEAN:
            raise RecipeError(
                f"objective.mean_span = {section.mean_span:g}: denoising draws spans of at most "
                f"{_LONGEST_POISSON_MEAN:g} tokens on average."
            )
        return Denoising(
            mask_id=self._mask("denoising"),
            start_id=start,
            end_id=end,
            pad_id=pad,
            probability=section.probability,
            mean_span=section.mean_span,
            sentence_ends=self._sentence_ends if section.permute_sentences else None,
            begin_id=next(iter(self.tokenizer.prefix_ids), -1),
            mask_tokens=section.mask_tokens,
            delete_tokens=section.delete_tokens,
            rotate_documents=section.rotate_documents,
        )

    @cached_property
    def _sentence_ends(self) -> NDArray[np.bool_] | None:
        tokenizer = self.tokenizer
        return ends_sentence(tokenizer.decode_batch([i] for i in range(tokenizer.vocab_size)))

    def _mask(self, objective: str) -> int:
        if self.tokenizer.mask_id is None:
            raise RecipeError(
                f"{objective} needs a mask token, and this {self.tokenizer.kind} tokenizer "
                "has none: add one, such as tokenizer.special_tokens = "
                '["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].'
            )
        return self.tokenizer.mask_id

    def _both_stacks(self, kind: str) -> tuple[int, int, int]:
        """The ids of padding, of the end of a text, and of what decoders begin with."""
        recipe, tokenizer = self.recipe, self.tokenizer
        if recipe.data.separate_documents:
            raise RecipeError(
                "data.separate_documents cannot part what a decoder sees of an encoder's text: use "
                'data.mode = "truncate" (one row a document) for models with both.'
            )
        pad, end = tokenizer.pad_id, _end(tokenizer)
        if pad is None or end is None:
            raise RecipeError(
                f"objective.kind = {kind!r} needs tokens for padding and for the end of a text "
                f"(<pad> and </s>), and this {tokenizer.kind} tokenizer lacks one."
            )
        if self.start is not None:
            return pad, end, self.start
        begins_with_end = starts_with_end(recipe.spec, recipe.objective.kinds)
        return pad, end, end if begins_with_end else pad


def _end(tokenizer: Tokenizer) -> int | None:
    return tokenizer.eos_id if tokenizer.sep_id is None else tokenizer.sep_id


def _checked(kind: str, make: Callable[[], SentencePairs]) -> SentencePairs:
    """Sentence pairs, if the recipe allows for them. Raises RecipeError naming the key."""
    try:
        return make()
    except TriviumError as error:
        raise RecipeError(f'objective.kind = "masked+{kind}": {error}') from None
