"""Extractive question answering: the model finds the answer to a question in a context."""

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
    replace_surrogates,
)
from trivium.data.schema import Fields, Slot
from trivium.data.sources import file_format, list_sources
from trivium.data.stored_examples import read_field
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
from trivium.objectives.task_heads import build_span_head
from trivium.objectives.task_metrics import Metrics, Mistake, read_prediction
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, forward_hidden
from trivium.text.symbols import UNSPACED

QUESTION = Fields("question", ("question",), ("query",))
CONTEXT = Fields("context", ("context",), ("passage", "paragraph", "document"))
ANSWERS = Fields("answers?", ("answers",), ("answer",))
# Optional columns.
STARTS = Fields("start?", ("answer_start", "start"))
IMPOSSIBLE, IDENTITY = Fields("impossible?", ("is_impossible",)), Fields("id?", ("id",))
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context, with its answers.

    Args:
        id: the id of the question, or its file and line.
        question: the question.
        context: the text that may contain the answer.
        answers: pairs (text, start), where `start` is the character offset of the answer in the
            context. Empty if the question has no answer.
        where: file and line of the question, for messages.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    where: str

    @property
    def group_key(self) -> str:
        """The key by which questions are grouped when splitting the data: the context.

        All questions about a context are in the same split (training or validation).
        """
        return self.context


