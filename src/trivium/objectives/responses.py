"""Responses that a model draws to prompts, and what rewards find them worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trivium.data.batch import Floats
from trivium.data.records import Record
from trivium.data.row_order import derived_seed
from trivium.errors import DataError
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import SamplingParams
from trivium.language_model import LanguageModel
from trivium.objectives.chat import chat_template
from trivium.objectives.conversations import Turn, plain
from trivium.rewards import RewardFunction, Sample, all_scores

SLOTS = 128


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text or messages to respond to, and the columns of its row, which rewards read."""

    prompt: Turn
    columns: dict[str, Any]
    where: str

    @property
    def group(self) -> str:
        """Equal prompts share a side of the validation split."""
        return plain(self.prompt)


@dataclass(frozen=True, slots=True)
class Response:
    """What a model has drawn.

    Args:
        prompt_ids: what it read.
        ids: the drawn tokens, the one that ends the text included.
        text: without spaces around it.
        ended: the model ended it; else it is cut.
        scores: every reward, float64 [R].
    """

    prompt_ids: tuple[int, ...]
    ids: list[int]
    text: str
    ended: bool
    scores: Floats


def drawn(
    lm: LanguageModel,
    prompts: Sequence[tuple[Prompt, int]],
    params: SamplingParams,
    rewards: Sequence[RewardFunction],
    *,
    group: int = 1,
) -> list[Response]:
    """Draw `group` responses to every prompt; number n depends on the weights and (its seed, n)."""
    requests = []
    for prompt, seed in prompts:
        ids, answers = prompt_ids(lm, prompt), not isinstance(prompt.prompt, str)
        for number in range(group):
            request = GenerationRequest(ids, params, answers=answers)
            request.seed = derived_seed(seed, number)
            requests.append(request)
    lm.run_requests(requests, slots=SLOTS)
    several = (prompt for prompt, _ in prompts for _ in range(group))
    samples = [_sample(*pair) for pair in zip(several, requests, strict=True)]
    return [
        Response(one.prompt_ids, _ids(one), sample.response, sample.ended, scores)
        for one, sample, scores in zip(requests, samples, all_scores(rewards, samples), strict=True)
    ]


def prompt_ids(lm: LanguageModel, one: Prompt) -> list[int]:
    """Encode a prompt as `generate` or `chat` does. Raises DataError where it is too long."""
    if isinstance(one.prompt, str):
        (ids,) = lm.prompts([one.prompt])
    else:
        text = chat_template(lm).render(one.prompt, add_generation_prompt=True)
        (ids,) = lm.prompts([text])
    limit = lm.context_length
    if limit is not None and len(ids) >= limit:
        raise DataError(
            f"the prompt of {one.where} has {len(ids)} tokens, and the model's positions are "
            f"{limit}, the response included: shorten it, or remove the row."
        )
    return ids


def _ids(request: GenerationRequest) -> list[int]:
    return [*request.output_ids, *([] if request.end_id is None else [request.end_id])]


def _sample(prompt: Prompt, request: GenerationRequest) -> Sample:
    response, messages = request.text.strip(), ()
    text = prompt.group + request.text.rstrip()
    if not isinstance(prompt.prompt, str):
        messages = (*prompt.prompt, {"role": "assistant", "content": response})
        text = plain(messages).rstrip()
    ended = request.finish_reason == "stop"
    record = Record(prompt.columns, prompt.where)
    return Sample(prompt.group, response, text, record, messages, ended)
