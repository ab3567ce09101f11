"""The playground: what models do, in a browser, for people (extra: playground)."""

from __future__ import annotations

import importlib.util

from trivium.errors import MissingExtraError

if importlib.util.find_spec("gradio") is None:
    raise MissingExtraError("the playground", "playground")

from trivium.serve.playground.models import LoadedModels, ModelCard, Models
from trivium.serve.playground.mounting import mount

__all__ = ["LoadedModels", "ModelCard", "Models", "mount"]
