"""Writing texts token by token."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from trivium.errors import TokenizerError
from trivium.inference.decoding import check_prompts
from trivium.inference.engine import Engine
from trivium.inference.request import Request, Written
from trivium.inference.sampling import Sampling
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
    end, each as it would alone. A decoder alone continues its prompts; with an encoder, the
    prompts are what it reads, once, and the decoder writes from `decoder_start` on.

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
    engine = Engine(
        model,
        rows=max(1, len(prompts)),
        stop_ids=stop_ids,
        vocab_size=vocab_size,
        decoder_start=decoder_start,
        banned_ids=banned_ids,
        forced_eos_id=forced_eos_id,
        read_at_once=sum(map(len, prompts)),
    )
    check_prompts(model, prompts, decoder_start, max_new_tokens)
    texts = [
        engine.add(
            Request(prompt=prompt, max_new_tokens=max_new_tokens, sampling=sampling, seed=seed)
        )
        for prompt, seed in zip(prompts, range(len(prompts)) if seeds is None else seeds)
    ]
    return _steps(engine, texts)


def _steps(engine: Engine, texts: Sequence[Written]) -> Iterator[list[int | None]]:
    number = 0
    for _ in engine.run():
        while any(len(text.ids) > number for text in texts):
            yield [text.ids[number] if len(text.ids) > number else None for text in texts]
            number += 1
