"""`trivium translate`: generate translations, summaries or other target texts from sources.

Examples:

  trivium translate runs/en-fr "The cat sleeps."

  cat news.en | trivium translate runs/en-fr > news.fr

  trivium translate runs/t5 "summarize: ..." --num-beams 1 --max-new-tokens 60
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trivium.cli import _options as opt
from trivium.cli._shared import load, print_result, read_text_batches
from trivium.inference.sampling_params import BeamSearchParams


@opt.with_options(BeamSearchParams, exclude=["early_stopping", "num_return"], unset=opt.MODELS_OWN)
def translate(
    model: opt.Model,
    texts: opt.Texts = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="the model's, or twice the length of the source plus 16, at most 256",
        ),
    ] = None,
    dtype: opt.Dtype = None,
    quantize: opt.Quantize = None,
    compile: opt.Compile = False,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    as_json: opt.Json = False,
    **options: Any,
) -> None:
    """Generate the target of each source with beam search, one line per source.

    A blank line remains blank. The prefix from fine-tuning (objective.prefix) is added to every
    source. A T5 or BART without fine-tuning also generates text, but not a translation.

    Args:
        max_new_tokens: Maximum number of tokens of a target.
    """
    lm = load(
        model, device=device, dtype=dtype, quantize=quantize, pack=not compile, compile=compile
    ).reading(special_tokens)
    for batch in read_text_batches(texts, lm.source_tokenizer):
        sources = [text for text in batch if text.strip()]
        targets = iter(
            lm.translate(sources, max_new_tokens=max_new_tokens, **opt.drop_unset(options))
        )
        for text in batch:
            target = next(targets) if text.strip() else ""
            print_result(
                {"text": text, "target": target}, " ".join(target.split("\n")), as_json=as_json
            )
