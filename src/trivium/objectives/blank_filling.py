"""Autoregressive blank filling (GLM): masked spans of a text are generated after the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from trivium.data.batch import IGNORE_INDEX, Batch, Floats, Ints, RowBatch, round_up
from trivium.data.row_order import RowRandom
from trivium.models.base_model import Spec
from trivium.objectives.causal import LeftToRight, is_causal
from trivium.objectives.row_arrays import poisson_probabilities
from trivium.text.vocabulary import Vocabulary

# Channels of random numbers.
_KIND, _LENGTH, _GAP, _ORDER = range(4)
# The maximum length of a span. The probability of a longer span is below 1e-6 for means up to 20.
_MAX_SPAN = 48


@dataclass(frozen=True)
class BlankFilledRow:
    """One training row of GLM: part A (the text with masks), followed by part B (the spans).

    Args:
        input_ids: the tokens of part A, then those of part B, int64 [T].
        labels: the labels, int64 [T]; -100 in part A.
        positions: the position of each token in the text and in its span, int64 [T, 2]; see
            `TwoDimensional`.
        prefix_length: the number of tokens in part A.
    """

    input_ids: Ints
    labels: Ints
    positions: Ints
    prefix_length: int


class BlankFilling(LeftToRight):
    """The autoregressive blank-filling objective of GLM.

    L = - sum_i log P(s_i | c, s_1 ... s_(i-1))

    s_1, s_2, ... are spans of a row in random order, and c is the rest of the row.

    The model input consists of two parts. Part A is the text, with each span replaced with one mask
    token. Part B contains the spans in random order, each preceded by a start token. The model
    predicts each span and the end token that follows it. Tokens of part A attend to all of part A.
    Tokens of part B attend to part A and to earlier tokens of part B. In this example `<m>` is the
    mask token, `<s>` the start token and `</s>` the end token:

        row        thank you  for  inviting me
        input_ids  thank <m>  inviting <m>  <s> me   <s> you  for
        in text    0     1    2        3    3   3    1   1    1
        in span    0     0    0        0    1   2    1   2    3
        labels     -100  -100 -100     -100 me  </s> you for  </s>

    In every epoch, one of three kinds of spans is sampled for each row:

    - Several spans with lengths from a zero-truncated Poisson distribution. Together they contain a
      fraction `probability` of the tokens.
    - One span at the end of the row, which contains at least half of the row ("document-level").
      Such rows train the model to continue a text. Their fraction is `document_share`.
    - The whole row as part B, without mask, start and end tokens. Such rows train the model to
      continue a prompt that is read from left to right (`trivium generate`). Their fraction is
      `whole_share`.

    Each span makes a row two tokens longer. End-of-document tokens inside a row are masked and
    predicted like other tokens.

    Source: Du et al. 2022, sections 2.1 and 2.2. In the paper 15 % of the tokens are masked, the
    mean span length is 3, and half of the rows are document-level. There are four differences. The
    last span is shortened to match `probability` exactly. Spans are never adjacent. The span of a
    document-level row is always at the end of the row. The paper does not have the third kind.
    """

    separates_documents: ClassVar[bool] = False
    special_tokens: ClassVar[tuple[str, ...]] = ("<mask>", "<s>", "</s>")
    kind: Literal["blank-filling"] = "blank-filling"
    probability: float = Field(0.15, gt=0, lt=1, description="fraction of tokens in blanks")
    mean_span: float = Field(3.0, ge=1, le=20, description="mean number of tokens per blank")
    document_share: float = Field(
        0.25, ge=0, le=1, description="fraction of rows whose last half, or more, is one blank"
    )
    whole_share: float = Field(
        0.25, ge=0, le=1, description="fraction of rows predicted from their first token on"
    )

    @model_validator(mode="after")
    def _check_fractions(self) -> Self:
        """Raise ValueError if `document_share` and `whole_share` add up to more than 1."""
        if self.document_share + self.whole_share > 1.0:
            raise ValueError("document_share and whole_share are fractions of all rows: at most 1")
        return self

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Return True for decoders with 2-D positions (GLM): this is their default objective."""
        return is_causal(spec) and spec.fills_blanks

    @classmethod
    def tokenizer_defaults(cls, spec: Spec) -> dict[str, Any]:
        """Return the default `[tokenizer]` keys: byte-level BPE and the special tokens of GLM."""
        return {"kind": "byte-bpe", "special_tokens": ("<s>", "<pad>", "</s>", "<mask>")}

    def fits(self, spec: Spec) -> bool:
        """Return True for Transformer decoders with two-dimensional positions (required)."""
        return self.is_default_for(spec) and spec.attention_only

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Sample spans in each of B rows, and return a batch with the spans moved to part B.

        In the batch `input_ids` and `labels` are [B, U], and `position_ids` are [B, U, 2]. U is the
        length of the longest new row. `prefix_lengths` [B] are the lengths of part A.
        """
        width = rows.input_ids.shape[1]
        kinds, lengths, gaps, orders = (
            rng.uniform(columns, channel)
            for columns, channel in ((1, _KIND), (width, _LENGTH), (width, _GAP), (width, _ORDER))
        )
        built = []
        for i, length in enumerate(rows.lengths.tolist()):
            ids, kind = rows.input_ids[i, :length], kinds[i, 0]
            if kind < self.whole_share or length < 2:
                built.append(_build_single_span_row(ids))
                continue
            spans = self._sample_spans(length, lengths[i], gaps[i])
            if kind < self.whole_share + self.document_share:
                spans = [(int(length * (1.0 - lengths[i, 0]) / 2.0), length)]
            built.append(
                blank_out_spans(ids, spans, orders[i, : len(spans)].argsort().tolist(), vocabulary)
            )
        columns = max(len(row.input_ids) for row in built)
        shape = len(built), round_up(columns)
        input_ids = np.zeros(shape, dtype=np.int64)
        labels = np.full(shape, IGNORE_INDEX, dtype=np.int64)
        positions = np.zeros((*shape, 2), dtype=np.int64)
        # Padding is on the right, so that the causal mask hides it.
        for i, row in enumerate(built):
            here = slice(len(row.input_ids))
            input_ids[i, here], labels[i, here] = row.input_ids, row.labels
            positions[i, here] = row.positions
        prefixes = np.array([row.prefix_length for row in built])
        return Batch(
            input_ids=input_ids, labels=labels, position_ids=positions, prefix_lengths=prefixes
        )

    def _sample_spans(self, length: int, lengths: Floats, gaps: Floats) -> list[tuple[int, int]]:
        """Sample the spans to mask in a row.

        Returns the (start, stop) positions of the spans, from left to right. There is at least one
        token between two spans.

        Args:
            length: the number of tokens in the row.
            lengths: uniform random numbers in [0, 1) that determine the span lengths.
            gaps: uniform random numbers in [0, 1) that determine the span positions.
        """
        size = max(round(length * self.probability), 1)
        sizes = 1 + np.searchsorted(self._span_length_cdf(), lengths[:size], side="right")
        sizes = sizes[: 1 + np.searchsorted(sizes.cumsum(), size)]
        sizes = sizes[: length - size + 1]
        sizes[-1] = min(sizes[-1], size - sizes[:-1].sum())
        # The number of remaining tokens before each span. It is different for all spans.
        before = np.sort(gaps[: length - sizes.sum() + 1].argsort()[: len(sizes)])
        stops = before + sizes.cumsum()
        return [*zip((stops - sizes).tolist(), stops.tolist(), strict=True)]

    def _span_length_cdf(self) -> Floats:
        """Return the CDF of the zero-truncated Poisson distribution of span lengths 1, 2, ..."""
        chances = poisson_probabilities(self.mean_span, range(1, _MAX_SPAN))
        return np.cumsum(chances / chances.sum())[:-1]


def blank_out_spans(
    ids: Ints, spans: Sequence[tuple[int, int]], order: Sequence[int], vocabulary: Vocabulary
) -> BlankFilledRow:
    """Build a training row of GLM: replace each span with a mask, and append the spans as part B.

    Args:
        ids: the tokens of the row, int64 [T].
        spans: the (start, stop) positions of the spans, from left to right.
        order: the indices of the spans, in the order in which part B contains them.
        vocabulary: a vocabulary with a mask token, a start token and an end token.
    """
    mask, start, end = (
        [token] for token in (vocabulary.mask_id, vocabulary.start_id, vocabulary.end_id)
    )
    part_a, masks, stop = [], [], 0
    for begin, next_stop in spans:
        part_a += [*ids[stop:begin], *mask]
        masks.append(len(part_a) - 1)
        stop = next_stop
    part_a += [*ids[stop:]]
    input_ids, labels = [*part_a], [IGNORE_INDEX] * len(part_a)
    positions = [(place, 0) for place in range(len(part_a))]
    for i in order:
        span = ids[slice(*spans[i])]
        input_ids += [*start, *span]
        labels += [*span, *end]
        positions += [(masks[i], place) for place in range(1, len(span) + 2)]
    return BlankFilledRow(*map(np.array, (input_ids, labels, positions)), prefix_length=len(part_a))


def _build_single_span_row(ids: Ints) -> BlankFilledRow:
    """Build a training row of GLM without part A: the whole row is predicted as a single span."""
    places = np.arange(1, len(ids) + 1)
    positions = np.stack((np.zeros_like(places), places), axis=1)
    return BlankFilledRow(ids, np.append(ids[1:], IGNORE_INDEX)[: len(ids)], positions, 0)
