"""`trivium export`: export a model for Hugging Face or for llama.cpp.

Examples:

  trivium export runs/mine exported/mine

  python -c "import transformers; transformers.AutoModel.from_pretrained('exported/mine')"

  trivium export runs/mine exported/ollama --format gguf --type q8_0

  ollama create mine -f exported/ollama/Modelfile
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trivium.cli import UsageError
from trivium.cli import _options as opt
from trivium.cli._shared import load
from trivium.files import read_json
from trivium.interrupts import exit_on_interrupt
from trivium.messages import translated


def export(
    model: opt.Model,
    out: Annotated[Path, typer.Argument(metavar="OUT")],
    overwrite: opt.Replace = False,
    format: Annotated[
        Literal["hf", "gguf"],
        typer.Option(help="hf: for transformers; gguf: for llama.cpp and Ollama."),
    ] = "hf",
    type: Annotated[
        Literal["f32", "f16", "bf16", "q8_0"] | None,
        typer.Option(help="With gguf: the data type of the weights.", show_default="f16"),
    ] = None,
) -> None:
    """Export a model to a folder that `transformers` can load.

    The exported model produces the same logits and token ids. For T5 and Marian, the exported
    tokenizer appends </s> to each text, a token that `trivium tokenizer encode` does not show.

    With --format gguf, the folder contains a GGUF file for llama.cpp and a Modelfile for Ollama.

    Args:
        out: The output folder.
    """
    if type is not None and format != "gguf":
        raise UsageError("--type needs --format gguf.")
    with exit_on_interrupt():
        from trivium.model_folder import check_replaceable

    check_replaceable(out, overwrite=overwrite)
    lm = load(model, device="cpu").merge_adapter()
    if format == "gguf":
        lm.save_gguf(out, weight_type=type or "f16", overwrite=overwrite)
        typer.echo(f"{out}: GGUF, {type or 'f16'}")
    else:
        lm.save_hf(out, overwrite=overwrite)
        typer.echo(f"{out}: {', '.join(read_json(out / 'config.json')['architectures'])}")
    for file in sorted(out.iterdir()):
        size = translated("export.size", size=file.stat().st_size)
        typer.echo(f"  {file.name:<28}{size}")
