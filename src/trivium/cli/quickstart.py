"""`trivium quickstart`: the main job on the bundled text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trivium.workflows.quickstart import quickstart as run_quickstart

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium quickstart

  trivium quickstart --language zh --minutes 6
"""


@app.command(epilog=_EPILOG)
def quickstart(
    language: Annotated[str, typer.Option(help="Bundled text: en or zh.")] = "en",
    minutes: Annotated[
        float, typer.Option(min=0.1, help="Wall-clock minutes for both models together.")
    ] = 4.0,
    out: Annotated[Path, typer.Option(help="Where the two runs go; earlier ones are replaced.")] = (
        Path("runs/quickstart")
    ),
) -> None:
    """Train an encoder and a decoder on the bundled text and show what they say."""
    run_quickstart(language=language, minutes=minutes, out=out)
