"""Extractive question answering: answers as spans of a context (Devlin et al. 2018, section 4.2).

Shape letters: T tokens of a context window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from trivium.inference.forward import hidden_states
from trivium.inference.text_model import TextModel
from trivium.models.base_model import Spec
from trivium.text import Tokenizer
from trivium.text.inputs import SpecialTokenTemplate, TextInput, encode_plain

_SPANS_PER_WINDOW = 20  # Spans kept per window.
_MAX_ANSWER_TOKENS = 30  # Maximum number of tokens in an answer.

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """An answer: its text, its character offsets in the context, and its probability.

    "No answer" is an empty text with offsets 0. The probability is the softmax over the scores of
    the candidate spans and of "no answer".
    """

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """A question and one window of its context, joined into a model input.

    `question` is the index of the question among all questions. `context_start` is the index of the
    first context token in `input`. The character offsets of context tokens refer to the whole
    context. `question_cut` is the number of question tokens lost to truncation.
    """

    question: int
    input: TextInput
    context_start: int
    question_cut: int = 0

    def type_ids(self, spec: Spec) -> list[int]:
        """Return the token type ids of the model input.

        If the model has at least two token types, they are the ids in `input`. For other models,
        they are 0 up to the end of the question and 1 after it. Such a model may use them to give
        the question tokens global attention (`Spec.reads_token_types`).
        """
        if spec.num_token_types > 1:
            return self.input.type_ids
        texts = self.input.texts
        end = next((i for i, text in reversed([*enumerate(texts)]) if text == 0), -1)
        return [int(i > end) for i in range(len(texts))]


def context_windows(
    tokenizer: Tokenizer,
    questions: Sequence[tuple[str, str]],
    *,
    max_length: int | None,
    stride: int = 128,
) -> list[ContextWindow]:
    """Split pairs (question, context) into overlapping windows of at most `max_length` tokens.

    Windows overlap by `stride` context tokens, but by at most half of a window's context tokens.
    Questions longer than a quarter of `max_length` are truncated.
    """
    template = SpecialTokenTemplate(tokenizer)
    question_tokens = encode_plain(tokenizer, [question for question, _ in questions])
    unique = list(dict.fromkeys(context for _, context in questions))
    contexts = dict(zip(unique, encode_plain(tokenizer, unique)))
    windows = []
    for index, (question, (_, context)) in enumerate(zip(question_tokens, questions)):
        tokens = contexts[context]
        total = len(tokens.ids)
        size, limit = max(1, total), len(question.ids)
        if max_length is not None:
            limit = min(limit, max(1, max_length // 4))
            size = max(1, max_length - template.count_special(True) - limit)
        step = size - min(stride, size // 2)
        for start in range(0, max(1, total), step):
            part = tokens.part(start, start + size)
            cut = len(question.ids) - limit + total - len(part.ids)
            joined = template.build_input(question.part(0, limit), part, cut=cut)
            first = next((i for i, text in enumerate(joined.texts) if text == 1), len(joined.ids))
            windows.append(ContextWindow(index, joined, first, len(question.ids) - limit))
            if start + size >= total:
                break
    return windows


@torch.inference_mode()
def find_answers(
    lm: TextModel,
    questions: Sequence[tuple[str, str]],
    *,
    max_length: int | None,
    stride: int = 128,
    top_k: int = 1,
    no_answer_threshold: float | None = None,
) -> list[list[AnswerSpan]]:
    """Return the best answers to every question, best first.

    The score of a span is the sum of its start logit and its end logit. The score of "no answer" is
    the sum of the start logit and the end logit at position 0 (the [CLS] token of BERT). If the
    context has several windows, it is the minimum over the windows.

    Args:
        lm: a model with a span head.
        questions: pairs of question and context.
        max_length: the maximum number of tokens in a window; None: any number.
        stride: the number of context tokens by which windows overlap.
        top_k: the maximum number of answers per question.
        no_answer_threshold: "no answer" comes first if its score exceeds the score of the best span
            by more than this threshold (SQuAD 2.0); None: it comes first only if there is no span.
    """
    tokenizer = lm.source_tokenizer
    windows = context_windows(tokenizer, questions, max_length=max_length, stride=stride)
    count = max(top_k, _SPANS_PER_WINDOW)
    spans: list[dict[Span, float]] = [{} for _ in questions]
    no_answer = [math.inf] * len(questions)
    batches = hidden_states(
        lm,
        [window.input.ids for window in windows],
        token_type_ids=[window.type_ids(lm.module.spec) for window in windows],
    )
    for batch, hidden, _ in batches:
        logits = lm.module.logits(hidden, head="span").float().cpu().numpy()
        for row, index in enumerate(batch):
            window = windows[index]
            question = window.question
            starts, ends = logits[row, : len(window.input.ids)].T
            no_answer[question] = min(no_answer[question], float(starts[0] + ends[0]))
            context = questions[question][1]
            for span, score in _best_spans(window, context, starts, ends, count).items():
                spans[question][span] = max(score, spans[question].get(span, -math.inf))
    threshold = math.inf if no_answer_threshold is None else no_answer_threshold
    results = []
    for (_, context), candidates, nothing in zip(questions, spans, no_answer):
        best = sorted(candidates.items(), key=lambda item: -item[1])[:count]
        scores = np.array([nothing, *(score for _, score in best)])
        shares = np.exp(scores - scores.max())
        no_answer_share, *others = (shares / shares.sum()).tolist()
        answers = [
            AnswerSpan(context[start:end], start, end, probability)
            for ((start, end), _), probability in zip(best[:top_k], others)
        ]
        if not best or nothing - best[0][1] > threshold:
            answers = [AnswerSpan("", 0, 0, no_answer_share), *answers][:top_k]
        results.append(answers)
    return results


def _best_spans(
    window: ContextWindow, context: str, starts: np.ndarray, ends: np.ndarray, count: int
) -> dict[Span, float]:
    """Return up to `count` best spans of a window: a dict from character offsets to scores.

    A span has at most `_MAX_ANSWER_TOKENS` tokens. Whitespace at its ends is removed. `starts` and
    `ends` are the start and end logits of the window, float32 [T] each.
    """
    first = window.context_start
    size = sum(text == 1 for text in window.input.texts)
    if not size:
        return {}
    padding = np.full(_MAX_ANSWER_TOKENS - 1, -np.inf, dtype=np.float32)
    padded = np.concatenate((ends[first : first + size], padding))
    scores = starts[first : first + size, None] + sliding_window_view(padded, _MAX_ANSWER_TOKENS)
    best: dict[Span, float] = {}
    for index in np.argsort(-scores, axis=None, kind="stable").tolist():
        start, length = divmod(index, _MAX_ANSWER_TOKENS)
        if start + length >= size or len(best) == count:
            break
        offsets = window.input.offsets[first + start], window.input.offsets[first + start + length]
        span = _trim_span(context, offsets[0][0], offsets[1][1])
        if span[0] < span[1]:
            best.setdefault(span, float(scores[start, length]))
    return best


def _trim_span(context: str, start: int, end: int) -> Span:
    """Return the character offsets of a span without leading and trailing whitespace."""
    text = context[start:end]
    start += len(text) - len(text.lstrip())
    return start, start + len(text.strip())
