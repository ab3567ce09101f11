"""`trivium generate`: continue texts.

Examples:

  trivium generate runs/gpt "Once upon a time"

  trivium generate runs/gpt "The weather" --temperature 0 --max-new-tokens 20

  trivium generate runs/gpt "The weather" --top-p 0.95 --num-samples 3 --seed 1

  trivium generate runs/gpt "The weather" --num-beams 4

  trivium generate runs/gpt "The weather is" --choices rainy --choices "cold and dry"

  trivium generate runs/gpt "List: one, two," --draft lookup --stop "."

  cat prompts.txt | trivium generate runs/gpt --json

  trivium generate runs/gpt "The film was" --num-samples 8 --rank runs/reward

  trivium generate runs/gpt --num-samples 8 --rank runs/reward --pairs pairs.jsonl < prompts.txt
"""

from __future__ import annotations

import json
import secrets
import sys
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli import UsageError
from trivium.cli import _options as opt
from trivium.cli._shared import batched, known_texts, print_json, read_texts, show, tab_separated
from trivium.config import Config
from trivium.errors import RecipeError, TriviumError
from trivium.evaluate.best_of import best_and_worst, ranked
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.speculative import Draft, DraftModel, PromptLookup
from trivium.inference.text_model import prompt_ids
from trivium.language_model import LanguageModel
from trivium.messages import translated
from trivium.model_loading import load
from trivium.rewards import RewardFunction

Generated = Iterator[tuple[str, GenerationRequest, Iterator[str]]]
"""Each prompt in its turn with its request and pieces of text; all generate together."""


@opt.with_options(SamplingParams, exclude=["top_logprobs"], unset=opt.MODELS_OWN)
def generate(
    model: opt.Model,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT")] = None,
    checkpoint: opt.Checkpoint = None,
    num_samples: opt.Positive = 1,
    num_beams: Annotated[int | None, typer.Option(min=1, show_default=False)] = None,
    rank: Annotated[str | None, typer.Option(metavar="MODEL|{kind=...}")] = None,
    pairs: Path | None = None,
    draft: Annotated[str | None, typer.Option(metavar="lookup|MODEL", show_default=False)] = None,
    slots: opt.Positive = 8,
    dtype: opt.Dtype = None,
    quantize: opt.Quantize = None,
    compile: opt.Compile = False,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    as_json: opt.Json = False,
    **options: Any,
) -> None:
    """Continue texts, shown as they are generated.

    A text ends with the end-of-text token, a stop string, after --max-new-tokens, or at the model's
    context length.

    Args:
        prompts: Default: the lines of stdin; on a terminal, an empty prompt.
        num_samples: Continuations per prompt.
        num_beams: Beam search instead of sampling: texts kept at every step; 1 is greedy. Options
            of sampling, --num-samples, --rank and --draft do not go with it.
        rank: Show the samples of a prompt by their rewards, the highest first: a run of `finetune
            reward`, or a reward of the recipe such as '{kind="length", target=80}'. A model that
            chats answers the prompts.
        pairs: With --rank: write the best and the worst sample of each prompt to this file of JSON
            lines, which `finetune preference` reads.
        draft: Speculative decoding: draft tokens from n-grams of the text so far, or from a smaller
            model with the same tokenizer. It changes the speed, not the text.
        slots: Texts generated at the same time.
    """
    if rank is None and pairs is not None:
        raise UsageError("--pairs takes ranked samples: add --rank MODEL.")
    lm = load(
        model,
        checkpoint=checkpoint,
        device=device,
        dtype=dtype,
        quantize=quantize,
        pack=not compile,
        compile=compile,
    ).reading(special_tokens)
    if num_beams is not None and (num_samples > 1 or rank is not None):
        raise UsageError("beam search gives one text: leave out --num-samples and --rank.")
    drafts = _draft(draft, device, lm)
    if options.get("temperature") == 0 and num_samples > 1:
        warnings.warn("--temperature 0 is greedy: all samples of a prompt are equal.", stacklevel=2)
    options = opt.only_set(options)
    if not prompts and sys.stdin.isatty():
        prompts = [""]
    known = known_texts(read_texts(prompts), lm.source_tokenizer)
    # What a decoder generates continues the prompt; the output of an encoder-decoder does not.
    continues = lm.spec.family == "decoder-only"
    if num_beams is not None:
        for prompt in known:
            text = lm.generate(prompt, draft=drafts, num_beams=num_beams, **options)
            line = prompt + text if continues else text
            show({"prompt": prompt, "text": text}, line, as_json=as_json)
        return
    seed = options.setdefault("seed", secrets.randbits(31))
    jobs = ((prompt, seed + number) for prompt in known for number in range(num_samples))
    chats = rank is not None and lm.settings.chat_template is not None
    generated = (
        one for some in batched(jobs) for one in _generate(lm, options, some, slots, drafts, chats)
    )
    if rank is not None:
        _rank(lm, _reward(rank), generated, num_samples, pairs, as_json)
        return
    separator = ""
    for prompt, request, pieces in generated:
        if as_json:
            for _ in pieces:
                pass
            print_json(_record(prompt, request))
        else:
            typer.echo(separator + (prompt if continues else ""), nl=False)
            for piece in pieces:
                typer.echo(piece, nl=False)
            typer.echo()
            separator = "\n"
        lm.warn_of_lengths([request])


