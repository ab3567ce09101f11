"""Bundled sample texts, small enough to train on in minutes."""

from __future__ import annotations

import itertools
import lzma
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
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
_BLOCK_BYTES = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BundledText:
    """The origin and licence of a bundled file, as in `LICENSES.md`.

    Args:
        origin: what the file contains, and who wrote it.
        licence: the name of the licence.
        url: the address of the licence, or of the source of a text in the public domain.
        languages: the languages of the text, as ISO 639-1 codes.
    """

    origin: str
    licence: str
    url: str
    languages: tuple[str, ...]


_BY_SA = "https://creativecommons.org/licenses/by-sa/3.0/"
_BY_4 = "https://creativecommons.org/licenses/by/4.0/"
_CDLA = "https://cdla.dev/sharing-1-0/"
_TINY_STORIES = "stories of TinyStories (Ronen Eldan and Yuanzhi Li 2023, arXiv:2305.07759)"
_POEMS = "poems of the Tang dynasty"
_POEMS_URL = "https://github.com/chinese-poetry/chinese-poetry"
BUNDLED_TEXTS = {
    "english.txt": BundledText(
        "1,820 articles by the contributors of Wikipedia (https://en.wikipedia.org)",
        "CC BY-SA 3.0",
        _BY_SA,
        ("en",),
    ),
    "chinese.txt": BundledText(
        "1,340 articles by the contributors of Wikipedia (https://zh.wikipedia.org)",
        "CC BY-SA 3.0 / 4.0",
        _BY_SA,
        ("zh",),
    ),
    "stories.txt": BundledText(f"11,344 {_TINY_STORIES}", "CDLA-Sharing-1.0", _CDLA, ("en",)),
    "stories.valid.txt": BundledText(f"366 {_TINY_STORIES}", "CDLA-Sharing-1.0", _CDLA, ("en",)),
    "poems.txt": BundledText(f"12,968 {_POEMS}", "public domain", _POEMS_URL, ("zh",)),
    "poems.valid.txt": BundledText(f"572 {_POEMS}", "public domain", _POEMS_URL, ("zh",)),
    "movies.jsonl": BundledText(
        "1,000 sentences of film reviews (Bo Pang and Lillian Lee 2005)",
        "CC BY 4.0",
        _BY_4,
        ("en",),
    ),
    "english-french.tsv": BundledText(
        "2,000 pairs of sentences by the contributors of Tatoeba (https://tatoeba.org)",
        "CC BY 2.0 FR",
        "https://creativecommons.org/licenses/by/2.0/fr/",
        ("en", "fr"),
    ),
    "names.conll": BundledText(
        "400 sentences of social media from WNUT 2017 (Leon Derczynski, Eric Nichols, "
        "Marieke van Erp and Nut Limsopatham)",
        "CC BY 4.0",
        _BY_4,
        ("en",),
    ),
}
"""The bundled files by the names that `copy_samples` gives them."""


def find_bundled_text(path: str | os.PathLike[str]) -> BundledText | None:
    """Return the origin of a file if it is an unchanged copy of a bundled file, otherwise None."""
    file = Path(path)
    name = file.name.removesuffix(".xz")
    if name not in BUNDLED_TEXTS or not file.is_file():
        return None
    reader = lzma.open if file.suffix == ".xz" else open
    try:
        with (
            reader(file, "rb") as given,
            lzma.open(_find_bundled_file(f"{name}.xz"), "rb") as bundled,
        ):
            while block := bundled.read(_BLOCK_BYTES):
                if given.read(len(block)) != block:
                    return None
            return None if given.read(1) else BUNDLED_TEXTS[name]
    except (OSError, EOFError, lzma.LZMAError):
        return None


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
    - "zh": poems of the Tang dynasty in simplified characters (3.0 MB; public domain)

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
