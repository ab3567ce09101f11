"""Continuing texts with a decoder, one token a step, with the keys and values of the past kept.

Shape letters: B texts, T prompt length, S positions so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from trivium.errors import SpecError, TokenizerError, TriviumError
from trivium.inference.sampling import Sampling
from trivium.models import Transformer
from trivium.nn.cache import Cache
from trivium.nn.positions import check_length
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
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    stop_ids: Collection[int] = (),
    vocab_size: int | None = None,
    seeds: Sequence[int] | None = None,
) -> Iterator[list[int | None]]:
    """Yield, step by step, the next id of every prompt; None for a text that has ended.

    A text ends before an id of `stop_ids`, after `max_new_tokens`, or where the model's positions
    end. Prompts of different lengths are padded on the left and attend to no padding, so that each
    is continued as it would be alone; only the end of the positions is that of the longest.

    Args:
        model: decoder-only, in evaluation mode.
        prompts: ids, at least one each.
        max_new_tokens: tokens to add at most.
        sampling: how a token is chosen.
        stop_ids: ids that end a text.
        vocab_size: ids from here on stand for nothing (a padded matrix) and are never chosen.
        seeds: one for each prompt; None: 0, 1, 2, ...

    Raises:
        SpecError: a prompt that is empty, or longer than the model's positions.
        TriviumError: max_new_tokens below 1.
    """
    if max_new_tokens < 1:
        raise TriviumError(f"max_new_tokens is {max_new_tokens}, but must be 1 or more.")
    for prompt in prompts:
        check_length(len(prompt), model.spec.max_length)
        if not prompt:
            raise SpecError("a prompt has no tokens: give it at least one to begin with.")
    seeds = range(len(prompts)) if seeds is None else seeds
    generators = [torch.Generator(model.device).manual_seed(seed) for seed in seeds]
    if not prompts:
        return iter(())
    state = _Continuation(model, prompts, max_new_tokens, vocab_size)
    return _steps(state, sampling, generators, frozenset(stop_ids))


def _steps(
    state: _Continuation,
    sampling: Sampling,
    generators: Sequence[torch.Generator],
    stop_ids: Collection[int],
) -> Iterator[list[int | None]]:
    running = [True] * len(generators)
    logits = state.begin()
    while True:
        chosen = sampling.choose(logits, state.seen, generators)
        ids = chosen.tolist()
        running = [on and index not in stop_ids for on, index in zip(running, ids)]
        if not any(running):
            return
        yield [index if on else None for on, index in zip(running, ids)]
        if state.full:
            return
        logits = state.step(chosen)


class _Continuation:
    """The texts so far as the model needs them: cache, padding, positions, tokens seen."""

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        vocab_size: int | None,
    ) -> None:
        decoder = model.spec.decoder
        assert decoder is not None
        self.model = model
        self.vocab_size = min(vocab_size or model.spec.vocab_size, model.spec.vocab_size)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
        self.longest = max(len(prompt) for prompt in prompts)
        # The last token is chosen but never fed back: it needs no position.
        positions = self.longest + max_new_tokens - 1
        if model.spec.max_length is not None:
            positions = min(positions, model.spec.max_length)
        self.cache = Cache(decoder, len(prompts), positions, dtype=model.dtype, device=model.device)
        padded = [[0] * (self.longest - len(prompt)) + list(prompt) for prompt in prompts]
        self.input_ids = torch.tensor(padded, device=model.device)
        columns = torch.arange(positions, device=model.device)
        self.left = self.longest - lengths[:, None]  # [B, 1] padding before each text
        self.attention_mask: Tensor | None = columns >= self.left
        if bool((self.left == 0).all()):
            self.attention_mask = None
        self.seen = self._seen()

    @property
    def full(self) -> bool:
        """Whether no further token can be fed."""
        return self.cache.length >= self.cache.max_length

    @torch.inference_mode()
    def begin(self) -> Tensor:
        """Read the prompts: logits of the next tokens, [B, V]."""
        return self._logits(self.input_ids)

    @torch.inference_mode()
    def step(self, chosen: Tensor) -> Tensor:
        """Add one id to each text, int64 [B]: logits of the next tokens, [B, V]."""
        self.seen[torch.arange(len(chosen), device=chosen.device), chosen] = True
        return self._logits(chosen[:, None])

    def _logits(self, input_ids: Tensor) -> Tensor:
        start = self.cache.length
        stop = start + input_ids.shape[1]
        columns = torch.arange(start, stop, device=self.model.device)
        mask = self.attention_mask
        hidden = self.model(
            input_ids,
            attention_mask=None if mask is None else mask[:, :stop],
            position_ids=(columns - self.left).clamp(min=0),
            cache=self.cache,
        )
        return self.model.logits(hidden[:, -1])[:, : self.vocab_size]

    def _seen(self) -> Tensor:
        """Bool [B, V], True for the ids of each prompt; padding does not count."""
        shape = (len(self.input_ids), self.model.spec.vocab_size)
        seen = torch.zeros(shape, dtype=torch.bool, device=self.model.device)
        for row, left in enumerate(self.left[:, 0].tolist()):
            seen[row, self.input_ids[row, left:]] = True
        return seen[:, : self.vocab_size]
