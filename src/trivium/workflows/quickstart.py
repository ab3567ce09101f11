"""An encoder and a decoder trained on the bundled text in a few minutes, every step explained."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from trivium.data.samples import sample
from trivium.model_loading import load
from trivium.train.run_folder import RunFolder
from trivium.train.run_log import ProgressLine
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
    out: str | os.PathLike[str] = "runs/quickstart",
    console: Console | None = None,
) -> tuple[RunFolder, RunFolder]:
    """Train an encoder that fills masks and a decoder that continues text, half the time each.

    Args:
        language: "en" or "zh", the bundled sample to train on.
        minutes: training time of both models together.
        out: folder for the two runs; runs of an earlier quickstart in it are replaced.

    Raises:
        DataError: there is no sample of the language.
    """
    line = ProgressLine(console or Console(stderr=True))
    text, folder = sample(language), Path(out)
    each = minutes / 2
    line.say(f"Text: {text.name}, bundled with its licence (LICENSES.md beside it).")
    line.say(
        f"\n1. Encoder: mask a fifth of the tokens and predict them from both sides ({each:g} min)."
    )
    encoder = pretrain(
        "modernbert-mini",
        data=text,
        out=folder / "encoder",
        changes={
            "model": {"initialization": "fast"},
            "objective": {"probability": 0.2},
            "train": {"minutes": each},
        },
        overwrite=True,
        console=console,
    )
    line.say("\nIts predictions for [MASK]:")
    model = load(encoder.path)
    for prompt in _MASKED[language]:
        fills = ", ".join(f"{fill.token} {fill.score:.0%}" for fill in model.fill_mask(prompt))
        line.say(f"   {prompt}\n      {fills}")
    line.say(f"\n2. Decoder: predict every token from those before it ({each:g} min).")
    decoder = pretrain(
        "llama-mini",
        data=text,
        out=folder / "decoder",
        changes={"train": {"minutes": each}},
        overwrite=True,
        console=console,
    )
    line.say("\nText it generates:")
    model = load(decoder.path)
    for prompt in _OPENINGS[language]:
        continued = model.generate(prompt, max_new_tokens=40, temperature=0.8, top_k=40, seed=0)
        line.say(f"   {prompt} ...\n      {continued}")
    line.say("\nLoss on held-out text, in nats per token:")
    for name, run in (("encoder", encoder), ("decoder", decoder)):
        losses = [r["valid_loss"] for r in run.read_metrics() if "valid_loss" in r]
        line.say(
            f"   {name}: {losses[-1]:.2f}; unigram baseline: "
            f"{run.read_facts()['unigram_loss']:.2f}   report: {run.report}"
        )
    line.say(
        "\nNext:\n"
        f'   trivium fill-mask {encoder.path} "{_MASKED[language][0]}"\n'
        f'   trivium generate {decoder.path} "{_OPENINGS[language][0]}"\n'
        f"   trivium pretrain --resume --out {encoder.path} --set train.minutes=10\n"
        "   trivium pretrain bert-small --data my_texts/ --out runs/mine\n"
        "   trivium presets"
    )
    return encoder, decoder
