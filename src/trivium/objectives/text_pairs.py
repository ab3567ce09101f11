"""The base class of objectives that train text embeddings, which are evaluated by retrieval."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field
from torch import Tensor

from trivium.data.records import RECORD_SUFFIXES, Record, RecordOptions
from trivium.data.schema import Fields
from trivium.data.sources import file_format, list_sources
from trivium.errors import DataError
from trivium.files import open_text
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.messages import english
from trivium.models.base_model import Spec
from trivium.models.heads.text import Pooling, pool
from trivium.objectives.causal import is_causal
from trivium.objectives.excerpt import first_words
from trivium.objectives.labelled import LabelledObjective, column_key
from trivium.objectives.question_answering import QuestionAnswering
from trivium.objectives.retrieval import retrieve
from trivium.objectives.task_metrics import Metrics, Mistake, read_prediction
from trivium.text.symbols import WORD

TEXTS = ("sentence", "paragraph", "passage", "content", "document")
TEXT = Fields("text", ("text",), TEXTS)
_MIN_WORDS = 8


@dataclass(frozen=True, slots=True)
class TextPair:
    """An anchor text, such as a query, with a positive and an optional hard negative.

    Args:
        text: the anchor.
        pair: the positive: a matching text, such as a passage. None if the objective derives it
            from `text` or does not need it.
        negative: the hard negative: a text that does not match. None if there is none.
        where: file and line of the example, for messages.
    """

    text: str
    pair: str | None
    negative: str | None
    where: str

    @property
    def group_key(self) -> str:
        """The key by which examples are grouped when the data is split.

        It is the positive, or the anchor if there is no positive. All queries for a passage are
        therefore in the same split.
        """
        return self.text if self.pair is None else self.pair

    @property
    def texts(self) -> list[str]:
        """The anchor, followed by the positive and the hard negative, if any."""
        return [one for one in (self.text, self.pair, self.negative) if one is not None]


class TextPairs(LabelledObjective):
    """Base class of objectives that train text embeddings, which are pooled hidden states.

    These objectives are evaluated by retrieval on the validation pairs. If a text has no positive,
    its first half is the query and its second half the passage.
    """

    example_type: ClassVar[type | None] = TextPair
    text_field: str | None = column_key("column of the text, such as a question", TEXT)
    pooling: Pooling | None = Field(
        None, description="pooling: mean, first or last; default: mean, for decoders last"
    )

    def pool(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Pool the hidden states [B, T, D] of B texts. Returns their embeddings [B, D]."""
        return pool(hidden, attention_mask, self.pooling or "mean")

    def records(self, paths: Sequence[str], options: RecordOptions) -> Iterator[Record | TextPair]:
        """Yield the records of SQuAD JSON files, of other record files, or of plain text.

        Other record files have one to three texts per record. Plain text has one example per line.
        Lines of fewer than eight words, such as headings, are skipped.

        Raises:
            DataError: with file and line, if a column is missing or blank.
        """
        for source in list_sources(paths, (".txt", *RECORD_SUFFIXES)).sources:
            if source.kind == "file" and file_format(source.name) not in RECORD_SUFFIXES:
                yield from _read_plain_text(source.name, options)
            else:
                squad = QuestionAnswering.from_tree({})
                yield from squad.records([source.name], options)

    def read_example(self, record: Record) -> TextPair:
        """Read an anchor text from a record, with the positive and the hard negative, if any.

        Raises DataError if there is a hard negative but no positive.
        """
        text, pair, negative = (
            record.text(record.columns[name]) if name in record.columns else None
            for name in ("text", "pair", "negative")
        )
        assert text is not None
        if pair is None and negative is not None:
            raise DataError(
                f"{record.where} has a negative but no pair. Name the column of the pair."
            )
        return TextPair(text, pair, negative, record.where)

    def input_text(self, example: TextPair) -> str:
        """Return all texts of an example as one text, separated by spaces."""
        return " ".join(example.texts)

    def infer_keys(self, spec: Spec, examples: Sequence[TextPair]) -> Self:
        """Return the objective with the default of `pooling` filled in.

        The default is "last" for decoders and "mean" for other models.
        """
        default = "last" if is_causal(spec) else "mean"
        return self.replace(pooling=self.pooling or default)

    def add_settings(self, settings: Settings, examples: Sequence[TextPair]) -> Settings:
        """Return the model settings with the pooling used for embedding texts."""
        return settings.with_task("contrastive", pooling=self.pooling)

    def source_texts(self, examples: Sequence[TextPair]) -> Iterator[str]:
        """Yield all texts of the examples: anchors, positives and hard negatives."""
        return (text for one in examples for text in one.texts)

    def predict(self, lm: LanguageModel, examples: Sequence[TextPair]) -> list[tuple[Any, Any]]:
        """Embed the query and the passage of every example.

        Returns a pair of normalized embeddings per example.
        """
        sides = zip(*map(split_query_and_passage, examples))
        vectors = [lm.embed(s, pooling=self.pooling, normalize=True).numpy() for s in sides]
        return list(zip(*vectors))

    def evaluate(self, lm: LanguageModel, examples: Sequence[TextPair]) -> Metrics:
        """Return the metrics of retrieval with embeddings, with BM25, and with a hybrid of both."""
        return self.compute_metrics(self.predict(lm, examples), examples, lm, hybrid=True)

    def compute_metrics(
        self,
        predictions: list[tuple[Any, Any]],
        examples: Sequence[TextPair],
        lm: LanguageModel,
        *,
        hybrid: bool = False,
    ) -> Metrics:
        """Return MRR and recall of retrieval among the passages of all examples.

        If a text has no positive, its first half is the query and its second half the passage.
        `hybrid` adds the metrics of BM25, and of the hybrid of BM25 and embeddings.
        """
        pairs = [split_query_and_passage(one) for one in examples]
        queries, passages = map(np.stack, zip(*predictions))
        found = retrieve(pairs, queries, passages, hybrid=hybrid)
        rows = [
            {"text": query, "pair": passage, "predicted": best, "rank": rank}
            for (query, passage), best, rank in zip(pairs, found.best, found.ranks.tolist())
        ]
        mistakes = (
            Mistake(one.where, row["text"], row["pair"], row["predicted"])
            for one, row in zip(examples, rows)
            if row["rank"] > 1
        )
        notes = [english("note.queries", queries=len(pairs), passages=found.num_passages)]
        if all(one.pair is None for one in examples):
            notes.append(english("note.halves"))
        return Metrics(found.values, notes=tuple(notes)).with_examples(rows, mistakes)

    def suggest_command(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return an `embed` command that compares three texts.

        The texts are a validation query, its passage, and the passage retrieved for the query.
        """
        example = read_prediction(run)
        texts = [str(example.get(name, name)) for name in ("text", "pair", "predicted")]
        texts = [first_words(text, 12) or text for text in texts]
        shown = " ".join(shlex.quote(text) for text in dict.fromkeys(texts))
        return f"embed {run} {shown} --similarities"


def _read_plain_text(path: str, options: RecordOptions) -> Iterator[TextPair]:
    """Yield each line of a text file as a text without a positive.

    Lines of fewer than eight words are skipped.
    """
    with open_text(path, errors=options.errors, encoding=options.encoding) as lines:
        for number, line in enumerate(lines, start=1):
            if len(WORD.findall(line)) >= _MIN_WORDS:
                yield TextPair(line.strip(), None, None, f"{path}, line {number}")


def split_query_and_passage(example: TextPair) -> tuple[str, str]:
    """Return the query and the passage of an example, for retrieval.

    If the text has no positive, the query is the first half of its words and the passage the second
    half.
    """
    text = example.text
    if example.pair is not None:
        return text, example.pair
    words = list(WORD.finditer(text))
    if len(words) < 2:
        return text, text
    middle = words[len(words) // 2].start()
    return text[:middle].rstrip(), text[middle:]
