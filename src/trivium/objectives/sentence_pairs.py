"""Sentence pairs: is B what follows A, asked along with hidden tokens (BERT and ALBERT)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from trivium.data import Batch, RowBatch, RowRandom, Rows
from trivium.errors import TriviumError
from trivium.models import LanguageModule
from trivium.nn.loss import Loss
from trivium.objectives.base import TensorBatch, TextObjective
from trivium.objectives.masked import Masked

# Streams of noise beside those of `Masked`.
_FALSE, _CUT, _OTHER, _START = range(16, 20)
# How often a row of another document is drawn before a pair is left as it is.
_TRIES = 8


@dataclass(frozen=True)
class SentencePairs(TextObjective):
    """Two stretches of text, half of them truly one after the other, with some tokens hidden.

    The longest part of one document in a row, without its special tokens, is cut in two. For "nsp"
    every other second stretch is put in place by one of another document, as long where that
    document goes on so far; for "order" the two are exchanged. With "sat" hidden:

        row             [CLS] the cat  sat   .     it  slept . [SEP]
        input_ids       [CLS] the cat [MASK] . [SEP] it slept . [SEP]      text_labels 0: true
        token_type_ids    0    0   0    0    0   0   1    1   1   1
        "nsp"           [CLS] the cat [MASK] . [SEP] my soup is [SEP]      text_labels 1: false
        "order"         [CLS] it slept . [SEP] the cat [MASK] . [SEP]      text_labels 1: swapped

    What makes three special tokens and more than `length` is left out at the end. A text of less
    than two tokens cannot be cut: for "nsp" it goes with another document, for "order" it is true.

    Args:
        masked: hides tokens of the pair.
        kind: "nsp" (next sentence) or "order" (sentence order), which is also the loss's name.
        length: of the longest pair, special tokens included (`data.length`).
        cls_id, sep_id, pad_id: special tokens.
        others: where false stretches come from, for "nsp".
        sentence_ends: bool [V], True for tokens that end a sentence, after which texts are cut
            where they have one; None: anywhere.

    Rows must have been taken with their documents. Source: Devlin et al. 2018, section 3.1 and
    appendix A.2; Lan et al. 2019, section 3.1. We cut one row in two where they join sentences up
    to a length, and have no pairs that are short by chance.
    """

    masked: Masked
    kind: Literal["nsp", "order"]
    length: int
    cls_id: int
    sep_id: int
    pad_id: int
    others: Rows | None = field(default=None, repr=False)
    sentence_ends: NDArray[np.bool_] | None = field(default=None, repr=False)
    heads: tuple[str, ...] = ("mlm", "nsp")

    def __post_init__(self) -> None:
        if self.length < 5:
            raise TriviumError(
                f"data.length = {self.length} holds no pair: [CLS] A [SEP] B [SEP] takes at least "
                "5 tokens."
            )
        if self.kind == "nsp" and (self.others is None or self.others.split.num_documents < 2):
            raise TriviumError(
                "next-sentence prediction takes false sentences from other documents, and the text "
                "has only one: check data.separator, or ask for the order of sentences instead."
            )

    @property
    def terms(self) -> tuple[str, ...]:
        """Hidden tokens, and pairs."""
        return "mlm", self.kind

    @property
    def needs_documents(self) -> bool:
        """Pairs are of one document, or of two."""
        return True

    def counts(self, batch: Batch) -> tuple[int, ...]:
        """Hidden tokens, and pairs."""
        return batch.num_labels, batch.num_rows

    def prepare(self, rows: RowBatch, random: RowRandom) -> Batch:
        """Pairs from rows: int64 [B, T] -> input_ids, token_type_ids, labels; text_labels [B]."""
        texts = self._longest_parts(rows)
        texts.sizes[:] = np.minimum(texts.sizes, self.length - 3)
        cut = self._cut(texts, random)
        false = random.uniform(1, _FALSE)[:, 0] < 0.5
        first = _Stretch(texts.ids, np.zeros_like(cut), cut)
        second = _Stretch(texts.ids, cut, texts.sizes - cut)
        if self.kind == "nsp":
            false |= texts.sizes < 2
            first, second, false = self._with_others(texts, first, second, false, random)
        else:
            false &= texts.sizes >= 2
            first, second = _chosen(false, second, first), _chosen(false, first, second)
        return self._paired(first, second, false, random)

    def loss(self, model: LanguageModule, batch: TensorBatch) -> Loss:
        """Nats of the hidden tokens, and of what the pairs are.

        The last layer runs for hidden tokens and for the first token of every row.
        """
        labels = batch.text_labels
        assert labels is not None
        rows, length = batch.inputs["input_ids"].shape
        firsts = torch.arange(rows, device=labels.device) * length
        select, order = torch.cat((firsts, batch.label_positions)).sort()
        hidden = model(**batch.inputs, select=select).index_select(0, order.argsort())
        first, hidden = hidden.split((rows, len(batch.targets)))
        pairs = model.logits(first[:, None], head="nsp").float()
        pair_loss = Loss(F.cross_entropy(pairs, labels, reduction="sum"), rows, name=self.kind)
        return Loss(
            model.vocabulary_loss(hidden, batch.targets),
            len(batch.targets),
            name="mlm",
            others=(pair_loss,),
        )

    def _longest_parts(self, rows: RowBatch) -> _Texts:
        """Of every row the longest part that one document has in it, special tokens left out."""
        assert rows.document_ids is not None, "take the rows with their documents"
        assert rows.first_documents is not None
        ids, documents = rows.input_ids, rows.document_ids
        text = (ids != self.cls_id) & (ids != self.sep_id) & (documents > 0)
        count = int(documents.max(initial=0)) + 1
        places = np.arange(len(ids))[:, None] * count + documents
        counts = np.bincount(places[text], minlength=len(ids) * count).reshape(len(ids), count)
        longest = counts.argmax(axis=1)
        text &= documents == longest[:, None]
        found = np.full((len(ids), self.length), self.pad_id, dtype=np.int64)
        row, column = np.nonzero(text)
        found[row, (np.cumsum(text, axis=1) - 1)[row, column]] = ids[row, column]
        return _Texts(found, text.sum(axis=1), rows.first_documents + longest - 1)

    def _cut(self, texts: _Texts, random: RowRandom) -> NDArray[np.int64]:
        """How many tokens of each text go before the cut: int64 [B], all of a text of one token."""
        column = np.arange(1, self.length + 1)
        cut = self._place(texts.ids, column < texts.sizes[:, None], random.uniform(1, _CUT)[:, 0])
        return np.where(texts.sizes < 2, texts.sizes, cut + 1)

    def _place(
        self, ids: NDArray[np.int64], allowed: NDArray[np.bool_], draw: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """One of the columns allowed in each row, an end of a sentence where there is one: [B]."""
        if self.sentence_ends is not None:
            ends = allowed & self.sentence_ends[ids]
            allowed = np.where(ends.any(axis=1, keepdims=True), ends, allowed)
        wanted = (draw * allowed.sum(axis=1)).astype(np.int64)
        return (np.cumsum(allowed, axis=1) > wanted[:, None]).argmax(axis=1)

    def _with_others(
        self,
        texts: _Texts,
        first: _Stretch,
        second: _Stretch,
        false: NDArray[np.bool_],
        random: RowRandom,
    ) -> tuple[_Stretch, _Stretch, NDArray[np.bool_]]:
        """The pairs with stretches of other documents where they are to be false."""
        assert self.others is not None
        drawn = random.integers(len(self.others), _TRIES, _OTHER)
        ids, sizes = np.zeros_like(texts.ids), np.zeros_like(texts.sizes)
        missing = false.copy()
        for attempt in range(_TRIES):
            here = np.flatnonzero(missing)
            if not len(here):
                break
            taken = self.others.take(drawn[here, attempt], with_documents=True)
            found = self._longest_parts(taken)
            ids[here], sizes[here] = found.ids, found.sizes
            missing[here] = (found.documents == texts.documents[here]) | (found.sizes == 0)
        false &= ~missing
        # As long as what it stands for, or as what is left for a text that could not be cut.
        room = np.where(texts.sizes < 2, self.length - 3 - texts.sizes, second.sizes)
        latest = np.maximum(sizes - room, 0)[:, None]
        start = 1 + self._place(
            ids, np.arange(1, self.length + 1) <= latest, random.uniform(1, _START)[:, 0]
        )
        start = np.where(latest[:, 0] == 0, 0, start)
        other = _Stretch(ids, start, np.minimum(sizes - start, room))
        return first, _chosen(false, other, second), false

    def _paired(
        self, first: _Stretch, second: _Stretch, false: NDArray[np.bool_], random: RowRandom
    ) -> Batch:
        """[CLS] A [SEP] B [SEP], hidden and padded."""
        totals = first.sizes + second.sizes + 3
        column = np.arange(totals.max(initial=0))
        middle = first.sizes[:, None] + 1
        inner = np.where(
            column <= middle,
            first.at(column - 1, self.pad_id),
            second.at(column - middle - 1, self.pad_id),
        )
        closes = (column == middle) | (column == totals[:, None] - 1)
        ids = np.where(closes, self.sep_id, np.where(column == 0, self.cls_id, inner))
        real = column < totals[:, None]
        ids, labels = self.masked.hide(ids, real, random)
        return Batch(
            input_ids=ids,
            attention_mask=None if real.all() else real.astype(np.int64),
            token_type_ids=((column > middle) & real).astype(np.int64),
            labels=labels,
            text_labels=false.astype(np.int64),
        )


@dataclass(frozen=True)
class _Texts:
    """Texts int64 [B, N], padded; their sizes [B], and which document of the split each is of."""

    ids: NDArray[np.int64]
    sizes: NDArray[np.int64]
    documents: NDArray[np.int64]


@dataclass(frozen=True)
class _Stretch:
    """`sizes` [B] tokens of each row of `ids` [B, N] from `starts` [B] on."""

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def at(self, places: NDArray[np.int64], fill: int) -> NDArray[np.int64]:
        """The tokens at `places` [B or 1, T] of the stretch, `fill` outside of it: [B, T]."""
        inside = (places >= 0) & (places < self.sizes[:, None])
        found = np.where(inside, self.starts[:, None] + places, 0)
        return np.where(inside, np.take_along_axis(self.ids, found, axis=1), fill)


def _chosen(which: NDArray[np.bool_], yes: _Stretch, no: _Stretch) -> _Stretch:
    """The stretches of `yes` in some rows, of `no` in the others."""
    return _Stretch(
        np.where(which[:, None], yes.ids, no.ids),
        np.where(which, yes.starts, no.starts),
        np.where(which, yes.sizes, no.sizes),
    )
