"""Writing texts with a decoder, one token a step, with the keys and values of the past kept.

Shape letters: B texts, T prompt length, S positions so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from trivium.errors import SpecError, TokenizerError, TriviumError
from trivium.inference.sampling import Sampling
from trivium.models import LanguageModule, Transformer
from trivium.models.transformer import Memory
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

    Raises:
        SpecError: a prompt that is empty, or longer than the model's positions; no decoder_start
            for an encoder-decoder, or one for another model.
        TriviumError: max_new_tokens below 1.
    """
    if max_new_tokens < 1:
        raise TriviumError(f"max_new_tokens is {max_new_tokens}, but must be 1 or more.")
    _check_start(model, decoder_start)
    for prompt in (*prompts, decoder_start):
        check_length(len(prompt), model.spec.max_length)
    if not all(prompts):
        raise SpecError("a prompt has no tokens: give it at least one to begin with.")
    seeds = range(len(prompts)) if seeds is None else seeds
    generators = [torch.Generator(model.device).manual_seed(seed) for seed in seeds]
    if not prompts:
        return iter(())
    sources = prompts if decoder_start else None
    begun = [decoder_start] * len(prompts) if decoder_start else prompts
    state = _Continuation(model, begun, max_new_tokens, vocab_size, sources)
    banned = torch.tensor(sorted(banned_ids), dtype=torch.int64, device=model.device)
    return _steps(state, sampling, generators, frozenset(stop_ids), banned)


def _check_start(model: LanguageModule, decoder_start: Sequence[int]) -> None:
    family = model.spec.family
    if family == "encoder-decoder" and not decoder_start:
        raise SpecError(
            "this model has an encoder and a decoder: say with decoder_start what its answers "
            "begin with, such as [0] for T5."
        )
    if family != "encoder-decoder" and decoder_start:
        raise SpecError(
            f"this model is {family} and continues its prompts: it has no decoder_start."
        )


def _steps(
    state: _Continuation,
    sampling: Sampling,
    generators: Sequence[torch.Generator],
    stop_ids: Collection[int],
    banned: Tensor,
) -> Iterator[list[int | None]]:
    running = [True] * len(generators)
    logits = state.begin()
    while True:
        logits = logits.index_fill(1, banned, -torch.inf) if len(banned) else logits
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
        model: LanguageModule,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        vocab_size: int | None,
        sources: Sequence[Sequence[int]] | None,
    ) -> None:
        self.model, self.sources = model, sources
        self.read: Callable[..., Tensor] = model
        self.vocab_size = min(vocab_size or model.spec.vocab_size, model.spec.vocab_size)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
        self.longest = max(len(prompt) for prompt in prompts)
        # The last token is chosen but never fed back: it needs no position.
        positions = self.longest + max_new_tokens - 1
        if model.spec.max_length is not None:
            positions = min(positions, model.spec.max_length)
        self.cache = model.new_cache(len(prompts), positions)
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
        if self.sources is not None:
            assert isinstance(self.model, Transformer)  # no other model has an encoder to read them
            memory = _memory(self.model, self.sources)
            self.read = partial(self.model.decode, memory=memory)
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
        hidden = self.read(
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


def _memory(model: Transformer, sources: Sequence[Sequence[int]]) -> Memory:
    """What the encoder makes of texts, padded on the right, and which of it is real."""
    longest = max(map(len, sources))
    padded = [[*source, *[0] * (longest - len(source))] for source in sources]
    lengths = torch.tensor([len(source) for source in sources], device=model.device)
    mask = torch.arange(longest, device=model.device) < lengths[:, None]  # [B, S]
    real = None if bool(mask.all()) else mask
    ids = torch.tensor(padded, device=model.device)
    return Memory(model.encode(ids, attention_mask=real), real)
