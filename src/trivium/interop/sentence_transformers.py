"""The files by which `sentence-transformers` reads a Hugging Face folder as a model of vectors.

    modules.json  sentence_bert_config.json  1_Pooling/config.json

`modules.json` lists what a text goes through: the Transformer in the folder itself, pooling, and
scaling to length 1, which has no options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trivium.errors import CheckpointError, DataError
from trivium.files import read_json, write_json
from trivium.interop.hf_config import read_object_if_exists
from trivium.spec import Pooling

MODULES, POOLING = "modules.json", "1_Pooling"
_TRANSFORMER, _CONFIG = "sentence_bert_config.json", "config.json"
_TOKENIZER, _NO_LENGTH = "tokenizer_config.json", 10**9  # what transformers writes for none is more
_PROMPTS = "config_sentence_transformers.json"
_MODULES = ("", "Transformer"), (POOLING, "Pooling"), ("2_Normalize", "Normalize")
_MODES: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
}
_NEW_NAMES = {
    f"pooling_mode_{new}": old
    for new, old in zip(("mean", "cls", "lasttoken"), _MODES, strict=True)
}


def write_sentence_transformers(
    folder: Path, options: Mapping[str, Any], *, d_model: int, max_length: int | None
) -> None:
    """Write the files of a model of vectors, beside those of the Transformer.

    `options` are those of `read_modules`; `max_length` is the number of tokens that are read of a
    text, None for that of tokenizer_config.json.
    """
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(_MODULES)
    ]
    write_json(folder / MODULES, modules)
    write_json(folder / _TRANSFORMER, {"max_seq_length": max_length, "do_lower_case": False})
    if prompt := options.get("prompt"):
        write_json(folder / _PROMPTS, {"prompts": {"text": prompt}, "default_prompt_name": "text"})
    modes = {mode: kind == options["pooling"] for mode, kind in _MODES.items()}
    (folder / POOLING).mkdir()
    write_json(folder / POOLING / _CONFIG, {"word_embedding_dimension": d_model, **modes})


def read_module_paths(folder: Path) -> dict[str, str]:
    """Return the kind and the path of each module of `modules.json`; {} without that file.

    Raises:
        CheckpointError: a file that is damaged, or a module of a kind that is not supported.
    """
    if not (folder / MODULES).is_file():
        return {}
    try:
        modules = read_json(folder / MODULES)
        paths = {str(one["type"]).rpartition(".")[2]: str(one["path"]) for one in modules}
    except (DataError, TypeError, KeyError) as error:
        raise CheckpointError(f"{folder / MODULES}: not a list of modules: {error}") from None
    known = [kind for _, kind in _MODULES]
    for kind, path in paths.items():
        if kind not in known or not re.fullmatch(r"[\w-]*", path):
            raise CheckpointError(
                f"{folder / MODULES}: the module {kind!r} in {path!r} is not supported; "
                f"supported: {', '.join(known)}. Without it the vectors would be other ones."
            )
    return paths


def read_modules(folder: Path) -> dict[str, Any]:
    """Return how a folder of `sentence-transformers` makes vectors; {} of any other folder.

    Keys: "pooling", and where they are set "max_seq_length", the number of tokens after which a
    text is cut, and "prompt", which is put before every text.

    Raises:
        CheckpointError: a module, a pooling or an option that is not supported.
    """
    paths = read_module_paths(folder)
    file = folder / paths.get("Pooling", POOLING) / _CONFIG
    pooling = read_object_if_exists(file)
    if not pooling:
        if "Pooling" in paths:
            raise CheckpointError(f"{file} is missing, which {MODULES} names.")
        return {}
    modes = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value]
    named = pooling.get("pooling_mode")
    if named is not None:
        modes = [f"pooling_mode_{each}" for each in (named if isinstance(named, list) else [named])]
    modes = [_NEW_NAMES.get(mode, mode) for mode in modes]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise CheckpointError(
            f"{file}: {', '.join(modes) or 'no pooling'} is not supported; supported: one of "
            f"{', '.join(_MODES)}."
        )
    options: dict[str, Any] = {"pooling": _MODES[modes[0]]}
    transformer = read_object_if_exists(folder / _TRANSFORMER)
    if transformer.get("do_lower_case"):
        raise CheckpointError(f"{folder / _TRANSFORMER}: do_lower_case is not supported.")
    length = transformer.get("max_seq_length")
    if length is None:  # version 6 writes it there
        length = read_object_if_exists(folder / _TOKENIZER).get("model_max_length")
    if isinstance(length, int) and 0 < length < _NO_LENGTH:
        options["max_seq_length"] = length
    prompts = read_object_if_exists(folder / _PROMPTS)
    name, texts = prompts.get("default_prompt_name"), prompts.get("prompts") or {}
    if name is not None and texts.get(name):
        if pooling.get("include_prompt") is False:
            raise CheckpointError(f"{file}: include_prompt = false is not supported.")
        options["prompt"] = str(texts[name])
    return options
