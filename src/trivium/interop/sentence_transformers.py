"""Read and write the `sentence-transformers` files in a Hugging Face folder.

    modules.json  sentence_bert_config.json  1_Pooling/config.json  2_Dense/model.safetensors

`modules.json` lists the modules that embed a text: the Transformer in the folder itself, pooling,
dense layers and normalization (scaling to length 1). Dense layers and normalization are optional;
normalization has no options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trivium.errors import CheckpointError, DataError
from trivium.files import read_json, write_json
from trivium.interop.hf_config import read_json_object, read_object_if_exists
from trivium.interop.tensor_files import read_tensors, write_tensors
from trivium.models import Transformer
from trivium.models.heads.text import Pooling, VectorHead, VectorLayer

MODULES, POOLING = "modules.json", "1_Pooling"
_TRANSFORMER, _CONFIG = "sentence_bert_config.json", "config.json"
# Without a maximum length, transformers writes a number larger than this one.
_TOKENIZER, _MAX_LENGTH_LIMIT = "tokenizer_config.json", 10**9
_PROMPTS = "config_sentence_transformers.json"
_MODULE_KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
_CLASSES = nn.Tanh, nn.Identity, nn.ReLU, nn.GELU, nn.SiLU
_ACTIVATIONS = {f"{one.__module__}.{one.__name__}": one.__name__.lower() for one in _CLASSES}
_DENSE_DEFAULTS = {"bias": True, "activation_function": next(iter(_ACTIVATIONS))}
# Supported values of the other options of a dense layer.
_NEUTRAL_VALUES = None, False, "sentence_embedding"
_POOLING_MODES: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
}
_MODE_SUFFIXES = {"pooling_mode_mean": "_tokens", "pooling_mode_cls": "_token"}  # not in version 6


def write_modules(
    folder: Path, options: Mapping[str, Any], model: Transformer, *, max_length: int | None
) -> None:
    """Write the `sentence-transformers` files next to the files of the Transformer.

    `options` has "pooling" and may have "normalize" and "prompt"; `model` may have a `VectorHead`.
    `max_length` is the maximum number of tokens of a text; None uses that of the tokenizer.
    """
    layers = [
        one for head in model.spec.heads if isinstance(head, VectorHead) for one in head.layers
    ]
    kinds = ["Pooling", *["Dense" for _ in layers], *["Normalize"] * options.get("normalize", True)]
    paths = {"": "Transformer", **{f"{i}_{kind}": kind for i, kind in enumerate(kinds, 1)}}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(paths.items())
    ]
    write_json(folder / MODULES, modules)
    write_json(folder / _TRANSFORMER, {"max_seq_length": max_length, "do_lower_case": False})
    if prompt := options.get("prompt"):
        write_json(folder / _PROMPTS, {"prompts": {"text": prompt}, "default_prompt_name": "text"})
    modes = {mode: kind == options["pooling"] for mode, kind in _POOLING_MODES.items()}
    (folder / POOLING).mkdir()
    size = {"word_embedding_dimension": model.spec.d_model}
    write_json(folder / POOLING / _CONFIG, {**size, **modes})
    activations = {name: path for path, name in _ACTIVATIONS.items()}
    for number, layer in enumerate(layers):
        path = folder / f"{number + 2}_Dense"
        weights = model.heads["vector"][number].state_dict()  # type: ignore[index]
        path.mkdir()
        write_tensors(path, weights)
        out, d_in = weights["linear.weight"].shape
        sizes = {"in_features": d_in, "out_features": out, "bias": layer.bias}
        write_json(path / _CONFIG, {**sizes, "activation_function": activations[layer.activation]})


def read_dense(folder: Path, width: int) -> tuple[list[VectorLayer], dict[str, Tensor]]:
    """Return the dense layers applied to pooled vectors [N, width], and their `state_dict`.

    Raises:
        CheckpointError: an option that is not supported, or weights with wrong names or shapes.
    """
    layers, weights = [], {}
    for path in [folder / path for kind, path in read_module_paths(folder) if kind == "Dense"]:
        options = {**_DENSE_DEFAULTS, **read_json_object(path / _CONFIG)}
        for name in sorted(options.keys() - {"in_features", "out_features", "bias"}):
            known = [*_ACTIVATIONS] if name == "activation_function" else _NEUTRAL_VALUES
            if options[name] not in known:
                raise CheckpointError(
                    f"{path / _CONFIG}: {name} = {options[name]!r} is not supported; supported: "
                    f"{', '.join(map(str, known))}."
                )
        tensors, out = read_tensors(path), options.get("out_features")
        bias = {"linear.bias": [out]} if options["bias"] else {}
        shapes = {"linear.weight": [out, width], **bias}
        found = {name: [*tensor.shape] for name, tensor in tensors.items()}
        if found != shapes:
            raise CheckpointError(f"{path}: the weights are {found}, but must be {shapes}.")
        weights |= {f"heads.vector.{len(layers)}.{name}": one for name, one in tensors.items()}
        width, activation = len(tensors["linear.weight"]), options["activation_function"]
        layer = {"width": width, "activation": _ACTIVATIONS[activation], "bias": options["bias"]}
        layers.append(VectorLayer.model_validate(layer))
    return layers, weights


def read_module_paths(folder: Path) -> list[tuple[str, str]]:
    """Return the kind and path of each module in `modules.json`, or [] if there is no such file.

    Raises:
        CheckpointError: a damaged file, or a module that is not supported in this order.
    """
    if not (folder / MODULES).is_file():
        return []
    try:
        modules = read_json(folder / MODULES)
        paths = [(str(one["type"]).rpartition(".")[2], str(one["path"])) for one in modules]
    except (DataError, TypeError, KeyError) as error:
        raise CheckpointError(f"{folder / MODULES}: not a list of modules: {error}") from None
    known = _MODULE_KINDS
    for kind, path in paths:
        if kind not in known or not re.fullmatch(r"[\w-]*", path):
            raise CheckpointError(
                f"{folder / MODULES}: the module {kind!r} in {path!r} is not supported; supported "
                f"there: {', '.join(known)}. Without it the vectors would be other ones."
            )
        known = known[known.index(kind) :]
    return paths


def read_embedding_options(folder: Path) -> dict[str, Any]:
    """Return the embedding options of a `sentence-transformers` folder; {} for any other folder.

    The keys are "pooling" and, if set, "max_seq_length", the number of tokens to which texts are
    truncated, and "prompt", which is prepended to every text. "normalize" is False if
    `modules.json` lists no Normalize module, and not set otherwise.

    Raises:
        CheckpointError: a module, a pooling or an option that is not supported.
    """
    paths = dict(read_module_paths(folder))
    file = folder / paths.get("Pooling", POOLING) / _CONFIG
    pooling = read_json_object(file) if "Pooling" in paths else read_object_if_exists(file)
    if not pooling:
        return {}
    modes = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value]
    named = pooling.get("pooling_mode")
    if named is not None:
        modes = [f"pooling_mode_{each}" for each in (named if isinstance(named, list) else [named])]
    modes = [mode + _MODE_SUFFIXES.get(mode, "") for mode in modes]
    if len(modes) != 1 or modes[0] not in _POOLING_MODES:
        raise CheckpointError(
            f"{file}: {', '.join(modes) or 'no pooling'} is not supported; supported: one of "
            f"{', '.join(_POOLING_MODES)}."
        )
    options: dict[str, Any] = {"pooling": _POOLING_MODES[modes[0]]}
    if paths and "Normalize" not in paths:
        options["normalize"] = False
    transformer = read_object_if_exists(folder / _TRANSFORMER)
    if transformer.get("do_lower_case"):
        raise CheckpointError(f"{folder / _TRANSFORMER}: do_lower_case is not supported.")
    length = transformer.get("max_seq_length")
    if length is None:  # version 6 writes the length to tokenizer_config.json
        length = read_object_if_exists(folder / _TOKENIZER).get("model_max_length")
    if isinstance(length, int) and 0 < length < _MAX_LENGTH_LIMIT:
        options["max_seq_length"] = length
    prompts = read_object_if_exists(folder / _PROMPTS)
    name, texts = prompts.get("default_prompt_name"), prompts.get("prompts") or {}
    if name is not None and texts.get(name):
        if pooling.get("include_prompt") is False:
            raise CheckpointError(f"{file}: include_prompt = false is not supported.")
        options["prompt"] = str(texts[name])
    return options


def read_score_activation(folder: Path) -> str | None:
    """Return the activation of a `CrossEncoder`'s scores, or None if the folder names none.

    Version 6 of sentence-transformers writes the activation to its own file. Earlier versions write
    it to `config.json`.
    """
    activation = read_object_if_exists(folder / _PROMPTS).get("activation_fn")
    return activation if isinstance(activation, str) else None
