"""`trivium hidden-states`: compute the hidden states of every layer and token.

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
from trivium.cli._shared import join_cells, load, print_result, read_text_batches
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
    """Print the hidden states of a Transformer, one line per layer and token: layer, token, vector.

    Layer 0 is the input embedding, layer i is the output of block i, and the last layer includes
    the final norm, like output_hidden_states in transformers. For an encoder-decoder, these are the
    layers of the encoder. Special tokens are included. Long texts are processed in windows.

    Args:
        layers: Indices of layers, separated by commas. Negative indices count from the last layer.
        out: Write to this .npz file (see numpy.load). For text N, counted from 0, it contains the
            arrays states-N, float32 [layers, tokens, width], and tokens-N. The array layers
            contains the indices of the layers. Each text is written immediately, so that memory
            does not limit the number of texts.
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
        for batch in read_text_batches(texts, lm.source_tokenizer):
            parts = [batch[i : i + _TEXTS_AT_ONCE] for i in range(0, len(batch), _TEXTS_AT_ONCE)]
            for part in parts:
                for text, states in zip(part, lm.hidden_states(part, layers=selected)):
                    if archive is None:
                        _print_states(text, states, as_json)
                    else:
                        _append_states(archive, count, states)
                    count += 1
    if out is not None:
        typer.echo(translated("hidden-states.written", path=out, count=count), err=True)


def _append_states(archive: zipfile.ZipFile, index: int, states: Any) -> None:
    """Append the hidden states of text number `index` to an open .npz file.

    For the first text (index 0), also write the array of layer indices. `states` is a
    `HiddenStates`.
    """
    arrays = {
        f"states-{index}": states.vectors.numpy(),
        f"tokens-{index}": np.array(states.tokens, dtype=str),
    }
    if index == 0:
        arrays = {"layers": np.array(states.layers), **arrays}
    for name, array in arrays.items():
        with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array(file, array, allow_pickle=False)


def _print_states(text: str, states: Any, as_json: bool) -> None:
    """Print the hidden states of a text, one line per layer and token, with six significant digits.

    `states` is a `HiddenStates`.
    """
    for layer, rows in zip(states.layers, states.vectors.tolist()):
        for token, span, row in zip(states.tokens, states.spans, rows):
            numbers = [float(f"{value:.6g}") for value in row]
            record = {"text": text, "layer": layer, "token": token, "span": span}
            line = join_cells(str(layer), token, " ".join(f"{value:g}" for value in numbers))
            print_result({**record, "vector": numbers}, line, as_json=as_json)
