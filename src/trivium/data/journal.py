"""The journal of an unfinished preparation: how far it has come, and from what inputs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from trivium.data.formats import ReadOptions
from trivium.data.shards import (
    FORMAT_VERSION,
    TOKENIZER,
    TRAIN,
    VALIDATION,
    Manifest,
    SourceInfo,
    file_sha256,
)
from trivium.data.sources import Source
from trivium.data.splits import Paths, Plan, plan_sources
from trivium.data.stream import Place
from trivium.data.writer import write_durably

if TYPE_CHECKING:
    from trivium.text import Tokenizer

JOURNAL = "journal.json"
SPLITS = (TRAIN, VALIDATION)


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """All that decides what the shards will hold. Equal inputs give equal bytes."""

    fingerprint: str
    options: dict[str, Any]
    sources: tuple[tuple[Source, str | None], ...]

    @property
    def repeatable(self) -> bool:
        """Whether the sources can be read again: standard input and pipes cannot."""
        return all(source.kind == "hub" or source.modified for source, _ in self.sources)

    def to_dict(self) -> dict[str, Any]:
        """The inputs as JSON values, for the journal."""
        return {
            "format_version": FORMAT_VERSION,
            "fingerprint": self.fingerprint,
            "options": self.options,
            "sources": describe_sources(self.sources),
        }

    def differences(self, manifest: Manifest) -> list[str]:
        """What of a finished folder was made from other inputs; empty where nothing was."""
        found = []
        if manifest.tokenizer_fingerprint != self.fingerprint:
            found.append("another tokenizer")
        names = {**self.options, **manifest.options}
        for name in names:
            if manifest.options.get(name) != self.options.get(name):
                found.append(f"{name} {manifest.options.get(name)!r}")
        if not self.repeatable:
            found.append("standard input, which cannot be compared")
        elif not self._same_sources(manifest.sources):
            found.append("other texts")
        return found

    def _same_sources(self, before: tuple[SourceInfo, ...]) -> bool:
        """Compare name, size and time, and only where name or time differ the contents."""
        if len(before) != len(self.sources):
            return False
        return all(
            split == old.split and _same_source(source, old)
            for (source, split), old in zip(self.sources, before)
        )


def _same_source(source: Source, old: SourceInfo) -> bool:
    if source.kind == "hub":
        return source.name == old.name
    if source.size != old.size:
        return False
    if (source.name, source.modified) == (old.name, old.modified):
        return True
    return file_sha256(Path(source.name)) == old.sha256


def describe_sources(sources: tuple[tuple[Source, str | None], ...]) -> list[list[Any]]:
    """Sources as JSON values: name, size, time and split."""
    return [[source.name, source.size, source.modified, split] for source, split in sources]


def describe_inputs(
    plan: Plan,
    options: ReadOptions,
    tokenizer: Tokenizer,
    *,
    keep_duplicates: bool,
    shard_tokens: int,
) -> Inputs:
    """The inputs of a preparation."""
    chosen = {
        "validation": plan.fraction,
        **dataclasses.asdict(options),
        "keep_duplicates": keep_duplicates,
        "shard_tokens": shard_tokens,
    }
    return Inputs(tokenizer.fingerprint, chosen, plan.sources)


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """A point to go on from: where reading was, and how much of each file was written.

    `files` holds for each split the tokens and documents of its shards; `digests` the number of
    document digests.
    """

    place: Place
    files: dict[str, list[list[int]]]
    digests: dict[str, int]

    @classmethod
    def beginning(cls) -> Checkpoint:
        """Nothing read, nothing written."""
        return cls(Place(), {split: [] for split in SPLITS}, dict.fromkeys(SPLITS, 0))


def write_checkpoint(folder: Path, inputs: Inputs, checkpoint: Checkpoint) -> None:
    """Make a checkpoint durable. What it speaks of must be so before."""
    data = {"inputs": inputs.to_dict(), "checkpoint": dataclasses.asdict(checkpoint)}
    write_durably(folder / JOURNAL, json.dumps(data).encode())


def read_checkpoint(folder: Path, inputs: Inputs) -> Checkpoint | None:
    """The last checkpoint of a folder, None where there is none or the inputs were others."""
    journal = _read(folder)
    if journal is None or not inputs.repeatable:
        return None
    if journal["inputs"] != json.loads(json.dumps(inputs.to_dict())):
        return None
    checkpoint = journal["checkpoint"]
    place = Place(**checkpoint["place"])
    place.finished = [(size, sha256) for size, sha256 in place.finished]
    return Checkpoint(place, checkpoint["files"], checkpoint["digests"])


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / JOURNAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def partial_folder(out: Path) -> Path:
    """Where the work on `out` goes on until it is done."""
    return out.with_name(out.name + ".partial")


def unfinished_tokenizer(paths: Paths, out: str | Path, validation: float | Paths) -> Path | None:
    """The tokenizer of an interrupted preparation of the same texts, None where there is none."""
    folder = partial_folder(Path(out).absolute())
    journal = _read(folder)
    plan = plan_sources(paths, validation)
    tokenizer = folder / TOKENIZER
    if journal is None or not tokenizer.is_file():
        return None
    same = journal["inputs"]["sources"] == describe_sources(plan.sources)
    return tokenizer if same else None


def digest_path(folder: Path, split: str) -> Path:
    """Where the digests of the documents kept so far stand, 8 bytes each."""
    return folder / f"{split}.digests"


def open_digests(folder: Path, split: str, count: int) -> tuple[BinaryIO, list[int]]:
    """The digest file cut to `count` digests and open for appending, and those digests."""
    path = digest_path(folder, split)
    if not count:
        return path.open("wb"), []
    digests = np.fromfile(path, dtype="<u8", count=count)
    assert len(digests) == count
    file = path.open("r+b")
    file.truncate(count * 8)
    file.seek(count * 8)
    return file, digests.tolist()
