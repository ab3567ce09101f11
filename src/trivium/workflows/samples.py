"""What a freshly trained model says: fills and continuations of held-out text."""

from __future__ import annotations

from typing import Any

from trivium.data import Shards
from trivium.data.shards import TRAIN, VALIDATION
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule
from trivium.spec import MLMHead
from trivium.text import Tokenizer

_SAMPLES, _PROMPT_TOKENS, _NEW_TOKENS = 4, 12, 40


def _whole_word(ids: list[int], continues: list[bool]) -> int:
    """The place of a token that is a word of its own, nearest to the middle."""
    whole = [
        place
        for place in range(1, len(ids))
        if not continues[ids[place]] and not (place + 1 < len(ids) and continues[ids[place + 1]])
    ]
    return min(whole, key=lambda place: abs(place - len(ids) // 2), default=len(ids) // 2)


def draw_samples(
    model: LanguageModule, tokenizer: Tokenizer, shards: Shards, step: int
) -> list[dict[str, Any]]:
    """A few prompts from held-out documents with the model's answers, for the report."""
    split = shards.split(VALIDATION if VALIDATION in shards.names else TRAIN)
    language_model = LanguageModel(model.spec, model.eval(), tokenizer)
    masked = any(isinstance(head, MLMHead) for head in model.spec.heads)
    samples = []
    for number in range(min(_SAMPLES, split.num_documents)):
        special = set(tokenizer.special_ids)
        ids = [int(i) for i in split.document(number) if i not in special][:_PROMPT_TOKENS]
        if len(ids) < 3:
            continue
        if masked:
            hidden = _whole_word(ids, tokenizer.continues_word())
            text = tokenizer.tokens[tokenizer.mask_id or 0].join(
                f" {tokenizer.decode(part)} " for part in (ids[:hidden], ids[hidden + 1 :])
            )
            fills = language_model.fill_mask(text.strip(), top_k=5)
            output = ", ".join(f"{fill.token} {fill.score:.0%}" for fill in fills)
            truth = tokenizer.decode([ids[hidden]])
            samples.append({"step": step, "prompt": f"{text.strip()} ({truth})", "output": output})
        else:
            prompt = tokenizer.decode(ids)
            output = language_model.generate(
                prompt, max_new_tokens=_NEW_TOKENS, temperature=0.8, top_k=40, seed=0
            )
            samples.append({"step": step, "prompt": prompt, "output": output})
    return samples
