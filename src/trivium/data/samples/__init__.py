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
STORIES = ("stories.txt.xz", "stories.valid.txt.xz")
EXAMPLES = ("movies.jsonl.xz", "names.conll.xz", "english-french.tsv.xz")
LICENCES = ("LICENSES.md", "CDLA-Sharing-1.0.txt")


def sample_path(language: str) -> Path:
    """Return the path of the bundled sample text in a language: "en" (5.6 MB) or "zh" (3.1 MB).

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


def story_paths() -> tuple[Path, Path]:
    """Return the paths of the bundled children's stories for training (9.6 MB) and validation.

    The stories are a part of TinyStories, in English (CDLA-Sharing-1.0). A small model learns to
    write sentences from them in minutes. No story is in both files.
    """
    train, validation = (_find_bundled_file(name) for name in STORIES)
    return train, validation


def copy_samples(folder: str | os.PathLike[str]) -> list[Path]:
    """Unpack all bundled files into a folder. Returns the paths of the unpacked files.

    The first paths are those of `LICENSES.md` and of the text of a licence. Existing files with the
    same names are replaced.
    """
    out = Path(folder)
    if out.is_file():
        raise DataError(f"{out} is a file: name a folder to unpack to.")
    out.mkdir(parents=True, exist_ok=True)
    written = [out / name for name in LICENCES]
    for path in written:
        shutil.copyfile(_find_bundled_file(path.name), path)
    for name in (*SAMPLES.values(), *STORIES, *EXAMPLES):
        written.append(out / name.removesuffix(".xz"))
        with lzma.open(_find_bundled_file(name)) as packed, replace_file(written[-1]) as plain:
            shutil.copyfileobj(packed, plain)
    return written


def _find_bundled_file(name: str) -> Path:
    """Return the path of a file that is bundled with this package."""
    return Path(str(resources.files(__name__) / name))
