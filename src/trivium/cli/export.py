"""`trivium export`: export a model for Hugging Face, llama.cpp, onnxruntime or a web page.

Examples:

  trivium export runs/mine exported/mine

  python -c "import transformers; transformers.AutoModel.from_pretrained('exported/mine')"

  trivium export runs/mine exported/mine --push OWNER/NAME

  trivium export runs/mine exported/ollama --format gguf --type q8_0

  ollama create mine -f exported/ollama/Modelfile

  trivium export runs/lora exported/lora --format gguf --adapter-only

  trivium export runs/mine exported/onnx --format onnx --type int8

  trivium export runs/mine exported/page --format web --type int8
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trivium.cli import UsageError
from trivium.cli import _options as opt
from trivium.cli._shared import load
from trivium.files import read_json
from trivium.interrupts import exit_on_interrupt
from trivium.messages import translated

# The data types of each format; the first is the default.
_ONNX_TYPES = ("f32", "f16", "int8")
_GGUF_TYPES = ("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
_TYPES = {"hf": (), "gguf": _GGUF_TYPES, "onnx": _ONNX_TYPES, "web": _ONNX_TYPES}


def export(
    model: opt.Model,
    out: Annotated[Path, typer.Argument(metavar="OUT")],
    overwrite: opt.Replace = False,
    format: Annotated[
        Literal["hf", "gguf", "onnx", "web"],
        typer.Option(
            help="hf: for transformers; gguf: for llama.cpp and Ollama; onnx: for onnxruntime and "
            "transformers.js; web: a page that runs the model in the browser."
        ),
    ] = "hf",
    type: Annotated[
        Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "int8"] | None,
        typer.Option(
            help="The data type of the weights. gguf: f16 (default), f32, bf16, q8_0 (8 bits), "
            "q5_1, q5_0 (5 bits), q4_1 or q4_0 (4 bits); onnx and web: f32 (default), f16 or int8."
        ),
    ] = None,
    adapter_only: Annotated[
        bool,
        typer.Option(
            "--adapter-only",
            help="With gguf: write only the LoRA adapter of a model, which llama.cpp adds to the "
            "GGUF file of the base. Without it, the adapter is merged into the weights.",
        ),
    ] = False,
    library: Annotated[
        Path | None,
        typer.Option(
            help="With web: a folder with the archives of transformers.js that npm pack wrote. "
            "Without it, the page shows the commands that fetch them."
        ),
    ] = None,
    card: Annotated[
        bool,
        typer.Option(
            "--card", help="With hf: write a model card, README.md, from the files of the run."
        ),
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="With hf: upload the folder with its model card to the Hugging Face hub.",
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="With --push: make a new repository private.")
    ] = False,
) -> None:
    """Export a model to a folder that `transformers` can load.

    The exported model produces the same logits and token ids. For T5 and Marian, the exported
    tokenizer appends </s> to each text, a token that `trivium tokenizer encode` does not show.

    With --card, the folder has a model card with the data, recipe, losses and metrics of the run.
    What the run does not know, such as the licence of your text, is a question in the card.

    With --push, the folder is uploaded with the token of `hf auth login` or HF_TOKEN. As with other
    programs of the hub, a new repository is public unless your account says otherwise or --private
    is given. A card that the repository already has is kept.

    With --format gguf, the folder contains a GGUF file for llama.cpp and a Modelfile for Ollama.
    With --format onnx, it contains ONNX files beside the tokenizer and config.json. With --format
    web, it contains a page that runs the model in the browser, served by any static web server.

    Args:
        out: The output folder.
    """
    _check_options(
        format,
        type,
        adapter_only=adapter_only,
        library=library,
        card=card,
        push=push,
        private=private,
    )
    with exit_on_interrupt():
        from trivium.interop.hub import check_push, push_folder
        from trivium.model_folder import check_replaceable

    check_replaceable(out, overwrite=overwrite)
    if push is not None:
        check_push(push)
    lm = load(model, device="cpu")
    lm = lm if adapter_only else lm.merge_adapter()
    chosen: Any = type or next(iter(_TYPES[format]), None)
    if adapter_only:
        lm.save_gguf_adapter(out, weight_type=chosen, overwrite=overwrite)
        typer.echo(f"{out}: GGUF, LoRA, {chosen}")
    elif format == "gguf":
        lm.save_gguf(out, weight_type=chosen, overwrite=overwrite)
        typer.echo(f"{out}: GGUF, {chosen}")
    elif format == "onnx":
        lm.save_onnx(out, weight_type=chosen, overwrite=overwrite)
        typer.echo(f"{out}: ONNX, {chosen}")
    elif format == "web":
        lm.save_web(out, weight_type=chosen, library=library, overwrite=overwrite)
        typer.echo(f"{out}: {translated('export.page', type=chosen)}")
    else:
        lm.save_hf(out, overwrite=overwrite)
        typer.echo(f"{out}: {', '.join(read_json(out / 'config.json')['architectures'])}")
    questions = 0
    if card or push is not None:
        from trivium.workflows.model_card import write_model_card

        questions = write_model_card(out, lm, model, name=push)
    for file in sorted(each for each in out.rglob("*") if each.is_file()):
        size = translated("export.size", size=file.stat().st_size)
        typer.echo(f"  {file.relative_to(out).as_posix():<28}{size}")
    if questions:
        typer.echo(translated("export.questions", file=out / "README.md", count=questions))
    if push is not None:
        typer.echo(translated("export.pushed", url=push_folder(out, push, private=private)))
    if format == "web":
        from trivium.interop.web_page import library_commands

        fetch = [] if library is not None else library_commands()
        typer.echo(translated("export.serve"))
        for command in (f"cd {shlex.quote(str(out))}", *fetch, "python3 -m http.server"):
            typer.echo(f"  {command}")


def _check_options(
    format: str,
    type: str | None,
    *,
    adapter_only: bool,
    library: Path | None,
    card: bool,
    push: str | None,
    private: bool,
) -> None:
    """Raise UsageError if an option does not fit the format or needs another option."""
    types = _TYPES[format]
    if type is not None and type not in types:
        allowed = f"takes --type {', '.join(types)}" if types else "takes no --type"
        raise UsageError(f"--format {format} {allowed}; given: --type {type}.")
    if adapter_only and format != "gguf":
        raise UsageError("--adapter-only needs --format gguf.")
    if library is not None and format != "web":
        raise UsageError("--library needs --format web.")
    for option, given in (("--card", card), ("--push", push is not None)):
        if given and format != "hf":
            raise UsageError(f"{option} needs --format hf.")
    if private and push is None:
        raise UsageError("--private needs --push OWNER/NAME.")
