"""Reranking: a cross-encoder reads a query and a document, and predicts their relevance."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch.nn import functional as F

from trivium.data.batch import Bools
from trivium.data.encoded import EncodedExamples
from trivium.data.records import Record, RecordOptions, json_type
from trivium.data.schema import Fields, Slot
from trivium.data.stored_examples import read_field
from trivium.errors import DataError
from trivium.inference.rerank import score_pairs
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.messages import english
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.models.heads import Head
from trivium.models.heads.text import ClassifierPooling
from trivium.objectives.excerpt import first_words
from trivium.objectives.labelled import column_key, encode_texts
from trivium.objectives.task_heads import SingleStackTask, build_classifier_head, choose_pooling
from trivium.objectives.task_metrics import Metrics, Mistake, read_prediction
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, forward_hidden

TEXTS = Fields(
    "query document",
    (
        *(("query", "document"), ("query", "passage"), ("question", "passage")),
        *(("query", "positive"), ("anchor", "positive"), ("question", "context")),
        *(("text", "pair"), ("sentence1", "sentence2"), ("query", "text")),
    ),
    (("query", "answer"), ("question", "answer"), ("query", "response")),
)
LABEL = Fields("label?", ("label",), ("score", "relevance", "relevant"))
NEGATIVE = Fields("negative?", ("negative",), ("hard_negative", "negatives"))
_CUTOFF = 10


@dataclass(frozen=True, slots=True)
class QueryDocument:
    """A query and a document, with the relevance of the document to the query.

    Args:
        query: the query.
        document: the document.
        label: the relevance, between 0 and 1.
        where: file and line of the example, for messages.
    """

    query: str
    document: str
    label: float
    where: str

    @property
    def group_key(self) -> str:
        """The key by which examples are grouped when splitting the data: the query.

        All documents of a query are therefore in the same split (training or validation).
        """
        return self.query

    @property
    def is_relevant(self) -> bool:
        """Whether the document counts as relevant in the metrics: a label of at least 0.5."""
        return self.label >= 0.5


class Reranking(SingleStackTask):
    """Training of a cross-encoder, which predicts the relevance of a document to a query.

    L = - y log sigmoid(s) - (1 - y) log(1 - sigmoid(s))

    The model reads the query x and the document d as one text, and s(x, d) is the output of its
    classification head. y is the label, between 0 and 1. A record contains a query, a document, and
    either a label or a second document that does not match the query (a negative). A record with a
    negative is converted to two examples, with the labels 1 and 0:

        [CLS] who wrote it [SEP] Ada wrote the first program [SEP]       y = 1
        [CLS] who wrote it [SEP] Grace wrote the first compiler [SEP]    y = 0

    Source: Nogueira and Cho 2019 (Passage Re-ranking with BERT), section 3. Exported models load as
    a `CrossEncoder` of sentence-transformers with the same scores.
    """

    example_type: ClassVar[type | None] = QueryDocument
    kind: Literal["reranking"] = "reranking"
    fields: ClassVar[Sequence[Slot]] = (TEXTS, LABEL, NEGATIVE)
    inputs: ClassVar[Sequence[Fields]] = (TEXTS,)
    query_field: str | None = column_key("column of the query", TEXTS)
    document_field: str | None = column_key("column of the document", TEXTS, "document")
    label_field: str | None = column_key("column of the relevance, from 0 to 1", LABEL)
    negative_field: str | None = column_key("column of a document that does not match", NEGATIVE)
    pooling: ClassifierPooling | None = Field(
        None,
        description="pooling of hidden states; default: first, for decoders and XLNet last, "
        "for ELMo mean",
    )

    def build_examples(
        self, records: Iterable[Any], options: RecordOptions
    ) -> Iterator[QueryDocument]:
        """Convert records to examples. A record with a negative is converted to two examples.

        Items that are already examples are yielded unchanged.
        """
        for one in super().build_examples(records, options):
            yield from [one] if isinstance(one, QueryDocument) else one

    def read_example(self, record: Record) -> tuple[QueryDocument, ...]:
        """Read the examples of a record: one with the label, or one positive and one negative.

        Raises DataError if the record has neither a label nor a negative, if it has both, or if the
        label is not between 0 and 1.
        """
        columns, where = record.columns, record.where
        query, document = (record.text(columns[name]) for name in ("query", "document"))
        if ("label" in columns) == ("negative" in columns):
            has = (
                "both a label and a negative" if "label" in columns else "no label and no negative"
            )
            raise DataError(
                f"{where} has {has}. Give a label from 0 to 1 in every record (--set "
                "objective.label_field=NAME), or a document that does not match (--set "
                "objective.negative_field=NAME)."
            )
        if "label" in columns:
            return (QueryDocument(query, document, _read_label(record), where),)
        negative = record.text(columns["negative"])
        return tuple(
            QueryDocument(query, text, label, where)
            for text, label in ((document, 1.0), (negative, 0.0))
        )

    def read_unlabelled(self, record: Record, lm: LanguageModel) -> QueryDocument:
        """Read a query and a document from a record, to predict the relevance."""
        query, document = (record.text(record.columns[name]) for name in ("query", "document"))
        return QueryDocument(query, document, 0.0, record.where)

    def predicted_columns(self, lm: LanguageModel) -> Sequence[str]:
        """Return the name of the column that `trivium predict` adds to the records."""
        return ("score",)

    def to_columns(self, prediction: float, *, in_cell: bool = False) -> tuple[Any, ...]:
        """Return the value of the only output column: the predicted relevance."""
        return (prediction,)

    def input_text(self, example: QueryDocument) -> str:
        """Return the query and the document as one text, separated by a space."""
        return f"{example.query} {example.document}"

    def add_settings(self, settings: Settings, examples: Sequence[QueryDocument]) -> Settings:
        """Return the model settings for pairs of texts with the single label "relevant".

        Raises DataError if all examples have the same label.
        """
        if len({*read_field(examples, "label")}) == 1:
            raise DataError(
                f"all {len(examples)} examples have the label {examples[0].label:g}: reranking "
                "needs documents that match a query and documents that do not."
            )
        settings = settings.with_labels(("relevant",), "multi-label")
        return settings.with_task("classification", pairs=True).with_task("reranking")

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return one head, which predicts one number per pair of texts.

        Raises RecipeError if the objective does not support the model.
        """
        self.require_fit(spec)
        return (build_classifier_head(spec, 1, self.pooling or choose_pooling(spec)),)

    def encode(self, examples: Sequence[QueryDocument], lm: LanguageModel) -> EncodedExamples:
        """Encode each query with its document, and the labels as float32 [N, 1]."""
        inputs, rows = encode_texts(lm, [(one.query, one.document) for one in examples])
        return EncodedExamples(
            rows,
            sequence_labels=np.array([[one.label] for one in examples], dtype=np.float32),
            truncations=[(one.cut, 1, 0) for one in inputs],
            pad_id=lm.source_tokenizer.pad_id,
        )

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return the binary cross-entropy in nats, summed over the pairs of the batch."""
        assert batch.sequence_labels is not None
        hidden, terms = forward_hidden(model, batch.inputs)
        mask = batch.inputs.get("attention_mask")
        logits = model.logits(hidden, head="classifier", attention_mask=mask).float()
        labels = batch.sequence_labels.float()
        return {
            "loss": F.binary_cross_entropy_with_logits(logits, labels, reduction="sum"),
            **terms,
        }

    def predict(self, lm: LanguageModel, examples: Sequence[QueryDocument]) -> list[float]:
        """Return the predicted relevance of every document."""
        return score_pairs(lm, [(one.query, one.document) for one in examples])

    def compute_metrics(
        self, predictions: list[float], examples: Sequence[QueryDocument], lm: LanguageModel
    ) -> Metrics:
        """Return MRR@10, NDCG@10 and average precision, averaged over the queries.

        Only queries with both relevant and irrelevant documents are used. Without such queries, the
        metrics are NaN.
        """
        by_query: dict[str, list[int]] = {}
        for index, one in enumerate(examples):
            by_query.setdefault(one.query, []).append(index)
        labels = np.array([one.label for one in examples])
        scores = np.array(predictions, dtype=np.float64)
        each, mistakes = [], []
        for indices in by_query.values():
            relevant = labels[indices] >= 0.5
            if 0 < relevant.sum() < len(indices):
                each.append(compute_ranking_metrics(scores[indices], labels[indices]))
                best = indices[int(scores[indices].argmax())]
                if not examples[best].is_relevant:
                    right = examples[
                        indices[int(np.where(relevant, scores[indices], -np.inf).argmax())]
                    ]
                    mistakes.append(
                        Mistake(
                            right.where,
                            right.query,
                            right.document,
                            examples[best].document,
                            float(scores[best]),
                        )
                    )
        names = ("mrr@10", "ndcg@10", "average_precision")
        values = {n: float(np.mean([one[n] for one in each])) if each else math.nan for n in names}
        rows = [
            {"query": one.query, "document": one.document, "label": one.label, "score": score}
            for one, score in zip(examples, predictions)
        ]
        notes = (english("note.ranked_queries", queries=len(each), of=len(by_query)),)
        return Metrics(values, notes=notes).with_examples(rows, mistakes)

    def suggest_command(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return a `rerank` command for the query and the document of a validation example."""
        example = read_prediction(run)
        texts = [str(example.get(name, f"a {name}")) for name in ("query", "document")]
        shown = " ".join(shlex.quote(first_words(each, 12) or each) for each in texts)
        return f"rerank {run} {shown}"


