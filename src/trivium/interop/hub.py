"""Find a model (a local folder, a bundled model, or a name on the hub), and upload one."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from trivium.bundled_models import BUNDLED_MODELS, find_bundled_model
from trivium.errors import CheckpointError, TriviumError
from trivium.files import did_you_mean_folder, is_file_name, sibling_folders
from trivium.interop.sentence_transformers import read_module_paths
from trivium.presets import did_you_mean_preset, presets

_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([\w./-]+))?")
_OWNED_NAME = re.compile(r"[^/]+/[^/]+")
_CARD = "README.md"
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
                stacklevel=4,
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
        reason = _first_line(error)
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


def check_push(name: str) -> None:
    """Check that a folder can be uploaded under a name, without a request to the hub.

    Raises:
        TriviumError: the name is not of the form OWNER/NAME, or there is no token.
    """
    try:
        validate_repo_id(name)
        reason = "" if _OWNED_NAME.fullmatch(name) else "it has no owner"
    except HFValidationError as error:
        reason = _first_line(error)
    if reason:
        raise TriviumError(
            f"{name!r} is not the name of a model on the hub ({reason.rstrip('.')}): write "
            "OWNER/NAME, with your user name or organization as OWNER, and letters, digits, "
            "hyphens, underscores and dots."
        )
    if not huggingface_hub.get_token():
        raise TriviumError(
            f"there is no token to upload {name} with: run `hf auth login`, or set HF_TOKEN. "
            "https://huggingface.co/settings/tokens makes tokens with the right to write."
        )


def push_folder(folder: str | os.PathLike[str], name: str, *, private: bool = False) -> str:
    """Upload a Hugging Face folder to the hub as one commit. Returns the address of the model.

    The repository is created if it does not exist. A model card that is already there is kept. The
    token is found where `huggingface_hub` looks for tokens, such as HF_TOKEN.

    Args:
        folder: a folder that `save_hf` wrote.
        name: the name on the hub, OWNER/NAME.
        private: make a new repository private. Otherwise the setting of the owner decides, which is
            public unless it was changed. An existing repository keeps its visibility.

    Raises:
        TriviumError: the name is wrong, there is no token, the hub refuses the token, the name or a
            file, or the hub cannot be reached.
    """
    check_push(name)
    api = huggingface_hub.HfApi()
    try:
        url = api.create_repo(name, private=private or None, exist_ok=True)
        keeps_card = api.file_exists(name, _CARD)
        api.upload_folder(
            repo_id=name,
            folder_path=Path(folder),
            commit_message="Upload a model of Trivium",
            ignore_patterns=[_CARD] if keeps_card else None,
        )
    except Exception as error:  # The hub client fails in many ways: network, rights, names.
        raise TriviumError(
            f"{_describe_refusal(name, error)} The model is in {folder}; when this is solved, "
            f"`hf upload {name} {folder}` uploads the folder."
        ) from None
    if keeps_card and (Path(folder) / _CARD).is_file():
        warnings.warn(
            f"{name} has a {_CARD} already, which was kept. The new one is in {folder}.",
            stacklevel=2,
        )
    return str(url)


def _describe_refusal(name: str, error: Exception) -> str:
    """Return a sentence that says why the hub did not accept a folder."""
    cause: BaseException = error  # an upload of a large file hides the reason in a chain of errors
    while getattr(cause, "response", None) is None and cause.__cause__ is not None:
        cause = cause.__cause__
    response = getattr(cause, "response", None)
    status = getattr(response, "status_code", None)
    host = huggingface_hub.constants.ENDPOINT
    if status == 401:
        return f"{host} does not accept the token: run `hf auth login`, or set another HF_TOKEN."
    if status in (403, 404):
        return (
            f"the token has no right to write to {name} on {host}: use a token with the right to "
            "write, of a member of this organization, or another name."
        )
    if response is None and not isinstance(error, ValueError):
        return f"{host} cannot be reached ({_first_line(cause)}): check the network."
    return f"{host} does not accept the folder as {name} ({_first_line(cause)})."


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".: ")
