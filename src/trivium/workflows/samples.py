"""What a freshly trained model says: fills and continuations of held-out text."""

from __future__ import annotations

from typing import Any

from trivium.data import Shards
from trivium.data.shards import TRAIN, VALIDATION
from trivium.inference import Sampling, generate_ids
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule
from trivium.objectives import Denoising, Masked, Objective, SpanCorruption
from trivium.text import Tokenizer

_SAMPLES, _PROMPT_TOKENS, _NEW_TOKENS = 4, 12, 40
_LONGER_PROMPT, _HIDDEN = 32, 3


def _whole_word(ids: list[int], continues: list[bool]) -> int:
    """The place of a token that is a word of its own, nearest to the middle."""
    whole = [
        place
        for place in range(1, len(ids))
        if not continues[ids[place]] and not (place + 1 < len(ids) and continues[ids[place + 1]])
    ]
    return min(whole, key=lambda place: abs(place - len(ids) // 2), default=len(ids) // 2)


def draw_samples(
    model: LanguageModule, tokenizer: Tokenizer, shards: Shards, step: int, objective: Objective
) -> list[dict[str, Any]]:
    """A few prompts from held-out documents with the model's answers, for the report."""
    split = shards.split(VALIDATION if VALIDATION in shards.names else TRAIN)
    language_model = LanguageModel(model.spec, model.eval(), tokenizer)
    special = set(tokenizer.special_ids)
    both = isinstance(objective, SpanCorruption | Denoising)
    samples = []
    for number in range(min(_SAMPLES, split.num_documents)):
        ids = [int(i) for i in split.document(number) if i not in special]
        ids = ids[: _LONGER_PROMPT if both else _PROMPT_TOKENS]
        if len(ids) < 3:
            continue
        if isinstance(objective, SpanCorruption | Denoising):
            prompt, output = _repaired(model, tokenizer, ids, objective)
        elif isinstance(objective, Masked):
            prompt, output = _filled(language_model, tokenizer, ids)
        else:
            prompt = tokenizer.decode(ids)
            output = language_model.generate(
                prompt, max_new_tokens=_NEW_TOKENS, temperature=0.8, top_k=40, seed=0
            )
        samples.append({"step": step, "prompt": prompt, "output": output})
    return samples


def _filled(model: LanguageModel, tokenizer: Tokenizer, ids: list[int]) -> tuple[str, str]:
    """A text with one word hidden, and the most probable fills."""
    hidden = _whole_word(ids, tokenizer.continues_word())
    text = tokenizer.tokens[tokenizer.mask_id or 0].join(
        f" {tokenizer.decode(part)} " for part in (ids[:hidden], ids[hidden + 1 :])
    )
    fills = model.fill_mask(text.strip(), top_k=5)
    output = ", ".join(f"{fill.token} {fill.score:.0%}" for fill in fills)
    return f"{text.strip()} ({tokenizer.decode([ids[hidden]])})", output


def _repaired(
    model: LanguageModule,
    tokenizer: Tokenizer,
    ids: list[int],
    objective: SpanCorruption | Denoising,
) -> tuple[str, str]:
    """A text with one span hidden, and what the decoder writes: the span, or all of the text."""
    count = min(_HIDDEN, len(ids) - 2)
    start = max(1, (len(ids) - count) // 2)
    before, hidden, after = ids[:start], ids[start : start + count], ids[start + count :]
    stop = {objective.end_id}
    if isinstance(objective, SpanCorruption):
        sentinels = objective.sentinels.tolist()
        gap, begin = sentinels[0], (objective.start_id, sentinels[0])
        stop |= {*sentinels}
        longest = _NEW_TOKENS // 2
    else:
        gap, begin, longest = objective.mask_id, (objective.start_id,), len(ids) + _NEW_TOKENS // 2
    steps = generate_ids(
        model,
        [[*before, gap, *after, objective.end_id]],
        max_new_tokens=longest,
        sampling=Sampling(temperature=0.0),
        stop_ids=stop,
        vocab_size=tokenizer.vocab_size,
        decoder_start=begin,
    )
    written = [index for (index,) in steps if index is not None]
    shown = tokenizer.decode([*before, gap, *after], skip_special_tokens=False)
    return f"{shown} ({tokenizer.decode(hidden).strip()})", tokenizer.decode(written).strip()
