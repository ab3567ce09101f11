"""The real text that comes with the package, small enough to train on in minutes."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from trivium.errors import DataError

SAMPLES = {"en": "english.txt.xz", "zh": "chinese.txt.xz"}


def sample(language: str) -> Path:
    """The bundled text of a language: "en" (5.6 MB of articles) or "zh" (3.1 MB).

    Both come from Wikipedia, CC BY-SA; `LICENSES.md` beside them names origin and changes.

    Raises DataError for another language.
    """
    if language not in SAMPLES:
        known = ", ".join(SAMPLES)
        raise DataError(
            f'there is no bundled text in "{language}"; there is: {known}. '
            "For another language give your own text with --data."
        )
    return Path(str(resources.files(__name__) / SAMPLES[language]))
