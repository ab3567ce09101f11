"""A model on the disk: `model.safetensors`, `spec.json` and `tokenizer.json` in a folder.

A run folder has them at its top when it has finished, and in every checkpoint on the way. Nothing
is unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from trivium.errors import CheckpointError, SpecError
from trivium.models import LanguageModule
from trivium.spec import AnySpec, spec_from_dict
from trivium.text import Tokenizer

SPEC, WEIGHTS, TOKENIZER = "spec.json", "model.safetensors", "tokenizer.json"
SOURCE_TOKENIZER = "source_tokenizer.json"
"""Beside the tokenizer, where the sources of an encoder-decoder have one of their own."""
_CHECKSUMS, _CHECKPOINTS = "checksums.json", "checkpoints"
# How the parameters of two models that are trained together begin, the one that is kept first.
_TRAINED_TOGETHER = ("discriminator.", "generator.")

Value = TypeVar("Value")


def model_folder(path: Path) -> Path:
    """The folder that holds the model of `path`: itself, or the last good checkpoint of a run."""
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "there is no such folder"
        raise CheckpointError(
            f"{path}: {what}. Give a run such as runs/NAME, or a checkpoint of it such as "
            f"runs/NAME/{_CHECKPOINTS}/step-00000500."
        )
    if (path / WEIGHTS).is_file():
        problem = _damage(path)
        if problem:
            raise CheckpointError(f"{path}: {problem}. Use another checkpoint of the run.")
        return path
    checkpoints = path if path.name == _CHECKPOINTS else path / _CHECKPOINTS
    found = sorted(checkpoints.glob("step-*"), reverse=True)
    for checkpoint in found:
        problem = _damage(checkpoint)
        if problem is None:
            return checkpoint
        warnings.warn(f"{checkpoint}: {problem}; using the checkpoint before it.", stacklevel=3)
    if found:
        raise CheckpointError(f"{path}: none of its {len(found)} checkpoints is whole.")
    if (path / "config.json").is_file():
        raise CheckpointError(f"{path}: this is a folder of another library, without {SPEC}.")
    raise CheckpointError(
        f"{path}: no model inside: neither {WEIGHTS} nor a checkpoint under {_CHECKPOINTS}/."
    )


def _damage(folder: Path) -> str | None:
    """What is wrong with the files of a model, told from its checksums where it has some."""
    try:
        expected = json.loads((folder / _CHECKSUMS).read_text(encoding="utf-8"))
        digests = {name: expected[name] for name in (SPEC, WEIGHTS, TOKENIZER) if name in expected}
    except FileNotFoundError:
        whole = (folder / WEIGHTS).is_file() and not folder.name.startswith("step-")
        return None if whole else f"{_CHECKSUMS} is missing"
    except (OSError, ValueError, TypeError):
        return f"{_CHECKSUMS} is damaged"
    for name, digest in digests.items():
        try:
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return f"{name} does not match its checksum"
        except OSError:
            return f"{name} is missing or cannot be read"
    return None


def read_spec(folder: Path) -> AnySpec:
    """The description of a model folder."""
    file = folder / SPEC
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{file}: missing, and without it the weights have no meaning."
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}.") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{file}: not the description of a model.")
    try:
        return spec_from_dict(data)
    except SpecError as error:
        raise CheckpointError(
            f"{file}: unknown format, perhaps of another version: {error}"
        ) from None


def read_weights(folder: Path, module: LanguageModule) -> dict[str, Tensor]:
    """The tensors of a file, mapped into memory, when names and shapes are those of `module`.

    Of a discriminator that is in training with its generator, those of the discriminator.
    """
    file = folder / WEIGHTS
    wanted = {name: list(weight.shape) for name, weight in module.state_dict().items()}
    try:
        with safe_open(file, framework="pt") as opened:
            names = list(opened.keys())
            found = {name: list(opened.get_slice(name).get_shape()) for name in names}
        both = all(name.startswith(_TRAINED_TOGETHER) for name in found)
        if not both:
            _check_names(file, found, wanted)
            return load_file(file)
        _check_names(file, _of_discriminator(found), wanted)
        return _of_discriminator(load_file(file))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: cannot be read as safetensors: {error}.") from None


def _of_discriminator(named: Mapping[str, Value]) -> dict[str, Value]:
    """What belongs to the discriminator, under the names it has alone."""
    prefix = _TRAINED_TOGETHER[0]
    return {
        name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)
    }


def _check_names(file: Path, found: dict[str, list[int]], wanted: dict[str, list[int]]) -> None:
    for name, shape in wanted.items():
        if name not in found:
            raise CheckpointError(f"{file}: {name} is missing, which {SPEC} describes as {shape}.")
        if found[name] != shape:
            raise CheckpointError(f"{file}: {name} is {found[name]}, but {SPEC} says {shape}.")
    extra = sorted(found.keys() - wanted.keys())
    if extra and all(name.endswith((".lora_a", ".lora_b")) for name in extra):
        raise CheckpointError(
            f"{file}: this is a LoRA run that has not finished, its adapter still apart: end it "
            "with `trivium finetune --resume --out RUN`, which merges them into the run's model."
        )
    if extra:
        raise CheckpointError(f"{file}: {extra[0]} is not part of the model of {SPEC}.")


def read_source_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer that sources have for themselves, None where there is only one."""
    file = folder / SOURCE_TOKENIZER
    return Tokenizer.load(file) if file.is_file() else None


def save_model(
    folder: Path,
    spec: AnySpec,
    module: LanguageModule,
    tokenizer: Tokenizer | None,
    source_tokenizer: Tokenizer | None = None,
) -> Path:
    """Write a model folder, each file aside and renamed; the weights last.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    texts = {SPEC: json.dumps(spec.to_dict(), indent=1, ensure_ascii=False) + "\n"}
    if tokenizer is not None:
        texts[TOKENIZER] = tokenizer.to_json()
    if source_tokenizer is not None:
        texts[SOURCE_TOKENIZER] = source_tokenizer.to_json()
    partials = {name: folder / f".{name}.partial" for name in (*texts, WEIGHTS)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            partials[name].write_text(text, encoding="utf-8")
        weights = {name: w.detach().contiguous() for name, w in module.state_dict().items()}
        save_file(weights, partials[WEIGHTS])
        partials[WEIGHTS].chmod(0o644)  # safetensors makes files that only the owner reads
        # A tokenizer or checksums of what was here before say nothing about what comes.
        for name in {TOKENIZER, SOURCE_TOKENIZER, _CHECKSUMS} - partials.keys():
            (folder / name).unlink(missing_ok=True)
        for name, partial in partials.items():
            os.replace(partial, folder / name)
    except (OSError, SafetensorError) as error:
        for partial in partials.values():
            with contextlib.suppress(OSError):
                partial.unlink()
        raise CheckpointError(f"{folder}: the model cannot be saved: {error}.") from error
    return folder
