"""Contrastive learning: vectors of texts that belong together are near each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from trivium.data.batch import Batch, RowBatch, length_mask
from trivium.data.encoded import EncodedExamples
from trivium.data.row_order import RowRandom
from trivium.data.schema import Fields, Slot
from trivium.data.splitting import text_digest
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.models.heads import Head
from trivium.objectives.labelled import column_key
from trivium.objectives.row_arrays import left_pack, real_tokens
from trivium.objectives.task_heads import ReadsStates
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, read
from trivium.objectives.text_pairs import TEXTS, TextPair, TextPairs
from trivium.text.inputs import encode_inputs
from trivium.text.vocabulary import Vocabulary

PAIR = Fields(
    "text pair?",
    (
        *(("question", "context"), ("query", "passage"), ("question", "passage")),
        *(("query", "positive"), ("query", "document"), ("anchor", "positive")),
        *(("text", "pair"), ("sentence1", "sentence2"), ("source", "target")),
    ),
    (("question", "answer"), ("query", "answer"), ("title", "text"), ("title", "body")),
    ("text",),
    TEXTS,
)
NEGATIVE = Fields("negative?", ("negative",), ("hard_negative", "negatives"))
_ANCHOR, _POSITIVE, _NEGATIVE = range(3)
_SENTENCE, _KEPT = range(2)  # channels of noise
_KEPT_SHARE = 0.1  # Lee et al. 2019, section 4


class Contrastive(ReadsStates, TextPairs):
    """L_i = - log exp(cos(a_i, p_i) / T) / sum_c exp(cos(a_i, c) / T), over the vectors of a step.

    The candidates c are the positives and hard negatives of all examples of the step (in-batch
    negatives), but for texts that equal a_i or p_i and what belongs to a text that equals a_i.
    A vector is the mean, the first or the last of the hidden states of a text:

        anchor    [CLS] who wrote it [SEP]
        positive  [CLS] Ada wrote the first program [SEP]
        negative  [CLS] Grace wrote the first compiler [SEP]

    A text without another makes its own pair, anew in every epoch. "cloze": one of its sentences,
    drawn at random, and the others, which in a tenth of the pairs keep it. "dropout": twice the
    text, under two masks of dropout; so is a text of one sentence.

    The whole step has one loss, whatever passes through the model at a time: the vectors of all
    texts are computed without keeping activations, and each part again for its gradient, under the
    same dropout. Of several processes each computes some parts, and the loss from all vectors.

    Source: van den Oord et al. 2018, equation 4; Gao, Yao and Chen 2021 (SimCSE), equations 1, 4
    and 5; Lee et al. 2019 (inverse cloze task), section 4; Gao et al. 2021 (GradCache), section 3.
    """

    needs_whole_step: ClassVar[bool] = True
    kind: Literal["contrastive"] = "contrastive"
    fields: ClassVar[Sequence[Slot]] = (PAIR, NEGATIVE)
    pair_field: str | None = Field(
        None,
        description="column of the text that belongs to it; default: usual pairs such as question, "
        "context",
    )
    negative_field: str | None = column_key("column of a text that does not belong to it", NEGATIVE)
    pairs: Literal["cloze", "dropout"] = Field(
        "cloze", description="of texts alone: a sentence and its text, or twice the text"
    )
    temperature: float = Field(0.05, gt=0, description="T, which cosines are divided by")

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return no head: the vectors are hidden states."""
        self.require_fit(spec)
        return ()

    def encode(self, examples: Sequence[TextPair], lm: LanguageModel) -> EncodedExamples:
        """The texts of an example one after the other, which `document_ids` number from 1.

        Those of a text alone are its sentences, and 0 are the special tokens around it.
        `sequence_labels` [N, 3] are hashes of the texts, 0 where there is none.
        """
        tokenizer = lm.source_tokenizer
        ends, pairs = tokenizer.vocabulary.ends_sentence, [(t, None) for t in self.texts(examples)]
        encoded = iter(encode_inputs(tokenizer, pairs, max_length=lm.max_length))
        rows, types, numbers, truncations = [], [], [], []
        for one in examples:
            parts = [next(encoded) for _ in one.texts]
            ids = [part.ids for part in parts]
            truncations.append((sum(part.cut for part in parts), 1, 0))
            if one.pair is None:
                real = np.array([text is not None for text in parts[0].texts])
                ended = ends[ids[0]] & real
                numbers.append(((1 + np.cumsum(ended) - ended) * real).tolist())
            else:
                numbers.append([n for n, part in enumerate(ids, start=1) for _ in part])
            rows.append([token for part in ids for token in part])
            types.append([kind for part in parts for kind in part.type_ids])
        texts = [(one.text, one.pair, one.negative) for one in examples]
        hashes = [[0 if text is None else text_digest(text) for text in each] for each in texts]
        sequences = {"input_ids": rows, "document_ids": numbers}
        if lm.spec.num_token_types > 1:
            sequences["token_type_ids"] = types
        return EncodedExamples(
            sequences,
            sequence_labels=np.array(hashes, dtype=np.uint64).view(np.int64).reshape(-1, 3),
            truncations=truncations,
            pad_id=tokenizer.pad_id,
        )

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """One text a row, the longest first: input_ids, and sequence_labels int64 [R, 3].

        These are the number of the example, 0 for the anchor, 1 for the positive, 2 for a hard
        negative, and the hash of the text.
        """
        texts, numbers = rows.sequence_labels, rows.document_ids
        assert texts is not None
        assert numbers is not None
        real = real_tokens(rows)
        paired, has_negative = texts[:, _POSITIVE] != 0, texts[:, _NEGATIVE] != 0
        anchor, positive = self._own_pairs(numbers, real, rng)
        anchor = np.where(paired[:, None], numbers == 1, anchor)
        positive = np.where(paired[:, None], numbers == 2, positive)
        hashes = np.where(paired, texts[:, _POSITIVE], texts[:, _ANCHOR])
        every = np.arange(len(texts))
        example = np.concatenate((every, every, every[has_negative]))
        part = np.repeat(range(3), (len(every), len(every), has_negative.sum()))
        text = np.concatenate((texts[:, _ANCHOR], hashes, texts[has_negative, _NEGATIVE]))
        keep = np.concatenate((anchor, positive, (numbers == 3)[has_negative]))
        ids, sizes = left_pack(rows.input_ids[example], keep, vocabulary.pad_id or 0)
        order, types = np.argsort(-sizes, kind="stable"), rows.token_type_ids
        if types is not None:
            types = left_pack(types[example], keep, 0)[0][order]
        return Batch(
            input_ids=ids[order],
            token_type_ids=types,
            attention_mask=length_mask(sizes[order], ids.shape[1]),
            sequence_labels=np.stack((example, part, text), axis=1)[order],
        )

    def _own_pairs(self, numbers: Any, real: Any, rng: RowRandom) -> tuple[Any, Any]:
        """Draw the tokens of anchor and positive for texts without a pair: bool [B, T] each."""
        if self.pairs == "dropout":
            return real, real
        count = numbers.max(axis=1)
        drawn = 1 + (rng.uniform(1, _SENTENCE)[:, 0] * count).astype(np.int64)
        several, sentence = (count > 1)[:, None], numbers == drawn[:, None]
        special = real & (numbers == 0)
        kept = rng.uniform(1, _KEPT) < _KEPT_SHARE
        anchor = np.where(several, special | sentence, real)
        return anchor, np.where(several, real & (kept | ~sentence), real)

    def label_counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of examples."""
        assert batch.sequence_labels is not None
        return {"loss": int((batch.sequence_labels[:, 1] == _ANCHOR).sum())}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return the nats of the positives among the candidates, summed over the examples."""
        assert batch.sequence_labels is not None
        vectors, terms = batch.compute_rows(partial(self._embed, model), batch.parts())
        loss = contrastive_loss(vectors, batch.sequence_labels, self.temperature)
        return {"loss": loss, **terms}

    def _embed(self, model: LanguageModule, inputs: dict[str, Tensor]) -> tuple[Tensor, LossTerms]:
        """Return vectors of length 1: [B, T] -> [B, D]."""
        hidden, terms = read(model, inputs)
        # Not `.float()`: float64 stays float64 when backward recomputes these tensors.
        hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        vectors = self.pooled(hidden, inputs.get("attention_mask"))
        return F.normalize(vectors, dim=-1), terms


def contrastive_loss(vectors: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """The sum of L_i over the examples; see `Contrastive`.

    Args:
        vectors: of length 1, [R, D].
        labels: int64 [R, 3]: the number of the example from 0, 0 for its anchor, 1 for its
            positive, 2 for its hard negative, and a number of the text.
        temperature: T.
    """
    example, part, text = labels.unbind(1)
    order = torch.argsort(part * len(labels) + example)
    sizes = torch.bincount(part, minlength=3).tolist()
    vectors, (anchors, positives, _) = vectors[order], text[order].split(sizes)
    count = len(anchors)
    queries, candidates = vectors[:count], vectors[count:]
    logits = queries @ candidates.T / temperature
    candidate_texts = text[order][count:]
    same = candidate_texts == anchors[:, None]
    same |= candidate_texts == positives[:, None]
    same[:, :count] |= anchors == anchors[:, None]
    logits = logits.masked_fill(same.fill_diagonal_(False), -torch.inf)
    return F.cross_entropy(logits, torch.arange(count, device=logits.device), reduction="sum")
