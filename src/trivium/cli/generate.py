"""`trivium generate`: continue texts.

Examples:

  trivium generate runs/gpt "Once upon a time"

  trivium generate runs/gpt "The weather" --temperature 0 --max-new-tokens 20

  trivium generate runs/gpt "The weather" --top-p 0.95 --num-samples 3 --seed 1

  trivium generate runs/gpt "The weather is" --choices rainy --choices "cold and dry"

  trivium generate runs/gpt "List: one, two," --draft lookup --stop "."

  cat prompts.txt | trivium generate runs/gpt --json
"""

from __future__ import annotations

import secrets
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from trivium.cli import _options as opt
from trivium.cli._shared import batched, known_texts, print_json, read_texts
from trivium.errors import TriviumError
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.speculative import Draft, DraftModel, PromptLookup
from trivium.inference.text_model import prompt_ids
from trivium.language_model import LanguageModel
from trivium.model_loading import load


@opt.with_options(SamplingParams, exclude=["top_logprobs"], unset=opt.MODELS_OWN)
def generate(
    model: opt.Model,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT")] = None,
    num_samples: opt.Positive = 1,
    draft: Annotated[str | None, typer.Option(metavar="lookup|MODEL", show_default=False)] = None,
    slots: opt.Positive = 8,
    dtype: opt.Dtype = None,
    quantize: opt.Quantize = None,
    compile: opt.Compile = False,
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    **options: Any,
) -> None:
    """Continue texts, shown as they are generated.

    A text ends with the end-of-text token, a stop string, after --max-new-tokens, or at the model's
    context length.

    Args:
        prompts: Default: the lines of stdin; on a terminal, an empty prompt.
        num_samples: Continuations per prompt.
        draft: Speculative decoding: draft tokens from n-grams of the text so far, or from a smaller
            model with the same tokenizer. It changes the speed, not the text.
        slots: Texts generated at the same time.
    """
    lm = load(
        model, device=device, dtype=dtype, quantize=quantize, pack=not compile, compile=compile
    )
    drafts = _draft(draft, device, lm)
    if options.get("temperature") == 0 and num_samples > 1:
        warnings.warn("--temperature 0 is greedy: all samples of a prompt are equal.", stacklevel=2)
    options = opt.only_set(options)
    seed = options.setdefault("seed", secrets.randbits(31))
    if not prompts and sys.stdin.isatty():
        prompts = [""]
    known = known_texts(read_texts(prompts), lm.source_tokenizer)
    jobs = ((prompt, seed + number) for prompt in known for number in range(num_samples))
    # What a decoder generates continues the prompt; the output of an encoder-decoder does not.
    continues = lm.spec.family == "decoder-only"
    separator = ""
    for batch in batched(jobs):
        for prompt, request, pieces in _generate(lm, options, batch, slots, drafts):
            if as_json:
                for _ in pieces:
                    pass
                record = {"prompt": prompt, "text": request.text, "seed": request.seed}
                record["finish_reason"] = request.finish_reason
                print_json(record)
            else:
                typer.echo(separator + (prompt if continues else ""), nl=False)
                for piece in pieces:
                    typer.echo(piece, nl=False)
                typer.echo()
                separator = "\n"
            lm.warn_of_lengths([request])


def _generate(
    lm: LanguageModel,
    options: Mapping[str, Any],
    jobs: list[tuple[str, int]],
    slots: int,
    draft: Draft | None,
) -> Iterator[tuple[str, GenerationRequest, Iterator[str]]]:
    """Each prompt in its turn with its request and pieces of text; all generate together.

    A prompt that is refused is an error after the texts before it.
    """
    requests: list[tuple[str, GenerationRequest]] = []
    for prompt, seed in jobs:
        ids = prompt_ids(lm, prompt)
        params = lm.sampling_params(ids, {**options, "seed": seed})
        requests.append((prompt, GenerationRequest(ids, params)))
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
