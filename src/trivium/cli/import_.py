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
from trivium.model_folder import check_replaceable
from trivium.model_loading import load
from trivium.models import num_parameters


def import_(
    source: str,
    out: Annotated[Path, typer.Argument(metavar="OUT")],
    lowercase: Annotated[
        bool | None, typer.Option("--lowercase/--cased", show_default="as its tokens suggest")
    ] = None,
    allow_unknown_keys: bool = False,
    overwrite: opt.Replace = False,
) -> None:
    """Convert a Hugging Face model with its tokenizer, labels, settings and chat template.

    Every command reads Hugging Face folders directly, too.

    Args:
        source: A folder that `transformers` wrote, or a name on the hub, also NAME@REVISION.
        out: The folder to write.
        lowercase: For a vocab.txt without a configuration.
        allow_unknown_keys: Only warn of options in config.json that are not known.
    """
    check_replaceable(out, overwrite=overwrite)
    lm = load(source, device="cpu", lowercase=lowercase, allow_unknown_keys=allow_unknown_keys)
    lm.save(out, overwrite=overwrite)
    heads = ", ".join(head.kind for head in lm.spec.heads) or "none"
    tokenizer = lm.tokenizer
    vocabulary = f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens" if tokenizer else "none"
    typer.echo(f"{out}: {lm.spec.family}, {num_parameters(lm.spec):,} parameters")
    typer.echo(f"  heads         {heads}")
    typer.echo(f"  tokenizer     {vocabulary}")
    typer.echo(f"  capabilities  {', '.join(lm.capabilities).replace('_', '-')}")
