"""What an encoder-decoder puts into the gaps of a text: of any length, all of them together."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from trivium.errors import TriviumError
from trivium.inference.beam import Beams, beam_search
from trivium.inference.fill_mask import Fill, document_ids
from trivium.models import LanguageModule
from trivium.text import Tokenizer

_MASK = "<mask>"
_TOKENS_A_GAP, _BEAMS = 12, 5


@torch.inference_mode()
def fill_gaps(
    model: LanguageModule,
    tokenizer: Tokenizer,
    text: str,
    *,
    decoder_start: Sequence[int],
    stop_ids: Collection[int] = (),
    banned_ids: Collection[int] = (),
    top_k: int = 5,
) -> list[Fill]:
    """The best ways to fill all gaps of a text, by beam search, best first.

    A model with sentinels (T5) writes each gap's sentinel with what it stands for; gaps may be
    written as <extra_id_0>, <extra_id_1>, ... or as <mask>. A model with a mask token (BART) writes
    the whole text anew: what stands in the gaps is told from what stands around them, and is empty
    where the text was changed there. The fills of several gaps are joined by " | ". A score is the
    geometric mean of the probabilities of what was written.

    Raises:
        TriviumError: the text has no gap, or top_k is below 1.
    """
    if top_k < 1:
        raise TriviumError(f"top_k is {top_k}, but must be 1 or more.")
    beams = Beams(
        num_beams=max(_BEAMS, top_k), num_return=top_k, min_new_tokens=1, no_repeat_ngram=3
    )
    sentinels, mask = tokenizer.sentinel_ids, tokenizer.roles.get("mask", "")
    if sentinels:
        text, gaps = _with_sentinels(tokenizer, text)
        # Nothing of the source may be forbidden to be written again, nor may a sentinel.
        beams = Beams(num_beams=beams.num_beams, num_return=top_k, min_new_tokens=1)
        start = (*decoder_start, gaps[0])
        stops = {*stop_ids, *sentinels} - {*gaps}
        longest = _TOKENS_A_GAP * len(gaps)
    else:
        if not mask or mask not in text:
            raise TriviumError(
                f"there is no {mask or _MASK} in the text {text[:60]!r}: mark a gap."
            )
        start, stops = tuple(decoder_start), {*stop_ids}
        longest = len(document_ids(tokenizer, text)) + _TOKENS_A_GAP * text.count(mask)
        gaps = []
    (found,) = beam_search(
        model,
        [document_ids(tokenizer, text)],
        beams=beams,
        max_new_tokens=longest,
        stop_ids=stops,
        vocab_size=tokenizer.vocab_size,
        decoder_start=start,
        banned_ids=banned_ids,
    )
    answers = []
    for hypothesis in found:
        score = float(torch.tensor(hypothesis.score).exp())
        if gaps:
            fills = _spans(tokenizer, [gaps[0], *hypothesis.ids], gaps)
            sequence = text
            for gap, fill in zip(gaps, fills):
                sequence = _put(sequence, tokenizer.tokens[gap], fill)
            answers.append(Fill(sequence, " | ".join(fills), score))
        else:
            sequence = tokenizer.decode(hypothesis.ids).strip()
            fills = told_between(text.split(mask), sequence)
            answers.append(Fill(sequence, " | ".join(fills), score))
    return answers


def _with_sentinels(tokenizer: Tokenizer, text: str) -> tuple[str, list[int]]:
    """The text with a sentinel for every <mask>, and its sentinels in their order."""
    names = [tokenizer.tokens[index] for index in tokenizer.sentinel_ids]
    unused = iter([name for name in names if name not in text])
    while _MASK in text and tokenizer.token_to_id(_MASK) is None:
        sentinel = next(unused, None)
        if sentinel is None:
            raise TriviumError(f"the text has more than the {len(names)} gaps that have sentinels.")
        text = text.replace(_MASK, sentinel, 1)
    gaps = sorted(
        (text.index(name), index)
        for name, index in zip(names, tokenizer.sentinel_ids)
        if name in text
    )
    if not gaps:
        raise TriviumError(
            f"there is no gap in the text {text[:60]!r}: write {_MASK} or <extra_id_0> in place of "
            "the words to predict."
        )
    return text, [index for _, index in gaps]


def _spans(tokenizer: Tokenizer, ids: Sequence[int], gaps: Sequence[int]) -> list[str]:
    """What was written after each gap's sentinel; nothing for those that were not written."""
    found: dict[int, list[int]] = {}
    current: list[int] = []
    for index in ids:
        if index in gaps:
            current = found.setdefault(index, [])
        else:
            current.append(index)
    return [tokenizer.decode(found.get(gap, [])).strip() for gap in gaps]


def _put(text: str, sentinel: str, fill: str) -> str:
    """The text with a fill in place of a sentinel, one space on each side where there was one."""
    before, _, after = text.partition(sentinel)
    if not fill:
        return before.rstrip() + (" " if before[-1:].isspace() else "") + after.lstrip()
    return before + fill + after


def told_between(pieces: Sequence[str], text: str) -> list[str]:
    """What stands between pieces of a text, in their order; "" where a piece is not found.

    >>> told_between(["The", "sat on the", "."], "The cat sat on the mat.")
    ['cat', 'mat']
    """
    found, place = [], 0
    for number, piece in enumerate(pieces):
        words = piece.strip()
        at = text.find(words, place) if words else (len(text) if number else 0)
        if number == len(pieces) - 1 and words:
            at = text.rfind(words)
        if at < place:
            return [""] * (len(pieces) - 1)
        if number:
            found.append(text[place:at].strip())
        place = at + len(words)
    return found
