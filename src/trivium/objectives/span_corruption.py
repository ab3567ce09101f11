"""Span corruption (T5): spans are replaced by sentinels, and the decoder generates the spans."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from trivium.data.batch import Bools, Floats, Ints, RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import TriviumError
from trivium.language_model import LanguageModel
from trivium.models.base_model import Spec
from trivium.nn.positions.relative_bias import RelativeBias
from trivium.objectives.encoder_decoder import (
    EncoderDecoderObjective,
    Padded,
    PaddedPair,
    keep_and_end,
)
from trivium.objectives.excerpt import mask_middle
from trivium.objectives.row_arrays import real_tokens
from trivium.text.roles import SENTINELS
from trivium.text.vocabulary import Vocabulary

# Channels of noise.
_NOISE, _KEPT = range(2)


class SpanCorruption(EncoderDecoderObjective):
    """T5's objective, drawn anew whenever a row is seen.

    A share of `probability` of a row, in spans of `mean_span` tokens on average, is replaced by
    one sentinel per span; the decoder generates each sentinel followed by its span. With <x> and
    <y> the first two sentinels, <p> the decoder's start and two spans:

        row                thank you for inviting me to your party last week
        input_ids          thank you <x> me to your party <y> </s>
        decoder_input_ids  <p> <x> for inviting <y> last week
        labels             <x> for inviting <y> last week </s>

    The number of tokens and spans follows from the length of a row alone: full rows need no
    padding. A row has `data.length` tokens of text, of which the encoder reads what is left, where
    T5 takes so long a stretch that the encoder reads 512.

    Source: Raffel et al. 2019, section 3.1.4, and their released `random_spans_helper` and
    `random_spans_noise_mask`: a row begins with a kept span and ends with a noise span, and no
    sentinel follows the last target. Ends of documents inside a row are tokens like others.
    """

    # More sentinels are usual: their number limits the spans of a row.
    special_tokens: ClassVar[tuple[str, ...]] = (
        *EncoderDecoderObjective.special_tokens,
        SENTINELS[0],
    )
    kind: Literal["span-corruption"] = "span-corruption"
    probability: float = Field(0.15, gt=0, lt=1, description="share of tokens in noise spans")
    mean_span: float = Field(3.0, ge=1, le=64, description="mean tokens of a noise span")

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Encoder-decoders with relative biases."""
        positions = [each.positions for stack in spec.stacks for each in stack.attentions[:1]]
        biased = bool(positions) and isinstance(positions[0], RelativeBias)
        return spec.family == "encoder-decoder" and biased

    @classmethod
    def tokenizer_defaults(cls, spec: Spec) -> dict[str, Any]:
        """Return Unigram as in T5, with 100 sentinels and the masks of other objectives."""
        special = ("<pad>", "</s>", "<unk>", "<s>", "<mask>", *SENTINELS)
        return {"kind": "unigram", "special_tokens": special}

    def noise_size(self, length: int) -> tuple[int, int]:
        """Noise tokens and noise spans of a row of `length` tokens; none where it has only one."""
        if length < 2:
            return 0, 0
        noise = min(max(round(length * self.probability), 1), length - 1)
        spans = max(round(noise / self.mean_span), 1)
        return noise, min(spans, noise, length - noise)

    def corrupt(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> PaddedPair:
        """Sentinels for spans, and the spans after their sentinels.

        Raises:
            TriviumError: a row with more spans than there are sentinels.
        """
        real = real_tokens(rows)
        noise = self._noise(rows.lengths, real.shape[1], rng, vocabulary)
        inputs = _with_sentinels(rows.input_ids, noise, real, vocabulary)
        targets, sizes = _with_sentinels(rows.input_ids, ~noise, real, vocabulary)
        # A row without noise has no labels.
        return inputs, (targets, np.where(noise.any(axis=1), sizes, 0))

    def sample(self, lm: LanguageModel, text: str) -> tuple[str, str] | None:
        """Return the span generated for a sentinel in the beginning of the text."""
        masked = mask_middle(text, SENTINELS[0], words=16, span=2)
        if masked is None or lm.tokenizer is None:
            return None
        prompt, span = masked
        return f"{prompt} (hidden: {span})", lm.generate(prompt, max_new_tokens=12, temperature=0.0)

    def _noise(self, lengths: Ints, width: int, rng: RowRandom, vocabulary: Vocabulary) -> Bools:
        """Return which tokens are noise, bool [B, T]: kept spans and noise spans alternate."""
        noise_draws, kept_draws = rng.uniform(width, _NOISE), rng.uniform(width, _KEPT)
        is_noise = np.zeros((len(lengths), width), dtype=bool)
        for row, length in enumerate(lengths.tolist()):
            size, spans = self.noise_size(length)
            if spans > len(vocabulary.sentinel_ids):
                raise TriviumError(
                    f"a row of {length} tokens has {spans} noise spans, the tokenizer only "
                    f"{len(vocabulary.sentinel_ids)} sentinels: set a shorter data.length, a "
                    "larger objective.mean_span or a smaller objective.probability."
                )
            if spans:
                kept_sizes = _partition(kept_draws[row], length - size, spans)
                noise_sizes = _partition(noise_draws[row], size, spans)
                sizes = np.stack((kept_sizes, noise_sizes), axis=1).ravel()
                is_noise[row, :length] = np.repeat(np.tile((False, True), spans), sizes)
        return is_noise


def _with_sentinels(ids: Ints, noise: Bools, real: Bools, vocabulary: Vocabulary) -> Padded:
    """Rows with a sentinel for every noise span, an end token and padding, and their lengths."""
    sentinels = np.array(vocabulary.sentinel_ids, dtype=np.int64)
    noise = noise & real
    first = noise.copy()
    first[:, 1:] &= ~noise[:, :-1]
    number = np.minimum(np.cumsum(first, axis=1) - 1, len(sentinels) - 1)
    return keep_and_end(
        np.where(first, sentinels[number], ids), real & (first | ~noise), vocabulary
    )


def _partition(draws: Floats, items: int, parts: int) -> Ints:
    """Return sizes of `parts` pieces of `items`, none empty, every division equally probable.

    Shape: draws [>= items - 1] -> int64 [parts].
    """
    borders = np.sort(np.argsort(draws[: items - 1], kind="stable")[: parts - 1]) + 1
    return np.diff(borders, prepend=0, append=items)
