"""`trivium samples`: unpack the bundled texts and labelled examples.

Examples:

  trivium samples

  trivium finetune classification --model bert-tiny --data samples/movies.jsonl --out runs/movies
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trivium.data.samples import copy_samples
from trivium.messages import translated


def samples(folder: Annotated[Path, typer.Argument(metavar="[FOLDER]")] = Path("samples")) -> None:
    """Unpack the bundled texts and labelled examples, to try things with.

    Articles in English and Chinese, sentences of film reviews, names in social media, English
    sentences in French. LICENSES.md beside them names the origin and licence of each.

    Args:
        folder: The folder to unpack to.
    """
    for path in copy_samples(folder):
        typer.echo(f"{path}  {translated('samples.size', size=path.stat().st_size)}")
