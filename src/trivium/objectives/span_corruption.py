"""Span corruption (T5): sentinels replace random spans, and the decoder generates the spans."""

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
    pack_with_eos,
)
from trivium.objectives.excerpt import mask_middle
from trivium.objectives.row_arrays import token_mask
from trivium.text.roles import SENTINELS
from trivium.text.vocabulary import Vocabulary

# Channels of random numbers: the lengths of noise spans and of kept spans.
_NOISE, _KEPT = range(2)


class SpanCorruption(EncoderDecoderObjective):
    """Span corruption (T5): the decoder generates the spans removed from the encoder's input.

    A fraction `probability` of the tokens of a row is removed, in spans of `mean_span` tokens on
    average. One sentinel replaces each span, and the decoder generates each sentinel followed by
    its span. The spans differ from epoch to epoch. Here <x> and <y> are the first two sentinels,
    and <p> is the decoder start token:

        row                thank you for inviting me to your party last week
        input_ids          thank you <x> me to your party <y> </s>
        decoder_input_ids  <p> <x> for inviting <y> last week
        labels             <x> for inviting <y> last week </s>

    The numbers of removed tokens and of spans depend only on the length of the row, so that full
    rows need no padding. A row starts with a kept span and ends with a removed one, and no sentinel
    follows the last target. `data.length` is the length of a row before spans are removed. In T5,
    512 is the length of the encoder's input after spans are removed. The end of a document within a
    row is treated like any other token.

    Source: Raffel et al. 2019, section 3.1.4, and their released `random_spans_helper` and
    `random_spans_noise_mask`.
    """

    # Tokenizers usually have more sentinels. Their number limits the number of spans in a row.
    special_tokens: ClassVar[tuple[str, ...]] = (
        *EncoderDecoderObjective.special_tokens,
        SENTINELS[0],
    )
    kind: Literal["span-corruption"] = "span-corruption"
    probability: float = Field(0.15, gt=0, lt=1, description="fraction of tokens in noise spans")
    mean_span: float = Field(3.0, ge=1, le=64, description="mean tokens per noise span")

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Return True for encoder-decoders with relative position biases, such as T5.

        This is their default objective.
        """
        positions = [each.positions for stack in spec.stacks for each in stack.attentions[:1]]
        biased = bool(positions) and isinstance(positions[0], RelativeBias)
        return spec.family == "encoder-decoder" and biased

    @classmethod
    def tokenizer_defaults(cls, spec: Spec) -> dict[str, Any]:
        """Return the default `[tokenizer]` keys: Unigram with T5's special tokens and sentinels."""
        special = ("<pad>", "</s>", "<unk>", "<s>", "<mask>", *SENTINELS)
        return {"kind": "unigram", "special_tokens": special}

    def count_noise_spans(self, length: int) -> tuple[int, int]:
        """Return the numbers of noise tokens and of noise spans in a row of `length` tokens.

        Both are 0 if the row has fewer than two tokens.
        """
        if length < 2:
            return 0, 0
        noise = min(max(round(length * self.probability), 1), length - 1)
        spans = max(round(noise / self.mean_span), 1)
        return noise, min(spans, noise, length - noise)

    def corrupt(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> PaddedPair:
        """Replace noise spans with sentinels. Returns the encoder inputs and the decoder targets.

        Both are pairs (padded token ids, int64 [B, S]; lengths, int64 [B]).

        Raises:
            TriviumError: a row has more noise spans than the tokenizer has sentinels.
        """
        real = token_mask(rows)
        noise = self._sample_noise_mask(rows.lengths, real.shape[1], rng, vocabulary)
        inputs = _insert_sentinels(rows.input_ids, noise, real, vocabulary)
        targets, sizes = _insert_sentinels(rows.input_ids, ~noise, real, vocabulary)
        # A row without noise spans has no labels.
        return inputs, (targets, np.where(noise.any(axis=1), sizes, 0))

    def generate_sample(self, lm: LanguageModel, text: str) -> tuple[str, str] | None:
        """Hide two words of `text`, and let the model generate them.

        Returns the resulting prompt and the generated text. Returns None if `text` is too short, or
        if the model has no tokenizer.
        """
        masked = mask_middle(text, SENTINELS[0], words=16, span=2)
        if masked is None or lm.tokenizer is None:
            return None
        prompt, span = masked
        return f"{prompt} (hidden: {span})", lm.generate(prompt, max_new_tokens=12, temperature=0.0)

    def _sample_noise_mask(
        self, lengths: Ints, max_length: int, rng: RowRandom, vocabulary: Vocabulary
    ) -> Bools:
        """Sample a mask of the tokens that belong to noise spans, bool [B, max_length].

        In every row, kept spans and noise spans alternate.

        Args:
            lengths: the number of tokens in each row, int64 [B].
            max_length: the length of the padded rows.
            rng: the random numbers of the rows.
            vocabulary: the sentinels, which limit the number of noise spans per row.
        """
        noise_draws, kept_draws = rng.uniform(max_length, _NOISE), rng.uniform(max_length, _KEPT)
        noise = np.zeros((len(lengths), max_length), dtype=bool)
        for row, length in enumerate(lengths.tolist()):
            size, spans = self.count_noise_spans(length)
            if spans > len(vocabulary.sentinel_ids):
                raise TriviumError(
                    f"a row of {length} tokens has {spans} noise spans, but the tokenizer has only "
                    f"{len(vocabulary.sentinel_ids)} sentinels: set a shorter data.length, a "
                    "larger objective.mean_span or a smaller objective.probability."
                )
            if spans:
                kept_sizes = _draw_partition(kept_draws[row], length - size, spans)
                noise_sizes = _draw_partition(noise_draws[row], size, spans)
                sizes = np.stack((kept_sizes, noise_sizes), axis=1).ravel()
                noise[row, :length] = np.repeat(np.tile((False, True), spans), sizes)
        return noise


def _insert_sentinels(ids: Ints, noise: Bools, is_token: Bools, vocabulary: Vocabulary) -> Padded:
    """Replace every noise span with a sentinel, and append an end token to each row.

    Args:
        ids: token ids, int64 [B, T].
        noise: which tokens belong to noise spans, bool [B, T].
        is_token: the padding mask, bool [B, T], False for padding.
        vocabulary: the ids of sentinels, padding and end token.

    Returns:
        The new rows, padded on the right, int64 [B, S], and their lengths, int64 [B].
    """
    sentinels = np.array(vocabulary.sentinel_ids, dtype=np.int64)
    noise = noise & is_token
    first = noise.copy()
    first[:, 1:] &= ~noise[:, :-1]
    index = np.minimum(np.cumsum(first, axis=1) - 1, len(sentinels) - 1)
    return pack_with_eos(
        np.where(first, sentinels[index], ids), is_token & (first | ~noise), vocabulary
    )


def _draw_partition(uniform: Floats, num_items: int, num_parts: int) -> Ints:
    """Split `num_items` items at random into `num_parts` non-empty parts. Returns the part sizes.

    All splits are equally probable. `uniform` contains at least `num_items` - 1 uniform random
    numbers.
    """
    borders = np.sort(np.argsort(uniform[: num_items - 1], kind="stable")[: num_parts - 1]) + 1
    return np.diff(borders, prepend=0, append=num_items)
