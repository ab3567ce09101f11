"""What a freshly trained model says: fills and continuations of held-out text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trivium.data import Shards
from trivium.data.shards import TRAIN, VALIDATION
from trivium.inference import Sampling, generate_ids
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule
from trivium.objectives import (
    Denoising,
    Masked,
    Mixture,
    Objective,
    PrefixPairs,
    ReplacedToken,
    SentencePairs,
    SpanCorruption,
)
from trivium.text import Tokenizer
from trivium.workflows.objectives import PAIRED

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
    model: LanguageModule,
    tokenizer: Tokenizer,
    sources: Sequence[Shards],
    step: int,
    mixture: Mixture,
    *,
    generator: LanguageModule | None = None,
) -> list[dict[str, Any]]:
    """A few prompts from held-out documents with the model's answers, for the report.

    Sources and objectives take turns. Of a model with a `generator`, words are replaced by it.
    """
    asked = _Asked(LanguageModel(model.spec, model.eval(), tokenizer), tokenizer, generator)
    special = set(tokenizer.special_ids)
    samples = []
    for number in range(_SAMPLES):
        shards = sources[number % len(sources)]
        split = shards.split(VALIDATION if VALIDATION in shards.names else TRAIN)
        if number // len(sources) >= split.num_documents:
            continue
        objective = mixture.objectives[number % len(mixture.objectives)]
        ids = [int(i) for i in split.document(number // len(sources)) if i not in special]
        ids = ids[: _LONGER_PROMPT if isinstance(objective, PAIRED) else _PROMPT_TOKENS]
        if len(ids) < 3:
            continue
        prompt, output = asked.sample(ids, objective)
        samples.append({"step": step, "prompt": prompt, "output": output})
    return samples


@dataclass(frozen=True)
class _Asked:
    """A model that is asked as its objectives ask it."""

    model: LanguageModel
    tokenizer: Tokenizer
    generator: LanguageModule | None

    def sample(self, ids: list[int], objective: Objective) -> tuple[str, str]:
        """A prompt made of a text, and what the model says of it."""
        tokenizer = self.tokenizer
        match objective:
            case SpanCorruption() | Denoising():
                return _repaired(self.model.module, tokenizer, ids, objective)
            case PrefixPairs():
                ids = ids[:_PROMPT_TOKENS]
                written = _written(
                    self.model.module,
                    tokenizer,
                    [*ids, objective.end_id],
                    begin=(objective.start_id,),
                    stop={objective.end_id},
                    longest=_NEW_TOKENS,
                )
                return tokenizer.decode(ids), written
            case Masked() | SentencePairs():
                return _filled(self.model, tokenizer, ids)
            case ReplacedToken():
                return _found(self.model, self.generator, tokenizer, ids)
        prompt = tokenizer.decode(ids)
        return prompt, self.model.generate(
            prompt, max_new_tokens=_NEW_TOKENS, temperature=0.8, top_k=40, seed=0
        )


def _found(
    model: LanguageModel, generator: LanguageModule | None, tokenizer: Tokenizer, ids: list[int]
) -> tuple[str, str]:
    """A text with one word replaced by the generator, and the words most probably replaced."""
    assert generator is not None
    place = _whole_word(ids, tokenizer.continues_word())
    begin, end = tokenizer.prefix_ids, tokenizer.suffix_ids
    hidden = [*begin, *ids[:place], tokenizer.mask_id or 0, *ids[place + 1 :], *end]
    shown = torch.tensor([hidden], device=model.module.device)
    at = len(begin) + place
    with torch.inference_mode():
        scores = generator.eval().logits(generator(shown)[0, at])[: tokenizer.vocab_size]
        # The best there is but for the word itself and special tokens.
        scores[[ids[place], *tokenizer.special_ids]] = -torch.inf
        shown[0, at] = scores.argmax()
    doubts = model.logits(shown, head="replaced-token")[0, :, 0].sigmoid()
    words = shown[0].tolist()
    inner = range(len(begin), len(words) - len(end))
    order = sorted(inner, key=lambda one: -float(doubts[one]))[:3]
    told = ", ".join(f"{tokenizer.decode([words[one]]).strip()} {doubts[one]:.0%}" for one in order)
    change = f"{tokenizer.decode([words[at]]).strip()} for {tokenizer.decode([ids[place]]).strip()}"
    return f"{tokenizer.decode(words)} ({change})", f"replaced? {told}"


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
    source = [*before, gap, *after]
    written = _written(
        model, tokenizer, [*source, objective.end_id], begin=begin, stop=stop, longest=longest
    )
    shown = tokenizer.decode(source, skip_special_tokens=False)
    return f"{shown} ({tokenizer.decode(hidden).strip()})", written


def _written(
    model: LanguageModule,
    tokenizer: Tokenizer,
    source: list[int],
    *,
    begin: tuple[int, ...],
    stop: set[int],
    longest: int,
) -> str:
    """What the decoder most probably writes of a source."""
    steps = generate_ids(
        model,
        [source],
        max_new_tokens=longest,
        sampling=Sampling(temperature=0.0),
        stop_ids=stop,
        vocab_size=tokenizer.vocab_size,
        decoder_start=begin,
    )
    return tokenizer.decode([index for (index,) in steps if index is not None]).strip()
