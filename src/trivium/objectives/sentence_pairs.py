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
from trivium.objectives.masked import TokenMasking
from trivium.objectives.row_arrays import left_pack
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, forward_hidden
from trivium.text.vocabulary import Vocabulary

# Noise channels. Lower channels are for `TokenMasking`.
_NEGATIVE, _CUT, _OTHER, _START = range(16, 20)
# The number of rows tried for a negative. If all are from the same document, there is no negative.
_TRIES = 8


class SentencePairs(TokenMasking):
    """Masked language modelling together with a task on sentence pairs (BERT and ALBERT).

    A pair consists of two segments of text. It is the longest section of one document in a row,
    split in two, without special tokens. Half of the pairs become negatives. For "nsp" (next
    sentence prediction), a segment from another document replaces the second segment. For "order"
    (sentence order prediction), the two segments are swapped. With "sat" masked:

        row             [CLS] the cat  sat   .     it  slept . [SEP]
        input_ids       [CLS] the cat [MASK] . [SEP] it slept . [SEP]      sequence label 0: next
        token_type_ids    0    0   0    0    0   0   1    1   1   1
        "nsp"           [CLS] the cat [MASK] . [SEP] my soup is [SEP]      sequence label 1: other
        "order"         [CLS] it slept . [SEP] the cat [MASK] . [SEP]      sequence label 1: swapped

    The segments of negatives come from other rows of the same step. A pair with its three special
    tokens is at most as long as a row; surplus tokens at the end are dropped. A text of fewer than
    two tokens cannot be split. For "nsp" it is paired with a segment from another document, and for
    "order" its label is 0.

    Source: Devlin et al. 2018, section 3.1 and appendix A.2; Lan et al. 2019, section 3.1. In the
    papers, sentences are joined up to a maximum length, and some pairs are short at random. Here a
    row is split in two, and no pair is shortened at random.
    """

    special_tokens: ClassVar[tuple[str, ...]] = ("[MASK]", "[CLS]", "[SEP]", "[PAD]")
    needs_documents: ClassVar[bool] = True
    prepares_steps: ClassVar[bool] = True  # negatives come from the same step
    # Healthy runs stay near the baseline for thousands of steps.
    kind: Literal["sentence-pairs"] = "sentence-pairs"
    pairs: Literal["nsp", "order"] = Field(
        "nsp", description='negatives: another document ("nsp") or swapped segments ("order")'
    )

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return the MLM head, and the head that classifies pairs, which any encoder can get.

        Raises RecipeError if the model is not a Transformer encoder with two token types.
        """
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
        """Return a batch of masked pairs, one per row.

        input_ids, token_type_ids and labels are [B, T]. sequence_labels [B] are 1 for negatives.
        """
        texts, sizes, documents = _longest_sections(rows, vocabulary)
        cut, column = _draw_cuts(texts, sizes, rng, vocabulary), np.arange(texts.shape[1])
        first = column < cut[:, None]
        second = (column < sizes[:, None]) & ~first
        negative = rng.uniform(1, _NEGATIVE)[:, 0] < 0.5
        if self.pairs == "order":
            others, negative = texts, negative & (sizes >= 2)
            swapped = negative[:, None]
            first, second = np.where(swapped, second, first), np.where(swapped, first, second)
        else:
            # The length of the replaced segment, or the remaining space after a text without a cut.
            space = np.where(sizes < 2, max(texts.shape[1] - 3, 2) - sizes, sizes - cut)
            others, part, fits = _draw_other_segments(
                texts, sizes, documents, space, rng, vocabulary
            )
            negative = (negative | (sizes < 2)) & fits
            other = negative[:, None]
            others, second = np.where(other, others, texts), np.where(other, part, second)
        return self._join_segments(texts, first, others, second, negative, rng, vocabulary)

    def label_counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of masked tokens; for the terms of pairs, the number of pairs."""
        pairs = batch.num_rows
        return {"mlm": batch.num_labels, self.pairs: pairs, f"{self.pairs}_accuracy": pairs}

    def term_weights(self) -> dict[str, float]:
        """Return the weight 0 for the accuracy of pairs, which is only logged."""
        return {f"{self.pairs}_accuracy": 0.0}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return the cross-entropy of masked tokens and of pairs, and the accuracy, as sums.

        The last layer computes only the masked tokens and the first token of every row.
        """
        labels = batch.sequence_labels
        assert labels is not None
        rows, length = batch.inputs["input_ids"].shape
        firsts = torch.arange(rows, device=labels.device) * length
        gather_positions, order = torch.cat((firsts, batch.label_positions)).sort()
        hidden, terms = forward_hidden(model, batch.inputs, gather_positions=gather_positions)
        hidden = hidden.index_select(0, order.argsort())
        first, hidden = hidden.split((rows, len(batch.targets)))
        pairs = model.logits(first[:, None], head="nsp").float()
        return {
            "mlm": model.lm_loss(hidden, batch.targets),
            self.pairs: F.cross_entropy(pairs, labels, reduction="sum"),
            f"{self.pairs}_accuracy": (pairs.argmax(-1) == labels).sum().float(),
            **terms,
        }

    def _join_segments(
        self,
        texts: Ints,
        first: Bools,
        others: Ints,
        second: Bools,
        negative: Bools,
        rng: RowRandom,
        vocabulary: Vocabulary,
    ) -> Batch:
        """Join segments A and B into rows [CLS] A [SEP] B [SEP]. Returns the masked, padded batch.

        Args:
            texts: the texts of the first segments, int64 [B, T].
            first: the tokens of `texts` that form segment A, bool [B, T].
            others: the texts of the second segments, int64 [B, T].
            second: the tokens of `others` that form segment B, bool [B, T].
            negative: which pairs are negatives, bool [B].
            rng: the noise of the rows.
            vocabulary: the ids of the special tokens.
        """
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


def _longest_sections(rows: RowBatch, vocabulary: Vocabulary) -> tuple[Ints, Ints, Ints]:
    """Return the longest section of one document in every row, truncated to fit into a pair.

    Special tokens are removed.

    Returns:
        The sections, int64 [B, T], padded on the right; their lengths, int64 [B]; and the index of
        the document of each section in the split, int64 [B].
    """
    if rows.document_ids is None or rows.first_documents is None:
        raise RecipeError(
            "sentence pairs are made of documents: read the rows with their documents "
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


def _draw_cuts(texts: Ints, sizes: Ints, rng: RowRandom, vocabulary: Vocabulary) -> Ints:
    """Return a random number of tokens before the cut of each text, int64 [B].

    If possible, the cut follows the end of a sentence. A text of one token has no cut: its number
    is 1. `texts` is int64 [B, T], and `sizes`, int64 [B], are the lengths of the texts.
    """
    inside = np.arange(1, texts.shape[1] + 1) < sizes[:, None]
    cut = _draw_column(texts, inside, rng.uniform(1, _CUT)[:, 0], vocabulary)
    return np.where(sizes < 2, sizes, cut + 1)


def _draw_column(ids: Ints, allowed: Bools, draw: Floats, vocabulary: Vocabulary) -> Ints:
    """Return a random column in each row among the allowed columns, int64 [B].

    Among the allowed columns, ends of sentences are preferred.

    Args:
        ids: token ids, int64 [B, T].
        allowed: bool [B, T].
        draw: a uniform random number for each row, [B].
        vocabulary: the tokens that end a sentence.
    """
    ends = allowed & vocabulary.ends_sentence[ids]
    allowed = np.where(ends.any(axis=1, keepdims=True), ends, allowed)
    rank = (draw * allowed.sum(axis=1)).astype(np.int64)
    return (np.cumsum(allowed, axis=1) > rank[:, None]).argmax(axis=1)


def _draw_other_segments(
    texts: Ints, sizes: Ints, documents: Ints, space: Ints, rng: RowRandom, vocabulary: Vocabulary
) -> tuple[Ints, Bools, Bools]:
    """Return a random segment from another document for each row.

    Args:
        texts: the texts of all rows of the step, int64 [B, T].
        sizes: the length of each text, int64 [B].
        documents: the index of each text's document, int64 [B].
        space: the maximum length of each segment, int64 [B].
        rng: the noise of the rows.
        vocabulary: the tokens that end a sentence.

    Returns:
        The text that contains each segment, int64 [B, T]; the tokens of the segment, bool [B, T];
        and whether a text from another document was found, bool [B].
    """
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
