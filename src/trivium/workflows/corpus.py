"""From a recipe's text to its tokenizer and shards, in the run's folder."""

from __future__ import annotations

import random
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from trivium.data import Shards
from trivium.data.prepare import Progress, prepare
from trivium.data.shards import MANIFEST, TRAIN, VALIDATION
from trivium.data.sources import STDIN, source_files
from trivium.data.splits import Paths, read_splits
from trivium.errors import RecipeError
from trivium.spec import AnySpec
from trivium.text import Tokenizer
from trivium.train import defaults
from trivium.train.objective_recipe import ObjectiveKind
from trivium.train.progress import ProgressLine
from trivium.train.recipe import Recipe, SourceSection
from trivium.train.run import RunFolder

# What figures of a run are called already.
_TAKEN = {*get_args(ObjectiveKind), "loss", "mlm", "nsp", "order"}


@dataclass(frozen=True)
class Source:
    """One source of text, encoded. It has no name where it is the only one."""

    name: str
    shards: Shards


@dataclass(frozen=True)
class Corpus:
    """All that a run reads: its tokenizer, its sources, and the recipe with both decided."""

    recipe: Recipe
    tokenizer: Tokenizer
    sources: tuple[Source, ...]

    def count(self, what: str, split: str | None = None) -> int:
        """How many "documents", "tokens", "text_bytes" or "duplicates" there are."""
        return sum(
            getattr(info, what)
            for source in self.sources
            for name, info in source.shards.manifest.splits.items()
            if split in (None, name)
        )

    def unigram_loss(self, shares: Sequence[float]) -> float:
        """The loss of guessing by word frequency, nats a token; sources by share."""
        if len(self.sources) == 1:
            return self.sources[0].shards.unigram_loss()
        manifest = self.sources[0].shards.manifest
        ordinary = np.ones(manifest.vocab_size, dtype=bool)
        ordinary[list(manifest.special_ids)] = False
        known, judged = np.zeros(ordinary.sum()), np.zeros(ordinary.sum())
        total = 0
        for source, share in zip(self.sources, shares, strict=True):
            seen = source.shards.split(TRAIN).counts()[ordinary]
            held = source.shards.split(VALIDATION).counts()[ordinary] if held_out(source) else seen
            known += share * seen / max(1, seen.sum())
            judged += share * held / max(1, held.sum())
            total += int(seen.sum())
        probability = (total * known + 1.0) / (total + len(known))
        return float(-(judged * np.log(probability)).sum() / max(judged.sum(), 1e-12))


def held_out(source: Source) -> bool:
    """Whether a source has a validation split."""
    return VALIDATION in source.shards.names


