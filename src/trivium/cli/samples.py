"""`trivium samples`: unpack the bundled texts and labelled examples.

Examples:

  trivium samples

  trivium pretrain llama-mini --data samples/stories.txt --out runs/story

  trivium finetune classification --model bert-tiny --data samples/movies.jsonl --out runs/movies
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trivium.data.samples import copy_samples
from trivium.messages import translated


def samples(folder: Annotated[Path, typer.Argument(metavar="[FOLDER]")] = Path("samples")) -> None:
    """Unpack the bundled texts and labelled examples, for experiments.

    They contain articles in English and Chinese, children's stories in English, classical poems in
    Chinese, sentences from film reviews, social media posts with labelled names, and English
    sentences with French translations.
    LICENSES.md in the same folder gives the origin and licence of each file.

    Args:
        folder: The output folder.
    """
    for path in copy_samples(folder):
        typer.echo(f"{path}  {translated('samples.size', size=path.stat().st_size)}")
