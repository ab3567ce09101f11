"""Hugging Face folders: read without a second copy of the weights, written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from trivium.errors import CheckpointError, SpecError
from trivium.interop.convert import to_hugging_face
from trivium.interop.plain_files import read_json, to_json
from trivium.interop.recognize import recognize
from trivium.interop.settings import (
    CHAT_TEMPLATE,
    GENERATION,
    SPECIAL_TOKENS,
    TOKENIZER_OPTIONS,
    Settings,
)
from trivium.interop.tokenizer import read_tokenizer
from trivium.interop.weights import LARGEST_SHARD, read_tensors, weight_files, write_tensors
from trivium.models import LanguageModule, Transformer
from trivium.spec import ModelSpec
from trivium.text import Tokenizer

CONFIG, OURS = "config.json", "spec.json"

# Options of a tokenizer that mean the same to whatever class of theirs reads `tokenizer.json`.
_TOKENIZER_KEYS = frozenset(
    {
        "additional_special_tokens",
        "chat_template",
        "clean_up_tokenization_spaces",
        "extra_special_tokens",
        "model_max_length",
        "padding_side",
        "truncation_side",
    }
)
_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "pad"}


@dataclass(frozen=True)
class HuggingFaceModel:
    """What a Hugging Face folder holds, as ours."""

    module: Transformer
    tokenizer: Tokenizer | None
    settings: Settings


def is_hugging_face(folder: Path) -> bool:
    """Whether a folder is one of theirs; one that has our description too is ours."""
    return (folder / CONFIG).is_file() and not (folder / OURS).is_file()


def read_folder(folder: Path, *, lowercase: bool | None = None) -> HuggingFaceModel:
    """The model of a folder with `config.json`; its weights stay mapped to their files.

    Args:
        folder: with `config.json`, weights and, for what needs text, a tokenizer.
        lowercase: for a `vocab.txt` of which no file says whether it is lower-cased.

    Raises:
        CheckpointError: a file that is missing or damaged, a model that is not supported, weights
            that are not those of the configuration, or a pickle with code.
        TokenizerError: a tokenizer that cannot be read.
    """
    options = read_json(folder / CONFIG)
    try:
        module = recognize(options, read_tensors(folder))
    except CheckpointError as error:
        raise CheckpointError(_placed(error, folder)) from None
    settings = Settings.of_hugging_face(folder, options, writes=_writes(module.spec))
    tokenizer = read_tokenizer(
        folder,
        settings.tokenizer,
        model_type=options.get("model_type"),
        lowercase=lowercase,
    )
    if tokenizer is None:
        _warn_of_unread(folder)
    return HuggingFaceModel(module, tokenizer, settings)


def write_folder(
    folder: Path,
    module: LanguageModule,
    tokenizer: Tokenizer | None,
    settings: Settings,
    *,
    largest_shard: int = LARGEST_SHARD,
) -> list[str]:
    """Write a folder that `transformers` loads; the names of its files.

    All is written aside and then renamed, the weights and `config.json` last.

    Raises:
        SpecError: no family of theirs is built like this model.
        CheckpointError: the folder cannot be written, or holds a model of ours.
    """
    if (folder / OURS).is_file():
        raise CheckpointError(
            f"{folder}: holds a model of ours ({OURS}), which this would spoil; give another "
            "folder."
        )
    if not isinstance(module, Transformer):
        raise SpecError(
            f"Hugging Face has no models of the kind {module.spec.kind!r}: only Transformers can "
            "be exported."
        )
    options, tensors = to_hugging_face(module)
    spec = module.spec
    texts = _tokenizer_files(tokenizer, settings, spec)
    if _writes(spec):
        generation = {**_special_ids(tokenizer), **settings.generation}
        texts[GENERATION] = to_json(generation)
    texts[CONFIG] = to_json(_config(options, tensors, tokenizer, settings))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            names = write_tensors(aside, tensors, largest=largest_shard)
            for name, text in texts.items():
                (aside / name).write_text(text, encoding="utf-8")
            _put(aside, folder, [*texts, *names])
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the model cannot be written: {error}.") from error
    return sorted([*texts, *names])


def _writes(spec: ModelSpec) -> bool:
    """Whether a model generates texts."""
    return spec.decoder is not None and any(head.kind == "lm" for head in spec.heads)


def _put(aside: Path, folder: Path, names: list[str]) -> None:
    """Bring files into their folder; other weights there go, which would be read instead."""
    if not folder.exists():
        aside.chmod(0o755)
        os.replace(aside, folder)
        return
    stale = {file.name for file in weight_files(folder)}
    stale |= {name for name in (CHAT_TEMPLATE, GENERATION) if (folder / name).is_file()}
    for name in stale - set(names):
        (folder / name).unlink()
    for name in names:
        os.replace(aside / name, folder / name)


def _config(
    options: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    settings: Settings,
) -> dict[str, Any]:
    """`config.json`: names of labels and ids as they came, where they still fit."""
    precision = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    kept = dict(settings.config)
    names = {name: kept.pop(name) for name in ("id2label", "label2id") if name in kept}
    config = {**_special_ids(tokenizer), **kept, **options, "torch_dtype": precision}
    if len(names.get("id2label", ())) == len(options.get("id2label", ())):
        config |= names
    return config


def _special_ids(tokenizer: Tokenizer | None) -> dict[str, int | None]:
    """The ids whose defaults in a class of theirs belong to its first vocabulary."""
    roles = {} if tokenizer is None else tokenizer.roles
    found = {name: roles.get(role) for name, role in _IDS.items()}
    return {
        name: None if tokenizer is None or token is None else tokenizer.token_to_id(token)
        for name, token in found.items()
    }


def _tokenizer_files(
    tokenizer: Tokenizer | None, settings: Settings, spec: ModelSpec
) -> dict[str, str]:
    if tokenizer is None:
        return {}
    names = ["input_ids", "attention_mask"]
    if spec.embedding.num_token_types > 1:
        names.insert(1, "token_type_ids")
    roles = {f"{role}_token": token for role, token in tokenizer.roles.items()}
    config: dict[str, Any] = {
        # The class that takes `tokenizer.json` as it is.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": names,
        **({} if spec.max_length is None else {"model_max_length": spec.max_length}),
        **{k: v for k, v in settings.tokenizer.items() if k in _TOKENIZER_KEYS},
        **roles,
    }
    texts = {
        "tokenizer.json": tokenizer.to_json(),
        TOKENIZER_OPTIONS: to_json(config),
        SPECIAL_TOKENS: to_json(roles),
    }
    if settings.chat_template is not None:
        texts[CHAT_TEMPLATE] = settings.chat_template
    return texts


def _placed(error: CheckpointError, folder: Path) -> str:
    """The message with its folder, once."""
    text = str(error)
    return text if str(folder) in text else f"{folder}: {text}"


def _warn_of_unread(folder: Path) -> None:
    """Say that a tokenizer of a kind that is not read lies there."""
    found = sorted(file.name for file in folder.glob("*.spm"))
    if found:
        warnings.warn(
            f"{folder}: {', '.join(found)} are of a kind of tokenizer that is not read; the model "
            "is loaded without one.",
            stacklevel=2,
        )
