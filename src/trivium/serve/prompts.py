"""Prompts before they are written on: their length, and how probable their own tokens are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from trivium.errors import SpecError
from trivium.inference import prompt_ids
from trivium.inference.fill_mask import vocabulary_log_probabilities
from trivium.inference.stream import added_texts
from trivium.inference.text_engine import TokenScore
from trivium.language_model import LanguageModel
from trivium.nn.positions import check_length
from trivium.serve.errors import ApiError

Prompt = str | Sequence[int]

# Characters or ids that are looked at in passing; more are looked at beside the event loop.
_SHORT = 2000
# Bounds the logits in memory: positions x vocabulary.
_POSITIONS_AT_ONCE = 256


class ScoredPrompt(NamedTuple):
    """A prompt as text, and its tokens; the first has log-probability None if nothing is before it.

    What the model reads before the prompt, such as <s>, is not part of it.
    """

    text: str
    tokens: list[TokenScore | None]
    names: list[str]


async def check_prompts(lm: LanguageModel, prompts: Sequence[Prompt], *, most: int) -> list[int]:
    """The tokens that the model reads of each prompt.

    Raises ApiError (400) where one is empty, too long, or has ids that do not exist.
    """
    if sum(map(len, prompts)) > _SHORT:
        counts = await asyncio.to_thread(_counts, lm, prompts)
    else:
        counts = _counts(lm, prompts)
    limit = min(most, lm.spec.max_length or most)
    if max(counts) > limit:
        raise ApiError(
            400,
            f"the prompt has {max(counts)} tokens, but at most {limit} are read: shorten it.",
            param="prompt",
            code="context_length_exceeded",
        )
    return counts


def _counts(lm: LanguageModel, prompts: Sequence[Prompt]) -> list[int]:
    return [count_tokens(lm, prompt) for prompt in prompts]


def count_tokens(lm: LanguageModel, prompt: Prompt) -> int:
    """Tokens of a prompt with what stands around it; those given as ids are counted as they are."""
    if not isinstance(prompt, str):
        return len(prompt)
    both = lm.spec.family == "encoder-decoder"
    tokenizer = lm.source_tokenizer if both else lm.text_tokenizer
    around = len(tokenizer.prefix_ids) + (len(tokenizer.suffix_ids) if both else 0)
    (ids,) = tokenizer.encode_ids_batch([prompt])
    return max(1, len(ids) + around)


@torch.inference_mode()
def score_prompts(lm: LanguageModel, items: Sequence[tuple[Prompt, int]]) -> list[ScoredPrompt]:
    """Log p of every token of prompts given those before it, with the k most probable ones there.

    Each prompt is read by itself, so that its numbers depend on nothing else.

    Raises:
        SpecError: a prompt longer than the model's positions, or ids that do not exist.
    """
    return [_score(lm, prompt, top) for prompt, top in items]


def _score(lm: LanguageModel, prompt: Prompt, top: int) -> ScoredPrompt:
    tokenizer = lm.text_tokenizer
    if isinstance(prompt, str):
        ids, text = prompt_ids(tokenizer, prompt), prompt
        own = tokenizer.encode_ids_batch([prompt])[0]
        before = len(ids) - len(own)
    else:
        ids, before = list(prompt), 0
        text = tokenizer.decode(ids, skip_special_tokens=False)
    check_length(len(ids), lm.spec.max_length)
    wrong = [index for index in ids if index >= tokenizer.vocab_size]
    if wrong:
        raise SpecError(f"the prompt has id {wrong[0]}, but ids end at {tokenizer.vocab_size}.")
    names = added_texts(tokenizer, list(zip([None, *ids], ids)))
    found: list[TokenScore | None] = [None]
    if len(ids) > 1:
        found += _token_scores(lm, ids, names, top)
    return ScoredPrompt(text, found[before:], names[before:])


def _token_scores(
    lm: LanguageModel, ids: list[int], names: list[str], top: int
) -> list[TokenScore | None]:
    tokenizer = lm.text_tokenizer
    hidden = lm.module(torch.tensor([ids[:-1]], device=lm.module.device))[0]
    wanted = torch.tensor(ids[1:], device=hidden.device)
    found: list[TokenScore | None] = []
    count = min(top, tokenizer.vocab_size)
    for start, stop in pairwise([*range(0, len(hidden), _POSITIONS_AT_ONCE), len(hidden)]):
        scores = vocabulary_log_probabilities(lm.module, hidden[start:stop], tokenizer.vocab_size)
        values = scores.gather(-1, wanted[start:stop, None])[:, 0].tolist()
        best = scores.topk(count, dim=-1)
        for place, (value, likely) in enumerate(
            zip(values, _named(lm, ids[start:stop], best)), start + 1
        ):
            found.append(TokenScore(names[place], ids[place], value, likely))
    return found


def _named(
    lm: LanguageModel, before: list[int], best: torch.return_types.topk
) -> list[list[tuple[str, float]]]:
    """The most probable tokens after each of the ids before, with their texts."""
    values: Tensor = best.values
    indices: list[list[int]] = best.indices.tolist()
    pairs = [(last, index) for last, row in zip(before, indices, strict=True) for index in row]
    names = iter(added_texts(lm.text_tokenizer, pairs))
    return [[(next(names), value) for value in row] for row in values.tolist()]
