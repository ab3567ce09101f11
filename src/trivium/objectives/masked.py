"""Masked language modelling (BERT): some tokens are masked and predicted from their context."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from trivium.data.batch import IGNORE_INDEX, Batch, Bools, Floats, Ints, RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import RecipeError
from trivium.models.base_model import Spec
from trivium.objectives.objective import Objective
from trivium.objectives.row_arrays import attention_inputs, token_mask
from trivium.text.vocabulary import Vocabulary

# Channels of random numbers: which tokens are selected, how each selected token is replaced, which
# random token replaces it, and the lengths of spans.
_SELECT, _REPLACE, _TOKEN, _SPAN = range(4)
# The minimum fraction of a vocabulary that continues words; for English it is about half.
_MIN_CONTINUATIONS = 0.05


class MaskSelection(Objective):
    """Base class of objectives that select random tokens for the model to predict.

    Each token is selected with probability `probability`. Special tokens are never selected.
    """

    probability: float = Field(0.15, gt=0, lt=1, description="fraction of tokens to predict")
    whole_words: bool = Field(
        False, description="select whole words, not tokens; a Chinese character is a word"
    )
    max_span: int = Field(1, gt=0, le=64, description="maximum span length in tokens (or words)")
    span_lengths: Literal["harmonic", "geometric"] = Field(
        "harmonic",
        description="distribution of span lengths: harmonic (ALBERT) or geometric (SpanBERT)",
    )

    head: ClassVar[str] = "mlm"
    special_tokens: ClassVar[tuple[str, ...]] = ("[MASK]",)

    def check_tokens(self, vocabulary: Vocabulary) -> None:
        """Raise RecipeError if the vocabulary lacks a special token that the objective needs.

        With `whole_words`, RecipeError is also raised if hardly any token continues a word.
        Whole-word masking would then be the same as token masking.
        """
        super().check_tokens(vocabulary)
        # A tokenizer that is not trained yet has only special tokens.
        is_trained = not vocabulary.is_special.all()
        few = vocabulary.continues_word.mean() < _MIN_CONTINUATIONS
        if self.whole_words and is_trained and few:
            raise RecipeError(
                "objective.whole_words = true masks the same as false here: hardly any token of "
                f"this {vocabulary.kind} vocabulary continues a word. A Chinese character counts "
                "as a word, because Trivium has no word segmenter: leave whole_words out, and set "
                "objective.max_span=3 to mask consecutive characters."
            )

    def select_tokens(
        self, input_ids: Ints, is_token: Bools, rng: RowRandom, vocabulary: Vocabulary
    ) -> Bools:
        """Select random tokens for prediction. Returns a mask of the selected tokens, bool [B, T].

        Special tokens and padding are not selected.

        Args:
            input_ids: the token ids of B rows of T tokens, int64 [B, T].
            is_token: the padding mask, bool [B, T], False for padding.
            rng: the random numbers of the rows.
            vocabulary: determines which tokens are special and which continue a word.
        """
        length = input_ids.shape[1]
        selected = self._draw_selection_mask(length, rng)
        if self.whole_words:
            # All tokens of a word share one draw. A row may start in the middle of a word.
            starts = ~vocabulary.continues_word[input_ids]
            starts[:, :1] = True
            selected = np.take_along_axis(selected, np.cumsum(starts, axis=1) - 1, axis=1)
        return selected & ~vocabulary.is_special[input_ids] & is_token

    def _draw_selection_mask(self, length: int, rng: RowRandom) -> Bools:
        """Draw the positions to select in each of B rows. Returns a mask, bool [B, length].

        A position is a token or, with `whole_words`, a word. Spans are drawn as follows. A row is a
        section of an infinite sequence of segments. With probability s, a segment is a span: n
        selected positions, where n is random. Otherwise, the segment is a single position that is
        not selected. The expected fraction of selected positions is therefore

            s E[n] / (s E[n] + 1 - s)

        and s is chosen so that this fraction equals `probability`.
        """
        draw = rng.uniform(length, _SELECT)
        if self.max_span == 1:
            return draw < self.probability
        probabilities = self._span_length_probabilities()
        mean = probabilities @ np.arange(1, len(probabilities) + 1)
        is_span = draw < self.probability / (mean * (1.0 - self.probability) + self.probability)
        uniform = rng.uniform(length, _SPAN)
        sizes = _draw_span_lengths(probabilities, uniform)
        # The first span may start before the row: P(n tokens remain) = P(length >= n) / E[n].
        is_span[:, 0] = draw[:, 0] < self.probability
        sizes[:, 0] = _draw_span_lengths(np.cumsum(probabilities[::-1])[::-1] / mean, uniform[:, 0])
        segments = np.where(is_span, sizes, 1)
        starts = np.minimum(np.cumsum(segments, axis=1) - segments, length)
        span_at = np.zeros((len(draw), length + 1), dtype=np.int64)  # the last column is dropped
        np.put_along_axis(span_at, starts, np.where(is_span, sizes, 0), axis=1)
        selected = np.zeros((len(draw), length), dtype=bool)
        for offset in range(min(self.max_span, length)):
            selected[:, offset:] |= span_at[:, : length - offset] > offset
        return selected

    def _span_length_probabilities(self) -> Floats:
        """Return the probabilities of the span lengths 1 to `max_span`, float64 [max_span].

        - "harmonic": proportional to 1/n for length n (Lan et al. 2019, equation 1, where
          `max_span` is 3).
        - "geometric": after each token, the span ends with probability 0.2 (Joshi et al. 2019,
          section 3.1, where `max_span` is 10).
        """
        n = np.arange(1, self.max_span + 1)
        weights = 1.0 / n if self.span_lengths == "harmonic" else 0.2 * 0.8 ** (n - 1)
        return weights / weights.sum()


def _draw_span_lengths(probabilities: Floats, uniform: Floats) -> Ints:
    """Convert uniform random numbers in [0, 1) to random span lengths. The shape is unchanged.

    `probabilities` contains the probabilities of the lengths 1, 2, ...
    """
    return 1 + np.searchsorted(np.cumsum(probabilities)[:-1], uniform, side="right")


class TokenMasking(MaskSelection):
    """Base class of objectives that corrupt random tokens and predict the original tokens.

    A fraction `mask_share` of the selected tokens is replaced with [MASK], and a fraction
    `random_share` with random tokens. The rest is left unchanged.
    """

    mask_share: float = Field(
        0.8, ge=0, le=1, description="fraction of selected tokens replaced by [MASK]"
    )
    random_share: float = Field(
        0.1, ge=0, le=1, description="fraction of selected tokens replaced by a random token"
    )

    def corrupt_tokens(
        self, input_ids: Ints, is_token: Bools, rng: RowRandom, vocabulary: Vocabulary
    ) -> tuple[Ints, Ints]:
        """Corrupt random tokens. Returns the corrupted input_ids and the labels, int64 [B, T] each.

        The label of a selected token is its original id. All other labels are `IGNORE_INDEX`.

        Args:
            input_ids: the original token ids of B rows of T tokens, int64 [B, T].
            is_token: the padding mask, bool [B, T], False for padding.
            rng: the random numbers of the rows.
            vocabulary: provides the mask token, and the regular tokens from which random
                replacements are drawn.
        """
        assert vocabulary.mask_id is not None
        length = input_ids.shape[1]
        selected = self.select_tokens(input_ids, is_token, rng, vocabulary)
        replacement_draw = rng.uniform(length, _REPLACE)
        regular = vocabulary.regular_ids
        replacement = regular[rng.integers(len(regular), length, _TOKEN)]
        masked = selected & (replacement_draw < self.mask_share)
        replaced = selected & ~masked & (replacement_draw < self.mask_share + self.random_share)
        corrupted = np.where(masked, vocabulary.mask_id, np.where(replaced, replacement, input_ids))
        return corrupted, np.where(selected, input_ids, IGNORE_INDEX)

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Corrupt random tokens. Returns a batch with input_ids and labels, [B, T] each.

        Only the selected tokens have labels.
        """
        input_ids, labels = self.corrupt_tokens(rows.input_ids, token_mask(rows), rng, vocabulary)
        return Batch(input_ids=input_ids, labels=labels, **attention_inputs(rows))


class Masked(TokenMasking):
    """Masked language modelling (BERT) with dynamic masking: masks differ from epoch to epoch.

        row        [CLS]  the   cat   sat   on    it  [SEP]
        input_ids  [CLS]  the   cat  [MASK] on    it  [SEP]
        labels     -100  -100  -100   sat  -100  -100  -100

    Source: Devlin et al. 2018, section 3.1, for the default fractions; Liu et al. 2019 for dynamic
    masking; Lan et al. 2019, section 4.1, and Joshi et al. 2019, section 3.1, for spans. Here each
    token, word or span is selected independently, so that the number of selected tokens varies from
    row to row. In the papers, this number is fixed.
    """

    kind: Literal["masked"] = "masked"

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Return True for models with an MLM head, except XLNet: this is the default objective."""
        return any(head.kind == "mlm" for head in spec.heads) and not spec.query_stream
