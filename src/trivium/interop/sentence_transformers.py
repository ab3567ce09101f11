"""The files by which `sentence-transformers` reads a Hugging Face folder as a model of vectors.

    modules.json  sentence_bert_config.json  1_Pooling/config.json

`modules.json` lists what a text goes through: the Transformer in the folder itself, pooling, and
scaling to length 1, which has no options.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from trivium.files import write_json
from trivium.interop.hf_config import read_object_if_exists
from trivium.spec import Pooling

MODULES, POOLING = "modules.json", "1_Pooling"
_TRANSFORMER, _CONFIG = "sentence_bert_config.json", "config.json"
_MODULES = ("", "Transformer"), (POOLING, "Pooling"), ("2_Normalize", "Normalize")
_MODES: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
}


def write_sentence_transformers(folder: Path, pooling: Pooling, *, d_model: int) -> None:
    """Write the files of a model that pools hidden states so, beside those of the Transformer."""
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(_MODULES)
    ]
    write_json(folder / MODULES, modules)
    # The length is that of tokenizer_config.json.
    write_json(folder / _TRANSFORMER, {"max_seq_length": None, "do_lower_case": False})
    modes = {mode: kind == pooling for mode, kind in _MODES.items()}
    (folder / POOLING).mkdir()
    write_json(folder / POOLING / _CONFIG, {"word_embedding_dimension": d_model, **modes})


def read_pooling(folder: Path) -> Pooling | None:
    """The pooling of a folder of `sentence-transformers`; None of others, and of other kinds."""
    options = read_object_if_exists(folder / POOLING / _CONFIG)
    chosen = [name for name, value in options.items() if name.startswith("pooling_mode") and value]
    if len(chosen) == 1 and chosen[0] in _MODES:
        return _MODES[chosen[0]]
    if chosen:
        warnings.warn(
            f"{folder}: {', '.join(chosen)} is not read; give the pooling with --pooling.",
            stacklevel=2,
        )
    return None
