"""Find a model by path, hub name or URL. A model in object storage is downloaded to the cache."""

from __future__ import annotations

import json
import os
from pathlib import Path

from trivium.errors import CheckpointError, DataError
from trivium.files import temporary_path
from trivium.interop.hub import find_folder
from trivium.model_folder import CHECKPOINTS, CHECKSUMS, RECIPE, RUN_METADATA, SPEC
from trivium.remote import RemoteFile, RemoteFolder, cache_path, is_remote

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf")
# A folder at a URL is a model if it has one of these files.
_DESCRIPTIONS = (SPEC, "config.json", "adapter_config.json", RECIPE)


def find_model(path: str | os.PathLike[str]) -> Path:
    """Return the local folder of a model: a folder, a bundled model, a hub name or a URL.

    Raises:
        CheckpointError: there is no such model.
        DataError: the object storage cannot be read.
    """
    return download_model(os.fspath(path)) if is_remote(path) else find_folder(path)


def download_model(url: str, checkpoint: int | None = None) -> Path:
    """Download a model from object storage to the cache. Returns the local folder.

    Of a run, only the files that are needed to load the model are downloaded: the final weights, or
    the newest complete checkpoint if the run has not finished, without the state of the optimizer.
    Files that have not changed since the last download are not downloaded again.

    Args:
        url: the URL of a run, a checkpoint or a model folder.
        checkpoint: the step of the checkpoint to download; only for a run.

    Raises:
        CheckpointError: there is no model at the URL, or the run has no such checkpoint.
        DataError: the storage cannot be read.
    """
    remote = RemoteFolder(url)
    files = remote.list_files()
    if not any(name in files for name in _DESCRIPTIONS):
        raise CheckpointError(
            f"{url}: there is no model. Give the URL of a run, of one of its checkpoints or of a "
            f"model folder, which contains {SPEC} or config.json."
        )
    folder = cache_path("model", remote.url) / remote.url.rpartition("/")[2]
    is_run = RECIPE in files
    names = [name for name in files if not is_run or _belongs_to_model(name, files)]
    if is_run and (checkpoint is not None or _is_unfinished(remote, files)):
        names = [name for name in names if not name.endswith(_WEIGHT_SUFFIXES)]
        names += _find_checkpoint_files(url, files, checkpoint)
    names = [one for one in names if not one.rpartition("/")[2].startswith("optimizer")]
    for name in names:
        _download_if_changed(remote, name, files[name], folder / name)
    for file in [one for one in folder.rglob("[!.]*") if one.is_file()]:
        if file.relative_to(folder).as_posix() not in names:
            file.unlink(missing_ok=True)
    for empty in sorted((one for one in folder.rglob("*") if one.is_dir()), reverse=True):
        if not any(empty.iterdir()):
            empty.rmdir()
    return folder


def find_local_path(model: str | os.PathLike[str], checkpoint: int | None = None) -> Path:
    """Return the path of a model as it is, except for a URL, whose model is downloaded."""
    return download_model(os.fspath(model), checkpoint) if is_remote(model) else Path(model)


def _belongs_to_model(name: str, files: dict[str, RemoteFile]) -> bool:
    """Return whether a file of a run is part of the final model, also of a second one (ELECTRA)."""
    folder = name.rpartition("/")[0]
    return not folder or ("/" not in folder and f"{folder}/{SPEC}" in files)


def _is_unfinished(remote: RemoteFolder, files: dict[str, RemoteFile]) -> bool:
    """Return whether the run at a URL has not written its final weights."""
    if CHECKSUMS not in files:  # uploaded after the weights
        return True
    try:
        metadata = json.loads(remote.read(RUN_METADATA)) if RUN_METADATA in files else {}
        return metadata.get("finished") is False
    except (ValueError, AttributeError):
        raise DataError(f"{remote.url}/{RUN_METADATA} is damaged.") from None


def _find_checkpoint_files(
    url: str, files: dict[str, RemoteFile], checkpoint: int | None
) -> list[str]:
    """Return the names of the files of a checkpoint; the newest complete one if it is None.

    Raises CheckpointError if the run has no such checkpoint.
    """
    folders = {name.rpartition("/")[0] for name in files if name.endswith(f"/{CHECKSUMS}")}
    steps = sorted(one for one in folders if one.startswith(f"{CHECKPOINTS}/step-"))
    chosen = steps[-1:] if checkpoint is None else [f"{CHECKPOINTS}/step-{checkpoint:08}"]
    if not chosen or chosen[0] not in steps:
        kept = [f"{int(one.rpartition('-')[2]):,}" for one in steps]
        what = "" if checkpoint is None else f" of step {checkpoint:,}"
        raise CheckpointError(f"{url} has no checkpoint{what}; it has {', '.join(kept) or 'none'}.")
    return [name for name in files if name.startswith(f"{chosen[0]}/")]


def _download_if_changed(remote: RemoteFolder, name: str, known: RemoteFile, file: Path) -> None:
    """Download a file unless the local file has the size and modification time of the remote one.

    The local file gets the modification time of the remote file. It is replaced atomically.
    """
    if file.is_file():
        stat = file.stat()
        if known.mtime_ns and (stat.st_size, stat.st_mtime_ns) == (known.size, known.mtime_ns):
            return
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(file)
    try:
        remote.download(name, temporary)
        os.utime(temporary, ns=(known.mtime_ns, known.mtime_ns))
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