def compute_ranking_metrics(
    scores: NDArray[np.float64], labels: NDArray[np.float64]
) -> dict[str, float]:
    """Return the ranking metrics of one query, by name.

    A document with a label of at least 0.5 is relevant. MRR@10 is 1 / rank of the first relevant
    document if the rank is at most 10, otherwise 0. NDCG@10 is sum_i label_i / log2(1 + rank_i)
    over ranks up to 10, divided by the maximum of this sum. The average precision is the mean of
    the precision at the rank of each relevant document. If documents have equal scores, the less
    relevant ones are ranked first.

    Args:
        scores: the scores of the N documents, [N].
        labels: the relevance of the documents, [N]; at least one is relevant.
    """
    ranking = labels[np.lexsort((labels, -scores))]
    ranks = 1 + np.arange(len(labels))
    relevant: Bools = ranking >= 0.5
    first = int(ranks[relevant][0])
    discount = np.where(ranks <= _CUTOFF, 1.0 / np.log2(1.0 + ranks), 0.0)
    precision = np.cumsum(relevant) / ranks
    return {
        "mrr@10": 1.0 / first if first <= _CUTOFF else 0.0,
        "ndcg@10": float(ranking @ discount / (np.sort(labels)[::-1] @ discount)),
        "average_precision": float(precision[relevant].mean()),
    }


def _read_label(record: Record) -> float:
    """Read the relevance from a record. Raises DataError if it is not between 0 and 1."""
    name = record.columns["label"]
    value = record.value(name)
    try:
        label = float(value)
    except (TypeError, ValueError):
        label = math.nan
    if not 0.0 <= label <= 1.0:
        given = value if isinstance(value, int | float | str) else json_type(value)
        raise DataError(f"{record.locate(name)} is {given!r}, but must be a number from 0 to 1.")
    return label
