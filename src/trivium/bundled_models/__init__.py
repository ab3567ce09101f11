"""Small trained models that come with the package.

Each model is a folder with its weights in bfloat16 and a model card, `README.md`, which names the
training data, the commands that trained the model, and its loss.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

BUNDLED_MODELS = ("stories", "sample-encoder")
"""The names of the models, which every command accepts in place of a folder."""


def find_bundled_model(name: str) -> Path | None:
    """Return the folder of a bundled model, or None if no bundled model has this name."""
    if name not in BUNDLED_MODELS:
        return None
    return Path(str(resources.files(__name__) / name))


def is_bundled(folder: Path) -> bool:
    """Return whether a folder is the folder of a bundled model."""
    bundled = find_bundled_model(folder.name)
    return bundled is not None and bundled.resolve() == folder.resolve()
