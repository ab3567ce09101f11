"""Extractive question answering: the span of a context that answers a question."""

from __future__ import annotations

import json
import re
import shlex
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch.nn import functional as F

from trivium.data.encoded import EncodedExamples, has_target
from trivium.data.records import (
    RECORD_SUFFIXES,
    Record,
    RecordOptions,
    json_type,
    read_records,
    without_surrogates,
)
from trivium.data.schema import Fields, Slot
from trivium.data.sources import file_format, list_sources
from trivium.errors import DataError, shorten
from trivium.files import open_text
from trivium.inference.answer import AnswerSpan, ContextWindow, context_windows
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.messages import english
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.models.heads import Head
from trivium.objectives.excerpt import split_words
from trivium.objectives.labelled import LabelledObjective, column_key
from trivium.objectives.task_heads import span_head
from trivium.objectives.task_metrics import Metrics, Mistake, first_prediction
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, read
from trivium.text.symbols import UNSPACED

QUESTION = Fields("question", ("question",), ("query",))
CONTEXT = Fields("context", ("context",), ("passage", "paragraph", "document"))
ANSWERS = Fields("answers?", ("answers",), ("answer",))
# Read beside them, where there are such columns.
STARTS = Fields("start?", ("answer_start", "start"))
IMPOSSIBLE, IDENTITY = Fields("impossible?", ("is_impossible",)), Fields("id?", ("id",))
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its context, and the answers: (text, first character), none if there is none."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    where: str

    @property
    def group(self) -> str:
        """Questions on the same context share a side of the validation split."""
        return self.context


