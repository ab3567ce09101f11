"""Sentence pair tasks of BERT (NSP) and ALBERT (SOP), combined with masked language modelling."""

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

# Channels of random numbers. Lower channels are for `TokenMasking`.
_NEGATIVE, _CUT, _OTHER, _START = range(16, 20)
# The number of rows tried for a negative. If all are from the same document, there is no negative.
_TRIES = 8


class SentencePairs(TokenMasking):
    """Masked language modelling together with a task on sentence pairs (BERT and ALBERT).

    A pair consists of two segments of text. To build a pair, special tokens are removed from a row,
    and its longest section from a single document is split in two. Half of the pairs become
    negatives. For "nsp" (next sentence prediction), a segment from another document replaces the
    second segment. For "order" (sentence order prediction), the two segments are swapped. With
    "sat" masked:

        row             [CLS] the cat  sat   .     it  slept . [SEP]
        input_ids       [CLS] the cat [MASK] . [SEP] it slept . [SEP]      sequence label 0: next
        token_type_ids    0    0   0    0    0   0   1    1   1   1
        "nsp"           [CLS] the cat [MASK] . [SEP] my soup is [SEP]      sequence label 1: other
        "order"         [CLS] it slept . [SEP] the cat [MASK] . [SEP]      sequence label 1: swapped

    The segments from other documents come from other rows of the same step. A pair with its three
    special tokens is at most as long as a row; surplus tokens at the end are dropped. A text of
    fewer than two tokens cannot be split. For "nsp", it is always paired with a segment from
    another document. For "order", its label is 0.

    Source: Devlin et al. 2018, section 3.1 and appendix A.2; Lan et al. 2019, section 3.1. In the
    papers, sentences are joined up to a maximum length, and some pairs are randomly shortened. Here
    a row is split in two, and no pair is randomly shortened.
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
        """Return the MLM head and the sentence pair head.

        If the model has no sentence pair head, a new one is returned. Raises RecipeError if the
        model is not a Transformer encoder with two token types.
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
        """Build one sentence pair from each of B rows, and mask random tokens.

        Returns a batch with input_ids, token_type_ids and labels [B, T], and sequence_labels [B],
        which are 1 for negatives.
        """
        texts, sizes, documents = _extract_longest_sections(rows, vocabulary)
        cut, column = _draw_split_points(texts, sizes, rng, vocabulary), np.arange(texts.shape[1])
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
            others, part, fits = _draw_negative_segments(
                texts, sizes, documents, space, rng, vocabulary
            )
            negative = (negative | (sizes < 2)) & fits
            other = negative[:, None]
            others, second = np.where(other, others, texts), np.where(other, part, second)
        return self._build_pair_batch(texts, first, others, second, negative, rng, vocabulary)

    def loss_denominators(self, batch: Batch) -> dict[str, int]:
        """Return the divisor of each loss term, by name.

        The divisor of the MLM loss is the number of masked tokens. The divisor of the pair terms is
        the number of pairs.
        """
        pairs = batch.num_rows
        return {"mlm": batch.num_labels, self.pairs: pairs, f"{self.pairs}_accuracy": pairs}

    def term_weights(self) -> dict[str, float]:
        """Return the weights of the terms, by name: 0 for the accuracy, which is only logged."""
        return {f"{self.pairs}_accuracy": 0.0}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Compute the cross-entropies of masked tokens and sentence pairs, and the pair accuracy.

        Returns the sum of each over the batch. To save time, the last layer computes only the
        masked tokens and the first token of every row.
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

    def _build_pair_batch(
        self,
        first_texts: Ints,
        in_first: Bools,
        second_texts: Ints,
        in_second: Bools,
        is_negative: Bools,
        rng: RowRandom,
        vocabulary: Vocabulary,
    ) -> Batch:
        """Join pairs of segments into rows [CLS] A [SEP] B [SEP], and mask random tokens.

        Args:
            first_texts: the texts that contain segment A of each pair, int64 [B, T].
            in_first: the tokens of `first_texts` that form segment A, bool [B, T].
            second_texts: the texts that contain segment B of each pair, int64 [B, T].
            in_second: the tokens of `second_texts` that form segment B, bool [B, T].
            is_negative: which pairs are negatives, bool [B].
            rng: the random numbers of the rows.
            vocabulary: the ids of the special tokens.
        """
        one, width = np.ones((len(first_texts), 1), dtype=bool), first_texts.shape[1]
        start, end = one * vocabulary.start_id, one * vocabulary.end_id
        ids = np.concatenate((start, first_texts, end, second_texts, end), axis=1)
        keep = np.concatenate((one, in_first, one, in_second, one), axis=1)
        types = np.repeat((0, 0, 0, 1, 1), (1, width, 1, width, 1))
        types, _ = left_pack(np.broadcast_to(types, ids.shape), keep, 0)
        ids, sizes = left_pack(ids, keep, vocabulary.pad_id or 0)
        is_token = np.arange(ids.shape[1]) < sizes[:, None]
        ids, labels = self.corrupt_tokens(ids, is_token, rng, vocabulary)
        return Batch(
            input_ids=ids,
            attention_mask=None if is_token.all() else is_token.astype(np.int64),
            token_type_ids=types,
            labels=labels,
            sequence_labels=is_negative.astype(np.int64),
        )