class QuestionAnswering(LabelledObjective):
    """Extractive question answering: predict the first and the last token of the answer.

    L = - (log P(start) + log P(end)) / 2

    P(start) and P(end) are softmax probabilities over the tokens of a context window.

        input_ids        [CLS] who wrote it [SEP] Ada wrote the first program [SEP]
        sequence_labels  [5, 5]               first and last token of the answer

    A long context is divided into overlapping windows. If a window does not contain the answer,
    both labels are position 0 ([CLS]).

    Source: Devlin et al. 2018, sections 4.2 and 4.3.
    """

    example_type: ClassVar[type | None] = Question
    kind: Literal["qa"] = "qa"
    supported_family: ClassVar[str | None] = "encoder-only"
    measures_cut_answers: ClassVar[bool] = True
    fields: ClassVar[Sequence[Slot]] = (QUESTION, CONTEXT, ANSWERS, STARTS, IMPOSSIBLE, IDENTITY)
    inputs: ClassVar[Sequence[Fields]] = (QUESTION, CONTEXT)
    question_field: str | None = column_key("column of the question", QUESTION)
    context_field: str | None = column_key("column of the context", CONTEXT)
    answers_field: str | None = column_key("column of the answers", ANSWERS)
    stride: int = Field(128, gt=0, description="overlap of the windows of a context in tokens")

    def records(self, paths: Sequence[str], options: RecordOptions) -> Iterator[Record]:
        """Yield one record per question.

        SQuAD JSON files (1.1 and 2.0) contain several questions per context. Other files contain
        one question per record.
        """
        for source in list_sources(paths, RECORD_SUFFIXES).sources:
            records = None
            if source.kind == "file" and file_format(source.name) == ".json":
                records = _read_squad(source.name, options)
            yield from records or read_records(source.name, options)

    def read_example(self, record: Record) -> Question:
        """Read a question with its context and answers from a record.

        Answers can be given as texts, as objects {"text", "answer_start"}, or as one object with
        two lists as in SQuAD on Hugging Face. The question has no answer if the answers are null,
        or if `is_impossible` is true. If an answer has no start, its first occurrence in the
        context is used. If the context does not contain the answer at the given start, the nearest
        occurrence is used.

        Raises:
            DataError: with the location of the question, if the context does not contain an answer,
                or if the question, the context or the answers are missing.
        """
        columns = record.columns
        context, question = record.text(columns["context"]), record.value(columns["question"])
        impossible = "impossible" in columns and record.value(columns["impossible"])
        # Published JSON files contain blank questions (CMRC 2018), which count in their scores.
        if record.untyped or not isinstance(question, str):
            question = record.text(columns["question"])
        spans: tuple[tuple[str, int], ...] = ()
        if str(impossible).lower() != "true":
            if "answers" not in columns:
                usual = ", ".join(ANSWERS.get_usual("answers"))
                lacks = [(f"for the answers (such as {usual})", "answers")]
                raise self.record_schema.make_column_error(record, lacks)
            start = record.value(columns["start"]) if "start" in columns else None
            answers = _parse_answers(record.value(columns["answers"]), start, record.where)
            spans = tuple(_locate_answer(context, *answer, record.where) for answer in answers)
        identity = str(record.get("id") or record.where)
        return Question(identity, question, context, spans, record.where)

    def read_unlabelled(self, record: Record, lm: LanguageModel) -> Question:
        """Read a question and its context from a record, without answers.

        Raises DataError if the question or the context is blank.
        """
        question, context = (record.text(record.columns[name]) for name in ("question", "context"))
        return Question(record.where, question, context, (), record.where)

    def to_columns(self, prediction: AnswerSpan, *, in_cell: bool = False) -> tuple[Any, ...]:
        """Return the text and the probability of a predicted answer.

        The text is empty if the model predicts that there is no answer.
        """
        return prediction.text, prediction.score

    def add_settings(self, settings: Settings, examples: Sequence[Question]) -> Settings:
        """Return the model settings with the options of the task, such as the overlap of windows.

        If some examples have no answer, the threshold for predicting "no answer" is set to 0.
        """
        options: dict[str, Any] = {"stride": self.stride}
        if not all(read_field(examples, "answers")):
            options["no_answer_threshold"] = 0.0
        return settings.with_task("qa", **options)

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return a head that predicts the first and the last token of an answer.

        Raises RecipeError if the objective does not support the model.
        """
        self.require_fit(spec)
        return (build_span_head(spec),)

    def fits(self, spec: Spec) -> bool:
        """Return True for encoders and biLMs (ELMo), which this objective can train."""
        return spec.is_bilm or super().fits(spec)

    def encode(self, examples: Sequence[Question], lm: LanguageModel) -> EncodedExamples:
        """Encode each question with every window of its context, as one row per window.

        The labels of a row are the first and the last token of the answer in the window.

        If no window contains the whole answer of a question, the question is left out. Otherwise it
        would teach the model to predict "no answer".
        """
        tokenizer = lm.source_tokenizer
        pairs = [(one.question, one.context) for one in examples]
        parts = context_windows(tokenizer, pairs, max_length=lm.max_length, stride=self.stride)
        ends = [find_answer_tokens(part, examples[part.question]) for part in parts]
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
        """Compute the cross-entropies of the start and end tokens, in nats.

        Returns half of their sum over the batch.
        """
        assert batch.sequence_labels is not None
        hidden, terms = forward_hidden(model, batch.inputs)
        logits = model.logits(hidden, head="span").float()  # [B, T, 2]
        mask = batch.inputs.get("attention_mask")
        if mask is not None:
            lowest = torch.finfo(logits.dtype).min
            logits = logits.masked_fill(~mask.bool()[..., None], lowest)
        total = F.cross_entropy(logits, batch.sequence_labels, reduction="sum")
        return {"loss": 0.5 * total, **terms}

    def source_texts(self, examples: Sequence[Question]) -> Iterator[str]:
        """Yield all questions, then every distinct context once."""
        yield from (one.question for one in examples)
        yield from dict.fromkeys(one.context for one in examples)

    def predict(self, lm: LanguageModel, examples: Sequence[Question]) -> list[AnswerSpan]:
        """Return the most probable answer to each question."""
        spans = lm.answer_all([(one.question, one.context) for one in examples])
        return [best for best, *_ in spans]

    def compute_metrics(
        self, predictions: Sequence[AnswerSpan], examples: Sequence[Question], lm: LanguageModel
    ) -> Metrics:
        """Return exact match and F1 as in SQuAD, and the wrongly answered questions."""
        predicted = [span.text for span in predictions]
        references = [[text for text, _ in one.answers] for one in examples]
        metrics = compute_squad_metrics(predicted, references)
        rows = [
            {"id": one.id, "question": one.question, "context": one.context}
            | {"answers": right, "predicted": text}
            for one, right, text in zip(examples, references, predicted)
        ]
        mistakes = (
            Mistake(one.where, one.question, (right or [""])[0], span.text, span.score)
            for one, right, span in zip(examples, references, predictions)
            if not compute_squad_scores(span.text, right)[0]
        )
        return metrics.with_examples(rows, mistakes)

    def suggest_command(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return an `answer` command with a validation question and its context."""
        example = read_prediction(run)
        question = shlex.quote(example.get("question", "Who wrote it?"))
        context = shlex.quote(example.get("context", "Ada wrote it."))
        return f"answer {run} {question} --context {context}"


def find_answer_tokens(window: ContextWindow, question: Question) -> tuple[int, int]:
    """Return the indices of the first and the last token of the answer in a context window.

    If the question has several answers, the first answer is used. Returns (0, 0) if the window does
    not contain the whole answer.
    """
    if not question.answers:
        return 0, 0
    text, start = question.answers[0]
    stop = start + len(text)
    inside = [
        (index, offsets)
        for index, (offsets, side) in enumerate(zip(window.input.offsets, window.input.texts))
        if side == 1 and offsets[1] > offsets[0]
    ]
    if not inside or inside[0][1][0] > start or inside[-1][1][1] < stop:
        return 0, 0
    first = next((index for index, (_, end) in inside if end > start), 0)
    last = next((index for index, (offset, _) in reversed(inside) if offset < stop), 0)
    return (first, last) if 0 < first <= last else (0, 0)