class _Ranking(Config):
    reward: RewardFunction


def _reward(rank: str) -> RewardFunction:
    """A reward model by its name, or a reward as a recipe has it."""
    tree: Any = {"kind": "model", "model": rank}
    if rank.startswith("{"):
        try:
            tree = tomllib.loads(f"reward = {rank}")["reward"]
        except tomllib.TOMLDecodeError as error:
            raise RecipeError(f"--rank {rank} is not valid TOML: {error}.") from None
    reward = _Ranking.parse({"reward": tree}, where="--rank").reward
    reward.open()
    return reward


def _record(prompt: str, request: GenerationRequest, **more: float) -> dict[str, Any]:
    record = {"prompt": prompt, "text": request.text, "seed": request.seed}
    return {**record, "finish_reason": request.finish_reason, **more}


def _rank(
    lm: LanguageModel,
    reward: RewardFunction,
    generated: Generated,
    num_samples: int,
    pairs: Path | None,
    as_json: bool,
) -> None:
    """Show the samples of every prompt, the best first; write pairs of them."""
    counts = Counter[str]()
    if pairs is not None:
        pairs.parent.mkdir(parents=True, exist_ok=True)
    with nullcontext() if pairs is None else pairs.open("w", encoding="utf-8") as file:
        while some := list(islice(generated, num_samples)):
            prompt, requests = some[0][0], [request for _, request, _ in some]
            for _ in chain(*(pieces for _, _, pieces in some)):
                pass
            samples = ranked(lm, reward, prompt, requests)
            if not as_json:
                typer.echo(f"\n{prompt}" if counts else prompt)
            for score, one in samples:
                line = tab_separated(f"{score:.4f}", one.text)
                show(_record(prompt, one, reward=score), line, as_json=as_json)
            pair = best_and_worst(lm, prompt, samples)
            counts["pairs" if pair else "equal"] += 1
            counts["cut"] += sum(one.finish_reason == "length" for one in requests)
            if file is not None and pair is not None:
                file.write(json.dumps(pair, ensure_ascii=False) + "\n")
            lm.warn_of_lengths(requests)
    if pairs is not None:
        words = translated(
            "generate.pairs",
            pairs=counts["pairs"],
            file=pairs,
            equal=counts["equal"],
            cut=counts["cut"],
        )
        typer.echo(words, err=True)


def _generate(
    lm: LanguageModel,
    options: Mapping[str, Any],
    jobs: list[tuple[str, int]],
    slots: int,
    draft: Draft | None,
    chats: bool,
) -> Generated:
    """The texts of prompts; with `chats` these are the messages of a user.

    A prompt that is refused is an error after the texts before it.
    """
    requests: list[tuple[str, GenerationRequest]] = []
    for prompt, seed in jobs:
        message = {"role": "user", "content": prompt}
        ids = lm.conversation_ids([message]) if chats else prompt_ids(lm.prompting, prompt)
        params = lm.sampling_params(ids, {**options, "seed": seed})
        requests.append((prompt, GenerationRequest(ids, params, answers=chats)))
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


def _draft(draft: str | None, device: str, lm: LanguageModel) -> Draft | None:
    """The source of draft tokens: the text so far, or a smaller model."""
    if draft is None:
        return None
    if draft == "lookup":
        return PromptLookup()
    smaller = load(draft, device=device, pack=True)
    if smaller.text_tokenizer.fingerprint != lm.text_tokenizer.fingerprint:
        raise TriviumError(
            f"--draft {draft} has another tokenizer than the model: a draft model needs the same."
        )
    return DraftModel(smaller.module)
