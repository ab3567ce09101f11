"""`trivium export`: export a model to a Hugging Face folder.

Examples:

  trivium export runs/mine exported/mine

  python -c "import transformers; transformers.AutoModel.from_pretrained('exported/mine')"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trivium.cli import _options as opt
from trivium.cli._shared import load
from trivium.files import read_json
from trivium.interrupts import exit_on_interrupt
from trivium.messages import translated


def export(
    model: opt.Model,
    out: Annotated[Path, typer.Argument(metavar="OUT")],
    overwrite: opt.Replace = False,
) -> None:
    """Export a model to a folder that `transformers` loads, with the same logits and token ids.

    In transformers, the tokenizers of T5 and Marian append </s> to a text; `trivium tokenizer
    encode` does not show this token.

    Args:
        out: The output folder.
    """
    with exit_on_interrupt():
        from trivium.model_folder import check_replaceable

    check_replaceable(out, overwrite=overwrite)
    load(model, device="cpu").merge_adapter().save_hf(out, overwrite=overwrite)
    typer.echo(f"{out}: {', '.join(read_json(out / 'config.json')['architectures'])}")
    for file in sorted(out.iterdir()):
        size = translated("export.size", size=file.stat().st_size)
        typer.echo(f"  {file.name:<28}{size}")
