"""Best-of-n sampling: ranks the samples of a prompt by their reward.

The best and the worst sample can be combined into a preference pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trivium.data.records import Record
from trivium.inference.request import GenerationRequest
from trivium.language_model import LanguageModel
from trivium.rewards import RewardFunction, Sample, compute_scores


def rank_samples(
    lm: LanguageModel, reward: RewardFunction, prompt: str, requests: Sequence[GenerationRequest]
) -> list[tuple[float, GenerationRequest]]:
    """Score the finished samples of a prompt. Returns (score, sample) pairs, the best first.

    A sample is a finished generation request. Its score is the reward multiplied by the weight of
    the reward function. If a sample is an answer in a conversation, the reward function gets the
    messages of the conversation.
    """
    samples = [_to_reward_sample(lm, prompt, request) for request in requests]
    scores = reward.weight * compute_scores([reward], samples)[:, 0]
    return sorted(zip(scores.tolist(), requests, strict=True), key=lambda pair: -pair[0])


def make_preference_pair(
    lm: LanguageModel, prompt: str, samples: Sequence[tuple[float, GenerationRequest]]
) -> dict[str, Any] | None:
    """Return a preference pair made from the best and the worst sample, as used for DPO.

    The pair is a dict with the keys prompt, chosen (the best sample) and rejected (the worst). If
    the samples are answers in a conversation, chosen and rejected are lists of messages; otherwise
    they are strings. Empty samples are ignored, because `finetune preference` does not accept them.
    Returns None if all scores are equal or all samples are empty.

    Args:
        lm: the model.
        prompt: the prompt of the samples.
        samples: (score, sample) pairs, the best first.
    """
    nonempty = [pair for pair in samples if pair[1].text.strip()]
    if not nonempty or nonempty[0][0] == nonempty[-1][0]:
        return None
    (_, best), (_, worst) = nonempty[0], nonempty[-1]
    if best.answers:
        return {"prompt": prompt, "chosen": [_to_message(best)], "rejected": [_to_message(worst)]}
    return {"prompt": prompt, "chosen": best.text, "rejected": worst.text}


def _to_message(request: GenerationRequest) -> dict[str, str]:
    """Return the generated text of a request as a message with the role assistant."""
    return {"role": "assistant", "content": request.text.strip()}


def _to_reward_sample(lm: LanguageModel, prompt: str, request: GenerationRequest) -> Sample:
    """Convert a finished generation request to a `Sample`, the input of a reward function."""
    response, record = request.text.strip(), Record({}, f'the prompt "{prompt}"')
    text = prompt + request.text.rstrip()
    messages = (
        ({"role": "user", "content": prompt}, _to_message(request)) if request.answers else ()
    )
    return Sample(prompt, response, text, record, messages, request.finish_reason == "stop")
