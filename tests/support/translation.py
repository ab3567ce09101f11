"""Rows for models with an encoder and a decoder, and generation by theirs to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

PAD, END, START = 0, 1, 2


def padded_pairs(vocab_size: int, source_vocab_size: int | None = None) -> dict[str, Tensor]:
    """Sources and targets of several lengths, padded on the right; no special ids in them."""
    generator = torch.Generator().manual_seed(0)
    sources = (START + 1, source_vocab_size or vocab_size)
    return {
        "input_ids": torch.randint(*sources, (3, 13), generator=generator),
        "attention_mask": (torch.arange(13) < torch.tensor([[13], [7], [2]])).long(),
        "decoder_input_ids": torch.randint(START + 1, vocab_size, (3, 11), generator=generator),
        "decoder_attention_mask": (torch.arange(11) < torch.tensor([[5], [11], [3]])).long(),
    }


def ended_pairs(vocab_size: int, end: int) -> dict[str, Tensor]:
    """Sources that end in `end` and are their own targets, as text classifiers are fed."""
    pairs = padded_pairs(vocab_size)
    ids, mask = pairs["input_ids"], pairs["attention_mask"]
    ids[torch.arange(len(ids)), mask.sum(1) - 1] = end
    targets = torch.cat((torch.full((len(ids), 1), START + 1), ids[:, :-1]), 1)
    return {**pairs, "decoder_input_ids": targets, "decoder_attention_mask": mask}


def generate_theirs(
    hf_model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    start: Sequence[int],
    max_new_tokens: int,
    end: int | None = None,
    penalty: float = 1.0,
) -> list[list[int]]:
    """Greedy ids of theirs, without the start; nothing suppressed and nothing forced."""
    from transformers import GenerationConfig

    longest = max(map(len, prompts))
    ids = torch.tensor([[*p, *[PAD] * (longest - len(p))] for p in prompts])
    mask = torch.tensor([[1] * len(p) + [0] * (longest - len(p)) for p in prompts])
    hf_model.generation_config = GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=max_new_tokens,
        pad_token_id=PAD,
        eos_token_id=end,
        decoder_start_token_id=start[0],
        repetition_penalty=penalty,
    )
    begun = torch.tensor([list(start)] * len(prompts))
    out = hf_model.generate(ids, attention_mask=mask, decoder_input_ids=begun)
    return out[:, len(start) :].tolist()