def compute_squad_metrics(predicted: Sequence[str], references: Sequence[Sequence[str]]) -> Metrics:
    """Compute exact match and F1, averaged over all questions.

    If only some of the questions have an answer, both means are also computed separately for the
    questions with an answer and for those without.

    Args:
        predicted: the predicted answer to each question; empty if there is none.
        references: the reference answers of each question; empty if it has no answer.
    """
    scores = [compute_squad_scores(text, right) for text, right in zip(predicted, references)]
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


def compute_squad_scores(predicted: str, references: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1 of one predicted answer, each from 0 to 1.

    If there are several reference answers, the best score counts. The scores are computed as in the
    official script of SQuAD, except that every Chinese or Japanese character is a word.

    Source: Rajpurkar et al. 2016, 2018.

    >>> compute_squad_scores("The tower.", ["tower", "the Eiffel Tower"])
    (1.0, 1.0)
    """
    answer = _normalize_words(predicted)
    exact = best = 0.0
    for reference in [words for text in references if (words := _normalize_words(text))] or [[]]:
        common = (Counter(answer) & Counter(reference)).total()
        f1 = 2 * common / (len(answer) + len(reference)) if answer and reference else 0.0
        exact = max(exact, float(answer == reference))
        best = max(best, f1, exact)
    return exact, best


def _normalize_words(text: str) -> list[str]:
    """Split a text into lower-cased words without punctuation and English articles."""
    punctuation = set(string.punctuation)
    if UNSPACED.search(text):
        punctuation |= {mark for mark in text if unicodedata.category(mark).startswith("P")}
    text = "".join(character for character in text.lower() if character not in punctuation)
    return split_words(_ARTICLES.sub(" ", text))


def _read_squad(path: str, options: RecordOptions) -> Iterator[Record] | None:
    """Return one record per question of a SQuAD file.

    Returns None if the file does not have the format of SQuAD.
    """
    with open_text(path, errors=options.errors, encoding=options.encoding) as file:
        text = file.read()
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return None  # JSON Lines or invalid: `read_records` reports the line
    if not isinstance(tree, dict) or "data" not in tree:
        return None
    if "\\ud" in text.lower():
        tree = replace_surrogates(tree, path, options.errors)
    return _iter_squad_questions(path, tree["data"])


def _iter_squad_questions(path: str, articles: Any) -> Iterator[Record]:
    """Yield one record per question in the articles of a SQuAD file.

    An article without the key "paragraphs" becomes a single record. Raises DataError for any other
    format.
    """
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


def _parse_answers(answers: Any, answer_start: Any, location: str) -> list[tuple[Any, Any]]:
    """Parse the answers column of a record. Returns a pair (text, start) for every answer.

    Args:
        answers: the column, in one of the formats of `QuestionAnswering.read_example`.
        answer_start: the start column of the record, used for answers without a start of their own.
        location: file and line of the record, for messages.
    """
    if answers is None or answers == "":
        return []
    if isinstance(answers, dict):
        texts = _wrap_in_list(answers.get("text"))
        starts = _wrap_in_list(answers.get("answer_start", answers.get("start", [])))
        starts = starts or [None] * len(texts)
        if len(starts) != len(texts):
            raise DataError(f"the answers of {location}: {len(texts)} texts, {len(starts)} starts.")
        return list(zip(texts, starts))
    return [
        (one.get("text"), one.get("answer_start", one.get("start")))
        if isinstance(one, dict)
        else (one, answer_start)
        for one in _wrap_in_list(answers)
    ]


def _wrap_in_list(value: Any) -> list[Any]:
    """Return a list unchanged, and any other value as a list with this single item."""
    return value if isinstance(value, list) else [value]


def _locate_answer(context: str, answer: Any, answer_start: Any, location: str) -> tuple[str, int]:
    """Find an answer in its context. Returns its text and character offset.

    If the answer occurs several times, the occurrence nearest to `answer_start` is used. Raises
    DataError if the context does not contain the answer.
    """
    if not isinstance(answer, str) or not answer.strip():
        raise DataError(f"an answer of {location} is {json_type(answer)}, not text.")
    try:
        near = 0 if answer_start in (None, "") else int(answer_start)
    except (ValueError, TypeError, OverflowError):
        shown = shorten(repr(answer_start))
        raise DataError(f"the start of an answer of {location} is {shown}, not a number.") from None
    if context.startswith(answer, near):
        return answer, near
    matches = [match.start() for match in re.finditer(f"(?={re.escape(answer)})", context)]
    if not matches:
        raise DataError(
            f'the answer "{shorten(answer)}" of {location} is not in its context '
            f'("{shorten(context)}"). An answer is a part of its context, letter by letter.'
        )
    return answer, min(matches, key=lambda offset: abs(offset - near))
