"""Trains a small encoder and a small decoder on bundled texts in minutes, with explanations."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from trivium.data.samples import easy_text_paths, sample_path
from trivium.errors import RecipeError
from trivium.language_model import LanguageModel
from trivium.messages import translated
from trivium.model_loading import load
from trivium.progress import ProgressLine
from trivium.train.callback import Callback
from trivium.train.loader import GlobalBatch
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
    "en": ("Once upon a time", "One day, Tom and his dog"),
    "zh": ("\u660e\u6708", "\u6625\u98ce"),
}
# The encoder takes this fraction of the time. The decoder, which writes sentences, needs more.
_ENCODER_FRACTION = 1 / 3


class PrintContinuations(Callback):
    """Prints a continuation before, halfway through and after training.

    Args:
        opening: the text to continue.
        log: where the continuations are printed.
    """

    def __init__(self, opening: str, log: ProgressLine) -> None:
        self.opening, self.log = opening, log
        self._lm: LanguageModel | None = None
        self._is_halfway = False

    def on_start(self, batch: GlobalBatch, lm: LanguageModel) -> None:
        """Print a continuation from the untrained model."""
        self._lm = lm
        self._print_continuation("quickstart.untrained")

    def on_step(self, step: int, progress: float) -> None:
        """Print a continuation after the first half of the budget."""
        if 0.5 <= progress < 1 and not self._is_halfway:
            self._is_halfway = True
            self._print_continuation("quickstart.halfway")

    def on_end(self, error: BaseException | None) -> None:
        """Print a continuation from the trained model, unless training was interrupted."""
        if error is None:
            self._print_continuation("quickstart.trained")

    def _print_continuation(self, identifier: str) -> None:
        """Print the message with the given id, and below it the text that the model generates."""
        if self._lm is not None:
            text = continue_text(self._lm, self.opening)
            self.log.print_line(f"\n{translated(identifier)}\n   {text}\n")


def continue_text(lm: LanguageModel, opening: str) -> str:
    """Return an opening and its sampled continuation in one line."""
    text = lm.generate(opening, max_new_tokens=40, temperature=0.7, top_k=40, seed=0)
    return " ".join(f"{opening}{text}".split())


def quickstart(
    *,
    language: str = "en",
    minutes: float = 4.0,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> tuple[RunFolder, RunFolder]:
    """Train a small encoder and a small decoder, and show what each of them can do.

    The encoder learns to fill masks from articles of Wikipedia. The decoder learns to continue
    children's stories, or poems in Chinese. Continuations are printed at the start, in the middle
    and at the end of the decoder's training. Returns the run folders of the encoder and the
    decoder.

    Args:
        language: the language of the bundled text, "en" or "zh".
        minutes: the total training time of both models. The encoder trains for a third of it, the
            decoder for two thirds. Preparing the texts takes about half a minute more.
        out: the folder for the two runs; default: runs/quickstart, or runs/quickstart-zh for
            Chinese.
        overwrite: whether to replace the runs of an earlier quickstart in the folder.
        console: the console to print progress to; default: standard error.

    Raises:
        DataError: there is no bundled text in this language.
        RecipeError: the folder already contains runs, and `overwrite` is False.
    """
    console = console or Console(stderr=True)  # one console for the progress lines of both runs
    log = ProgressLine(console)
    articles = sample_path(language)
    folder = Path(out or ("runs/quickstart" + ("" if language == "en" else f"-{language}")))
    if not overwrite and any((folder / name).is_dir() for name in ("encoder", "decoder")):
        raise RecipeError(
            f"{folder} has the runs of an earlier quickstart: replace them (--overwrite), choose "
            f"another --out, or train on with trivium pretrain --resume --out {folder}/encoder."
        )
    encoder_minutes = round(minutes * _ENCODER_FRACTION, 2)
    decoder_minutes = round(minutes - encoder_minutes, 2)
    # At the end, this function suggests commands with prompts for the bundled texts.
    options: dict[str, Any] = {"overwrite": overwrite, "suggest": False, "console": console}
    log.print_line(translated("quickstart.encoder", minutes=encoder_minutes))
    log.print_line(translated("quickstart.text", name=articles.name))
    encoder = pretrain(
        "modernbert-auto",
        data=articles,
        out=folder / "encoder",
        changes={"train": {"minutes": encoder_minutes}},
        **options,
    )
    log.print_line(translated("quickstart.predictions"))
    model = load(encoder.path)
    for prompt in _MASKED[language]:
        fills = ", ".join(f"{fill.token} {fill.score:.0%}" for fill in model.fill_mask(prompt))
        log.print_line(f"   {prompt}\n      {fills}")
    text, validation = easy_text_paths(language)
    log.print_line(translated("quickstart.decoder", minutes=decoder_minutes))
    log.print_line(translated("quickstart.text", name=text.name))
    decoder = pretrain(
        "llama-auto",
        data=text,
        validation=validation,
        out=folder / "decoder",
        changes={"train": {"minutes": decoder_minutes}},
        callbacks=[PrintContinuations(_OPENINGS[language][0], log)],
        **options,
    )
    log.print_line(translated("quickstart.generated"))
    model = load(decoder.path)
    for prompt in _OPENINGS[language]:
        log.print_line(f"   {continue_text(model, prompt)}")
    log.print_line(translated("quickstart.losses"))
    for name, run in (("encoder", encoder), ("decoder", decoder)):
        losses = [r["valid_loss"] for r in run.read_metrics() if "valid_loss" in r]
        values = {"loss": losses[-1], "unigram_loss": run.read_metadata()["unigram_loss"]}
        name = translated(f"quickstart.name_{name}")
        log.print_line(translated("quickstart.loss", name=name, report=run.report, **values))
    log.print_line(f"\n{translated('quickstart.next')}")
    for command in _suggest_commands(encoder.path, decoder.path, language):
        log.print_line(f"   {command}")
    return encoder, decoder


def _suggest_commands(encoder: Path, decoder: Path, language: str) -> list[str]:
    """Return commands to try out the two models, continue training, and train on other text."""
    masked, opening = _MASKED[language][0], _OPENINGS[language][0]
    encoder_name, decoder_name = shlex.quote(str(encoder)), shlex.quote(str(decoder))
    text = {"en": "english.txt", "zh": "chinese.txt"}[language]
    commands = [
        f'trivium generate {decoder_name} "{opening}"',
        f"trivium generate {decoder_name}",
        f'trivium fill-mask {encoder_name} "{masked}"',
        f"trivium pretrain --resume --out {decoder_name} --set train.minutes=20",
        "trivium samples samples",
        f"trivium pretrain gpt2-auto --data samples/{text} --out runs/mine --set train.minutes=5",
        "trivium presets",
    ]
    if shutil.which("trivium") is None:  # trivium was started by its path
        commands.insert(0, f". {shlex.quote(str(Path(sys.prefix, 'bin', 'activate')))}")
    return commands
