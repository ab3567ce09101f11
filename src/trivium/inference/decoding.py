"""What generation, beam search and scoring share: prompts into slots, new tokens behind them.

Shape letters: B texts, T tokens, S positions of a source, D d_model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trivium.errors import SpecError
from trivium.models import LanguageModule, Transformer
from trivium.nn.kv_cache import KVCache, SlotCache
from trivium.nn.positions import check_length

Ids = Sequence[int]


def pad_rows(rows: Sequence[Ids], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Rows padded on the right, int64 [B, T], and their lengths, int64 [B]; None: all are T."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.int64)
    if min(lengths) == longest:
        return ids.to(device), None
    return ids.to(device), torch.tensor(lengths).to(device)


def mask_of(lengths: Tensor | None, longest: int) -> Tensor | None:
    """Which of `longest` positions are real: bool [B, T]; None where all are."""
    if lengths is None:
        return None
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def encode_sources(module: Transformer, sources: Sequence[Ids]) -> tuple[Tensor, Tensor | None]:
    """What the encoder makes of sources: hidden states [B, S, D] and their mask [B, S]."""
    ids, lengths = pad_rows(sources, module.device)
    mask = mask_of(lengths, ids.shape[1])
    return module.encode(ids, attention_mask=mask), mask


def extend(
    module: LanguageModule,
    cache: SlotCache,
    ids: Tensor,
    *,
    slots: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Append tokens, int64 [B, T], to texts in a cache: hidden states [B, T, D].

    Args:
        slots: int64 [B]; None: the first B.
        lengths: int64 [B], real tokens per row; None: all.
    """
    if module.spec.family == "encoder-decoder":
        return module(decoder_input_ids=ids, cache=cache, slots=slots, lengths=lengths)
    return module(ids, cache=cache, slots=slots, lengths=lengths)


def prefill(
    module: LanguageModule,
    cache: SlotCache,
    slots: Sequence[int],
    prompts: Sequence[Ids],
    decoder_start: Ids = (),
) -> Tensor:
    """Read prompts into empty slots: hidden states of their last tokens, [B, D].

    The encoder of an encoder-decoder reads the prompts, its decoder `decoder_start`.
    """
    device = module.device
    where = torch.tensor(slots, device=device)
    if module.spec.family == "encoder-decoder":
        # No other model has an encoder.
        assert isinstance(module, Transformer)
        assert isinstance(cache, KVCache)
        memory, mask = encode_sources(module, prompts)
        cache.set_memory(where, memory, mask)
        prompts = [decoder_start] * len(prompts)
    ids, lengths = pad_rows(prompts, device)
    hidden = extend(module, cache, ids, slots=where, lengths=lengths)
    if lengths is None:
        return hidden[:, -1]
    return hidden[torch.arange(len(prompts), device=device), lengths - 1]


def check_prompt(module: LanguageModule, prompt: Ids, max_length: int | None) -> None:
    """Refuse a prompt that is empty, too long or has ids outside the vocabulary.

    Args:
        max_length: tokens that there is room for, beside the model's own limit.

    Raises:
        SpecError: such a prompt.
    """
    if not prompt:
        raise SpecError("a prompt has no tokens: start with at least one.")
    check_length(len(prompt), module.spec.max_length)
    if max_length is not None and len(prompt) > max_length:
        raise SpecError(
            f"the prompt has {len(prompt)} tokens, but a slot of this engine holds {max_length}: "
            "shorten the prompt or raise max_length."
        )
    source = getattr(module.spec, "source_vocab_size", None)
    limit = source or module.spec.vocab_size
    for token_id in prompt:
        if not 0 <= token_id < limit:
            raise SpecError(f"the prompt has id {token_id}, but this model takes 0 to {limit - 1}.")