def _extract_longest_sections(rows: RowBatch, vocabulary: Vocabulary) -> tuple[Ints, Ints, Ints]:
    """Extract from each of B rows the longest section that belongs to a single document.

    Special tokens are removed. The section is truncated so that it fits into a sentence pair.

    Returns:
        The sections, padded on the right, int64 [B, T]; their lengths, int64 [B]; and the document
        index of each section within the split, int64 [B].
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


def _draw_split_points(texts: Ints, lengths: Ints, rng: RowRandom, vocabulary: Vocabulary) -> Ints:
    """Draw a random position at which each text is split into two segments, int64 [B].

    If possible, a text is split at the end of a sentence. A text of fewer than two tokens cannot be
    split, and its position is its length.

    Args:
        texts: token ids, int64 [B, T].
        lengths: the lengths of the texts, int64 [B].
        rng: the random numbers of the rows.
        vocabulary: determines which tokens end a sentence.
    """
    inside = np.arange(1, texts.shape[1] + 1) < lengths[:, None]
    cut = _draw_sentence_end(texts, inside, rng.uniform(1, _CUT)[:, 0], vocabulary)
    return np.where(lengths < 2, lengths, cut + 1)


def _draw_sentence_end(ids: Ints, allowed: Bools, uniform: Floats, vocabulary: Vocabulary) -> Ints:
    """Draw a random column in each row at which a sentence ends, int64 [B].

    Only allowed columns are drawn. If no sentence ends at an allowed column of a row, any allowed
    column may be drawn.

    Args:
        ids: token ids, int64 [B, T].
        allowed: the allowed columns, bool [B, T].
        uniform: a uniform random number for each row, [B].
        vocabulary: determines which tokens end a sentence.
    """
    ends = allowed & vocabulary.ends_sentence[ids]
    allowed = np.where(ends.any(axis=1, keepdims=True), ends, allowed)
    rank = (uniform * allowed.sum(axis=1)).astype(np.int64)
    return (np.cumsum(allowed, axis=1) > rank[:, None]).argmax(axis=1)


def _draw_negative_segments(
    texts: Ints, lengths: Ints, documents: Ints, space: Ints, rng: RowRandom, vocabulary: Vocabulary
) -> tuple[Ints, Bools, Bools]:
    """Draw a random segment from another document for each row, to build negative pairs.

    Args:
        texts: the texts of all rows of the step, int64 [B, T].
        lengths: the length of each text, int64 [B].
        documents: the index of each text's document, int64 [B].
        space: the maximum length of each segment, int64 [B].
        rng: the random numbers of the rows.
        vocabulary: determines which tokens end a sentence.

    Returns:
        The text that contains each segment, int64 [B, T]; which tokens belong to the segment, bool
        [B, T]; and whether a text from another document was found, bool [B].
    """
    candidates = rng.integers(len(texts), _TRIES, _OTHER)
    fits = (documents[candidates] != documents[:, None]) & (lengths[candidates] > 0)
    row = np.take_along_axis(candidates, fits.argmax(axis=1)[:, None], axis=1)[:, 0]
    texts, lengths = texts[row], lengths[row]
    column = np.arange(texts.shape[1])
    latest = np.maximum(lengths - space, 0)
    inside = column < latest[:, None]
    start = 1 + _draw_sentence_end(texts, inside, rng.uniform(1, _START)[:, 0], vocabulary)
    start = np.where(latest == 0, 0, start)
    stop = start + np.minimum(lengths - start, space)
    segment = (column >= start[:, None]) & (column < stop[:, None])
    return texts, segment, fits.any(axis=1)
