"""Trains a small encoder and a small decoder on the bundled text in minutes, with explanations."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from trivium.data.samples import sample
from trivium.errors import RecipeError
from trivium.messages import translated
from trivium.model_loading import load
from trivium.progress import ProgressLine
from trivium.train.run_folder import RunFolder
from trivium.workflows.training import pretrain

_MASKED = {
    "en": (
        "He was born in New [MASK] City.",
        "The film was released in [MASK] 2010.",
        "She was a member of the [MASK] team.",
        "The [MASK] was built in the 19th century, but today it's a museum.",
    ),
    "zh": (
        "\u4ed6\u51fa\u751f\u4e8e\u7f8e[MASK]\u3002",
        "\u8be5\u5267\u4e8e2010[MASK]\u64ad\u51fa\u3002",
        "\u4ed6\u6bd5\u4e1a\u4e8e\u5317\u4eac\u5927[MASK]\u3002",
    ),
}
_OPENINGS = {
    "en": ("The first season of the series", "He was born in"),
    "zh": ("\u4ed6\u51fa\u751f\u4e8e", "\u8fd9\u662f\u4e00\u90e8"),
}


def quickstart(
    *,
    language: str = "en",
    minutes: float = 4.0,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> tuple[RunFolder, RunFolder]:
    """Train a small encoder and a small decoder, and show what each of them can do.

    The encoder fills masks, and the decoder continues text. Each model trains for half of the time.
    Returns the run folders of the encoder and the decoder.

    Args:
        language: the language of the bundled text, "en" or "zh".
        minutes: the total training time of both models.
        out: the folder for the two runs; default: runs/quickstart, or runs/quickstart-zh for
            Chinese.
        overwrite: whether to replace the runs of an earlier quickstart in the folder.
        console: the console to print progress to; default: standard error.

    Raises:
        DataError: there is no bundled text in this language.
        RecipeError: the folder already contains runs, and `overwrite` is False.
    """
    log = ProgressLine(console)
    text = sample(language)
    folder = Path(out or ("runs/quickstart" + ("" if language == "en" else f"-{language}")))
    if not overwrite and any((folder / name).is_dir() for name in ("encoder", "decoder")):
        raise RecipeError(
            f"{folder} has the runs of an earlier quickstart: replace them (--overwrite), choose "
            f"another --out, or train on with trivium pretrain --resume --out {folder}/encoder."
        )
    each = minutes / 2
    options: dict[str, Any] = {
        "data": text,
        "changes": {"train": {"minutes": each}},
        "overwrite": overwrite,
        "suggest": False,  # the last lines suggest commands with prompts for the bundled text
        "console": console,
    }
    log.print_line(translated("quickstart.text", name=text.name))
    log.print_line(translated("quickstart.encoder", each=each))
    encoder = pretrain("modernbert-mini", out=folder / "encoder", **options)
    log.print_line(translated("quickstart.predictions"))
    model = load(encoder.path)
    for prompt in _MASKED[language]:
        fills = ", ".join(f"{fill.token} {fill.score:.0%}" for fill in model.fill_mask(prompt))
        log.print_line(f"   {prompt}\n      {fills}")
    log.print_line(translated("quickstart.decoder", each=each))
    decoder = pretrain("llama-mini", out=folder / "decoder", **options)
    log.print_line(translated("quickstart.generated"))
    model = load(decoder.path)
    for prompt in _OPENINGS[language]:
        continued = model.generate(prompt, max_new_tokens=40, temperature=0.8, top_k=40, seed=0)
        log.print_line(f"   {prompt} ...\n      {continued}")
    log.print_line(translated("quickstart.losses"))
    for name, run in (("encoder", encoder), ("decoder", decoder)):
        losses = [r["valid_loss"] for r in run.read_metrics() if "valid_loss" in r]
        values = {"loss": losses[-1], "unigram_loss": run.read_metadata()["unigram_loss"]}
        name = translated(f"quickstart.name_{name}")
        log.print_line(translated("quickstart.loss", name=name, report=run.report, **values))
    activate = ""
    if shutil.which("trivium") is None:  # trivium was started by its path
        activate = f"   . {Path(sys.prefix, 'bin', 'activate')}\n"
    log.print_line(
        f"\n{translated('quickstart.next')}\n{activate}"
        f'   trivium fill-mask {encoder.path} "{_MASKED[language][0]}"\n'
        f'   trivium generate {decoder.path} "{_OPENINGS[language][0]}"\n'
        f"   trivium pretrain --resume --out {encoder.path} --set train.minutes=10\n"
        "   trivium pretrain bert-small --data my_texts/ --out runs/mine\n"
        "   trivium presets"
    )
    return encoder, decoder