def make_corpus(recipe: Recipe, spec: AnySpec, run: RunFolder, line: ProgressLine) -> Corpus:
    """Train or load the tokenizer, prepare the shards; the recipe comes back complete in both.

    A folder of shards that `trivium prepare` made may stand in for text: it is used as it is.
    """
    if not recipe.data.sources:
        raise RecipeError("there is no text to train on: give --data PATH or data.paths.")
    recipe = _with_names(_without_stdin(recipe, run))
    ready = [_prepared(source) for source in recipe.data.sources]
    tokenizer = _common_tokenizer([shards for shards in ready if shards is not None])
    if tokenizer is None:
        tokenizer = _tokenizer(recipe, spec, run, line)
    sources = []
    for section, shards in zip(recipe.data.sources, ready, strict=True):
        if shards is None:
            shards = _prepare(recipe, section, tokenizer, run, line)
        sources.append(Source(section.name or "", shards))
    section = recipe.tokenizer.model_copy(
        update={"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size}
    )
    recipe = recipe.model_copy(update={"tokenizer": section})
    return Corpus(recipe, tokenizer, tuple(sources))


def _with_names(recipe: Recipe) -> Recipe:
    """The recipe with a name for each of several sources: those of their first paths."""
    data = recipe.data
    if data.mix is None:
        return recipe
    for source in data.mix:
        if source.name in _TAKEN:
            raise RecipeError(
                f"data.mix: a source cannot have the name {source.name!r}, which figures of a run "
                "have: choose another."
            )
    taken = _TAKEN | {source.name for source in data.mix if source.name is not None}
    named = []
    for source in data.mix:
        if source.name is None:
            # Told from the last part of a path, or of a name on the hub.
            stem = Path(source.paths[0].removeprefix("hf:")).name.split(".")[0]
            stem = name = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "text"
            number = 1
            while name in taken:
                number += 1
                name = f"{stem}-{number}"
            taken.add(name)
            source = source.model_copy(update={"name": name})
        named.append(source)
    return recipe.model_copy(update={"data": data.model_copy(update={"mix": tuple(named)})})


def _prepared(source: SourceSection) -> Shards | None:
    if len(source.paths) == 1 and (Path(source.paths[0]) / MANIFEST).is_file():
        return Shards.open(source.paths[0])
    return None


def _common_tokenizer(prepared: Sequence[Shards]) -> Tokenizer | None:
    """The tokenizer of shards that are there already."""
    for shards in prepared[1:]:
        if shards.manifest.tokenizer_sha256 != prepared[0].manifest.tokenizer_sha256:
            raise RecipeError(
                f"{shards.folder} was prepared with another tokenizer than {prepared[0].folder}: a "
                "model reads the ids of one."
            )
    return Tokenizer.load(prepared[0].tokenizer_path) if prepared else None


def _prepare(
    recipe: Recipe,
    source: SourceSection,
    tokenizer: Tokenizer,
    run: RunFolder,
    line: ProgressLine,
) -> Shards:
    """The shards of one source, in a folder of their own where there are several."""
    data = recipe.data

    def show(progress: Progress) -> None:
        if progress.note:
            line.say(progress.note)
        else:
            line.update(
                f"encoding: {progress.documents:,} documents, {progress.tokens:,} tokens, "
                f"{progress.bytes_per_second / 1e6:.1f} MB/s"
            )

    return prepare(
        list(source.paths),
        run.shards / (source.name or ""),
        tokenizer,
        validation=_held_out(recipe, source),
        separator=data.separator,
        text_field=data.text_field,
        errors=data.errors,
        keep_duplicates=data.keep_duplicates,
        progress=show,
    )


def _without_stdin(recipe: Recipe, run: RunFolder) -> Recipe:
    """Keep standard input as a file of the run: the tokenizer and the shards both read it."""
    data = recipe.data
    if not any(STDIN in source.paths for source in data.sources):
        return recipe
    kept = run.path / "standard_input.txt"
    if not kept.is_file():
        partial = kept.with_name(f".{kept.name}.partial")
        with partial.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        partial.replace(kept)

    def named(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(kept) if path == STDIN else path for path in paths)

    if data.mix is None:
        data = data.model_copy(update={"paths": named(data.paths)})
    else:
        mix = tuple(one.model_copy(update={"paths": named(one.paths)}) for one in data.mix)
        data = data.model_copy(update={"mix": mix})
    return recipe.model_copy(update={"data": data})


def _tokenizer(recipe: Recipe, spec: AnySpec, run: RunFolder, line: ProgressLine) -> Tokenizer:
    section = recipe.tokenizer
    if section.path is not None:
        return Tokenizer.load(section.path)
    if run.tokenizer.is_file():
        return Tokenizer.load(run.tokenizer)
    objectives = recipe.objective.kinds or (defaults.objective_kind(spec),)
    kind = section.kind or defaults.tokenizer_kind(spec, *objectives)
    special = section.special_tokens
    special = defaults.special_tokens(spec, *objectives) if special is None else special
    size = section.vocab_size or defaults.vocabulary_size(spec, round(sum(_sizes(recipe))))
    line.say(f"tokenizer  learning {size:,} {kind} tokens from the training text")
    tokenizer = Tokenizer.train(
        kind,
        texts=_training_texts(recipe),
        vocab_size=size,
        special_tokens=special,
        lowercase=section.lowercase,
        sample_bytes=section.sample_bytes,
        seed=recipe.seed,
        progress=line.say,
    )
    tokenizer.save(run.tokenizer)
    return tokenizer


def _training_texts(recipe: Recipe) -> Iterator[str]:
    """The training text, each source in proportion to its share.

    Of sources whose shares are not their sizes, documents come several times or not at all.
    """
    data = recipe.data
    sizes = [1.0] * len(data.sources) if data.mix is None else _sizes(recipe)
    as_they_are = data.temperature is None and all(one.weight is None for one in data.sources)
    shares = data.shares(sizes)
    chance = random.Random(recipe.seed)
    for source, size, share in zip(data.sources, sizes, shares, strict=True):
        times = 1.0 if as_they_are else share * sum(sizes) / size
        for text in _texts(recipe, source):
            for _ in range(int(times + chance.random())):
                yield text


def _texts(recipe: Recipe, source: SourceSection) -> Iterator[str]:
    """The training documents of a source."""
    data = recipe.data
    documents = read_splits(
        list(source.paths),
        validation=_held_out(recipe, source),
        separator=data.separator,
        text_field=data.text_field,
        errors=data.errors,
        keep_duplicates=data.keep_duplicates,
    )
    return (document.text for split, document in documents if split == TRAIN)


def _held_out(recipe: Recipe, source: SourceSection) -> float | Paths:
    own = source.validation
    validation = recipe.data.validation if own is None else own
    return [validation] if isinstance(validation, str) else validation


def _sizes(recipe: Recipe) -> list[float]:
    """Bytes of text of each source, near enough to choose a vocabulary.

    Compressed text counts three times; what tells no size is read.
    """
    found = []
    for section in recipe.data.sources:
        total = 0
        for source in source_files(list(section.paths)):
            packed = Path(source.name).suffix in (".gz", ".xz", ".zst")
            total += source.size * (3 if packed else 1)
        if not total and recipe.data.mix is not None:
            total = sum(len(text) for text in _texts(recipe, section))
        found.append(float(max(total, 1)))
    return found
