"""`trivium import`: a Hugging Face model as one of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trivium.language_model import LanguageModel, load

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium import downloads/bert-base-uncased models/bert

  trivium import google-t5/t5-small models/t5

  trivium fill-mask models/bert "The [MASK] was cloudy yesterday."
"""


@app.command(name="import", epilog=_EPILOG)
def import_(
    source: Annotated[
        str, typer.Argument(help="A folder that transformers wrote, or a name on the hub.")
    ],
    out: Annotated[Path, typer.Argument(help="The folder to write; one of ours is replaced.")],
    lowercase: Annotated[
        bool | None,
        typer.Option(
            "--lowercase/--cased",
            help="For a vocab.txt that does not say; else told from its tokens.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Turn a Hugging Face model into a folder that every verb here takes.

    The verbs read Hugging Face folders as they are, too; a folder of ours needs no second look at
    another library's names. Settings, labels and the chat template come along.
    """
    model = load(source, device="cpu", lowercase=lowercase)
    model.save(out)
    typer.echo("\n".join(_lines(model, out)))


def _lines(model: LanguageModel, out: Path) -> list[str]:
    """What came in and what it is good for."""
    heads = ", ".join(head.kind for head in model.spec.heads) or "none"
    tokenizer = model.tokenizer
    read = f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens" if tokenizer else "none found"
    verbs = ", ".join(verb.replace("_", "-") for verb in model.verbs) or "none without a head"
    return [
        f"{out}: {model.spec.family}, {model.spec.num_parameters:,} parameters",
        f"  heads      {heads}",
        f"  tokenizer  {read}",
        f"  verbs      {verbs}",
    ]
