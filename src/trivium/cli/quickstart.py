"""`trivium quickstart`: train an encoder and a decoder on bundled text, in minutes.

Examples:

  trivium quickstart

  trivium quickstart --language zh --minutes 6
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trivium.cli import _options as opt
from trivium.interrupts import exit_on_interrupt


def quickstart(
    language: Literal["en", "zh"] = "en",
    minutes: Annotated[float, typer.Option(min=0.1)] = 3.0,
    out: Annotated[
        Path | None, typer.Option(show_default="runs/quickstart; for Chinese, runs/quickstart-zh")
    ] = None,
    overwrite: opt.Overwrite = False,
) -> None:
    """Train an encoder and a decoder on bundled text, then fill masks and generate text with them.

    The encoder trains on articles of Wikipedia, the decoder on children's stories (in Chinese, on
    poems). Continuations by the decoder are printed at the start, in the middle and at the end of
    its training.

    Args:
        language: Language of the bundled text.
        minutes: Training time in minutes for both models together: a third of it for the encoder,
            two thirds for the decoder.
        out: The folder that contains both runs.
    """
    with exit_on_interrupt():
        from trivium.workflows.quickstart import quickstart as run_quickstart

    run_quickstart(language=language, minutes=minutes, out=out, overwrite=overwrite)
