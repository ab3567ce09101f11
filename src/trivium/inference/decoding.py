"""Texts that are being written, as a model needs them: what it read, its cache, the padding.

Shape letters: B texts, T prompt length, S positions of a source, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from trivium import spec
from trivium.errors import SpecError, TriviumError
from trivium.models import LanguageModule, Transformer
from trivium.models.transformer import Memory
from trivium.nn.attention import texts_apart
from trivium.nn.positions import check_length


def check_prompts(
    model: LanguageModule,
    prompts: Sequence[Sequence[int]],
    decoder_start: Sequence[int],
    max_new_tokens: int,
) -> None:
    """Refuse what cannot be continued, before any work.

    Raises:
        SpecError: a prompt that is empty, or longer than the model's positions; no decoder_start
            for an encoder-decoder, or one for another model.
        TriviumError: max_new_tokens below 1.
    """
    if max_new_tokens < 1:
        raise TriviumError(f"max_new_tokens is {max_new_tokens}, but must be 1 or more.")
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
    for prompt in (*prompts, decoder_start):
        check_length(len(prompt), model.spec.max_length)
    if not all(prompts):
        raise SpecError("a prompt has no tokens: give it at least one to begin with.")


class Decoding:
    """The texts so far, one a row; rows may leave, multiply and change places.

    A decoder alone continues its prompts, padded on the left. With an encoder, the prompts are
    what it reads, once, padded on the right, and the decoder writes from `decoder_start` on.

    Args:
        model: with a decoder, in evaluation mode.
        prompts: ids, one text at least, none of them empty.
        max_new_tokens: tokens to add at most.
        vocab_size: ids from here on stand for nothing (a padded matrix).
        decoder_start: ids every answer of an encoder-decoder begins with.
    """

    def __init__(
        self,
        model: LanguageModule,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        vocab_size: int | None,
        decoder_start: Sequence[int],
    ) -> None:
        self._model, self._read = model, reader(model)
        self.vocab_size = min(vocab_size or model.spec.vocab_size, model.spec.vocab_size)
        self._sources = prompts if decoder_start else None
        self._memory: Memory | None = None
        begun = [decoder_start] * len(prompts) if decoder_start else prompts
        lengths = torch.tensor([len(prompt) for prompt in begun], device=model.device)
        longest = max(len(prompt) for prompt in begun)
        # The last token is chosen but never fed back: it needs no position.
        positions = longest + max_new_tokens - 1
        if model.spec.max_length is not None:
            positions = min(positions, model.spec.max_length)
        self.most_new_tokens = positions - longest + 1
        self._cache = model.new_cache(len(begun), positions)
        padded = [[0] * (longest - len(prompt)) + list(prompt) for prompt in begun]
        self.input_ids = torch.tensor(padded, device=model.device)  # [B, T]
        self.left = longest - lengths[:, None]  # [B, 1] padding before each text
        self._attention_mask: Tensor | None = None
        if bool(self.left.any()):
            self._attention_mask = torch.arange(positions, device=model.device) >= self.left

    @property
    def full(self) -> bool:
        """Whether no further token can be fed."""
        return self._cache.length >= self._cache.max_length

    @torch.inference_mode()
    def begin(self) -> Tensor:
        """Read the prompts: logits of the next tokens, [B, V]."""
        if self._sources is not None:
            assert isinstance(self._model, Transformer)  # no other model has an encoder
            self._memory = encoded(self._model, self._sources)
        return self._logits(self.input_ids)

    @torch.inference_mode()
    def step(self, chosen: Tensor) -> Tensor:
        """Add one id to each text, int64 [B]: logits of the next tokens, [B, V]."""
        return self._logits(chosen[:, None])

    @torch.inference_mode()
    def reorder(self, rows: Tensor) -> None:
        """Go on with the given rows, in the given order: int64, fewer, as many or more."""
        self._cache.reorder(rows)
        self.left = self.left[rows]
        if self._attention_mask is not None:
            self._attention_mask = self._attention_mask[rows]
        if self._memory is not None and self._memory.attention_mask is not None:
            # The cache has made keys and values of what was read: it is not needed any more.
            hidden = self._memory.hidden[:0]
            self._memory = Memory(hidden, self._memory.attention_mask[rows])

    def _logits(self, input_ids: Tensor) -> Tensor:
        start = self._cache.length
        stop = start + input_ids.shape[1]
        columns = torch.arange(start, stop, device=self._model.device)
        mask = self._attention_mask
        read = self._read if self._memory is None else partial(self._read, memory=self._memory)
        hidden = read(
            input_ids,
            attention_mask=None if mask is None else mask[:, :stop],
            position_ids=(columns - self.left).clamp(min=0),
            cache=self._cache,
        )
        return self._model.logits(hidden[:, -1])[:, : self.vocab_size]


def reader(model: LanguageModule) -> Callable[..., Tensor]:
    """What reads ids of the text being written."""
    if isinstance(model, Transformer) and model.spec.family == "encoder-decoder":
        return model.decode
    return model


def reads_in_a_row(model: LanguageModule) -> bool:
    """Whether prompts of any lengths are read fastest one behind another.

    Not on a GPU, where attention to itself would be cut out of one to all; not where positions are
    biases between all of them, or where a cache forgets.
    """
    if not isinstance(model, Transformer) or model.decoder is None:
        return False
    plain = all(isinstance(each.pattern, spec.Full) for each in model.decoder.spec.attentions)
    return plain and model.decoder.bias is None and texts_apart(model.device)


def encoded(model: Transformer, sources: Sequence[Sequence[int]]) -> Memory:
    """What the encoder makes of texts, padded on the right, and which of it is real."""
    longest = max(map(len, sources))
    padded = [[*source, *[0] * (longest - len(source))] for source in sources]
    lengths = torch.tensor([len(source) for source in sources], device=model.device)
    mask = torch.arange(longest, device=model.device) < lengths[:, None]  # [B, S]
    real = None if bool(mask.all()) else mask
    ids = torch.tensor(padded, device=model.device)
    return Memory(model.encode(ids, attention_mask=real), real)
