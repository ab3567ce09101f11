"""Beam search of `transformers`, asked the same and answering in the same form as ours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from trivium.inference.beam import Beams, Hypothesis

PAD = 0


def their_beams(
    hf_model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    beams: Beams,
    max_new_tokens: int,
    stop_ids: Collection[int] = (),
    decoder_start: Sequence[int] = (),
    banned_ids: Collection[int] = (),
    forced_bos_id: int | None = None,
    forced_eos_id: int | None = None,
) -> list[list[Hypothesis]]:
    """Hypotheses of theirs in one batch; greedy ones have no score there and get 0."""
    from transformers import GenerationConfig

    longest, begun = max(map(len, prompts)), len(decoder_start)
    padding = [[PAD] * (longest - len(prompt)) for prompt in prompts]
    pairs = list(zip(prompts, padding, strict=True))
    rows = [[*p, *pad] if begun else [*pad, *p] for p, pad in pairs]
    # Padding has the id of a token that prompts may have too: the mask says what it is.
    real = [
        [1] * len(p) + [0] * len(pad) if begun else [0] * len(pad) + [1] * len(p)
        for p, pad in pairs
    ]
    inputs = {"attention_mask": torch.tensor(real)}
    if begun:
        inputs["decoder_input_ids"] = torch.tensor([list(decoder_start)] * len(prompts))
    hf_model.generation_config = GenerationConfig(
        do_sample=False,
        num_beams=beams.num_beams,
        num_return_sequences=beams.num_return,
        length_penalty=beams.length_penalty,
        early_stopping=beams.early_stopping,
        no_repeat_ngram_size=beams.no_repeat_ngram or None,
        min_new_tokens=beams.min_new_tokens or None,
        max_new_tokens=max_new_tokens,
        pad_token_id=PAD,
        eos_token_id=sorted(stop_ids) or None,
        decoder_start_token_id=decoder_start[0] if begun else None,
        forced_bos_token_id=forced_bos_id,
        forced_eos_token_id=forced_eos_id,
        suppress_tokens=sorted(banned_ids) or None,
        return_dict_in_generate=True,
        output_scores=True,
    )
    out = hf_model.generate(torch.tensor(rows), **inputs)
    skipped = (begun or longest) + (forced_bos_id is not None)
    texts = [_cut(row, stop_ids) for row in out.sequences[:, skipped:].tolist()]
    scores = out.sequences_scores.tolist() if beams.num_beams > 1 else [0.0] * len(texts)
    found = [Hypothesis(ids, score) for ids, score in zip(texts, scores, strict=True)]
    return [found[i : i + beams.num_return] for i in range(0, len(found), beams.num_return)]


def _cut(ids: list[int], stop_ids: Collection[int]) -> tuple[int, ...]:
    """A text without what ended it and what follows."""
    return tuple(ids[: next((i for i, index in enumerate(ids) if index in stop_ids), len(ids))])
