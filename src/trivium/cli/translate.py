"""`trivium translate`: generate translations, summaries or other target texts from sources.

Examples:

  trivium translate runs/en-fr "The cat sleeps."

  cat news.en | trivium translate runs/en-fr > news.fr

  trivium translate runs/t5 "summarize: ..." --num-beams 1 --max-new-tokens 60

  trivium translate facebook/nllb-200-distilled-600M "Hello." --from eng_Latn --to fra_Latn
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
    source_language: Annotated[
        str | None, typer.Option("--from", metavar="LANGUAGE", show_default="the tokenizer's")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option("--to", metavar="LANGUAGE", show_default="the model's")
    ] = None,
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
        source_language: Language of the texts, for a multilingual model such as mBART (en_XX),
            NLLB (eng_Latn) or M2M-100 (en).
        target_language: Language of the outputs.
        max_new_tokens: Maximum number of tokens of a target.
    """
    lm = load(
        model, device=device, dtype=dtype, quantize=quantize, pack=not compile, compile=compile
    ).reading(special_tokens)
    for batch in read_text_batches(texts, lm.source_tokenizer):
        sources = [text for text in batch if text.strip()]
        translations = lm.translate(
            sources,
            source_language=source_language,
            target_language=target_language,
            max_new_tokens=max_new_tokens,
            **opt.drop_unset(options),
        )
        targets = iter(translations)
        for text in batch:
            target = next(targets) if text.strip() else ""
            print_result(
                {"text": text, "target": target}, " ".join(target.split("\n")), as_json=as_json
            )
