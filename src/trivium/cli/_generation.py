"""Sampling, ranking and speculative decoding for `trivium generate`.

Importing this module loads torch.
"""

from __future__ import annotations

import json
import secrets
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Any

import typer

from trivium.cli._shared import batch_items, join_cells, print_result
from trivium.config import Config
from trivium.errors import RecipeError, TriviumError
from trivium.evaluate.best_of import make_preference_pair, rank_samples
from trivium.inference.request import GenerationRequest
from trivium.inference.speculative import Draft, DraftModel, PromptLookup
from trivium.inference.text_model import prompt_ids
from trivium.language_model import LanguageModel
from trivium.messages import translated
from trivium.model_loading import load
from trivium.rewards import RewardFunction

Generated = Iterator[tuple[str, GenerationRequest, Iterator[str]]]
"""One tuple per prompt, in order: the prompt, its request, and an iterator over the new text."""


class _Ranking(Config):
    """Schema for the option `--rank`. Its value is parsed like a reward in a recipe."""

    reward: RewardFunction


def load_reward(rank_option: str) -> RewardFunction:
    """Load the reward function given by the option `--rank`.

    `rank_option` is the name or folder of a reward model, or a reward in the TOML syntax of a
    recipe, such as '{kind="length", target=80}'.
    """
    tree: Any = {"kind": "model", "model": rank_option}
    if rank_option.startswith("{"):
        try:
            tree = tomllib.loads(f"reward = {rank_option}")["reward"]
        except tomllib.TOMLDecodeError as error:
            raise RecipeError(f"--rank {rank_option} is not valid TOML: {error}.") from None
    reward = _Ranking.from_tree({"reward": tree}, where="--rank").reward
    reward.open()
    return reward


def sample_to_dict(prompt: str, request: GenerationRequest, **extra: float) -> dict[str, Any]:
    """Convert a generated sample to a dict for JSON output.

    Args:
        prompt: the prompt.
        request: the finished request.
        extra: additional entries of the dict, such as the reward.
    """
    record = {"prompt": prompt, "text": request.text, "seed": request.seed}
    return {**record, "finish_reason": request.finish_reason, **extra}


def print_ranked_samples(
    lm: LanguageModel,
    reward_function: RewardFunction,
    generated: Generated,
    num_samples: int,
    pairs_path: Path | None,
    as_json: bool,
) -> None:
    """Print the samples of each prompt in descending order of reward.

    If `pairs_path` is given, also save preference pairs.

    Args:
        lm: the model that generated the samples.
        reward_function: computes the reward of each sample.
        generated: the samples; each prompt has `num_samples` consecutive samples.
        num_samples: the number of samples per prompt.
        pairs_path: a JSON Lines file for the preference pairs. Each pair is the best and the worst
            sample of a prompt. If None, no file is written.
        as_json: whether to print JSON objects instead of text.
    """
    counts = Counter[str]()
    if pairs_path is not None:
        pairs_path.parent.mkdir(parents=True, exist_ok=True)
    with nullcontext() if pairs_path is None else pairs_path.open("w", encoding="utf-8") as file:
        while group := list(islice(generated, num_samples)):
            prompt, requests = group[0][0], [request for _, request, _ in group]
            for _ in chain(*(pieces for _, _, pieces in group)):
                pass
            samples = rank_samples(lm, reward_function, prompt, requests)
            if not as_json:
                typer.echo(f"\n{prompt}" if counts else prompt)
            for score, one in samples:
                line = join_cells(f"{score:.4f}", one.text)
                print_result(sample_to_dict(prompt, one, reward=score), line, as_json=as_json)
            pair = make_preference_pair(lm, prompt, samples)
            counts["pairs" if pair else "equal"] += 1
            counts["cut"] += sum(one.finish_reason == "length" for one in requests)
            if file is not None and pair is not None:
                file.write(json.dumps(pair, ensure_ascii=False) + "\n")
            lm.warn_of_lengths(requests)
    if pairs_path is not None:
        words = translated(
            "generate.pairs",
            pairs=counts["pairs"],
            file=pairs_path,
            equal=counts["equal"],
            cut=counts["cut"],
        )
        typer.echo(words, err=True)