class QuestionAnswering(LabelledObjective):
    """L = - (log P(start) + log P(end)) / 2, softmax over all positions of a window.

        input_ids        [CLS] who wrote it [SEP] Ada wrote the first program [SEP]
        sequence_labels  [5, 5]               first and last token of the answer

    Without an answer in the window both are position 0. A long context is read in windows that
    overlap. Source: Devlin et al. 2018, sections 4.2 and 4.3.
    """

    kind: Literal["qa"] = "qa"
    supported_family: ClassVar[str | None] = "encoder-only"
    measures_cut_answers: ClassVar[bool] = True
    fields: ClassVar[Sequence[Slot]] = (QUESTION, CONTEXT, ANSWERS, STARTS, IMPOSSIBLE, IDENTITY)
    inputs: ClassVar[Sequence[Fields]] = (QUESTION, CONTEXT)
    question_field: str | None = column_key("column of the question", QUESTION)
    context_field: str | None = column_key("column of the context", CONTEXT)
    answers_field: str | None = column_key("column of the answers", ANSWERS)
    stride: int = Field(128, gt=0, description="tokens by which windows of a context overlap")

    def records(self, paths: Sequence[str], options: RecordOptions) -> Iterator[Record]:
        """SQuAD JSON (1.1 and 2.0); or records with a question, a context and answers."""
        for source in list_sources(paths, RECORD_SUFFIXES).sources:
            records = None
            if source.kind == "file" and file_format(source.name) == ".json":
                records = _squad_records(source.name, options)
            yield from records or read_records(source.name, options)

    def example(self, record: Record) -> Question:
        """A question, its context and the answers.

        The answers of a record are texts, objects {"text", "answer_start"}, or the two lists of
        Hugging Face's SQuAD. None, or a true `is_impossible`, means that there is no answer. An
        answer without a start is at its first occurrence; one that is not at its start, at the
        nearest.

        Raises:
            DataError: with file and line or question, for an answer that is not in its context or
                a missing part.
        """
        columns = record.columns
        context, question = record.text(columns["context"]), record.value(columns["question"])
        impossible = "impossible" in columns and record.value(columns["impossible"])
        # Published JSON files hold blank questions (CMRC 2018), and are scored with them.
        if record.untyped or not isinstance(question, str):
            question = record.text(columns["question"])
        spans: tuple[tuple[str, int], ...] = ()
        if str(impossible).lower() != "true":
            if "answers" not in columns:
                usual = ", ".join(ANSWERS.usual_of("answers"))
                lacks = [(f"for the answers (such as {usual})", "answers")]
                raise self.record_schema.no_column(record, lacks)
            start = record.value(columns["start"]) if "start" in columns else None
            answers = _listed_answers(record.value(columns["answers"]), start, record.where)
            spans = tuple(_span(context, *answer, record.where) for answer in answers)
        identity = str(record.get("id") or record.where)
        return Question(identity, question, context, spans, record.where)

    def unlabelled(self, record: Record, lm: LanguageModel) -> Question:
        """Return the question and the context of a record. Neither may be blank."""
        question, context = (record.text(record.columns[name]) for name in ("question", "context"))
        return Question(record.where, question, context, (), record.where)

    def predicted(self, answer: AnswerSpan, *, in_cell: bool = False) -> tuple[Any, ...]:
        """Return the best answer, which is empty where there is none, and its probability."""
        return answer.text, answer.score

    def settings(self, settings: Settings, examples: Sequence[Question]) -> Settings:
        """The overlap of windows, and a threshold for "no answer" if some questions have none."""
        options: dict[str, Any] = {"stride": self.stride}
        if not all(one.answers for one in examples):
            options["no_answer_threshold"] = 0.0
        return settings.with_task("qa", **options)

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return the head for both ends of a span."""
        self.require_fit(spec)
        return (span_head(spec),)

    def fits(self, spec: Spec) -> bool:
        """Return whether the model is an encoder, or will be with the head of a task."""
        return spec.is_bilm or super().fits(spec)

    def encode(self, examples: Sequence[Question], lm: LanguageModel) -> EncodedExamples:
        """Windows with the first and the last token of their answers.

        A question whose answer is whole in no window has none: it would teach "no answer".
        """
        tokenizer = lm.source_tokenizer
        pairs = [(one.question, one.context) for one in examples]
        parts = context_windows(tokenizer, pairs, max_length=lm.max_length, stride=self.stride)
        ends = [answer_tokens(part, examples[part.question]) for part in parts]
        found = {part.question for part, each in zip(parts, ends) if each != (0, 0)}
        truncations = [[0, 1, bool(q.answers) and n not in found] for n, q in enumerate(examples)]
        for part in parts:
            truncations[part.question][0] = part.question_cut
        kept = has_target(truncations)
        ends = [each for part, each in zip(parts, ends) if kept[part.question]]
        parts = [part for part in parts if kept[part.question]]
        sequences: dict[str, Any] = {"input_ids": [part.input.ids for part in parts]}
        if lm.spec.reads_token_types:
            sequences["token_type_ids"] = [part.type_ids(lm.spec) for part in parts]
        labels, pad_id = np.array(ends, dtype=np.int64).reshape(-1, 2), tokenizer.pad_id
        return EncodedExamples(
            sequences, sequence_labels=labels, truncations=truncations, pad_id=pad_id
        )

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return half of the nats of both ends."""
        assert batch.sequence_labels is not None
        hidden, terms = read(model, batch.inputs)
        logits = model.logits(hidden, head="span").float()  # [B, T, 2]
        mask = batch.inputs.get("attention_mask")
        if mask is not None:
            lowest = torch.finfo(logits.dtype).min
            logits = logits.masked_fill(~mask.bool()[..., None], lowest)
        total = F.cross_entropy(logits, batch.sequence_labels, reduction="sum")
        return {"loss": 0.5 * total, **terms}

    def source_texts(self, examples: Sequence[Question]) -> Iterator[str]:
        """Yield the questions, and every context once."""
        yield from (one.question for one in examples)
        yield from dict.fromkeys(one.context for one in examples)

    def predict(self, lm: LanguageModel, examples: Sequence[Question]) -> list[AnswerSpan]:
        """Return the best span of each question."""
        spans = lm.answer_all([(one.question, one.context) for one in examples])
        return [best for best, *_ in spans]

    def compute_metrics(
        self, answers: Sequence[AnswerSpan], examples: Sequence[Question], lm: LanguageModel
    ) -> Metrics:
        """Exact match and F1 of SQuAD, also of the questions with and without an answer."""
        predicted = [span.text for span in answers]
        references = [[text for text, _ in one.answers] for one in examples]
        metrics = squad_metrics(predicted, references)
        rows = [
            {"id": one.id, "question": one.question, "context": one.context}
            | {"answers": right, "predicted": text}
            for one, right, text in zip(examples, references, predicted)
        ]
        mistakes = (
            Mistake(one.where, one.question, (right or [""])[0], span.text, span.score)
            for one, right, span in zip(examples, references, answers)
            if not squad_score(span.text, right)[0]
        )
        return metrics.with_examples(rows, mistakes)

    def try_it(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return `answer` with a held-out question."""
        example = first_prediction(run)
        question = shlex.quote(example.get("question", "Who wrote it?"))
        context = shlex.quote(example.get("context", "Ada wrote it."))
        return f"answer {run} {question} --context {context}"


def answer_tokens(part: ContextWindow, question: Question) -> tuple[int, int]:
    """First and last token of the first answer in a window; (0, 0) where it is not all inside."""
    if not question.answers:
        return 0, 0
    text, start = question.answers[0]
    stop = start + len(text)
    inside = [
        (index, offsets)
        for index, (offsets, side) in enumerate(zip(part.input.offsets, part.input.texts))
        if side == 1 and offsets[1] > offsets[0]
    ]
    if not inside or inside[0][1][0] > start or inside[-1][1][1] < stop:
        return 0, 0
    first = next((index for index, (_, end) in inside if end > start), 0)
    last = next((index for index, (begin, _) in reversed(inside) if begin < stop), 0)
    return (first, last) if 0 < first <= last else (0, 0)


def squad_metrics(predicted: Sequence[str], references: Sequence[Sequence[str]]) -> Metrics:
    """Means of `squad_score`, from 0 to 1; parts only where questions of both kinds are there."""
    scores = [squad_score(text, right) for text, right in zip(predicted, references)]
    parts = {
        "": scores,
        "has_answer_": [score for score, right in zip(scores, references) if right],
        "no_answer_": [score for score, right in zip(scores, references) if not right],
    }
    values = {}
    for prefix, part in parts.items():
        if part and (not prefix or len(part) < len(scores)):
            values[f"{prefix}f1"] = sum(f1 for _, f1 in part) / len(part)
            values[f"{prefix}exact_match"] = sum(exact for exact, _ in part) / len(part)
    unspaced = any(UNSPACED.search(text) for right in references for text in right)
    note = english("note.squad_unspaced" if unspaced else "note.squad")
    return Metrics(values, notes=(note,))


def squad_score(predicted: str, references: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 with the best reference (Rajpurkar et al. 2016, 2018), each 0 to 1.

    As in the official script, but that every Chinese or Japanese character is a word.

    >>> squad_score("The tower.", ["tower", "the Eiffel Tower"])
    (1.0, 1.0)
    """
    answer = _normalized(predicted)
    exact = best = 0.0
    for reference in [words for text in references if (words := _normalized(text))] or [[]]:
        common = (Counter(answer) & Counter(reference)).total()
        f1 = 2 * common / (len(answer) + len(reference)) if answer and reference else 0.0
        exact = max(exact, float(answer == reference))
        best = max(best, f1, exact)
    return exact, best


def _normalized(text: str) -> list[str]:
    """Return the words without case, punctuation and English articles."""
    punctuation = set(string.punctuation)
    if UNSPACED.search(text):
        punctuation |= {mark for mark in text if unicodedata.category(mark).startswith("P")}
    text = "".join(character for character in text.lower() if character not in punctuation)
    return split_words(_ARTICLES.sub(" ", text))


def _squad_records(path: str, options: RecordOptions) -> Iterator[Record] | None:
    """The questions of a SQuAD file with their contexts; None where the file holds records."""
    with open_text(path, errors=options.errors, encoding=options.encoding) as file:
        text = file.read()
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return None  # JSON lines, or broken: read_records says where
    if not isinstance(tree, dict) or "data" not in tree:
        return None
    if "\\ud" in text.lower():
        tree = without_surrogates(tree, path, options.errors)
    return _squad_questions(path, tree["data"])


def _squad_questions(path: str, articles: Any) -> Iterator[Record]:
    where = path
    try:
        for number, article in enumerate(articles, start=1):
            where = f"{path}, article {number}"
            if "paragraphs" not in article:
                yield Record(dict(article), where)
                continue
            for paragraph in article["paragraphs"]:
                for one in paragraph["qas"]:
                    columns = {**one, "context": paragraph["context"]}
                    yield Record(columns, f"{path}, question {one['id']}")
    except (KeyError, TypeError, ValueError) as error:
        problem = f"there is no {error}" if isinstance(error, KeyError) else error
        raise DataError(f"{where} is not in the format of SQuAD: {problem}.") from error


def _listed_answers(answers: Any, start: Any, where: str) -> list[tuple[Any, Any]]:
    """Return the text and the start of every answer, whichever way they are given."""
    if answers is None or answers == "":
        return []
    if isinstance(answers, dict):
        texts = _as_list(answers.get("text"))
        starts = _as_list(answers.get("answer_start", answers.get("start", [])))
        starts = starts or [None] * len(texts)
        if len(starts) != len(texts):
            raise DataError(f"the answers of {where} are {len(texts)} texts, {len(starts)} starts.")
        return list(zip(texts, starts))
    return [
        (one.get("text"), one.get("answer_start", one.get("start")))
        if isinstance(one, dict)
        else (one, start)
        for one in _as_list(answers)
    ]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _span(context: str, text: Any, start: Any, where: str) -> tuple[str, int]:
    """An answer with the character it begins at: its occurrence nearest to the given start."""
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"an answer of {where} is {json_type(text)}, not text.")
    try:
        near = 0 if start in (None, "") else int(start)
    except (ValueError, TypeError, OverflowError):
        shown = shorten(repr(start))
        raise DataError(f"the start of an answer of {where} is {shown}, not a number.") from None
    if context.startswith(text, near):
        return text, near
    matches = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
    if not matches:
        raise DataError(
            f'the answer "{shorten(text)}" of {where} is not in its context '
            f'("{shorten(context)}"). An answer is a part of its context, letter by letter.'
        )
    return text, min(matches, key=lambda at: abs(at - near))
