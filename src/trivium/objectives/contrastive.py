"""Contrastive learning of text embeddings: matching texts learn similar embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from trivium.data.batch import Batch, RowBatch, make_length_mask
from trivium.data.encoded import EncodedExamples
from trivium.data.row_order import RowRandom
from trivium.data.schema import Fields, Slot
from trivium.data.splitting import hash_text
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.models.heads import Head
from trivium.objectives.labelled import column_key
from trivium.objectives.row_arrays import left_pack, token_mask
from trivium.objectives.task_heads import SingleStackTask
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, forward_hidden
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
_SENTENCE, _KEPT = range(2)  # channels of random numbers
_KEPT_FRACTION = 0.1  # Lee et al. 2019, section 4


class Contrastive(SingleStackTask, TextPairs):
    """The contrastive loss with in-batch negatives (InfoNCE).

    L_i = - log(exp(cos(a_i, p_i) / T) / sum_c exp(cos(a_i, c) / T))

    a_i and p_i are the embeddings of the anchor and the positive of example i, and T is the
    temperature. The sum is over the embeddings c of the positives and the hard negatives of all
    examples in the step, with two exceptions. Texts that are identical to the anchor or the
    positive of example i are excluded, except p_i itself. If other examples have the same anchor as
    example i, their positives are also excluded. The embedding of a text is the mean, the first or
    the last of its hidden states:

        anchor    [CLS] who wrote it [SEP]
        positive  [CLS] Ada wrote the first program [SEP]
        negative  [CLS] Grace wrote the first compiler [SEP]

    If the examples are single texts, an anchor and a positive are sampled from each text in every
    epoch. With `pairs` = "cloze", the anchor is a random sentence of the text, and the positive is
    the rest of the text. In 10 % of the pairs the positive is the whole text. With `pairs` =
    "dropout", the anchor and the positive are both the whole text, with different dropout masks.
    Texts of one sentence always use "dropout".

    The loss is computed over the whole step, so it does not depend on the micro-batch size
    (GradCache). First, all texts are embedded without storing activations. Then each micro-batch
    slice is embedded again, with the same dropout masks, to compute gradients. With several
    processes, each process embeds some of the slices and computes the loss from all embeddings.

    Source: van den Oord et al. 2018, equation 4; Gao, Yao and Chen 2021 (SimCSE), equations 1, 4
    and 5; Lee et al. 2019 (inverse cloze task), section 4; Gao et al. 2021 (GradCache), section 3.
    """

    needs_whole_step: ClassVar[bool] = True
    kind: Literal["contrastive"] = "contrastive"
    fields: ClassVar[Sequence[Slot]] = (PAIR, NEGATIVE)
    pair_field: str | None = Field(
        None,
        description="column of the matching text; default: usual pairs such as question, context",
    )
    negative_field: str | None = column_key("column of a text that does not match", NEGATIVE)
    pairs: Literal["cloze", "dropout"] = Field(
        "cloze",
        description="pairs made from single texts: a sentence and its text, or the same text twice",
    )
    temperature: float = Field(0.05, gt=0, description="temperature T that divides the cosines")

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return an empty tuple: no head is needed, because embeddings are pooled hidden states.

        Raises RecipeError if the objective cannot train the model.
        """
        self.require_fit(spec)
        return ()

    def encode(self, examples: Sequence[TextPair], lm: LanguageModel) -> EncodedExamples:
        """Encode each example as one row: its anchor, positive and hard negative, concatenated.

        `document_ids` are 1 in the anchor, 2 in the positive and 3 in the hard negative. If the
        example is a single text, its sentences are numbered from 1, and special tokens have 0.
        `sequence_labels` [N, 3] are the hashes of the three texts of N examples; 0 if a text is
        missing.
        """
        tokenizer = lm.source_tokenizer
        ends, pairs = tokenizer.vocabulary.ends_sentence, [(t, None) for t in self.texts(examples)]
        encoded = iter(encode_inputs(tokenizer, pairs, max_length=lm.max_length))
        rows, types, text_ids, truncations = [], [], [], []
        for one in examples:
            parts = [next(encoded) for _ in one.texts]
            ids = [part.ids for part in parts]
            truncations.append((sum(part.cut for part in parts), 1, 0))
            if one.pair is None:
                is_text = np.array([text is not None for text in parts[0].texts])
                is_end = ends[ids[0]] & is_text
                text_ids.append(((1 + np.cumsum(is_end) - is_end) * is_text).tolist())
            else:
                text_ids.append([n for n, part in enumerate(ids, start=1) for _ in part])
            rows.append([token for part in ids for token in part])
            types.append([kind for part in parts for kind in part.type_ids])
        texts = [(one.text, one.pair, one.negative) for one in examples]
        hashes = [[0 if text is None else hash_text(text) for text in three] for three in texts]
        sequences = {"input_ids": rows, "document_ids": text_ids}
        if lm.spec.num_token_types > 1:
            sequences["token_type_ids"] = types
        return EncodedExamples(
            sequences,
            sequence_labels=np.array(hashes, dtype=np.uint64).view(np.int64).reshape(-1, 3),
            truncations=truncations,
            pad_id=tokenizer.pad_id,
        )

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return a batch with one text per row. The longest texts come first.

        `sequence_labels` [R, 3] contain three numbers for each of the R texts: the index of its
        example, its role (0: anchor, 1: positive, 2: hard negative) and its hash.
        """
        texts, text_ids = rows.sequence_labels, rows.document_ids
        assert texts is not None
        assert text_ids is not None
        is_token = token_mask(rows)
        has_pair, has_negative = texts[:, _POSITIVE] != 0, texts[:, _NEGATIVE] != 0
        anchor, positive = self._sample_pairs(text_ids, is_token, rng)
        anchor = np.where(has_pair[:, None], text_ids == 1, anchor)
        positive = np.where(has_pair[:, None], text_ids == 2, positive)
        hashes = np.where(has_pair, texts[:, _POSITIVE], texts[:, _ANCHOR])
        indices = np.arange(len(texts))
        example = np.concatenate((indices, indices, indices[has_negative]))
        role = np.repeat(range(3), (len(texts), len(texts), has_negative.sum()))
        text = np.concatenate((texts[:, _ANCHOR], hashes, texts[has_negative, _NEGATIVE]))
        keep = np.concatenate((anchor, positive, (text_ids == 3)[has_negative]))
        ids, sizes = left_pack(rows.input_ids[example], keep, vocabulary.pad_id or 0)
        order, types = np.argsort(-sizes, kind="stable"), rows.token_type_ids
        if types is not None:
            types = left_pack(types[example], keep, 0)[0][order]
        return Batch(
            input_ids=ids[order],
            token_type_ids=types,
            attention_mask=make_length_mask(sizes[order], ids.shape[1]),
            sequence_labels=np.stack((example, role, text), axis=1)[order],
        )

    def _sample_pairs(self, sentence_ids: Any, is_token: Any, rng: RowRandom) -> tuple[Any, Any]:
        """Sample an anchor and a positive from each of B rows, as if all rows were single texts.

        Returns a mask of the anchor tokens and a mask of the positive tokens, bool [B, T] each.

        Args:
            sentence_ids: the number of the sentence that contains each token, from 1, [B, T]; 0 for
                special tokens.
            is_token: the padding mask, bool [B, T].
            rng: the random numbers of the rows.
        """
        if self.pairs == "dropout":
            return is_token, is_token
        count = sentence_ids.max(axis=1)
        sampled = 1 + (rng.uniform(1, _SENTENCE)[:, 0] * count).astype(np.int64)
        several, sentence = (count > 1)[:, None], sentence_ids == sampled[:, None]
        special = is_token & (sentence_ids == 0)
        kept = rng.uniform(1, _KEPT) < _KEPT_FRACTION
        anchor = np.where(several, special | sentence, is_token)
        return anchor, np.where(several, is_token & (kept | ~sentence), is_token)

    def loss_denominators(self, batch: Batch) -> dict[str, int]:
        """Return the divisor of the summed loss, by name: the number of examples."""
        assert batch.sequence_labels is not None
        return {"loss": int((batch.sequence_labels[:, 1] == _ANCHOR).sum())}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return the contrastive loss in nats, summed over all examples of the step."""
        assert batch.sequence_labels is not None
        vectors, terms = batch.compute_by_slice(partial(self._embed, model), batch.micro_batches())
        loss = contrastive_loss(vectors, batch.sequence_labels, self.temperature)
        return {"loss": loss, **terms}

    def _embed(self, model: LanguageModule, inputs: dict[str, Tensor]) -> tuple[Tensor, LossTerms]:
        """Embed B texts. Returns normalised embeddings [B, D], and the model's auxiliary loss."""
        hidden, terms = forward_hidden(model, inputs)
        # Not `.float()`: float64 stays float64 when backward recomputes these tensors.
        hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        vectors = self.pool(hidden, inputs.get("attention_mask"))
        return F.normalize(vectors, dim=-1), terms


def contrastive_loss(vectors: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the contrastive loss L_i (see `Contrastive`), summed over all examples.

    Args:
        vectors: the normalised embeddings of R texts, [R, D].
        labels: three numbers for each text, int64 [R, 3]: the index of its example, its role (0:
            anchor, 1: positive, 2: hard negative) and its hash.
        temperature: the temperature T.
    """
    example, role, text = labels.unbind(1)
    order = torch.argsort(role * len(labels) + example)
    sizes = torch.bincount(role, minlength=3).tolist()
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