def batch_prompts(
    prompts: Iterable[str], num_samples: int, seed: int | None, *, one_by_one: bool
) -> Iterator[list[tuple[str, int]]]:
    """Yield batches of (prompt, seed) pairs, with `num_samples` pairs per prompt.

    Args:
        prompts: the prompts.
        num_samples: the number of samples per prompt. Their seeds are consecutive.
        seed: the seed of the first sample of each prompt. If None, a random seed is drawn: one for
            all prompts, or with `one_by_one` a new one for each prompt.
        one_by_one: whether each prompt is a batch of its own, because the user types the next
            prompt only after the output of the last one has been printed.
    """
    first = secrets.randbits(31) if seed is None else seed
    if not one_by_one:
        yield from batch_items((one, first + i) for one in prompts for i in range(num_samples))
        return
    for prompt in prompts:
        yield [(prompt, first + index) for index in range(num_samples)]
        first = secrets.randbits(31) if seed is None else seed


def generate_samples(
    lm: LanguageModel,
    options: Mapping[str, Any],
    seeded_prompts: list[tuple[str, int]],
    slots: int,
    draft: Draft | None,
    as_chat: bool,
) -> Generated:
    """Generate one sample for each (prompt, seed) pair.

    Yields the samples in the order of the pairs.

    If the engine rejects a prompt, the samples of the earlier prompts are yielded before the error
    is raised.

    Args:
        lm: the model.
        options: the sampling options, without the seed.
        seeded_prompts: the (prompt, seed) pairs.
        slots: the number of samples that the engine generates at the same time.
        draft: the draft model or n-gram lookup for speculative decoding; None disables it.
        as_chat: whether to send each prompt as a user message.
    """
    requests: list[tuple[str, GenerationRequest]] = []
    for prompt, seed in seeded_prompts:
        message = {"role": "user", "content": prompt}
        ids = lm.conversation_ids([message]) if as_chat else prompt_ids(lm.prompting, prompt)
        params = lm.sampling_params(ids, {**options, "seed": seed})
        requests.append((prompt, GenerationRequest(ids, params, answers=as_chat)))
    engine = lm.engine_for([request for _, request in requests], slots=slots, draft=draft)
    refused: TriviumError | None = None
    for index, (_, request) in enumerate(requests):
        try:
            engine.add(request)
        except TriviumError as error:
            refused, requests = error, requests[:index]
            break
    for prompt, request in requests:
        yield prompt, request, engine.stream(request)
    if refused is not None:
        raise refused


def read_json_schema(path: Path) -> dict[str, Any]:
    """Read a JSON schema from the file of the option `--json-schema`.

    Raises TriviumError if the file cannot be read, or if it is not a JSON object.
    """
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TriviumError(f"--json-schema {path} cannot be read: {error}.") from None
    if not isinstance(schema, dict):
        raise TriviumError(f"--json-schema {path} is not a JSON object.")
    return schema


def load_draft(draft: str | None, device: str, lm: LanguageModel) -> Draft | None:
    """Load the draft model (or n-gram lookup) for speculative decoding.

    `draft` is "lookup" (draft tokens from n-grams in the text so far) or the path of a smaller
    model. Returns None if `draft` is None. Raises TriviumError if the draft model and the model
    `lm` have different tokenizers.
    """
    if draft is None:
        return None
    if draft == "lookup":
        return PromptLookup()
    smaller = load(draft, device=device, pack=True)
    if smaller.text_tokenizer.fingerprint != lm.text_tokenizer.fingerprint:
        raise TriviumError(
            f"--draft {draft} and the model have different tokenizers: a draft model needs the "
            "tokenizer of the model."
        )
    return DraftModel(smaller.module)
