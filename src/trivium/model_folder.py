"""Model folders: weights, spec, tokenizers, settings and checksums of a model on disk.

    model.safetensors  spec.json  tokenizer.json  source_tokenizer.json  checksums.json

A folder contains at most two tokenizers. The files of `Settings` are in it too. A finished run has
these files in its top folder, and every checkpoint has them. In a checkpoint of several processes,
the weights are sharded: `model-00001.safetensors` and so on, one file per process. Nothing is
pickled.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError
from torch import Tensor

from trivium.errors import OLD_VERSION_MESSAGE, CheckpointError, DataError, SpecError
from trivium.files import (
    has_sha256,
    is_file_name,
    pop_version,
    read_json,
    reject_lfs_pointer,
    replace_folder,
    sha256,
    version_entry,
    write_file,
    write_json,
)
from trivium.interop.hf_config import read_json_object
from trivium.interop.sentence_transformers import POOLING
from trivium.interop.settings import Settings
from trivium.interop.tensor_files import read_shards, write_safetensors
from trivium.lazy_tensors import LazyTensors
from trivium.models import LanguageModule, build
from trivium.models.base_model import Spec
from trivium.text import Tokenizer

SPEC, WEIGHTS, TOKENIZER = "spec.json", "model.safetensors", "tokenizer.json"
WEIGHT_FILES = "model*.safetensors"  # WEIGHTS, or the shards of a checkpoint
SOURCE_TOKENIZER = "source_tokenizer.json"
CHECKSUMS, CHECKPOINTS, RECIPE = "checksums.json", "checkpoints", "recipe.toml"
CHECKPOINT_PATTERN = "step-" + "[0-9]" * 8  # does not match copies that a user made
RUN_METADATA = "run.json"
_CONFIG = "config.json"  # in a Hugging Face folder
_GGUF, _GGUF_ADAPTER = "model.gguf", "adapter.gguf"  # in a folder for llama.cpp
_WEB = "model/config.json"  # in the folder of a web page
_FOLDERS = ("onnx", "model", "library")  # of ONNX files and of a web page

# Files in a model folder of Trivium or Hugging Face; `overwrite` may replace only these.
_MODEL_FILES = (
    *("*.json", "*.safetensors", "*.bin", "*.jinja", "*.model", "vocab.txt", "merges.txt"),
    *("README.md", ".gitattributes", "*.gguf", "Modelfile", "*.onnx", "*.onnx_data", "index.html"),
    *("transformers.min.js", "ort-wasm-simd-threaded.*", "LICENSE-transformers.txt"),
)

# ELECTRA's two models share a checkpoint. Only the discriminator is loaded.
_DISCRIMINATOR, _GENERATOR = "discriminator.", "generator."
_TABLE = "tokens.weight"


@contextlib.contextmanager
def new_model_folder(folder: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to `folder` when the `with` block ends.

    Raises:
        CheckpointError: `folder` cannot be written, or must not be replaced (see
            `check_replaceable`).
    """
    path = Path(folder)
    check_replaceable(path, overwrite=overwrite)
    try:
        with replace_folder(path) as partial:
            yield partial
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: the model cannot be saved: {error}.") from error


def write_model(
    folder: Path,
    module: LanguageModule,
    tokenizer: Tokenizer | None,
    source_tokenizer: Tokenizer | None = None,
    settings: Settings | None = None,
) -> None:
    """Write the files of a model into an existing folder. The checksums are written last.

    Each file is written atomically, but not the folder as a whole. To replace a model folder
    atomically, pass the temporary folder that `new_model_folder` yields. The model of a run is
    written directly into the run's folder, which contains other files, too. The old checksums are
    removed first, so that a crash cannot leave a valid mixture of old and new files: without
    checksums, a model folder does not load, and a run loads from its last checkpoint.
    """
    (folder / CHECKSUMS).unlink(missing_ok=True)
    names = write_without_weights(folder, module.spec, tokenizer, source_tokenizer, settings)
    write_safetensors(folder / WEIGHTS, module.state_dict())
    write_checksums(folder, [*names, WEIGHTS])


