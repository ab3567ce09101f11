"""Bundled sample texts, small enough to train on in minutes."""

from __future__ import annotations

import lzma
import os
import shutil
from importlib import resources
from pathlib import Path

from trivium.errors import DataError
from trivium.files import replace_file

SAMPLES = {"en": "english.txt.xz", "zh": "chinese.txt.xz"}
EXAMPLES = ("movies.jsonl.xz", "names.conll.xz", "english-french.tsv.xz")
LICENCES = "LICENSES.md"


def sample(language: str) -> Path:
    """Return the path of the bundled text in a language: "en" (5.6 MB) or "zh" (3.1 MB).

    Both texts consist of Wikipedia articles (CC BY-SA). `LICENSES.md` in the same folder lists the
    sources and the changes.

    Raises DataError if there is no text in this language.
    """
    if language not in SAMPLES:
        known = ", ".join(SAMPLES)
        raise DataError(
            f'there is no bundled text in "{language}"; there is: {known}. '
            "For another language give your own text with --data."
        )
    return _find_bundled_file(SAMPLES[language])


def copy_samples(folder: str | os.PathLike[str]) -> list[Path]:
    """Unpack all bundled files into a folder. Returns the paths of the unpacked files.

    The first path is that of `LICENSES.md`. Existing files with the same names are replaced.
    """
    out = Path(folder)
    if out.is_file():
        raise DataError(f"{out} is a file: name a folder to unpack to.")
    out.mkdir(parents=True, exist_ok=True)
    written = [out / LICENCES]
    shutil.copyfile(_find_bundled_file(LICENCES), written[0])
    for name in (*SAMPLES.values(), *EXAMPLES):
        written.append(out / name.removesuffix(".xz"))
        with lzma.open(_find_bundled_file(name)) as packed, replace_file(written[-1]) as plain:
            shutil.copyfileobj(packed, plain)
    return written


def _find_bundled_file(name: str) -> Path:
    """Return the path of a file that is bundled with this package."""
    return Path(str(resources.files(__name__) / name))
