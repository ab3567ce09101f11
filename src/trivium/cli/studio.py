"""`trivium studio`: open a web page on which you train a model.

Examples:

  trivium studio

  trivium studio my_models --port 8080 --no-open
"""

from __future__ import annotations

import logging
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from trivium.errors import require_extra
from trivium.interrupts import exit_on_interrupt
from trivium.messages import translated


def studio(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]")] = Path("studio"),
    port: Annotated[int, typer.Option(min=0, max=65535)] = 7860,
    open_page: Annotated[bool, typer.Option("--open/--no-open")] = True,
) -> None:
    """Open a web page on which you train a model from your own text, watch the run and try it.

    The page builds a `trivium pretrain` or `trivium finetune` command, shows it, and runs it in a
    separate process. Only one run trains at a time. It keeps running when you close the page or the
    studio, and the studio finds it again after a restart. Only you can open the page: the server
    listens on 127.0.0.1, and the address contains a secret token that changes at every start.

    Args:
        folder: The folder for runs, uploads and exported models.
        port: Port to listen on; 0 chooses a free port.
        open_page: Open the page in the browser.
    """
    with exit_on_interrupt(), require_extra("trivium studio", "playground"):
        from trivium.studio.processes import StudioFolder
        from trivium.studio.studio_app import run_studio, write_opener

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    place = StudioFolder(folder)

    def show_address(address: str) -> None:
        """Print the address of the page, and open it in the browser."""
        typer.echo(translated("studio.address", address=address, folder=place.path))
        if open_page:
            webbrowser.open(write_opener(place, address).as_uri())

    run_studio(place, port, ready=show_address)
    typer.echo(translated("studio.stopped"), err=True)
    if (name := place.find_training_run()) is not None:
        typer.echo(translated("studio.still_training", name=name), err=True)
