"""`trivium hidden-states`: the hidden states of every layer and token.

Examples:

  trivium hidden-states hf/bert "The bank by the river." --out states.npz

  cat sentences.txt | trivium hidden-states runs/mine --layers 0,-1 --out states.npz

  trivium hidden-states runs/mine "The bank by the river." --layers -2 --json
"""

from __future__ import annotations

import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from trivium.cli import UsageError
from trivium.cli import _options as opt
from trivium.cli._shared import load, show, tab_separated, text_batches
from trivium.files import replace_file
from trivium.messages import translated

_TEXTS_AT_ONCE = 16
"""The number of texts whose hidden states are in memory at a time."""


def hidden_states(
    model: opt.Model,
    texts: opt.Texts = None,
    layers: Annotated[str, typer.Option(metavar="all|N,N")] = "all",
    out: Path | None = None,
    device: opt.Device = "auto",
    special_tokens: opt.SpecialTokens = None,
    as_json: opt.Json = False,
) -> None:
    """The hidden states of a Transformer: layer, token and numbers, one line per layer and token.

    Layer 0 is the input embedding, layer i the output of block i, and the last one includes the
    final norm, as in output_hidden_states of transformers. An encoder-decoder shows its encoder.
    Special tokens are included. A long text is read in windows.

    Args:
        layers: Indices with commas between them, negative ones counted from the last.
        out: Write states-N, float32 [layers, tokens, width], and tokens-N of text N (from 0), and
            the layers, to this .npz file, which numpy.load reads. Texts are written as they are
            read, so that a file of any length fits into memory.
    """
    selected: Any = "all"
    if layers != "all":
        try:
            selected = [int(number) for number in layers.split(",")]
        except ValueError:
            raise UsageError(
                f"--layers is {layers}: give all, or indices such as 0,6,-1."
            ) from None
    if out is not None and out.suffix != ".npz":
        out = out.with_name(f"{out.name}.npz")
    lm = load(model, device=device).reading(special_tokens)
    count = 0
    with ExitStack() as files:
        archive = None
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            file = files.enter_context(replace_file(out))
            archive = files.enter_context(zipfile.ZipFile(file, "w"))
        for batch in text_batches(texts, lm.source_tokenizer):
            parts = [batch[i : i + _TEXTS_AT_ONCE] for i in range(0, len(batch), _TEXTS_AT_ONCE)]
            for part in parts:
                for text, states in zip(part, lm.hidden_states(part, layers=selected)):
                    if archive is None:
                        _show(text, states, as_json)
                    else:
                        _append(archive, count, states)
                    count += 1
    if out is not None:
        typer.echo(translated("hidden-states.written", path=out, count=count), err=True)


def _append(archive: zipfile.ZipFile, number: int, states: Any) -> None:
    """Append the `HiddenStates` of a text to an .npz file; the first text, also the layers."""
    arrays = {
        f"states-{number}": states.vectors.numpy(),
        f"tokens-{number}": np.array(states.tokens, dtype=str),
    }
    if number == 0:
        arrays = {"layers": np.array(states.layers), **arrays}
    for name, array in arrays.items():
        with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array(file, array, allow_pickle=False)


def _show(text: str, states: Any, as_json: bool) -> None:
    """Print the `HiddenStates` of a text: six significant digits of each number."""
    for layer, rows in zip(states.layers, states.vectors.tolist()):
        for token, span, row in zip(states.tokens, states.spans, rows):
            numbers = [float(f"{value:.6g}") for value in row]
            record = {"text": text, "layer": layer, "token": token, "span": span}
            line = tab_separated(str(layer), token, " ".join(f"{value:g}" for value in numbers))
            show({**record, "vector": numbers}, line, as_json=as_json)
