"""Masked language modelling: some tokens are masked and predicted from both sides."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from trivium.data.batch import IGNORE_INDEX, Batch, Bools, Floats, Ints, RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import RecipeError
from trivium.models.base_model import Spec
from trivium.objectives.objective import Objective
from trivium.objectives.row_arrays import real_tokens, row_inputs
from trivium.text.vocabulary import Vocabulary

# Channels of noise: which tokens are selected, what becomes of them, the token that replaces one,
# and the lengths of spans.
_SELECT, _REPLACE, _TOKEN, _SPAN = range(4)
_FEWEST_CONTINUATIONS = 0.05  # of the vocabulary; of English about half


class MaskSelection(Objective):
    """Selects tokens for prediction: of those that are not special a share of `probability`."""

    probability: float = Field(0.15, gt=0, lt=1, description="share of tokens that are predicted")
    whole_words: bool = Field(
        False, description="choose whole words, not tokens; Chinese characters are words"
    )
    max_span: int = Field(
        1, gt=0, le=64, description="tokens (or words) in a row chosen together, at most"
    )
    span_lengths: Literal["harmonic", "geometric"] = Field(
        "harmonic", description="frequencies of span lengths: ALBERT's or SpanBERT's \"geometric\""
    )

    head: ClassVar[str] = "mlm"
    special_tokens: ClassVar[tuple[str, ...]] = ("[MASK]",)

    def check_tokens(self, vocabulary: Vocabulary) -> None:
        """See `Objective.check_tokens`; whole words need tokens that continue a word."""
        super().check_tokens(vocabulary)
        # A tokenizer that is not trained yet has special tokens only.
        is_trained = not vocabulary.is_special.all()
        few = vocabulary.continues_word.mean() < _FEWEST_CONTINUATIONS
        if self.whole_words and is_trained and few:
            raise RecipeError(
                "objective.whole_words = true masks the same as false here: hardly a token of this "
                f"{vocabulary.kind} vocabulary continues a word. Chinese characters are words by "
                "themselves; words of several need a segmenter, which Trivium has not: leave "
                "whole_words out, and set objective.max_span=3 to mask characters that follow one "
                "another."
            )

    def select(self, original: Ints, real: Bools, rng: RowRandom, vocabulary: Vocabulary) -> Bools:
        """Return which tokens are predicted: int64 [B, T] -> bool [B, T]."""
        length = original.shape[1]
        drawn = self._draw_selected(length, rng)
        if self.whole_words:
            # All pieces of a word share one draw; a row may begin in the middle of a word.
            begins = ~vocabulary.continues_word[original]
            begins[:, :1] = True
            drawn = np.take_along_axis(drawn, np.cumsum(begins, axis=1) - 1, axis=1)
        return drawn & ~vocabulary.is_special[original] & real

    def _draw_selected(self, length: int, rng: RowRandom) -> Bools:
        """Return which of `length` tokens or words are selected, bool [B, length].

        Spans: a row is cut out of an endless series of segments. With probability s a segment is a
        span of selected tokens, whose length n is drawn. Otherwise it is one token that is not
        selected. The expected share of selected tokens is then s E[n] / (s E[n] + 1 - s) at every
        position, from which s follows.
        """
        draw = rng.uniform(length, _SELECT)
        if self.max_span == 1:
            return draw < self.probability
        probabilities = self._length_probabilities()
        mean = probabilities @ np.arange(1, len(probabilities) + 1)
        is_span = draw < self.probability / (mean * (1.0 - self.probability) + self.probability)
        uniform = rng.uniform(length, _SPAN)
        sizes = _draw_lengths(probabilities, uniform)
        # The first span may have begun before the row: P(n tokens remain) = P(length >= n) / E[n].
        is_span[:, 0] = draw[:, 0] < self.probability
        sizes[:, 0] = _draw_lengths(np.cumsum(probabilities[::-1])[::-1] / mean, uniform[:, 0])
        segments = np.where(is_span, sizes, 1)
        starts = np.minimum(np.cumsum(segments, axis=1) - segments, length)
        span_at = np.zeros((len(draw), length + 1), dtype=np.int64)  # the last column is dropped
        np.put_along_axis(span_at, starts, np.where(is_span, sizes, 0), axis=1)
        selected = np.zeros((len(draw), length), dtype=bool)
        for offset in range(min(self.max_span, length)):
            selected[:, offset:] |= span_at[:, : length - offset] > offset
        return selected

    def _length_probabilities(self) -> Floats:
        """P(span of n), n = 1 ... `max_span`.

        "harmonic": in proportion to 1/n (Lan et al. 2019, equation 1, where `max_span` is 3).
        "geometric": a span ends after every token with probability 0.2 (Joshi et al. 2019, section
        3.1, where `max_span` is 10).
        """
        n = np.arange(1, self.max_span + 1)
        weights = 1.0 / n if self.span_lengths == "harmonic" else 0.2 * 0.8 ** (n - 1)
        return weights / weights.sum()


def _draw_lengths(probabilities: Floats, uniform: Floats) -> Ints:
    """Return a length for every uniform number; `probabilities` are those of 1, 2, ... tokens."""
    return 1 + np.searchsorted(np.cumsum(probabilities)[:-1], uniform, side="right")


class Masking(MaskSelection):
    """Masks tokens: what the model sees in place of the selected tokens.

    Of the selected tokens, `mask_share` become [MASK], `random_share` become another token, and the
    rest stay as they are.
    """

    mask_share: float = Field(0.8, ge=0, le=1, description="of these, share that is masked")
    random_share: float = Field(
        0.1, ge=0, le=1, description="of these, share that another token replaces"
    )

    def mask(
        self, original: Ints, real: Bools, rng: RowRandom, vocabulary: Vocabulary
    ) -> tuple[Ints, Ints]:
        """Inputs with some tokens replaced and the labels that ask for them: int64 [B, T] each."""
        assert vocabulary.mask_id is not None
        length = original.shape[1]
        selected = self.select(original, real, rng, vocabulary)
        replacement_draw = rng.uniform(length, _REPLACE)
        regular = vocabulary.regular_ids
        replacement = regular[rng.integers(len(regular), length, _TOKEN)]
        masked = selected & (replacement_draw < self.mask_share)
        replaced = selected & ~masked & (replacement_draw < self.mask_share + self.random_share)
        input_ids = np.where(masked, vocabulary.mask_id, np.where(replaced, replacement, original))
        return input_ids, np.where(selected, original, IGNORE_INDEX)

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Mask tokens: int64 [B, T] -> input_ids and labels [B, T]."""
        input_ids, labels = self.mask(rows.input_ids, real_tokens(rows), rng, vocabulary)
        return Batch(input_ids=input_ids, labels=labels, **row_inputs(rows))


class Masked(Masking):
    """Masked language modelling as BERT's, drawn anew whenever a row is seen.

        row        [CLS]  the   cat   sat   on    it  [SEP]
        input_ids  [CLS]  the   cat  [MASK] on    it  [SEP]
        labels     -100  -100  -100   sat  -100  -100  -100

    Source: Devlin et al. 2018, section 3.1 (15 %, 80/10/10), drawn anew as in Liu et al. 2019;
    spans as in Lan et al. 2019, section 4.1, and Joshi et al. 2019, section 3.1. Each token, word
    or span is drawn independently, so the number chosen in a row varies around its share, where
    the papers choose a fixed number.
    """

    kind: Literal["masked"] = "masked"

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Encoders with a head over the vocabulary; XLNet's predicts in any order."""
        return any(head.kind == "mlm" for head in spec.heads) and not spec.query_stream
