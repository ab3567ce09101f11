"""`trivium export`: one of our models as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trivium.files import read_json
from trivium.interop.hf_folder import CONFIG
from trivium.language_model import load

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium export runs/mine exported/mine

  python -c "import transformers; transformers.AutoModel.from_pretrained('exported/mine')"
"""


@app.command(epilog=_EPILOG)
def export(
    model: Annotated[str, typer.Argument(help="A run, a checkpoint or a saved model.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; one of theirs is replaced.")],
) -> None:
    """Write a folder that transformers loads, with equal logits and equal token ids."""
    load(model, device="cpu").save_hf(out)
    architectures = read_json(out / CONFIG)["architectures"]
    typer.echo(f"{out}: {', '.join(architectures)}")
    for file in sorted(out.iterdir()):
        typer.echo(f"  {file.name:<28}{file.stat().st_size:>15,} bytes")
