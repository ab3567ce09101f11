"""Bundled sample texts, small enough to train on in minutes."""

from __future__ import annotations

import itertools
import lzma
import os
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TypeVar

from trivium.errors import DataError
from trivium.files import replace_file

SAMPLES = {"en": "english.txt.xz", "zh": "chinese.txt.xz"}
EASY_TEXTS = {
    "en": ("stories.txt.xz", "stories.valid.txt.xz"),
    "zh": ("poems.txt.xz", "poems.valid.txt.xz"),
}
EXAMPLES = ("movies.jsonl.xz", "names.conll.xz", "english-french.tsv.xz")
LICENCES = ("LICENSES.md", "CDLA-Sharing-1.0.txt")

T = TypeVar("T")


def sample_path(language: str) -> Path:
    """Return the path of the bundled sample text in a language: "en" (5.6 MB) or "zh" (3.1 MB).

    Both texts consist of Wikipedia articles (CC BY-SA). `LICENSES.md` in the same folder lists the
    sources and the changes.

    Raises DataError if there is no text in this language.
    """
    return _find_bundled_file(_get_files(SAMPLES, language))


def easy_text_paths(language: str) -> tuple[Path, Path]:
    """Return the paths of bundled text that a small decoder learns to write in minutes.

    The first file is for training and the second for validation. No text is in both files.

    - "en": children's stories, a part of TinyStories (9.6 MB; CDLA-Sharing-1.0)
    - "zh": poems of the Tang and Song dynasties in simplified characters (3.0 MB; public domain)

    Raises DataError if there is no such text in this language.
    """
    train, validation = (_find_bundled_file(name) for name in _get_files(EASY_TEXTS, language))
    return train, validation


def copy_samples(folder: str | os.PathLike[str]) -> list[Path]:
    """Unpack all bundled files into a folder. Returns the paths of the unpacked files.

    The first two files are `LICENSES.md` and the text of a licence. Existing files with the same
    names are replaced.
    """
    out = Path(folder)
    if out.is_file():
        raise DataError(f"{out} is a file: name a folder to unpack to.")
    out.mkdir(parents=True, exist_ok=True)
    written = [out / name for name in LICENCES]
    for path in written:
        shutil.copyfile(_find_bundled_file(path.name), path)
    easy = itertools.chain(*EASY_TEXTS.values())
    for name in (*SAMPLES.values(), *easy, *EXAMPLES):
        written.append(out / name.removesuffix(".xz"))
        with lzma.open(_find_bundled_file(name)) as packed, replace_file(written[-1]) as plain:
            shutil.copyfileobj(packed, plain)
    return written


def _get_files(files: Mapping[str, T], language: str) -> T:
    """Return the bundled files of a language. Raises DataError if there are none."""
    if language not in files:
        raise DataError(
            f'there is no bundled text in "{language}"; there is: {", ".join(files)}. '
            "For another language give your own text with --data."
        )
    return files[language]


def _find_bundled_file(name: str) -> Path:
    """Return the path of a file that is bundled with this package."""
    return Path(str(resources.files(__name__) / name))
