"""Responses to prompts: sampling them from a model, and computing their rewards."""

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
from trivium.objectives.chat import get_chat_template
from trivium.objectives.conversations import Turn, as_text
from trivium.rewards import RewardFunction, Sample, compute_scores

SLOTS = 128
"""The maximum number of responses that are generated at the same time."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, and the columns of its record, which reward functions may read.

    Args:
        prompt: a text, or the messages of a conversation.
        columns: the columns of the record by name.
        where: the file and line of the record, for messages.
    """

    prompt: Turn
    columns: dict[str, Any]
    where: str

    @property
    def group_key(self) -> str:
        """The key by which prompts are grouped when splitting the data: the prompt as one text.

        Equal prompts are in the same split (training or validation).
        """
        return as_text(self.prompt)


@dataclass(frozen=True, slots=True)
class Response:
    """A response sampled from a model, with its rewards.

    Args:
        prompt_ids: the token ids of the prompt.
        ids: the sampled token ids, including the end-of-text token.
        text: the response without leading and trailing whitespace.
        ended: whether the model ended the response. False if it reached the maximum length.
        scores: the unweighted rewards from the R reward functions, float64 [R].
    """

    prompt_ids: tuple[int, ...]
    ids: list[int]
    text: str
    ended: bool
    scores: Floats


def sample_responses(
    lm: LanguageModel,
    prompts: Sequence[tuple[Prompt, int]],
    sampling_params: SamplingParams,
    reward_functions: Sequence[RewardFunction],
    *,
    num_generations: int = 1,
) -> list[Response]:
    """Sample `num_generations` responses to every prompt, and compute their rewards.

    Response i to a prompt depends only on the weights of the model, the prompt, its seed, and i.

    Args:
        lm: the model.
        prompts: pairs (prompt, seed).
        sampling_params: the sampling parameters.
        reward_functions: the reward functions.
        num_generations: the number of responses per prompt.

    Returns:
        One list: all responses to the first prompt, then all responses to the second, and so on.
    """
    requests = []
    for prompt, seed in prompts:
        ids, answers = encode_prompt(lm, prompt), not isinstance(prompt.prompt, str)
        for index in range(num_generations):
            request = GenerationRequest(ids, sampling_params, answers=answers)
            request.seed = derived_seed(seed, index)
            requests.append(request)
    lm.run_requests(requests, slots=SLOTS)
    repeated = (prompt for prompt, _ in prompts for _ in range(num_generations))
    samples = [_build_reward_sample(*pair) for pair in zip(repeated, requests, strict=True)]
    return [
        Response(one.prompt_ids, _collect_response_ids(one), sample.response, sample.ended, scores)
        for one, sample, scores in zip(
            requests, samples, compute_scores(reward_functions, samples), strict=True
        )
    ]


def encode_prompt(lm: LanguageModel, prompt: Prompt) -> list[int]:
    """Encode a prompt as token ids. Messages are formatted with the chat template.

    Raises DataError if the prompt fills the whole context length, leaving no room for a response.
    """
    if isinstance(prompt.prompt, str):
        (ids,) = lm.prompts([prompt.prompt])
    else:
        text = get_chat_template(lm).render(prompt.prompt, add_generation_prompt=True)
        (ids,) = lm.prompts([text])
    limit = lm.context_length
    if limit is not None and len(ids) >= limit:
        raise DataError(
            f"the prompt of {prompt.where} has {len(ids)} tokens, but the model has {limit} "
            "positions for prompt and response: shorten the prompt, or remove the row."
        )
    return ids


def _collect_response_ids(request: GenerationRequest) -> list[int]:
    """Return the generated token ids of a request, including the end-of-text token, if any."""
    return [*request.output_ids, *([] if request.end_id is None else [request.end_id])]


def _build_reward_sample(prompt: Prompt, request: GenerationRequest) -> Sample:
    """Build the input of the reward functions from a prompt and its completed generation."""
    response, messages = request.text.strip(), ()
    text = prompt.group_key + request.text.rstrip()
    if not isinstance(prompt.prompt, str):
        messages = (*prompt.prompt, {"role": "assistant", "content": response})
        text = as_text(messages).rstrip()
    ended = request.finish_reason == "stop"
    record = Record(prompt.columns, prompt.where)
    return Sample(prompt.group_key, response, text, record, messages, ended)
