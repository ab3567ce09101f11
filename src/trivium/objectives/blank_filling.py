"""Autoregressive blank filling (GLM): spans are taken out of a text and generated after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from trivium.data.batch import IGNORE_INDEX, Batch, Floats, Ints, RowBatch, padded_length
from trivium.data.row_order import RowRandom
from trivium.models.base_model import Spec
from trivium.objectives.causal import LeftToRight, is_causal
from trivium.objectives.row_arrays import poisson_chances
from trivium.text.vocabulary import Vocabulary

# Channels of noise.
_KIND, _LENGTH, _GAP, _ORDER = range(4)
# Of spans; the chance of a longer one is below 1e-6 for any mean up to 20.
_LONGEST = 48


@dataclass(frozen=True)
class Blanks:
    """One row with its blanks.

    Args:
        input_ids: int64 [T], part A and part B.
        labels: int64 [T], those of part B.
        positions: int64 [T, 2], see `TwoDimensional`.
        given: tokens of part A.
    """

    input_ids: Ints
    labels: Ints
    positions: Ints
    given: int


class BlankFilling(LeftToRight):
    """L = - sum over spans, in a random order, of log P(span | the rest, spans before it).

    A row becomes part A, its text with one mask for each span, and part B, the spans in a random
    order, each after a start token and predicted up to an end token. Part A sees all of part A;
    part B sees part A and what is before it in part B. With <m> the mask, <s> the start:

        row        thank you  for  inviting me
        input_ids  thank <m>  inviting <m>  <s> me   <s> you  for
        in text    0     1    2        3    3   3    1   1    1
        in span    0     0    0        0    1   2    1   2    3
        labels     -100  -100 -100     -100 me  </s> you for  </s>

    Rows are drawn anew whenever they are seen, each in one of three ways:

    - with spans of Poisson length, never 0, until a share of `probability` is taken out;
    - a share of `document_share` with one span, the last half of the row or more, as texts are
      continued ("document-level");
    - a share of `whole_share` is part B alone, without mask, start and end, as prompts are
      continued that a model reads from the left to the right (`trivium generate`).

    Source: Du et al. 2022, sections 2.1 and 2.2 (15 %, mean 3, half of the rows document-level).
    Where we differ: the last span is cut where the share is reached, spans never touch, the span of
    a document-level row is at its end, and the third way is our own. Rows grow by two tokens for
    every span. Ends of documents inside a row are tokens like others.
    """

    separates_documents: ClassVar[bool] = False
    special_tokens: ClassVar[tuple[str, ...]] = ("<mask>", "<s>", "</s>")
    kind: Literal["blank-filling"] = "blank-filling"
    probability: float = Field(0.15, gt=0, lt=1, description="share of tokens in blanks")
    mean_span: float = Field(3.0, ge=1, le=20, description="mean tokens of a blank")
    document_share: float = Field(
        0.25, ge=0, le=1, description="share of rows whose last half, or more, is one blank"
    )
    whole_share: float = Field(
        0.25, ge=0, le=1, description="share of rows that are generated from their first token on"
    )

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.document_share + self.whole_share > 1.0:
            raise ValueError("document_share and whole_share are shares of all rows: at most 1")
        return self

    @classmethod
    def is_default_for(cls, spec: Spec) -> bool:
        """Return whether the model is a decoder whose positions are two numbers."""
        return is_causal(spec) and spec.fills_blanks

    @classmethod
    def tokenizer_defaults(cls, spec: Spec) -> dict[str, Any]:
        """Return byte-level BPE, which reproduces a generated text exactly."""
        return {"kind": "byte-bpe", "special_tokens": ("<s>", "<pad>", "</s>", "<mask>")}

    def fits(self, spec: Spec) -> bool:
        """Return whether the model is a Transformer with such positions."""
        return self.is_default_for(spec) and spec.attention_only

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Take spans out: int64 [B, T] -> input_ids and labels [B, U], position_ids [B, U, 2]."""
        width = rows.input_ids.shape[1]
        kinds, lengths, gaps, orders = (
            rng.uniform(columns, channel)
            for columns, channel in ((1, _KIND), (width, _LENGTH), (width, _GAP), (width, _ORDER))
        )
        made = []
        for i, length in enumerate(rows.lengths.tolist()):
            ids, kind = rows.input_ids[i, :length], kinds[i, 0]
            if kind < self.whole_share or length < 2:
                made.append(_whole(ids))
                continue
            spans = self._spans(length, lengths[i], gaps[i])
            if kind < self.whole_share + self.document_share:
                spans = [(int(length * (1.0 - lengths[i, 0]) / 2.0), length)]
            made.append(
                with_blanks(ids, spans, orders[i, : len(spans)].argsort().tolist(), vocabulary)
            )
        columns = max(len(row.input_ids) for row in made)
        shape = len(made), padded_length(columns)
        input_ids = np.zeros(shape, dtype=np.int64)
        labels = np.full(shape, IGNORE_INDEX, dtype=np.int64)
        positions = np.zeros((*shape, 2), dtype=np.int64)
        # Padding is on the right, where causality alone hides it.
        for i, row in enumerate(made):
            here = slice(len(row.input_ids))
            input_ids[i, here], labels[i, here] = row.input_ids, row.labels
            positions[i, here] = row.positions
        given = np.array([row.given for row in made])
        return Batch(
            input_ids=input_ids, labels=labels, position_ids=positions, prefix_lengths=given
        )

    def _spans(self, length: int, lengths: Floats, gaps: Floats) -> list[tuple[int, int]]:
        """Where spans of a row begin and end, in their order, with a token between any two."""
        size = max(round(length * self.probability), 1)
        sizes = 1 + np.searchsorted(self._chances(), lengths[:size], side="right")
        sizes = sizes[: 1 + np.searchsorted(sizes.cumsum(), size)]
        sizes = sizes[: length - size + 1]
        sizes[-1] = min(sizes[-1], size - sizes[:-1].sum())
        # Tokens that stay before each span, of which all spans have another number.
        before = np.sort(gaps[: length - sizes.sum() + 1].argsort()[: len(sizes)])
        stops = before + sizes.cumsum()
        return [*zip((stops - sizes).tolist(), stops.tolist(), strict=True)]

    def _chances(self) -> Floats:
        """Return P(length <= n), n = 1 ..., for Poisson lengths that are never 0."""
        chances = poisson_chances(self.mean_span, range(1, _LONGEST))
        return np.cumsum(chances / chances.sum())[:-1]


