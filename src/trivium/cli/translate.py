"""`trivium translate`: generate the target of a source: a translation, a summary.

Examples:

  trivium translate runs/en-fr "The cat sleeps."

  cat news.en | trivium translate runs/en-fr > news.fr

  trivium translate runs/t5 "summarize: ..." --num-beams 1 --max-new-tokens 60
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trivium.cli._shared import (
    CompileOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelArgument,
    QuantizeOption,
    TextsArgument,
    batched,
    read_texts,
    show,
)
from trivium.model_loading import load


def translate(
    model: ModelArgument,
    texts: TextsArgument = None,
    num_beams: Annotated[
        int | None,
        typer.Option(
            help="Beams of the search; 1 is greedy.", min=1, show_default="the model's, or 4"
        ),
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="Above 0 favours long targets.", show_default="the model's, or 1"),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a target at most.", min=1)
    ] = None,
    dtype: DtypeOption = None,
    quantize: QuantizeOption = None,
    compile: CompileOption = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """The target of every source by beam search, one line each; a blank line stays blank.

    The prefix that the model was fine-tuned with (objective.prefix) is added to every source. A
    T5 or BART without fine-tuning also answers, but its text is no translation.
    """
    lm = load(
        model, device=device, dtype=dtype, quantize=quantize, pack=not compile, compile=compile
    )
    options: dict[str, Any] = {"num_beams": num_beams, "length_penalty": length_penalty}
    options = {name: value for name, value in options.items() if value is not None}
    for batch in batched(read_texts(texts, keep_blank=True)):
        sources = [text for text in batch if text.strip()]
        targets = iter(lm.translate(sources, max_new_tokens=max_new_tokens, **options))
        for text in batch:
            target = next(targets) if text.strip() else ""
            show({"text": text, "target": target}, " ".join(target.split("\n")), as_json=as_json)
