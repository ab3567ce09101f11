"""Answers to questions, as spans of a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from trivium.inference.batches import BATCH_TOKENS, hidden_states
from trivium.models import LanguageModule
from trivium.text import Tokenizer
from trivium.text.inputs import Frame, TextInput, encode_plain

# Spans of a window that are looked at further, and tokens of the longest answer.
_CANDIDATES, _LONGEST = 20, 30


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """An answer: its text, the characters of the context it is, and its share of the probability.

    No answer is an empty text at 0.
    """

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True)
class Window:
    """A question with a part of its context, as a model reads it.

    `context_start` is the first token of the context; `offsets` are characters of the whole
    context.
    """

    question: int
    input: TextInput
    context_start: int


def windows(
    tokenizer: Tokenizer,
    questions: Sequence[tuple[str, str]],
    *,
    max_length: int | None,
    stride: int = 128,
) -> list[Window]:
    """Pairs (question, context) as windows of at most `max_length` tokens.

    Both are encoded once and cut between tokens. The context of the next window begins `stride`
    tokens of context before the end of the last, or half a window where that is less. Questions
    longer than a quarter of the window are cut.
    """
    frame = Frame(tokenizer)
    asked = encode_plain(tokenizer, [question for question, _ in questions])
    different = list(dict.fromkeys(context for _, context in questions))
    contexts = dict(zip(different, encode_plain(tokenizer, different)))
    found = []
    for number, (head, (_, context)) in enumerate(zip(asked, questions)):
        tokens = contexts[context]
        total = len(tokens.ids)
        room, limit = max(1, total), len(head.ids)
        if max_length is not None:
            limit = min(limit, max(1, max_length // 4))
            room = max(1, max_length - frame.num_special(True) - limit)
        step = room - min(stride, room // 2)
        for start in range(0, max(1, total), step):
            part = tokens.part(start, start + room)
            cut = len(head.ids) - limit + total - len(part.ids)
            joined = frame.join(head.part(0, limit), part, cut=cut)
            found.append(Window(number, joined, _context_start(joined)))
            if start + room >= total:
                break
    return found


def _context_start(found: TextInput) -> int:
    return next((place for place, text in enumerate(found.texts) if text == 1), len(found.ids))


@torch.inference_mode()
def find_answers(
    model: LanguageModule,
    tokenizer: Tokenizer,
    questions: Sequence[tuple[str, str]],
    *,
    max_length: int | None,
    stride: int = 128,
    top_k: int = 1,
    batch_tokens: int = BATCH_TOKENS,
    decoder_start: Sequence[int] = (),
) -> list[tuple[list[AnswerSpan], float]]:
    """The best answers of every question, and by how much the score of no answer is above theirs.

    A span scores the sum of the logits of its ends (Devlin et al. 2018, section 4.2); no answer
    scores those of position 0, the least over the windows. Shares are softmax over the candidates
    and no answer.
    """
    parts = windows(tokenizer, questions, max_length=max_length, stride=stride)
    count = max(top_k, _CANDIDATES)
    found: list[dict[tuple[int, int], float]] = [{} for _ in questions]
    nothing = [math.inf] * len(questions)
    inputs, types = [p.input.ids for p in parts], [p.input.type_ids for p in parts]
    batches = hidden_states(
        model, inputs, type_ids=types, batch_tokens=batch_tokens, decoder_start=decoder_start
    )
    for numbers, hidden, _ in batches:
        scores = model.logits(hidden, head="span").float().cpu().numpy()
        for row, number in enumerate(numbers):
            part = parts[number]
            starts, ends = scores[row, : len(part.input.ids)].T
            nothing[part.question] = min(nothing[part.question], float(starts[0] + ends[0]))
            context = questions[part.question][1]
            for span, score in _candidates(part, context, starts, ends, count):
                known = found[part.question].get(span, -math.inf)
                found[part.question][span] = max(known, score)
    return [
        _ranked(context, spans, none, top_k)
        for (_, context), spans, none in zip(questions, found, nothing)
    ]


def _candidates(
    part: Window, context: str, starts: np.ndarray, ends: np.ndarray, count: int
) -> list[tuple[tuple[int, int], float]]:
    """The best spans of the context in a window, in characters without the spaces around them.

    Of all pairs of a start and an end not before it, at most _LONGEST tokens long.
    """
    first, size = part.context_start, sum(text == 1 for text in part.input.texts)
    if not size:
        return []
    beyond = np.full(_LONGEST - 1, -np.inf, dtype=np.float32)
    behind = np.concatenate((ends[first : first + size], beyond))
    scores = starts[first : first + size, None] + sliding_window_view(behind, _LONGEST)
    found: dict[tuple[int, int], float] = {}
    for place in np.argsort(-scores, axis=None, kind="stable").tolist():
        start, more = divmod(place, _LONGEST)
        if start + more >= size or len(found) == count:
            break
        offsets = part.input.offsets[first + start], part.input.offsets[first + start + more]
        span = _trimmed(context, offsets[0][0], offsets[1][1])
        if span[0] < span[1]:
            found.setdefault(span, float(scores[start, more]))
    return list(found.items())


def _ranked(
    context: str, spans: dict[tuple[int, int], float], nothing: float, top_k: int
) -> tuple[list[AnswerSpan], float]:
    best = sorted(spans.items(), key=lambda item: -item[1])[: max(top_k, _CANDIDATES)]
    if not best:
        return [AnswerSpan("", 0, 0, 1.0)], math.inf
    scores = np.array([*(score for _, score in best), nothing])
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    answers = [
        AnswerSpan(context[start:end], start, end, float(share))
        for ((start, end), _), share in zip(best[:top_k], shares)
    ]
    return answers, nothing - best[0][1]


def _trimmed(context: str, start: int, end: int) -> tuple[int, int]:
    """A span without the spaces around it, which some tokens carry."""
    text = context[start:end]
    start += len(text) - len(text.lstrip())
    return start, start + len(text.strip())
