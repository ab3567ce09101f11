"""`trivium import`: convert a Hugging Face model to a model folder.

Examples:

  trivium import downloads/bert-base-uncased models/bert

  trivium import google-t5/t5-small models/t5

  trivium fill-mask models/bert "The [MASK] was cloudy yesterday."
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trivium.cli import _options as opt
from trivium.cli._shared import load
from trivium.interrupts import exit_on_interrupt
from trivium.messages import padded, translated


def import_(
    source: str,
    out: Annotated[Path, typer.Argument(metavar="OUT")],
    lowercase: Annotated[
        bool | None, typer.Option("--lowercase/--cased", show_default="inferred from the tokens")
    ] = None,
    allow_unknown_keys: bool = False,
    overwrite: opt.Replace = False,
) -> None:
    """Convert a Hugging Face model, including its tokenizer, labels, settings and chat template.

    The conversion is optional: every command also reads Hugging Face folders directly.

    Args:
        source: A folder saved by `transformers`, or a name on the Hugging Face hub (NAME or
            NAME@REVISION).
        out: The output folder.
        lowercase: Whether the tokenizer lower-cases text, for a vocab.txt without a configuration.
        allow_unknown_keys: Print a warning instead of an error for options in config.json that
            transformers uses and Trivium does not support.
    """
    with exit_on_interrupt():
        from trivium.model_folder import check_replaceable
        from trivium.models import num_parameters

    check_replaceable(out, overwrite=overwrite)
    options = {"lowercase": lowercase, "allow_unknown_keys": allow_unknown_keys}
    lm = load(source, device="cpu", **options).merge_adapter()
    lm.save(out, overwrite=overwrite)
    heads = ", ".join(head.kind for head in lm.spec.heads) or translated("import.none")
    tokenizer = lm.tokenizer
    vocabulary = translated("import.none")
    if tokenizer:
        vocabulary = translated("import.tokenizer", kind=tokenizer.kind, size=tokenizer.vocab_size)
    count = num_parameters(lm.spec)
    typer.echo(translated("import.written", out=out, family=lm.spec.family, count=count))
    capabilities = ", ".join(lm.capabilities).replace("_", "-")
    lines = {"output_heads": heads, "tokenizer": vocabulary, "capabilities": capabilities}
    for name, text in lines.items():
        typer.echo(f"  {padded(translated(f'label.{name}'), 12)}  {text}")
