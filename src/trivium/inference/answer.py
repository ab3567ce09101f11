"""Answers to questions, as spans of a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trivium.inference.batches import BATCH_TOKENS, hidden_states
from trivium.models import LanguageModule
from trivium.text import Tokenizer
from trivium.text.inputs import TextInput, encode_inputs

# Best starts and ends of a window that are looked at, and tokens of the longest answer.
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

    The context of the next window begins `stride` tokens of context before the end of the last,
    as in Devlin et al. 2018. Questions longer than a quarter of the window are cut.
    """
    if max_length is None:
        whole = encode_inputs(tokenizer, questions)
        return [Window(n, found, _context_start(found)) for n, found in enumerate(whole)]
    parts: list[tuple[int, int, str, str]] = []
    heads = [question for question, _ in questions]
    asked = tokenizer.backend.encode_batch(heads, add_special_tokens=False)
    contexts = tokenizer.backend.encode_batch(
        [context for _, context in questions], add_special_tokens=False
    )
    extra = len(encode_inputs(tokenizer, [("", "")])[0].ids)
    for number, (question, context) in enumerate(questions):
        head = asked[number]
        limit = max(1, max_length // 4)
        if len(head) > limit:
            question = question[: head.offsets[limit - 1][1]]
        room = max(1, max_length - extra - min(len(head), limit))
        offsets = contexts[number].offsets
        step = max(1, room - min(stride, room // 2))
        for start in range(0, max(1, len(offsets)), step):
            stop = min(start + room, len(offsets))
            begin = offsets[start][0] if offsets else 0
            end = offsets[stop - 1][1] if offsets else 0
            parts.append((number, begin, question, context[begin:end]))
            if stop >= len(offsets):
                break
    encoded = encode_inputs(
        tokenizer, [(q, c) for *_, q, c in parts], max_length=max_length, keep_first=True
    )
    found = []
    for (number, begin, _, _), each in zip(parts, encoded):
        moved = [
            (a + begin, b + begin) if text == 1 else (a, b)
            for (a, b), text in zip(each.offsets, each.texts)
        ]
        shifted = TextInput(each.ids, each.type_ids, moved, each.texts, each.cut)
        found.append(Window(number, shifted, _context_start(shifted)))
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
) -> list[tuple[list[AnswerSpan], float]]:
    """The best answers of every question, and by how much the score of no answer is above theirs.

    A span scores the sum of the logits of its ends (Devlin et al. 2018, section 4.2); no answer
    scores those of position 0, the least over the windows. Shares are softmax over the candidates
    and no answer.
    """
    parts = windows(tokenizer, questions, max_length=max_length, stride=stride)
    found: list[dict[tuple[int, int], float]] = [{} for _ in questions]
    nothing = [math.inf] * len(questions)
    inputs, types = [p.input.ids for p in parts], [p.input.type_ids for p in parts]
    batches = hidden_states(model, inputs, type_ids=types, batch_tokens=batch_tokens)
    for numbers, hidden, _ in batches:
        scores = model.logits(hidden, head="span").float().cpu().numpy()
        for row, number in enumerate(numbers):
            part = parts[number]
            starts, ends = scores[row, : len(part.input.ids)].T
            nothing[part.question] = min(nothing[part.question], float(starts[0] + ends[0]))
            for span, score in _candidates(part, starts, ends):
                known = found[part.question].get(span, -math.inf)
                found[part.question][span] = max(known, score)
    return [
        _ranked(context, spans, none, top_k)
        for (_, context), spans, none in zip(questions, found, nothing)
    ]


def _candidates(
    part: Window, starts: np.ndarray, ends: np.ndarray
) -> list[tuple[tuple[int, int], float]]:
    """Spans of the context, in characters, made of the best starts and ends of a window."""
    inside = np.array([text == 1 for text in part.input.texts])
    allowed = np.flatnonzero(inside)
    if not len(allowed):
        return []
    best_starts = allowed[np.argsort(-starts[allowed], kind="stable")[:_CANDIDATES]]
    best_ends = allowed[np.argsort(-ends[allowed], kind="stable")[:_CANDIDATES]]
    offsets = part.input.offsets
    return [
        ((offsets[a][0], offsets[b][1]), float(starts[a] + ends[b]))
        for a in best_starts
        for b in best_ends
        if a <= b < a + _LONGEST
    ]


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
        AnswerSpan(*_trimmed(context, *span), float(share))
        for (span, _), share in zip(best[:top_k], shares)
    ]
    return answers, nothing - best[0][1]


def _trimmed(context: str, start: int, end: int) -> tuple[str, int, int]:
    """A span without the spaces around it, which some tokens carry."""
    text = context[start:end]
    start += len(text) - len(text.lstrip())
    text = text.strip()
    return text, start, start + len(text)
