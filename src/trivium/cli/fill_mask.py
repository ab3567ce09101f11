"""`trivium fill-mask`: predict masked tokens.

Examples:

  trivium fill-mask sample-encoder "He was born in New [MASK] City."

  trivium fill-mask runs/mine "The [MASK] was cloudy yesterday, but today it's rainy."

  trivium fill-mask runs/mine "It was [MASK] and [MASK]." --checkpoint 500 --top-k 3

  trivium fill-mask runs/t5 "It was <mask>, and then it rained for <mask>."

  cat lines.txt | trivium fill-mask runs/mine --json
"""

from __future__ import annotations

from typing import Any

import typer

from trivium.cli import _options as opt
from trivium.cli._shared import check_characters, load, print_result, read_texts
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
    """Predict the masked tokens of texts, the most probable prediction first.

    An encoder predicts one token per [MASK] and prints its probability. T5, BART and GLM fill each
    <mask> with any number of tokens and print the probability per token (the geometric mean); these
    scores may sum to more than 1.

    Args:
        top_k: Maximum number of predictions per mask. T5 and BART predict all masks of a text
            together; GLM always returns one prediction.
    """
    lm = load(model, checkpoint=checkpoint, device=device).reading(special_tokens)
    percent = lm.spec.family == "encoder-only"
    for number, text in enumerate(check_characters(read_texts(texts), lm.source_tokenizer)):
        fills = lm.fill_mask(text, top_k=top_k)
        if not (number or percent or as_json):
            typer.echo(translated("fill-mask.scores"), err=True)
        masks: list[list[Any]] = fills if isinstance(fills[0], list) else [fills]
        table = _format_fills(masks, percent=percent)
        record = {"text": text, "masks": masks}
        print_result(record, ("\n" if number else "") + table, as_json=as_json)


def _format_fills(masks: list[list[Any]], *, percent: bool) -> str:
    """Format the predictions for masks as text, one line per prediction.

    Each line contains the score, the token and the completed text.

    If `percent` is true, the scores are probabilities and are printed as percentages.
    """
    style = "7.2%" if percent else "7.4f"  # Probabilities per token do not add up to 100%.
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
