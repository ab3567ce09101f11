"""Predictions for gaps of any length, by an encoder-decoder (T5's sentinels, BART's mask)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from trivium.errors import TriviumError
from trivium.inference.beam import BeamSearchParams, beam_search
from trivium.inference.fill_mask import (
    MASK_SPELLINGS,
    MaskFill,
    no_mask_error,
    with_mask_token,
)
from trivium.inference.forward import Ids
from trivium.inference.sampling_params import check_bounds
from trivium.inference.text_model import TextModel, document_ids
from trivium.text import Tokenizer

_TOKENS_PER_GAP, _MIN_BEAMS = 12, 5


def fill_gaps(lm: TextModel, text: str, *, top_k: int = 5) -> list[MaskFill]:
    """The best ways to fill all gaps of a text together, by beam search, best first.

    A model with sentinels (T5) generates each gap's sentinel followed by its content; gaps are
    written <extra_id_0>, <extra_id_1>, ... or as masks. A model with a mask token (BART) generates
    the whole text: the content of a gap is what lies between the texts around it, empty where
    these were changed. Contents of several gaps are joined by " | ". A score is the geometric mean
    of the probabilities of the generated tokens.

    Raises:
        TriviumError: the text has no gap, or top_k is below 1.
    """
    check_bounds("top_k", top_k, {"ge": 1})
    beams = BeamSearchParams(num_beams=max(_MIN_BEAMS, top_k), num_return=top_k, min_new_tokens=1)
    if lm.source_tokenizer.sentinel_ids:
        return _fill_sentinels(lm, text, beams)
    return _fill_by_rewriting(lm, text, beams)


def _fill_sentinels(lm: TextModel, text: str, beams: BeamSearchParams) -> list[MaskFill]:
    tokenizer = lm.source_tokenizer
    text, gaps = _with_sentinels(tokenizer, text)
    names = [tokenizer.tokens[token_id] for token_id in gaps]
    target = lm.text_tokenizer
    gaps = [token_id for name in names if (token_id := target.token_to_id(name)) is not None]
    rules = lm.generation_rules
    rules = dataclasses.replace(
        rules,
        decoder_start=(*rules.decoder_start, gaps[0]),
        stop_ids=(rules.stop_ids | {*target.sentinel_ids}) - {*gaps},
    )
    (hypotheses,) = beam_search(
        lm,
        [document_ids(tokenizer, text)],
        beams,
        max_new_tokens=1 + _TOKENS_PER_GAP * len(gaps),
        rules=rules,
    )
    fills = []
    for hypothesis in hypotheses:
        contents = _contents(target, [gaps[0], *hypothesis.ids], gaps)
        sequence = text
        for name, content in zip(names, contents):
            sequence = _replace_sentinel(sequence, name, content)
        fills.append(MaskFill(sequence, " | ".join(contents), math.exp(hypothesis.score)))
    return fills


def _fill_by_rewriting(lm: TextModel, text: str, beams: BeamSearchParams) -> list[MaskFill]:
    tokenizer = lm.source_tokenizer
    mask = tokenizer.roles.get("mask", "")
    text = with_mask_token(tokenizer, text)
    if not mask or mask not in text:
        raise no_mask_error(text, mask or MASK_SPELLINGS[1])
    ids = document_ids(tokenizer, text)
    (hypotheses,) = beam_search(
        lm,
        [ids],
        beams.replace(no_repeat_ngram=3),
        max_new_tokens=len(ids) + _TOKENS_PER_GAP * text.count(mask),
    )
    fills = []
    for hypothesis in hypotheses:
        sequence = lm.text_tokenizer.decode(hypothesis.ids).strip()
        contents = texts_between(text.split(mask), sequence)
        fills.append(MaskFill(sequence, " | ".join(contents), math.exp(hypothesis.score)))
    return fills


def _with_sentinels(tokenizer: Tokenizer, text: str) -> tuple[str, list[int]]:
    """The text with a sentinel for every mask, and its sentinels in their order."""
    names = [tokenizer.tokens[token_id] for token_id in tokenizer.sentinel_ids]
    unused = iter([name for name in names if name not in text])
    for spelling in MASK_SPELLINGS:
        while spelling in text:
            sentinel = next(unused, None)
            if sentinel is None:
                raise TriviumError(f"the text has more gaps than the {len(names)} sentinels.")
            text = text.replace(spelling, sentinel, 1)
    gaps = sorted(
        (text.index(name), token_id)
        for name, token_id in zip(names, tokenizer.sentinel_ids)
        if name in text
    )
    if not gaps:
        raise no_mask_error(text, MASK_SPELLINGS[1])
    return text, [token_id for _, token_id in gaps]


def _contents(tokenizer: Tokenizer, ids: Ids, gaps: Ids) -> list[str]:
    """What was generated after each gap's sentinel; empty for sentinels that were not."""
    contents: dict[int, list[int]] = {}
    current: list[int] = []
    for token_id in ids:
        if token_id in gaps:
            current = contents.setdefault(token_id, [])
        else:
            current.append(token_id)
    return [tokenizer.decode(contents.get(gap, [])).strip() for gap in gaps]


def _replace_sentinel(text: str, sentinel: str, content: str) -> str:
    """The text with a gap's content; an empty one leaves a single space."""
    before, _, after = text.partition(sentinel)
    if not content:
        return before.rstrip() + (" " if before[-1:].isspace() else "") + after.lstrip()
    return before + content + after


def texts_between(pieces: Sequence[str], text: str) -> list[str]:
    """What lies between pieces of a text, in their order; "" where a piece does not occur.

    >>> texts_between(["The", "sat on the", "."], "The cat sat on the mat.")
    ['cat', 'mat']
    """
    between, position = [], 0
    for number, piece in enumerate(pieces):
        words = piece.strip()
        start = text.find(words, position) if words else (len(text) if number else 0)
        if number == len(pieces) - 1 and words:
            start = text.rfind(words)
        if start < position:
            return [""] * (len(pieces) - 1)
        if number:
            between.append(text[position:start].strip())
        position = start + len(words)
    return between