def with_blanks(
    ids: Ints, spans: Sequence[tuple[int, int]], order: Sequence[int], vocabulary: Vocabulary
) -> Blanks:
    """A row without its spans, and the spans after it in an order.

    Args:
        ids: int64 [T].
        spans: where each begins and ends, in their order in the row.
        order: which span comes first, second, ... in part B.
        vocabulary: with a mask, a start and an end.
    """
    mask, start, end = (
        [each] for each in (vocabulary.mask_id, vocabulary.start_id, vocabulary.end_id)
    )
    given, masks, stop = [], [], 0
    for begin, next_stop in spans:
        given += [*ids[stop:begin], *mask]
        masks.append(len(given) - 1)
        stop = next_stop
    given += [*ids[stop:]]
    input_ids, labels = [*given], [IGNORE_INDEX] * len(given)
    positions = [(place, 0) for place in range(len(given))]
    for i in order:
        span = ids[slice(*spans[i])]
        input_ids += [*start, *span]
        labels += [*span, *end]
        positions += [(masks[i], place) for place in range(1, len(span) + 2)]
    return Blanks(*map(np.array, (input_ids, labels, positions)), given=len(given))


def _whole(ids: Ints) -> Blanks:
    """Return the row as one span without any given token."""
    places = np.arange(1, len(ids) + 1)
    positions = np.stack((np.zeros_like(places), places), axis=1)
    return Blanks(ids, np.append(ids[1:], IGNORE_INDEX)[: len(ids)], positions, given=0)
