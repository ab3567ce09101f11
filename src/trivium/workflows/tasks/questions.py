"""Questions on a text, answered by a span of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trivium.data import Examples
from trivium.data.labelled import Question, read_questions
from trivium.errors import RecipeError
from trivium.evaluate.answer_metrics import answer_metrics
from trivium.evaluate.mistakes import worst_mistakes
from trivium.inference.answer import Window, windows
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.objectives import Objective
from trivium.objectives.answer_spans import AnswerSpans
from trivium.spec import AnySpec, Head, SpanHead
from trivium.workflows.tasks.base import Measured, Task
from trivium.workflows.tasks.head_forms import dense_forms, published_form


class QuestionTask(Task[Question]):
    """First and last token of the answer; position 0 where a window has none."""

    def read(self, paths: Sequence[str], like: Sequence[Question] = ()) -> list[Question]:
        """Questions, their contexts and answers."""
        return read_questions(list(paths))

    def settings(self, settings: Settings, train: Sequence[Question]) -> Settings:
        """How far windows overlap, and whether no answer is an answer."""
        options: dict[str, Any] = {"stride": self.section.stride}
        if not all(question.answers for question in train):
            options["no_answer_threshold"] = 0.0
        return settings.with_task("qa", **options)

    def heads(self, spec: AnySpec, settings: Settings) -> tuple[Head, ...]:
        """The ends of a span."""
        if spec.family != "encoder-only":
            raise RecipeError(
                "qa finds the ends of an answer, for which every word must see all others: take "
                "an encoder. An encoder-decoder can be taught to write answers (text-to-text)."
            )
        forms = [SpanHead(dense=dense) for dense in (None, *dense_forms(spec)[:-1])]
        return (published_form(spec, forms),)

    def objective(self, spec: AnySpec, settings: Settings, train: Sequence[Question]) -> Objective:
        """Cross-entropy of both ends."""
        return AnswerSpans()

    def encode(self, model: LanguageModel, examples: Sequence[Question]) -> Examples:
        """Windows with the tokens their answers begin and end with."""
        tokenizer = model.text_tokenizer
        parts = windows(
            tokenizer,
            [(each.question, each.context) for each in examples],
            max_length=model.max_length,
            stride=self.section.stride,
        )
        sequences: dict[str, Any] = {"input_ids": [part.input.ids for part in parts]}
        if model.module.num_token_types > 1:
            sequences["token_type_ids"] = [part.input.type_ids for part in parts]
        ends = [answer_tokens(part, examples[part.question]) for part in parts]
        return Examples(sequences, text_labels=ends, pad_id=tokenizer.pad_id or 0)

    def measure(self, model: LanguageModel, examples: Sequence[Question]) -> Measured:
        """Exact match and F1 by SQuAD's definition."""
        found = model.answers_with_margins(
            [(each.question, each.context) for each in examples], top_k=1
        )
        impossible = not all(each.answers for each in examples)
        said = [answers[0].text for answers, _ in found]
        margins = [max(-1e9, min(1e9, margin)) for _, margin in found]
        metrics = answer_metrics(
            said,
            [[answer.text for answer in each.answers] for each in examples],
            style="squad-2.0" if impossible else "squad-1.1",
            no_answer=margins if impossible else None,
            threshold=0.0 if impossible else None,
        )
        if impossible:
            said = ["" if margin > 0.0 else text for text, margin in zip(said, margins)]
        right = [each.answers[0].text if each.answers else "" for each in examples]
        scores = [answers[0].score for answers, _ in found]
        wrong = [
            text not in {answer.text for answer in each.answers} and (text or each.answers)
            for text, each in zip(said, examples)
        ]
        mistakes = worst_mistakes(
            right,
            said,
            scores,
            texts=[each.question for each in examples],
            where=[each.where for each in examples],
            wrong=[bool(one) for one in wrong],
        )
        answers = [
            {"id": each.id, "question": each.question, "answer": gold, "predicted": text}
            for each, gold, text in zip(examples, right, said)
        ]
        return Measured(metrics, mistakes, tuple(answers))

    def try_metrics(self, examples: Sequence[Question], settings: Settings) -> None:
        """They are our own: nothing can be missing."""

    def texts(self, examples: Sequence[Question]) -> Iterator[str]:
        """Questions, and every context once."""
        seen: set[str] = set()
        for example in examples:
            yield example.question
            if example.context not in seen:
                seen.add(example.context)
                yield example.context


def answer_tokens(part: Window, question: Question) -> tuple[int, int]:
    """First and last token of the answer in a window; (0, 0) where it is not all inside."""
    if not question.answers:
        return 0, 0
    answer = question.answers[0]
    start, stop = answer.start, answer.start + len(answer.text)
    inside = [
        (place, offsets)
        for place, (offsets, text) in enumerate(zip(part.input.offsets, part.input.texts))
        if text == 1 and offsets[1] > offsets[0]
    ]
    if not inside or inside[0][1][0] > start or inside[-1][1][1] < stop:
        return 0, 0
    first = next((place for place, (_, end) in inside if end > start), 0)
    last = next((place for place, (begin, _) in reversed(inside) if begin < stop), 0)
    return (first, last) if 0 < first <= last else (0, 0)
