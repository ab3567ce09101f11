"""From a recipe's text to its tokenizer and shards, in the run's folder."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from trivium.data import Shards
from trivium.data.prepare import Progress, prepare
from trivium.data.shards import MANIFEST, TRAIN
from trivium.data.sources import STDIN, source_files
from trivium.data.splits import Paths, read_splits
from trivium.errors import RecipeError
from trivium.spec import AnySpec
from trivium.text import Tokenizer
from trivium.train import defaults
from trivium.train.progress import ProgressLine
from trivium.train.recipe import Recipe
from trivium.train.run import RunFolder


def make_corpus(
    recipe: Recipe, spec: AnySpec, run: RunFolder, line: ProgressLine
) -> tuple[Recipe, Tokenizer, Shards]:
    """Train or load the tokenizer, prepare the shards; the recipe comes back complete in both.

    A folder of shards that `trivium prepare` made may stand in for text: it is used as it is.
    """
    prepared = _prepared_folder(recipe)
    if prepared is not None:
        shards = Shards.open(prepared)
        tokenizer = Tokenizer.load(shards.tokenizer_path)
        return _with_tokenizer(recipe, tokenizer), tokenizer, shards
    recipe = _without_stdin(recipe, run)
    tokenizer = _tokenizer(recipe, spec, run, line)

    def show(progress: Progress) -> None:
        if progress.note:
            line.say(progress.note)
        else:
            line.update(
                f"encoding: {progress.documents:,} documents, {progress.tokens:,} tokens, "
                f"{progress.bytes_per_second / 1e6:.1f} MB/s"
            )

    data = recipe.data
    shards = prepare(
        list(data.paths),
        run.shards,
        tokenizer,
        validation=_held_out(recipe),
        separator=data.separator,
        text_field=data.text_field,
        errors=data.errors,
        keep_duplicates=data.keep_duplicates,
        progress=show,
    )
    return _with_tokenizer(recipe, tokenizer), tokenizer, shards


def _prepared_folder(recipe: Recipe) -> Path | None:
    paths = recipe.data.paths
    if len(paths) == 1 and (Path(paths[0]) / MANIFEST).is_file():
        return Path(paths[0])
    return None


def _without_stdin(recipe: Recipe, run: RunFolder) -> Recipe:
    """Keep standard input as a file of the run: the tokenizer and the shards both read it."""
    if STDIN not in recipe.data.paths:
        return recipe
    kept = run.path / "standard_input.txt"
    if not kept.is_file():
        partial = kept.with_name(f".{kept.name}.partial")
        with partial.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        partial.replace(kept)
    paths = tuple(str(kept) if path == STDIN else path for path in recipe.data.paths)
    data = recipe.data.model_copy(update={"paths": paths})
    return recipe.model_copy(update={"data": data})


def _tokenizer(recipe: Recipe, spec: AnySpec, run: RunFolder, line: ProgressLine) -> Tokenizer:
    section = recipe.tokenizer
    if section.path is not None:
        return Tokenizer.load(section.path)
    if run.tokenizer.is_file():
        return Tokenizer.load(run.tokenizer)
    if not recipe.data.paths:
        raise RecipeError("there is no text to train on: give --data PATH or data.paths.")
    objective = recipe.objective.kind or defaults.objective_kind(spec)
    kind = section.kind or defaults.tokenizer_kind(spec, objective)
    special = section.special_tokens
    special = defaults.special_tokens(objective) if special is None else special
    size = section.vocab_size or defaults.vocabulary_size(spec, _corpus_bytes(recipe))
    line.say(f"tokenizer  learning {size:,} {kind} tokens from the training text")
    data = recipe.data
    documents = read_splits(
        list(data.paths),
        validation=_held_out(recipe),
        separator=data.separator,
        text_field=data.text_field,
        errors=data.errors,
        keep_duplicates=data.keep_duplicates,
    )
    tokenizer = Tokenizer.train(
        kind,
        texts=(document.text for split, document in documents if split == TRAIN),
        vocab_size=size,
        special_tokens=special,
        lowercase=section.lowercase,
        sample_bytes=section.sample_bytes,
        seed=recipe.seed,
        progress=line.say,
    )
    tokenizer.save(run.tokenizer)
    return tokenizer


def _with_tokenizer(recipe: Recipe, tokenizer: Tokenizer) -> Recipe:
    section = recipe.tokenizer.model_copy(
        update={"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size}
    )
    return recipe.model_copy(update={"tokenizer": section})


def _held_out(recipe: Recipe) -> float | Paths:
    validation = recipe.data.validation
    return [validation] if isinstance(validation, str) else validation


def _corpus_bytes(recipe: Recipe) -> int:
    """Bytes of text, near enough to choose a vocabulary; compressed text counts three times."""
    total = 0
    for source in source_files(list(recipe.data.paths)):
        packed = Path(source.name).suffix in (".gz", ".xz", ".zst")
        total += source.size * (3 if packed else 1)
    return total
