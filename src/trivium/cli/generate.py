"""`trivium generate`: generate continuations of prompts.

Examples:

  trivium generate stories "Once upon a time"

  trivium generate runs/gpt "Once upon a time"

  trivium generate runs/gpt

  trivium generate runs/gpt "The weather" --temperature 0 --max-new-tokens 20

  trivium generate runs/gpt "The weather" --top-p 0.95 --num-samples 3 --seed 1

  trivium generate runs/gpt "The weather" --num-beams 4

  trivium generate runs/gpt "The weather is" --choices rainy --choices "cold and dry"

  trivium generate runs/gpt "A date: " --regex "[0-9]{4}-[0-9]{2}-[0-9]{2}"

  trivium generate runs/gpt "A person as JSON: " --json-schema person.json

  trivium generate runs/gpt "List: one, two," --draft lookup --stop "."

  cat prompts.txt | trivium generate runs/gpt --json

  trivium generate runs/gpt "The film was" --num-samples 8 --rank runs/reward

  trivium generate runs/gpt --num-samples 8 --rank runs/reward --pairs pairs.jsonl < prompts.txt
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli import UsageError
from trivium.cli import _options as opt
from trivium.cli._shared import (
    ask_for_texts,
    check_characters,
    load,
    print_json,
    print_result,
    read_texts,
)
from trivium.inference.sampling_params import SamplingParams
from trivium.messages import translated


@opt.with_options(
    SamplingParams, exclude=["json_schema", "grammar", "top_logprobs"], unset=opt.MODELS_OWN
)
def generate(
    model: opt.Model,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT")] = None,
    checkpoint: opt.Checkpoint = None,
    num_samples: opt.Positive = 1,
    num_beams: Annotated[int | None, typer.Option(min=1, show_default=False)] = None,
    rank: Annotated[str | None, typer.Option(metavar="MODEL|{kind=...}")] = None,
    pairs: Path | None = None,
    draft: Annotated[str | None, typer.Option(metavar="lookup|MODEL", show_default=False)] = None,
    json_schema: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False)] = None,
    slots: opt.Positive = 8,
    dtype: opt.Dtype = None,
    quantize: opt.Quantize = None,
    compile: opt.Compile = False,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    as_json: opt.Json = False,
    **options: Any,
) -> None:
    """Generate continuations of prompts and print them as they are generated.

    Generation stops at the end-of-text token, at a stop string, after --max-new-tokens, or at the
    model's context length.

    Args:
        prompts: The prompts. Default: the lines of stdin; on a terminal, asks for one prompt after
            another until an empty line or Ctrl-D.
        num_samples: Number of continuations per prompt.
        num_beams: Use beam search with this number of beams instead of sampling; 1 is greedy.
            Cannot be combined with sampling options, --num-samples, --rank or --draft.
        rank: Print the samples of each prompt in order of reward, highest first. MODEL is a run of
            `finetune reward`; a reward in recipe syntax is, for example, '{kind="length",
            target=80}'. A chat model answers the prompts instead of continuing them.
        pairs: With --rank: write the best and the worst sample of each prompt to this file (JSON
            lines), which `finetune preference` reads.
        draft: Speculative decoding: take draft tokens from n-grams of the text so far (lookup), or
            from a smaller model with the same tokenizer. Changes the speed, not the text.
        json_schema: A file with a JSON schema that the generated text must follow. The text has the
            white space of Python's json.dumps. Needs the extra `structured`, like --regex.
        slots: Number of texts generated at the same time.
    """
    if rank is None and pairs is not None:
        raise UsageError("--pairs writes ranked samples: add --rank MODEL.")
    lm = load(
        model,
        checkpoint=checkpoint,
        device=device,
        dtype=dtype,
        quantize=quantize,
        pack=not compile,
        compile=compile,
    ).reading(special_tokens)
    from trivium.cli import _generation as generation

    if num_beams is not None and (num_samples > 1 or rank is not None):
        raise UsageError("beam search generates one text: leave out --num-samples and --rank.")
    chats = lm.settings.chat_template is not None
    if chats and rank is None:
        warnings.warn(
            "this model has a chat template, which `generate` does not use: "
            f"`trivium chat {model}` uses the template.",
            stacklevel=2,
        )
    drafts = generation.load_draft(draft, device, lm)
    if options.get("temperature") == 0 and num_samples > 1:
        warnings.warn(
            "--temperature 0 is greedy: all samples of a prompt are the same.", stacklevel=2
        )
    options = opt.drop_unset(options)
    if json_schema is not None:
        options["json_schema"] = generation.read_json_schema(json_schema)
    asks = not prompts and sys.stdin.isatty()
    texts = ask_for_texts(translated("generate.ask")) if asks else read_texts(prompts)
    known = check_characters(texts, lm.source_tokenizer)
    # The text from a decoder continues the prompt; the output of an encoder-decoder does not.
    continues = lm.spec.family == "decoder-only"
    if num_beams is not None:
        for prompt in known:
            text = lm.generate(prompt, draft=drafts, num_beams=num_beams, **options)
            line = prompt + text if continues else text
            print_result({"prompt": prompt, "text": text}, line, as_json=as_json)
        return
    batches = generation.batch_prompts(
        known, num_samples, options.pop("seed", None), one_by_one=asks
    )
    generated = (
        sample
        for batch in batches
        for sample in generation.generate_samples(
            lm, options, batch, slots, drafts, chats and rank is not None
        )
    )
    if rank is not None:
        reward = generation.load_reward(rank)
        generation.print_ranked_samples(lm, reward, generated, num_samples, pairs, as_json)
        return
    separator = ""
    for prompt, request, pieces in generated:
        if as_json:
            for _ in pieces:
                pass
            print_json(generation.sample_to_dict(prompt, request))
        else:
            typer.echo(separator + (prompt if continues else ""), nl=False)
            for piece in pieces:
                typer.echo(piece, nl=False)
            typer.echo()
            separator = "\n"
        lm.warn_of_lengths([request])
