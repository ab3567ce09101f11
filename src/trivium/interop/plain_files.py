"""JSON files of a model folder, read with clear errors and written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trivium.errors import CheckpointError


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError where there is none."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file}: there is no such file.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON: {error}.") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{file}: is JSON, but no object with names and values.")
    return data


def read_json_if_there(file: Path) -> dict[str, Any]:
    """The same, and nothing where there is no such file."""
    return read_json(file) if file.is_file() else {}


def to_json(data: Mapping[str, Any]) -> str:
    """The text of a JSON file, for people too."""
    return json.dumps(dict(data), indent=2, ensure_ascii=False) + "\n"