def write_without_weights(
    folder: Path,
    spec: Spec,
    tokenizer: Tokenizer | None,
    source_tokenizer: Tokenizer | None,
    settings: Settings | None,
) -> list[str]:
    """Write all files of a model except the weights. Returns the files that need checksums."""
    write_json(folder / SPEC, {**version_entry(), **spec.to_dict()})
    names = [SPEC]
    for name, one in ((TOKENIZER, tokenizer), (SOURCE_TOKENIZER, source_tokenizer)):
        if one is None:
            (folder / name).unlink(missing_ok=True)
        else:
            write_file(folder / name, one.to_json())
            names.append(name)
    for name, text in tokenizer.other_files.items() if tokenizer else ():
        write_file(folder / name, text)
    (settings or Settings()).write(folder)
    return names


def write_checksums(
    folder: Path, names: Iterable[str], known: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Write the SHA-256 digests of the named files in a folder to its `checksums.json`.

    Files whose digest is in `known` are not read.
    """
    digests = {name: known.get(name) or sha256(folder / name) for name in names}
    write_json(folder / CHECKSUMS, digests)


def check_replaceable(folder: Path, *, overwrite: bool) -> None:
    """Raise CheckpointError unless a model may be saved to `folder`.

    This is allowed if the folder does not exist or is empty. A folder that contains only a model
    may be replaced if `overwrite` is True.

    Raises:
        CheckpointError: `folder` is a file, a training run or a checkpoint of a run. Or it contains
            files that do not belong to a model. Or it contains a model and `overwrite` is False.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is a file: choose a folder.")
    if is_run(folder) or folder.resolve().parent.name == CHECKPOINTS:
        what = "training run" if is_run(folder) else "checkpoint of a run"
        raise CheckpointError(
            f"{folder} is a {what}, which is never replaced: choose another folder."
        )
    foreign = sorted(each.name for each in folder.iterdir() if not _is_model_file(each))
    known = (SPEC, _CONFIG, _GGUF, _GGUF_ADAPTER, _WEB)
    if foreign or not any((folder / name).is_file() for name in known):
        examples = f" ({', '.join(foreign[:3])})" if foreign else ""
        raise CheckpointError(
            f"{folder} has files that are no model{examples}, which are never replaced: choose "
            "another folder."
        )
    if not overwrite:
        raise CheckpointError(
            f"{folder} holds a model already: choose another folder, or overwrite it "
            "(--overwrite; in Python overwrite=True)."
        )


def _is_model_file(path: Path) -> bool:
    """Return whether a path is a file of a model or a folder with parts of a model."""
    if path.is_dir() and path.name in _FOLDERS:
        return all(map(_is_model_file, path.iterdir()))
    if path.is_dir():  # a module folder of sentence-transformers
        known = {each.name for each in path.iterdir()} <= {_CONFIG, WEIGHTS}
        return known and (path.name == POOLING or path.match("[2-9]_Dense"))
    return any(path.match(pattern) for pattern in _MODEL_FILES)


def is_run(folder: Path) -> bool:
    """Return whether a folder contains a training run, finished or unfinished."""
    return (folder / RECIPE).exists() or (folder / CHECKPOINTS).exists()


def is_unfinished(run: Path) -> bool:
    """Return whether a run is still training or was stopped before its end.

    A finished run that is resumed becomes unfinished again, although its folder still contains the
    earlier final weights.
    """
    metadata = read_json(run / RUN_METADATA) if (run / RUN_METADATA).is_file() else None
    finished = metadata.get("finished") if isinstance(metadata, dict) else None
    return not (run / WEIGHTS).is_file() or finished is False


def find_weights(path: str | os.PathLike[str], *, verify: bool = True) -> Path:
    """Return the folder to load weights from: `path` itself, or the last good checkpoint of a run.

    A checkpoint is used if the run is unfinished (see `is_unfinished`) or if its final weights are
    damaged.

    Args:
        path: a model folder, a run or the `checkpoints` folder of a run.
        verify: compare checksums, which reads all files. If False, damage is not detected.

    Raises:
        CheckpointError: `path` contains no model, or only damaged models.
    """
    path = Path(path)
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "there is no such folder"
        raise CheckpointError(
            f"{path}: {what}. Use a run such as runs/NAME, or one of its checkpoints such as "
            f"runs/NAME/{CHECKPOINTS}/step-00000500."
        )
    folder = path if path.name == CHECKPOINTS else path / CHECKPOINTS
    find_problem = find_damage if verify else lambda _: None
    has_checkpoints = any(checkpoints(folder))
    if any(path.glob(WEIGHT_FILES)) and not (has_checkpoints and is_unfinished(path)):
        problem = find_problem(path)
        if problem is None:
            return path
        if not has_checkpoints:
            raise CheckpointError(f"{path}: {problem}. Write or download the model again.")
        warnings.warn(f"{path}: {problem}; using its last checkpoint.", stacklevel=2)
    checkpoint = find_last_good_checkpoint(checkpoints(folder), find_problem, warnings.warn)
    if checkpoint is not None:
        return checkpoint
    if has_checkpoints:
        raise CheckpointError(f"{path}: all of its checkpoints are damaged.")
    raise CheckpointError(
        f"{path}: no model inside: neither {WEIGHTS} nor a checkpoint under {CHECKPOINTS}/."
    )


def find_checkpoint(run: str | os.PathLike[str], step: int) -> Path:
    """Return the folder of the checkpoint at a step of a run. Raises CheckpointError if missing."""
    folder = Path(run) / CHECKPOINTS
    if not (folder / f"step-{step:08}").is_dir():
        kept = [f"{int(one.name.removeprefix('step-')):,}" for one in checkpoints(folder)][::-1]
        raise CheckpointError(
            f"{run} has no checkpoint of step {step:,}; it has {', '.join(kept) or 'none'}. "
            'train.keep_checkpoints = "all" keeps all that train.save_every writes.'
        )
    return folder / f"step-{step:08}"


def checkpoints(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Return an iterator over the checkpoints in `folder`, newest first, including damaged ones."""
    return iter(sorted(Path(folder).glob(CHECKPOINT_PATTERN), reverse=True))


def find_last_good_checkpoint(
    newest_first: Iterable[Path],
    find_problem: Callable[[Path], str | None],
    warn: Callable[[str], None],
) -> Path | None:
    """Return the first undamaged checkpoint, or None if there is none.

    `find_problem` describes the damage of a checkpoint, or returns None if the checkpoint is good.
    `warn` is called with a message for each damaged checkpoint that is skipped.
    """
    for checkpoint in newest_first:
        problem = find_problem(checkpoint)
        if problem is None:
            return checkpoint
        warn(f"{checkpoint}: {problem}; using the checkpoint before it.")
    return None


def find_damage(
    folder: Path,
    patterns: Sequence[str] = (SPEC, WEIGHT_FILES, TOKENIZER, SOURCE_TOKENIZER),
    required: Iterable[str] = (WEIGHT_FILES,),
) -> str | None:
    """Compare files in a folder with its `checksums.json`. Returns the first problem, or None.

    Args:
        folder: the folder of a model or a checkpoint.
        patterns: patterns of file names. Files that match a pattern and have a checksum are
            compared.
        required: patterns of file names. It is a problem if no file with a checksum matches one.
    """
    try:
        return find_damaged_file(folder, read_checksums(folder, patterns, required))
    except CheckpointError as error:
        return str(error)


def read_checksums(
    folder: Path, patterns: Sequence[str], required: Iterable[str]
) -> dict[str, str]:
    """Return name -> digest of the files in a `checksums.json` that match a pattern.

    Raises:
        CheckpointError: the file is missing or damaged, or no file matches a pattern in `required`.
    """
    try:
        checksums = dict(read_json(folder / CHECKSUMS))
        names = [name for one in patterns for name in fnmatch.filter(checksums, one)]
        expected = {name: str(checksums[name]) for name in names}
    except (DataError, TypeError, ValueError):
        raise CheckpointError(f"{CHECKSUMS} is missing or damaged") from None
    if missing := [one for one in required if not fnmatch.filter(expected, one)]:
        raise CheckpointError(f"{CHECKSUMS} does not list {missing[0]}")
    return expected


def find_damaged_file(folder: Path, digests: Mapping[str, str]) -> str | None:
    """Compare files in a folder with their digests. Returns the first problem, or None."""
    for name, digest in digests.items():
        if not is_file_name(name):
            return f"{CHECKSUMS} names {name!r}, which is no file of this folder"
        try:
            reject_lfs_pointer(folder / name)
            if not has_sha256(folder / name, digest):
                return f"{name} does not match its checksum"
        except DataError as error:
            return str(error)
        except (OSError, ValueError):  # a name with a zero byte is invalid
            return f"{name!r} is missing or cannot be read"
    return None


def read_spec(folder: Path) -> Spec:
    """Return the spec of a model folder. Raises CheckpointError if it is missing or invalid."""
    file = folder / SPEC
    described = read_json_object(file)
    if not pop_version(described):
        raise CheckpointError(f"{file}: {OLD_VERSION_MESSAGE}")
    try:
        return Spec.from_dict(described)
    except SpecError as error:
        raise CheckpointError(
            f"{file} does not describe a model of this version: {error}"
        ) from None


def read_model(folder: Path, *, on_meta: bool = False) -> LanguageModule:
    """Build the model that a folder's spec describes, and load its weights.

    With `on_meta`, the model is on the meta device, and no values are read. Otherwise as
    `read_weights`.

    Raises:
        CheckpointError: the spec is missing, the weights cannot be read, or their names and shapes
            do not match the spec.
    """
    module = build(read_spec(folder), device="meta")
    weights = read_weights(folder, module.spec, on_meta=on_meta)
    try:
        module.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        advice = (
            "\nThis LoRA run has not finished, its adapter is not merged: finish it with `trivium "
            "finetune --resume --out RUN`."
        )
        advice = advice if any("lora" in name for name in weights) else ""
        raise CheckpointError(
            f"{folder}: the weights are of another model than {SPEC}: {error}{advice}"
        ) from None
    return module


def read_weights(folder: Path, spec: Spec, *, on_meta: bool = False) -> LazyTensors:
    """Return the weights of a model in a folder. A weight is read when it is looked up.

    Weights in a single file are memory-mapped, and shards are joined in memory. If the weights
    contain an ELECTRA generator and discriminator, only those of the discriminator are returned.
    With `on_meta`, the weights are on the meta device.

    Raises:
        CheckpointError: the weights cannot be read.
    """
    tensors = read_shards(folder, WEIGHT_FILES, on_meta=on_meta)
    names = {name: name for name in tensors}
    if all(name.startswith((_DISCRIMINATOR, _GENERATOR)) for name in tensors):
        own = (name for name in tensors if name.startswith(_DISCRIMINATOR))
        names = {name.removeprefix(_DISCRIMINATOR): name for name in own}
    # Weights used only in training: the decoder of TSDAE, the value head of a policy.
    if not any(head.kind == "tagger" for head in spec.heads):
        alone = "decoder." if spec.family == "encoder-only" else "heads.tagger."
        names = {name: stored for name, stored in names.items() if not name.startswith(alone)}

    def read(name: str) -> Tensor:
        """Return the weight with a name of the model."""
        weight = tensors[names[name]]
        if name == _TABLE and _GENERATOR + _TABLE in tensors:
            # Trained with GDES (DeBERTa v3): the file has the difference from the generator's.
            return tensors[_GENERATOR + _TABLE] + weight
        return weight

    return LazyTensors({name: partial(read, name) for name in names})


def read_source_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer for source texts, or None if the folder has only one tokenizer."""
    file = folder / SOURCE_TOKENIZER
    return Tokenizer.load(file) if file.is_file() else None
