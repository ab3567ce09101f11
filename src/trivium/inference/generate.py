"""Writing texts with a decoder, one token a step, with the keys and values of the past kept.

Shape letters: B texts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from trivium.errors import TokenizerError
from trivium.inference.decoding import Decoding, check_prompts
from trivium.inference.sampling import Sampling, force
from trivium.models import LanguageModule
from trivium.text import Tokenizer


def prompt_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text to continue, begun as documents begin in training shards.

    Where documents begin with no special token, an empty text stands on the end of the document
    before, which is what training showed there.

    Raises:
        TokenizerError: the text is empty and the tokenizer has no token to begin with.
    """
    ids = [*tokenizer.prefix_ids, *tokenizer.encode(text, add_special_tokens=False).ids]
    if not ids:
        ids = sorted(end_ids(tokenizer))[:1]
    if not ids:
        raise TokenizerError(
            "the prompt is empty, and this tokenizer has no token that begins or ends a text: "
            "give some text to continue."
        )
    return ids


def end_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that end a text: end of text, and what closes a document in training shards."""
    ends = (tokenizer.eos_id, *tokenizer.suffix_ids)
    return frozenset(index for index in ends if index is not None)


def generate_ids(
    model: LanguageModule,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    stop_ids: Collection[int] = (),
    vocab_size: int | None = None,
    seeds: Sequence[int] | None = None,
    decoder_start: Sequence[int] = (),
    banned_ids: Collection[int] = (),
    forced_eos_id: int | None = None,
) -> Iterator[list[int | None]]:
    """Yield, step by step, the next id of every prompt; None for a text that has ended.

    A text ends before an id of `stop_ids`, after `max_new_tokens`, or where the model's positions
    end. A decoder alone continues its prompts: those of different lengths are padded on the left
    and attend to no padding, so that each is continued as it would be alone; only the end of the
    positions is that of the longest. With an encoder, the prompts are what it reads, once, padded
    on the right, and the decoder writes from `decoder_start` on.

    Args:
        model: with a decoder, in evaluation mode.
        prompts: ids, at least one each.
        max_new_tokens: tokens to add at most.
        sampling: how a token is chosen.
        stop_ids: ids that end a text.
        vocab_size: ids from here on stand for nothing (a padded matrix) and are never chosen.
        seeds: one for each prompt; None: 0, 1, 2, ...
        decoder_start: ids every answer of an encoder-decoder begins with; they are not yielded.
        banned_ids: ids that are never chosen, such as Marian's padding.
        forced_eos_id: what is chosen at the last of `max_new_tokens`, as BART's settings say.

    Raises:
        SpecError: a prompt that is empty, or longer than the model's positions; no decoder_start
            for an encoder-decoder, or one for another model.
        TriviumError: max_new_tokens below 1.
    """
    check_prompts(model, prompts, decoder_start, max_new_tokens)
    seeds = range(len(prompts)) if seeds is None else seeds
    generators = [torch.Generator(model.device).manual_seed(seed) for seed in seeds]
    if not prompts:
        return iter(())
    texts = Decoding(
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        vocab_size=vocab_size,
        decoder_start=decoder_start,
    )
    banned = torch.tensor(sorted(banned_ids), dtype=torch.int64, device=model.device)
    return _steps(texts, sampling, generators, frozenset(stop_ids), banned, forced_eos_id)


def _steps(
    texts: Decoding,
    sampling: Sampling,
    generators: Sequence[torch.Generator],
    stop_ids: Collection[int],
    banned: Tensor,
    forced_eos_id: int | None,
) -> Iterator[list[int | None]]:
    running = [True] * len(generators)
    logits, seen = texts.begin(), _seen(texts)
    while True:
        logits = logits.index_fill(1, banned, -torch.inf) if len(banned) else logits
        if forced_eos_id is not None and texts.full:
            logits = force(logits, forced_eos_id)
        chosen = sampling.choose(logits, seen, generators)
        ids = chosen.tolist()
        running = [on and index not in stop_ids for on, index in zip(running, ids)]
        if not any(running):
            return
        yield [index if on else None for on, index in zip(running, ids)]
        if texts.full:
            return
        seen[torch.arange(len(chosen), device=chosen.device), chosen] = True
        logits = texts.step(chosen)


def _seen(texts: Decoding) -> Tensor:
    """Bool [B, V], True for the ids of each prompt; padding does not count."""
    ids, rows = texts.input_ids, len(texts.input_ids)
    width = max(texts.vocab_size, int(ids.max()) + 1)
    seen = torch.zeros(rows, width, dtype=torch.bool, device=ids.device)
    for row, left in enumerate(texts.left[:, 0].tolist()):
        seen[row, ids[row, left:]] = True
    return seen[:, : texts.vocab_size]
