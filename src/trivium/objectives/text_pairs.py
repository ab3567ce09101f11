"""Objectives whose models embed texts: they read texts or pairs, and retrieval measures them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

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
from trivium.objectives.excerpt import beginning
from trivium.objectives.labelled import LabelledObjective, column_key
from trivium.objectives.question_answering import QuestionAnswering
from trivium.objectives.retrieval import retrieve
from trivium.objectives.task_metrics import Metrics, Mistake, first_prediction
from trivium.text.symbols import WORD

TEXTS = ("sentence", "paragraph", "passage", "content", "document")
TEXT = Fields("text", ("text",), TEXTS)
_FEWEST_WORDS = 8


@dataclass(frozen=True, slots=True)
class TextPair:
    """A text, the one that belongs to it (None: made of the text itself), and one that does not."""

    text: str
    pair: str | None
    negative: str | None
    where: str

    @property
    def group(self) -> str:
        """Queries for the same passage share a side of the validation split."""
        return self.text if self.pair is None else self.pair

    @property
    def texts(self) -> list[str]:
        """Return the text, and its pair and negative if they exist."""
        return [one for one in (self.text, self.pair, self.negative) if one is not None]


class TextPairs(LabelledObjective):
    """Vectors of texts: the mean, the first or the last of their hidden states.

    How near those of held-out pairs are is measured by retrieval; of texts alone the first half is
    to find the second.
    """

    text_field: str | None = column_key("column of the text, such as a question", TEXT)
    pooling: Pooling | None = Field(
        None, description="vector of a text: mean, first or last; default: mean, of a decoder last"
    )

    def pooled(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Pool the hidden states [B, T, D] of texts. Returns their vectors [B, D]."""
        return pool(hidden, attention_mask, self.pooling or "mean")

    def records(self, paths: Sequence[str], options: RecordOptions) -> Iterator[Record | TextPair]:
        """SQuAD JSON; records with one text, two or three; lines of plain text.

        Lines of less than eight words, such as headings, are left out.

        Raises:
            DataError: with file and line, where a column is missing or blank.
        """
        for source in list_sources(paths, (".txt", *RECORD_SUFFIXES)).sources:
            if source.kind == "file" and file_format(source.name) not in RECORD_SUFFIXES:
                yield from _lines(source.name, options)
            else:
                squad = QuestionAnswering.from_tree({})
                yield from squad.records([source.name], options)

    def example(self, record: Record) -> TextPair:
        """Return a text, with its pair and a hard negative where there are columns for these."""
        text, pair, negative = (
            record.text(record.columns[name]) if name in record.columns else None
            for name in ("text", "pair", "negative")
        )
        assert text is not None
        if pair is None and negative is not None:
            raise DataError(f"{record.where} has a negative but no pair. Name the column of that.")
        return TextPair(text, pair, negative, record.where)

    def input_of(self, example: TextPair) -> str:
        """Return the texts of an example as one."""
        return " ".join(example.texts)

    def resolve(self, spec: Spec, examples: Sequence[TextPair]) -> Self:
        """Return the objective with the default pooling of the model."""
        default = "last" if is_causal(spec) else "mean"
        return self.replace(pooling=self.pooling or default)

    def settings(self, settings: Settings, examples: Sequence[TextPair]) -> Settings:
        """Return settings with the pooling by which the model embeds texts from now on."""
        return settings.with_task("contrastive", pooling=self.pooling)

    def source_texts(self, examples: Sequence[TextPair]) -> Iterator[str]:
        """Return all texts."""
        return (text for one in examples for text in one.texts)

    def predict(self, lm: LanguageModel, examples: Sequence[TextPair]) -> list[tuple[Any, Any]]:
        """Return the vectors of the query and the passage of every example."""
        sides = zip(*map(query_and_passage, examples))
        vectors = [lm.embed(s, pooling=self.pooling, normalize=True).numpy() for s in sides]
        return list(zip(*vectors))

    def metrics(self, lm: LanguageModel, examples: Sequence[TextPair]) -> Metrics:
        """Return also the metrics of BM25, and of both by reciprocal rank fusion."""
        return self.compute_metrics(self.predict(lm, examples), examples, lm, lexical=True)

    def compute_metrics(
        self,
        answers: list[tuple[Any, Any]],
        examples: Sequence[TextPair],
        lm: LanguageModel,
        *,
        lexical: bool = False,
    ) -> Metrics:
        """Return MRR and recall of the passage of each query, among the passages of all examples.

        For texts without a pair, the query is the first half and the passage is the second half.
        """
        pairs = [query_and_passage(one) for one in examples]
        queries, passages = map(np.stack, zip(*answers))
        found = retrieve(pairs, queries, passages, lexical=lexical)
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

    def try_it(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return `embed` with a held-out query, its passage and the passage that was found."""
        example = first_prediction(run)
        texts = [str(example.get(name, name)) for name in ("text", "pair", "predicted")]
        texts = [beginning(text, 12) or text for text in texts]
        shown = " ".join(shlex.quote(text) for text in dict.fromkeys(texts))
        return f"embed {run} {shown} --similarities"


def _lines(path: str, options: RecordOptions) -> Iterator[TextPair]:
    with open_text(path, errors=options.errors, encoding=options.encoding) as lines:
        for number, line in enumerate(lines, start=1):
            if len(WORD.findall(line)) >= _FEWEST_WORDS:
                yield TextPair(line.strip(), None, None, f"{path}, line {number}")


def query_and_passage(one: TextPair) -> tuple[str, str]:
    """The texts of a pair; of a text alone its first half and its second, by words."""
    if one.pair is not None:
        return one.text, one.pair
    words = list(WORD.finditer(one.text))
    if len(words) < 2:
        return one.text, one.text
    middle = words[len(words) // 2].start()
    return one.text[:middle].rstrip(), one.text[middle:]
