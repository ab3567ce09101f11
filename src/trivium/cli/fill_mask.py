"""`trivium fill-mask`: predict masked tokens.

Examples:

  trivium fill-mask runs/mine "The [MASK] was cloudy yesterday, but today it's rainy."

  trivium fill-mask runs/mine "It was [MASK] and [MASK]." --checkpoint 500 --top-k 3

  trivium fill-mask runs/t5 "It was <mask>, and then it rained for <mask>."

  cat lines.txt | trivium fill-mask runs/mine --json
"""

from __future__ import annotations

from typing import Any

import typer

from trivium.cli import _options as opt
from trivium.cli._shared import known_texts, load, read_texts, show
from trivium.messages import translated

_NOTHING = "(nothing)"  # an empty fill of T5, BART or GLM


def fill_mask(
    model: opt.Model,
    texts: opt.Texts = None,
    checkpoint: opt.Checkpoint = None,
    top_k: opt.Positive = 5,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    as_json: opt.Json = False,
) -> None:
    """Predictions for every masked token, most probable first.

    An encoder predicts one token per [MASK], with its probability. T5, BART and GLM fill each
    <mask> with any number, with their probability per token; the sum of these may exceed 1.

    Args:
        top_k: Predictions at most: per mask; T5 and BART: for all masks together; GLM: one.
    """
    lm = load(model, checkpoint=checkpoint, device=device).reading(special_tokens)
    percent = lm.spec.family == "encoder-only"
    for number, text in enumerate(known_texts(read_texts(texts), lm.source_tokenizer)):
        fills = lm.fill_mask(text, top_k=top_k)
        if not (number or percent or as_json):
            typer.echo(translated("fill-mask.scores"), err=True)
        masks: list[list[Any]] = fills if isinstance(fills[0], list) else [fills]
        table = _table(masks, percent=percent)
        record = {"text": text, "masks": masks}
        show(record, ("\n" if number else "") + table, as_json=as_json)


def _table(masks: list[list[Any]], *, percent: bool) -> str:
    """Probability, token and completed text, one prediction per line."""
    style = "7.2%" if percent else "7.4f"  # Probabilities per token are no shares of 100%.
    width = max(len(fill.token or _NOTHING) for fills in masks for fill in fills)
    parts = []
    for number, fills in enumerate(masks, start=1):
        lines = [f"mask {number} of {len(masks)}"] if len(masks) > 1 else []
        lines += [
            f"{fill.score:{style}}  {fill.token or _NOTHING:<{width}}  {fill.sequence}"
            for fill in fills
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
