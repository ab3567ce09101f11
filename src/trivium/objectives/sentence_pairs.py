"""Sentence pairs: does B follow A, predicted along with masked tokens (BERT and ALBERT)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch.nn import functional as F

from trivium.data.batch import Batch, Bools, Floats, Ints, RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import RecipeError
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.models.heads import Head
from trivium.models.heads.text import NSPHead
from trivium.objectives.masked import Masking
from trivium.objectives.row_arrays import left_pack
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, read
from trivium.text.vocabulary import Vocabulary

# Channels of noise beside those of `Masking`.
_NEGATIVE, _CUT, _OTHER, _START = range(16, 20)
# Rows that are drawn for a negative; where all are of the same document the pair stays positive.
_TRIES = 8


class SentencePairs(Masking):
    """Two segments of text, half of them truly one after the other, with some tokens masked.

    The longest part of one document in a row, without its special tokens, is cut in two. For "nsp"
    (next-sentence prediction) the second segment of every other row is replaced by one from another
    document; for "order" (sentence order) the two are exchanged. With "sat" masked:

        row             [CLS] the cat  sat   .     it  slept . [SEP]
        input_ids       [CLS] the cat [MASK] . [SEP] it slept . [SEP]      sequence label 0: next
        token_type_ids    0    0   0    0    0   0   1    1   1   1
        "nsp"           [CLS] the cat [MASK] . [SEP] my soup is [SEP]      sequence label 1: other
        "order"         [CLS] it slept . [SEP] the cat [MASK] . [SEP]      sequence label 1: swapped

    Negatives are drawn from the other rows of the same step. A pair is no longer than a row: what
    its three special tokens push out is left out at the end. A text of less than two tokens cannot
    be cut: for "nsp" it gets a segment of another document, for "order" its label is 0.

    Source: Devlin et al. 2018, section 3.1 and appendix A.2; Lan et al. 2019, section 3.1. We cut
    one row in two where they join sentences up to a length, and have no pairs that are short by
    chance.
    """

    special_tokens: ClassVar[tuple[str, ...]] = ("[MASK]", "[CLS]", "[SEP]", "[PAD]")
    needs_documents: ClassVar[bool] = True
    prepares_steps: ClassVar[bool] = True  # negatives are drawn from the same step
    # The label of a pair without any knowledge is a coin toss.
    # Healthy runs stay near the baseline for thousands of steps.
    kind: Literal["sentence-pairs"] = "sentence-pairs"
    pairs: Literal["nsp", "order"] = Field(
        "nsp", description='negatives: a segment of another document ("nsp") or swapped ("order")'
    )

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """The head over the vocabulary, and that of pairs, which can be added to any encoder."""
        if not spec.stacks or spec.family != "encoder-only":
            raise RecipeError(
                f'objective.kind = "{self.kind}" is for Transformer encoders such as bert-mini.'
            )
        if spec.num_token_types == 1:
            raise RecipeError(
                f'objective.kind = "{self.kind}" needs two token types, and this model has one: '
                'set model.embedding.num_token_types=2, or objective.kind = "masked".'
            )
        have = (head for head in spec.heads if head.kind == "nsp")
        return self.require_head(spec), next(have, NSPHead())

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Pairs from rows [B, T]: input_ids, token_type_ids and labels; sequence_labels [B]."""
        texts, sizes, documents = _longest_parts(rows, vocabulary)
        cut, column = _cut(texts, sizes, rng, vocabulary), np.arange(texts.shape[1])
        first = column < cut[:, None]
        second = (column < sizes[:, None]) & ~first
        negative = rng.uniform(1, _NEGATIVE)[:, 0] < 0.5
        if self.pairs == "order":
            others, negative = texts, negative & (sizes >= 2)
            swapped = negative[:, None]
            first, second = np.where(swapped, second, first), np.where(swapped, first, second)
        else:
            # As long as the segment it replaces, or what is left beside a text that is not cut.
            space = np.where(sizes < 2, max(texts.shape[1] - 3, 2) - sizes, sizes - cut)
            others, part, fits = _other_segments(texts, sizes, documents, space, rng, vocabulary)
            negative = (negative | (sizes < 2)) & fits
            other = negative[:, None]
            others, second = np.where(other, others, texts), np.where(other, part, second)
        return self._join(texts, first, others, second, negative, rng, vocabulary)

    def label_counts(self, batch: Batch) -> dict[str, int]:
        """Masked tokens, and pairs, once for their loss and once for their accuracy."""
        pairs = batch.num_rows
        return {"mlm": batch.num_labels, self.pairs: pairs, f"{self.pairs}_accuracy": pairs}

    def term_weights(self) -> dict[str, float]:
        """Return the weight 0 for the accuracy, which is only shown."""
        return {f"{self.pairs}_accuracy": 0.0}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Nats of the masked tokens, and of the pairs.

        The last layer runs for masked tokens and for the first token of every row.
        """
        labels = batch.sequence_labels
        assert labels is not None
        rows, length = batch.inputs["input_ids"].shape
        firsts = torch.arange(rows, device=labels.device) * length
        gather_positions, order = torch.cat((firsts, batch.label_positions)).sort()
        hidden, terms = read(model, batch.inputs, gather_positions=gather_positions)
        hidden = hidden.index_select(0, order.argsort())
        first, hidden = hidden.split((rows, len(batch.targets)))
        pairs = model.logits(first[:, None], head="nsp").float()
        return {
            "mlm": model.lm_loss(hidden, batch.targets),
            self.pairs: F.cross_entropy(pairs, labels, reduction="sum"),
            f"{self.pairs}_accuracy": (pairs.argmax(-1) == labels).sum().float(),
            **terms,
        }

    def _join(
        self,
        texts: Ints,
        first: Bools,
        others: Ints,
        second: Bools,
        negative: Bools,
        rng: RowRandom,
        vocabulary: Vocabulary,
    ) -> Batch:
        """[CLS] A [SEP] B [SEP], masked and padded, of texts[first] and others[second]."""
        one, width = np.ones((len(texts), 1), dtype=bool), texts.shape[1]
        start, end = one * vocabulary.start_id, one * vocabulary.end_id
        ids = np.concatenate((start, texts, end, others, end), axis=1)
        keep = np.concatenate((one, first, one, second, one), axis=1)
        types = np.repeat((0, 0, 0, 1, 1), (1, width, 1, width, 1))
        types, _ = left_pack(np.broadcast_to(types, ids.shape), keep, 0)
        ids, sizes = left_pack(ids, keep, vocabulary.pad_id or 0)
        real = np.arange(ids.shape[1]) < sizes[:, None]
        ids, labels = self.mask(ids, real, rng, vocabulary)
        return Batch(
            input_ids=ids,
            attention_mask=None if real.all() else real.astype(np.int64),
            token_type_ids=types,
            labels=labels,
            sequence_labels=negative.astype(np.int64),
        )


def _longest_parts(rows: RowBatch, vocabulary: Vocabulary) -> tuple[Ints, Ints, Ints]:
    """The longest part of one document in every row, without special tokens, cut to fit a pair.

    Texts int64 [B, T], padded; their sizes [B], and which document of the split each is of.
    """
    if rows.document_ids is None or rows.first_documents is None:
        raise RecipeError(
            "sentence pairs are made of documents: take the rows with their documents "
            "(Rows(..., with_documents=True))."
        )
    ids, documents = rows.input_ids, rows.document_ids
    text = (ids != vocabulary.start_id) & (ids != vocabulary.end_id) & (documents > 0)
    count = int(documents.max(initial=0)) + 1
    keys = np.arange(len(ids))[:, None] * count + documents
    counts = np.bincount(keys[text], minlength=len(ids) * count).reshape(len(ids), count)
    longest = counts.argmax(axis=1)
    text &= documents == longest[:, None]
    parts, sizes = np.full_like(ids, vocabulary.pad_id), text.sum(axis=1)
    parts[np.arange(ids.shape[1]) < sizes[:, None]] = ids[text]
    sizes = np.minimum(sizes, max(ids.shape[1] - 3, 2))
    return parts, sizes, rows.first_documents + longest - 1


def _cut(texts: Ints, sizes: Ints, rng: RowRandom, vocabulary: Vocabulary) -> Ints:
    """How many tokens of each text go before the cut: int64 [B], all of a text of one token."""
    inside = np.arange(1, texts.shape[1] + 1) < sizes[:, None]
    cut = _draw_column(texts, inside, rng.uniform(1, _CUT)[:, 0], vocabulary)
    return np.where(sizes < 2, sizes, cut + 1)


def _draw_column(ids: Ints, allowed: Bools, draw: Floats, vocabulary: Vocabulary) -> Ints:
    """One of the columns allowed in each row, the end of a sentence where there is one: [B]."""
    ends = allowed & vocabulary.ends_sentence[ids]
    allowed = np.where(ends.any(axis=1, keepdims=True), ends, allowed)
    rank = (draw * allowed.sum(axis=1)).astype(np.int64)
    return (np.cumsum(allowed, axis=1) > rank[:, None]).argmax(axis=1)


def _other_segments(
    texts: Ints, sizes: Ints, documents: Ints, space: Ints, rng: RowRandom, vocabulary: Vocabulary
) -> tuple[Ints, Bools, Bools]:
    """Texts of other documents, which tokens of them to take, and for which rows there is one."""
    candidates = rng.integers(len(texts), _TRIES, _OTHER)
    fits = (documents[candidates] != documents[:, None]) & (sizes[candidates] > 0)
    row = np.take_along_axis(candidates, fits.argmax(axis=1)[:, None], axis=1)[:, 0]
    texts, sizes = texts[row], sizes[row]
    column = np.arange(texts.shape[1])
    latest = np.maximum(sizes - space, 0)
    inside = column < latest[:, None]
    start = 1 + _draw_column(texts, inside, rng.uniform(1, _START)[:, 0], vocabulary)
    start = np.where(latest == 0, 0, start)
    stop = start + np.minimum(sizes - start, space)
    segment = (column >= start[:, None]) & (column < stop[:, None])
    return texts, segment, fits.any(axis=1)
