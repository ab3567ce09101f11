"""What `trivium check` and the files themselves say about the chosen data, in a few lines."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trivium.data.sources import Source, list_sources
from trivium.errors import TriviumError
from trivium.files import open_text
from trivium.messages import Language, translate_english

_SUFFIXES = (".txt", ".md", ".jsonl", ".json", ".csv", ".tsv", ".conll", ".conllu", ".parquet")
_HEAD = 4000  # characters from which the language is guessed
_MIN_HEAD = 40  # with fewer characters, no language is guessed


def list_local_files(paths: Sequence[str], folder: Path) -> list[Source]:
    """Return the files that paths refer to. `folder` is where relative paths begin.

    Names on the hub are left out, and the list is empty if a path does not exist.
    """
    local = [str(folder / path) for path in paths if not path.startswith("hf:")]
    with contextlib.suppress(TriviumError):
        return list(list_sources(local, _SUFFIXES).sources) if local else []
    return []


def guess_language(files: Sequence[Source], encoding: str = "utf-8") -> str | None:
    """Guess the language of the first file from its beginning, as an ISO 639 code.

    Returns None without the extra `clean`, which contains the classifier, and for files that are
    not text or have almost no text.
    """
    try:
        import py3langid
    except ImportError:
        return None
    with contextlib.suppress(TriviumError, OSError):
        if files:
            with open_text(files[0].name, errors="replace", encoding=encoding) as file:
                head = file.read(_HEAD)
            if len(head.strip()) >= _MIN_HEAD:
                return str(py3langid.classify(head)[0])
    return None


def find_count(findings: Sequence[Mapping[str, Any]], check: str) -> Mapping[str, Any] | None:
    """Return the finding of a check, or None. `findings` come from `trivium check --json`."""
    return next((one for one in findings if one["check"] == check), None)


def describe_problems(findings: Sequence[Mapping[str, Any]], language: Language) -> list[str]:
    """Return a line for each finding that is a problem, with its advice and examples."""
    lines = []
    for one in findings:
        if one["wrong"]:
            check, advice = (translate_english(one[k], language) for k in ("check", "advice"))
            examples = f" ({'; '.join(one['samples'])})" if one["samples"] else ""
            lines.append(f"{check}: {one['count']:,} / {one['total']:,}. {advice}{examples}")
    return lines
