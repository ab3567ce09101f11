"""`trivium infill`: fill the gap in a text with a decoder.

Examples:

  trivium infill runs/fim "The weather was <FILL_ME>, so we stayed at home." --temperature 0

  trivium infill runs/fim --order spm --max-new-tokens 100 < unfinished.py

  trivium infill runs/fim --json < unfinished.py
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from trivium.cli import UsageError
from trivium.cli import _options as opt
from trivium.cli._shared import load, print_json
from trivium.inference.sampling_params import SamplingParams
from trivium.text.infilling import GAP, Order


@opt.with_options(
    SamplingParams,
    exclude=["json_schema", "regex", "choices", "grammar", "top_logprobs"],
    unset=opt.MODELS_OWN,
)
def infill(
    model: opt.Model,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", show_default=False)] = None,
    checkpoint: opt.Checkpoint = None,
    order: Order = "psm",
    dtype: opt.Dtype = None,
    quantize: opt.Quantize = None,
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    **options: Any,
) -> None:
    """Fill the gap in a text and print the whole text.

    The gap is marked by <FILL_ME>. The model must be a decoder that was trained to fill in the
    middle: with objective.kind=fill-in-the-middle, or a published model such as StarCoder or
    Qwen2.5-Coder.

    Args:
        text: The text with one <FILL_ME>. Default: all of stdin.
        order: The order in which the model reads the parts: prefix, suffix, middle (psm) or suffix,
            prefix, middle (spm).
    """
    whole = sys.stdin.read() if text is None else text
    prefix, gap, suffix = whole.partition(GAP)
    if not gap or GAP in suffix:
        raise UsageError(
            f"a text to fill has one {GAP}, and this one has {whole.count(GAP)}: put it where "
            "the new text belongs."
        )
    lm = load(
        model, checkpoint=checkpoint, device=device, dtype=dtype, quantize=quantize, pack=True
    )
    middle = lm.infill(prefix, suffix, order=order, **opt.drop_unset(options))
    if as_json:
        print_json({"prefix": prefix, "suffix": suffix, "text": middle})
    else:
        typer.echo(prefix + middle + suffix, nl=not suffix.endswith("\n"))
