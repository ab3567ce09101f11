"""Find a model: a local folder, a bundled model, or a name in the Hugging Face cache or hub."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

import huggingface_hub

from trivium.bundled_models import BUNDLED_MODELS, find_bundled_model
from trivium.errors import CheckpointError
from trivium.files import did_you_mean_folder, is_file_name, sibling_folders
from trivium.interop.sentence_transformers import read_module_paths
from trivium.presets import did_you_mean_preset, presets

_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([\w./-]+))?")
_TEXT_PATTERNS = ["*.json", "*.txt", "*.model", "*.jinja"]


def find_folder(path: str | os.PathLike[str]) -> Path:
    """Return the local folder of a model; download the model if the path does not exist.

    A path is first looked up as a local folder, then as the name of a bundled model, then as a name
    on the hub. Warns if a local folder has the name of a bundled model.

    A hub name may end with the revision (branch, tag or commit) to use: "org/name@v1.0". Paths
    directly under runs/ are never looked up on the hub, nor is "org/name" if a local folder "org"
    contains other folders.

    Raises:
        CheckpointError: neither a local folder nor a model on the hub, or no access to the hub.
    """
    folder, bundled = Path(path), find_bundled_model(os.fspath(path))
    if folder.is_dir():
        if bundled is not None:
            warnings.warn(
                f'"{path}" is the folder of this name here. The model "{path}" that comes with '
                "Trivium is used where there is no such folder.",
                stacklevel=3,
            )
        return _newest_snapshot(folder)
    if bundled is not None:
        return bundled
    name = _HUB_NAME.fullmatch(os.fspath(path))
    if folder.exists():
        return folder
    beside = sibling_folders(folder)
    if not name or folder.parent.name == "runs" or ("/" in name[1] and beside):
        raise CheckpointError(
            f"{path}: there is no such folder; {folder.parent} has "
            f"{', '.join(sorted(one.name for one in beside)[:20]) or 'no folder'}."
            f"{did_you_mean_folder(folder)}"
        )
    return _download(name[1], name[2])


def _newest_snapshot(folder: Path) -> Path:
    """Return the current snapshot in a folder of the Hugging Face cache (`models--ORG--NAME`).

    Any other folder is returned unchanged.
    """
    head = folder / "refs" / "main"
    if not (folder / "snapshots").is_dir() or not head.is_file():
        return folder
    revision = head.read_text(encoding="utf-8", errors="replace").strip()
    if not is_file_name(revision):
        raise CheckpointError(f"{head}: {revision!r} is not the name of a snapshot.")
    return folder / "snapshots" / revision


def _download(name: str, revision: str | None) -> Path:
    """Download a model's files from the hub. Returns their folder; raises CheckpointError."""
    try:
        # Pickles are downloaded only without safetensors; subfolders contain other formats.
        for weights in ("*.safetensors*", "pytorch_model*"):
            folder = Path(
                huggingface_hub.snapshot_download(
                    name,
                    revision=revision,
                    allow_patterns=[*_TEXT_PATTERNS, weights],
                    ignore_patterns=["*/*"],
                )
            )
            if any(folder.glob(weights)):
                break
        if paths := [path for _, path in read_module_paths(folder) if path]:
            huggingface_hub.snapshot_download(
                name,
                revision=revision,
                allow_patterns=[f"{path}/*" for path in paths],
                ignore_patterns=[],
            )
    except CheckpointError:
        raise
    except Exception as error:  # The hub client fails in many ways: network, rights, names.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".: ")
        if isinstance(error, ConnectionError | FileNotFoundError):
            reason = f"cannot be reached ({reason.removeprefix('Got: ')})"
        else:
            reason = f"does not give it ({reason})"
        near = did_you_mean_folder(Path(name))
        if not near and name not in presets:
            near = did_you_mean_preset(name)
        raise CheckpointError(
            f"{name}: there is no folder of this name here.{near} The Hugging Face hub {reason}. "
            "Give the path of a run or of a model's folder, or the name of a model that comes with "
            f"Trivium ({', '.join(BUNDLED_MODELS)})."
        ) from None
    return folder
