"""Best of n: samples of a prompt, ranked by a reward; the best and the worst are a preference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trivium.data.records import Record
from trivium.inference.request import GenerationRequest
from trivium.language_model import LanguageModel
from trivium.rewards import RewardFunction, Sample, all_scores


def ranked(
    lm: LanguageModel, reward: RewardFunction, prompt: str, requests: Sequence[GenerationRequest]
) -> list[tuple[float, GenerationRequest]]:
    """Finished samples of a prompt with their rewards, by its weight, the highest first.

    Those that are answers of a conversation are judged as messages.
    """
    samples = [_sample(lm, prompt, one) for one in requests]
    scores = reward.weight * all_scores([reward], samples)[:, 0]
    return sorted(zip(scores.tolist(), requests, strict=True), key=lambda pair: -pair[0])


def best_and_worst(
    lm: LanguageModel, prompt: str, samples: Sequence[tuple[float, GenerationRequest]]
) -> dict[str, Any] | None:
    """A row of preferences from ranked samples; None where no reward is above another.

    Empty samples, which `finetune preference` does not read, are left out. Texts go on where the
    prompt ends.
    """
    some = [pair for pair in samples if pair[1].text.strip()]
    if not some or some[0][0] == some[-1][0]:
        return None
    (_, best), (_, worst) = some[0], some[-1]
    if best.answers:
        return {"prompt": prompt, "chosen": [_message(best)], "rejected": [_message(worst)]}
    return {"prompt": prompt, "chosen": best.text, "rejected": worst.text}


def _message(request: GenerationRequest) -> dict[str, str]:
    return {"role": "assistant", "content": request.text.strip()}


def _sample(lm: LanguageModel, prompt: str, request: GenerationRequest) -> Sample:
    response, record = request.text.strip(), Record({}, f'the prompt "{prompt}"')
    text = prompt + request.text.rstrip()
    messages = ({"role": "user", "content": prompt}, _message(request)) if request.answers else ()
    return Sample(prompt, response, text, record, messages, request.finish_reason == "stop")
