"""The data of a run: its tokenizers, its text as token shards, and its labelled examples."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import shutil
import sys
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trivium.data.batch import Ints
from trivium.data.documents import describe_text_columns, estimate_text_bytes
from trivium.data.encoded import has_target
from trivium.data.prepare import PrepareProgress, have_texts_changed, prepare
from trivium.data.records import BadRecords, ReadReport, RecordOptions
from trivium.data.shards import TRAIN, VALIDATION, Shards, are_shards, has_shards, unigram_loss
from trivium.data.sources import PYTHON
from trivium.data.splitting import (
    CorpusOptions,
    hash_validation_texts,
    read_training_texts,
    write_split_texts,
)
from trivium.data.stored_examples import SelectedExamples
from trivium.errors import DataError, RecipeError
from trivium.files import STDIN, replace_file
from trivium.language_model import LanguageModel
from trivium.messages import translated
from trivium.models.base_model import Spec
from trivium.objectives import LabelledObjective, Objective
from trivium.objectives.example_split import ExampleTable, read_table
from trivium.objectives.policy import PolicyGradient
from trivium.progress import ProgressLine, labelled
from trivium.remote import cache_folder
from trivium.text import Tokenizer, TokenizerConfig
from trivium.train import defaults
from trivium.train.data_config import MixConfig, TokenizerFile
from trivium.train.recipe import Recipe
from trivium.train.recipe_loading import format_recipe_file, read_recipe
from trivium.train.run_folder import RunFolder

_SIDES = {"texts": "training_text", "source_texts": "sources", "target_texts": "targets"}
_SAMPLED_EXAMPLES = 1000
# Keys of the `[data]` section that affect how text is read before it is encoded to shards.
_READING_KEYS = (
    *("validation", "separator", "text_field", "errors", "encoding"),
    *("keep_duplicates", "keep_text"),
)
# Sections of the recipe that, together with the text, determine the tokenizer and the shards.
_PREPARED_BY = ("model", "tokenizer", "data", "mix")


@dataclass
class TextSource:
    """A data source of text that is already encoded to token shards.

    Args:
        config: the entry of the recipe for this source.
        shards: the token shards.
    """

    config: MixConfig
    shards: Shards

    @property
    def objective(self) -> Objective:
        """The objective that the model is trained with on this source."""
        return self.config.objective


@dataclass
class ExampleSource:
    """A data source of labelled examples.

    The examples are read from a file when they are needed (see `ExampleTable`).

    Args:
        config: the entry of the recipe for this source.
        objective: the objective that reads and encodes the examples.
        table: all examples of the source, with their split.
    """

    config: MixConfig
    objective: LabelledObjective
    table: ExampleTable

    truncations: dict[str, Ints] = field(default_factory=dict, init=False)
    """The truncation counts [E, 3] of each encoded split (see `EncodedExamples`)."""

    def __post_init__(self) -> None:
        is_validation = np.asarray(self.table.is_validation)
        self.train = SelectedExamples(self.table.examples, np.flatnonzero(~is_validation))
        """The training examples; after `Corpus.free_examples`, only a sample of them."""
        self.valid = SelectedExamples(self.table.examples, np.flatnonzero(is_validation))
        """The validation examples."""

    @property
    def examples(self) -> SelectedExamples:
        """The training and the validation examples together, in the order of the files."""
        indices = np.sort(np.concatenate([self.train.indices, self.valid.indices]))
        return SelectedExamples(self.table.examples, indices)

    def select(self, split: str) -> SelectedExamples:
        """Return the examples of a split, "train" or "validation"."""
        return self.train if split == TRAIN else self.valid

    @property
    def num_train(self) -> int:
        """The number of training examples.

        After encoding, examples that truncation has left without target tokens are not counted.
        """
        return (
            int(has_target(self.truncations[TRAIN]).sum())
            if TRAIN in self.truncations
            else len(self.train)
        )

    def texts(self, side: str = "texts", max_bytes: int | None = None) -> Iterator[str]:
        """Return the texts of the training examples.

        `side` is "source_texts" (only inputs), "target_texts" (only outputs) or "texts" (both).
        `max_bytes` is ignored: the examples are read already.
        """
        return getattr(self.objective, side)(self.train)

    def select_validation(self, limit: int | None) -> SelectedExamples:
        """Return at most `limit` validation examples, or all of them if `limit` is None.

        The selected examples are evenly spaced in the file, because files are often sorted.
        """
        size = len(self.valid)
        count = size if limit is None else min(limit, size)
        return self.valid.select(np.arange(count) * size // max(1, count))

    def store_truncations(self, split: str, truncations: Ints, max_length: int | None) -> None:
        """Store the truncation counts of a split, and drop validation examples without targets.

        Truncation may remove all target tokens of an example. Such a validation example is kept
        only if the metrics of the objective count it as a wrong prediction. Raises DataError if no
        example has a target token left.

        Args:
            split: "train" or "validation".
            truncations: the truncation counts of E examples, [E, 3], as in `EncodedExamples`.
            max_length: the maximum number of tokens per example; used only in the error message.
        """
        kept, self.truncations[split] = has_target(truncations), truncations
        if not kept.any():
            raise DataError(
                f"of {len(kept):,} examples {'to train on' if split == TRAIN else 'held out'} none "
                f"has a target token left: what comes before it fills the {max_length:,} tokens "
                "that are read at once. Shorten it, raise data.length, or take a model with more "
                "positions."
            )
        if split != TRAIN and not self.objective.measures_cut_answers:
            self.valid = self.valid.select(np.flatnonzero(kept))

    def count_bytes(self, side: str = "texts") -> int:
        """Return the total size of the training texts in bytes. `side` is as in `texts`."""
        return sum(len(text.encode()) for text in self.texts(side))


@dataclass
class RawText:
    """A data source of text that is not encoded to token shards yet.

    Args:
        config: the entry of the recipe for this source.
        options: how the text is read and split.
    """

    config: MixConfig
    options: CorpusOptions
    keep: bool
    """Whether the splits are also written as text files."""

    def texts(self, side: str = "texts", max_bytes: int | None = None) -> Iterator[str]:
        """Yield the training documents. `side` is ignored, since text has no inputs and outputs.

        If there is much more text than `max_bytes`, random parts of the text are read.
        """
        paths = list(self.config.paths)
        return read_training_texts(paths, self.options, max_bytes=max_bytes)

    def count_bytes(self, side: str = "texts") -> int:
        """Return the approximate size in bytes of the text. `side` is ignored."""
        return estimate_text_bytes(self.config.paths)


_Source = RawText | TextSource | ExampleSource


@dataclass
class Corpus:
    """All data that a run reads, and its tokenizers.

    Args:
        recipe: the recipe of the run, with the vocabulary size of a new tokenizer filled in.
        tokenizer: the tokenizer of all text; of target texts only, if there is a separate
            `source_tokenizer`.
        source_tokenizer: the separate tokenizer of source texts (encoder inputs); None if there is
            only one tokenizer.
        sources: the data sources.
    """

    recipe: Recipe
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None
    sources: list[TextSource | ExampleSource]

    @property
    def text_sources(self) -> list[TextSource]:
        """The data sources that contain plain text."""
        return [source for source in self.sources if isinstance(source, TextSource)]

    @property
    def example_sources(self) -> list[ExampleSource]:
        """The data sources that contain labelled examples."""
        return [source for source in self.sources if isinstance(source, ExampleSource)]

    def count(self, statistic: str, split: str | None = None) -> int:
        """Return the total of a statistic over all text sources.

        `statistic` is "documents", "tokens", "text_bytes" or "duplicates". `split` restricts the
        count to one split. Labelled examples are not counted.
        """
        splits = (item for one in self.text_sources for item in one.shards.manifest.splits.items())
        return sum(getattr(info, statistic) for name, info in splits if split in (None, name))

    def num_validation_examples(self, limit: int | None) -> int:
        """Return the number of validation examples, counting at most `limit` per data source."""
        return sum(len(source.select_validation(limit)) for source in self.example_sources)

    def num_metric_examples(self, limit: int | None) -> int:
        """Return the number of validation examples used to compute the early-stopping metric.

        The metric is computed on at most `limit` examples. They come from the first data source
        that has validation examples.
        """
        return next(
            (len(one.select_validation(limit)) for one in self.example_sources if one.valid), 0
        )

    def iter_excerpts(self) -> Iterator[tuple[Objective, str]]:
        """Yield (objective, text) pairs, where each text is the beginning of a document.

        A few documents of every text source are used. They are validation documents, or training
        documents if there is no validation split.
        """
        for source in self.text_sources:
            held_out = VALIDATION in source.shards.names
            for text in source.shards.split(VALIDATION if held_out else TRAIN).excerpts:
                yield source.objective, text.strip()

    def compute_unigram_loss(self, probabilities: Sequence[float]) -> float | None:
        """Return the loss of a unigram model in nats per token, a baseline for the validation loss.

        `probabilities` are the sampling probabilities of the data sources. Returns None if there
        are labelled examples, or if an objective has no unigram baseline.
        """
        offsets = [source.objective.advice().unigram_offset for source in self.sources]
        if self.example_sources or None in offsets:
            return None
        offset = sum(
            probability * (offset or 0.0)
            for probability, offset in zip(probabilities, offsets, strict=True)
        )
        return offset + unigram_loss([source.shards for source in self.text_sources], probabilities)

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """The hashes of all data that must stay unchanged for an exact resume.

        The keys are "tokenizer", "token shards", "labelled files", and the names of the files used
        to compute rewards.
        """
        tokenizers = [self.tokenizer, self.source_tokenizer]
        contents: dict[str, Iterable[Any]] = {
            "tokenizer": (one.fingerprint for one in tokenizers if one is not None),
            "token shards": (source.shards.manifest for source in self.text_sources),
            "labelled files": (  # the examples without their files, which may move
                source.table.contents[one.indices].tobytes()
                for source in self.example_sources
                for one in (source.train, source.valid)
            ),
        }
        for source in self.example_sources:
            if isinstance(source.objective, PolicyGradient):
                files = map(Path, source.objective.files)
                contents |= {file.name: [file.read_bytes()] for file in files}
        digests = {}
        for name, parts in contents.items():
            digest = hashlib.blake2b(digest_size=16)
            for part in parts:
                digest.update(part if isinstance(part, bytes) else repr(part).encode())
            digests[name] = digest.hexdigest()
        return digests

    def free_examples(self) -> None:
        """Keep only a sample of the training examples, to free memory.

        A sample of about a thousand examples per data source is kept, because it is needed to count
        unknown tokens.
        """
        _ = self.digests  # computed from all examples, then cached
        for source in self.example_sources:
            step = max(1, len(source.train) // _SAMPLED_EXAMPLES)
            source.train = source.train.select(np.arange(0, len(source.train), step))
            if source.table.cache is None:  # the examples are in memory
                source.train, source.valid = source.train.copy(), source.valid.copy()
                source.table = replace(source.table, examples=())

    def compute_unk_rates(self, *, has_targets: bool) -> dict[str, float]:
        """Return the fraction of unknown tokens by kind of text.

        The key for text sources is "text". Labelled examples have the keys "sources" and "targets"
        if the model is an encoder-decoder, and the key "texts" otherwise. After `free_examples`,
        only the remaining sample of examples is counted.

        Args:
            has_targets: whether the model is an encoder-decoder, whose labels are target texts.
        """
        unknown: Counter[str] = Counter()
        total: Counter[str] = Counter()
        unk_id = self.tokenizer.unk_id
        if unk_id is not None and unk_id != self.tokenizer.eos_id:  # GPT-2 has one token for both
            for source in self.text_sources:
                counts = source.shards.split(TRAIN).counts()
                unknown["text"] += int(counts[unk_id])
                total["text"] += int(counts.sum())
        for source in self.example_sources:
            sources, targets = list(source.texts("source_texts")), []
            if has_targets:
                targets = list(source.texts("target_texts"))
            for side, texts, tokenizer in (
                ("sources" if targets else "texts", sources, self.source_tokenizer),
                ("targets", targets, None),
            ):
                tokenizer = tokenizer or self.tokenizer
                for ids in tokenizer.encode_ids_batch(texts):
                    unknown[side] += sum(one == tokenizer.unk_id for one in ids)
                    total[side] += len(ids)
        return {side: unknown[side] / count for side, count in total.items() if count}


def remove_outdated_data(run: RunFolder, recipe: Recipe) -> bool:
    """Delete data prepared by an earlier attempt if the recipe or the data has changed since.

    An earlier attempt is a start of this run that ended before the first training step. Labelled
    examples and standard input cannot be compared, so they always count as changed. Returns True if
    the prepared data was deleted.
    """
    if not run.recipe.is_file():
        return False
    before, now = read_recipe(run.recipe), tomllib.loads(format_recipe_file(recipe))
    same = all(before.get(name) == now.get(name) for name in _PREPARED_BY)
    if same and not any(_data_may_differ(source, run) for source in recipe.sources):
        return False
    run.remove_preparation()
    return True


def _data_may_differ(source: MixConfig, run: RunFolder) -> bool:
    """Return whether the data of a source may differ from its prepared copy in the run folder.

    Always True for labelled examples, standard input, and data passed from Python.
    """
    if source.objective.labelled or STDIN in source.paths or source.paths[0].startswith(PYTHON):
        return True
    out = run.shards / source.name
    held_out = source.validation or 0.0
    return has_shards(out) and have_texts_changed(Shards.open(out), source.paths, held_out)


def load_corpus(
    recipe: Recipe, spec: Spec, base: LanguageModel | None, run: RunFolder, log: ProgressLine
) -> Corpus:
    """Prepare the data of a run: read examples, load or train tokenizers, and encode text.

    Text is encoded to token shards. A data source may also be a folder of token shards from
    `trivium prepare`, which are used as they are.

    Args:
        recipe: the recipe of the run.
        spec: the specification of the model.
        base: the model that training starts from, or None to train from scratch. If there is a base
            model, its tokenizers are used.
        run: the run folder, in which the tokenizer and the shards are stored.
        log: the progress line.

    Raises:
        DataError: there is no data, or it cannot be read.
        RecipeError: the tokenizer lacks a special token of the objective, or does not match the
            shards or the model.
    """
    for config in recipe.sources:
        if not config.paths:
            raise DataError("there is no data to train on: give --data PATH or set data.paths.")
    _reject_unused_text_keys(recipe)
    sources = [_open_source(recipe, config, run, log) for config in recipe.sources]
    _remove_validation_examples([one for one in sources if isinstance(one, ExampleSource)], log)
    if base is None:
        recipe = _with_vocabulary_size(recipe, spec, sources)
    tokenizer, source_tokenizer = _load_tokenizers(recipe, spec, base, sources, run, log)
    for objective in recipe.objectives:
        objective.check_tokens(tokenizer.vocabulary)
    encoded = [
        _encode_source(source, sources, tokenizer, run, log)
        if isinstance(source, RawText)
        else source
        for source in sources
    ]
    corpus = Corpus(recipe, tokenizer, source_tokenizer, encoded)
    for source in corpus.text_sources:
        read = source.shards.manifest.full_options["special_tokens"]
        if recipe.data.special_tokens == "special" != read:
            raise RecipeError(
                f"{source.shards.folder} was prepared with --special-tokens {read}: leave "
                "data.special_tokens out, or prepare the text again."
            )
        manifest = source.shards.manifest
        same_ends = (manifest.prefix_ids, manifest.suffix_ids) == (
            tokenizer.prefix_ids,
            tokenizer.suffix_ids,
        )
        if manifest.tokenizer_fingerprint != tokenizer.fingerprint or not same_ends:
            if source.shards.folder.is_relative_to(run.path):
                raise RecipeError(
                    f"{run.tokenizer} has changed since it encoded the text of this run: put the "
                    f"old one back, which is in {source.shards.tokenizer_path}."
                )
            raise RecipeError(
                f"{source.shards.folder} was prepared with another tokenizer than this model's: "
                "give the text itself, or prepare it again with this tokenizer."
            )
    return corpus


def _open_source(recipe: Recipe, config: MixConfig, run: RunFolder, log: ProgressLine) -> _Source:
    """Open a data source of the recipe.

    Returns labelled examples, token shards, or text that is not encoded yet.
    """
    config = _use_stored_files(config, run)
    if isinstance(config.objective, LabelledObjective):
        return _read_examples(config, config.objective, recipe, run, log)
    if are_shards(config.paths):
        return TextSource(config, Shards.open(config.paths[0]))
    keys = {"separator", "text_field", "errors", "encoding", "keep_duplicates", "special_tokens"}
    options = recipe.data.model_dump(include=keys)
    control = tuple(config.objective.control_tokens)
    options = CorpusOptions(**options, validation=config.validation or 0.0, control_tokens=control)
    if not has_shards(run.shards / config.name):  # else the text may be gone
        _print_columns(recipe, config, describe_text_columns(config.paths, options), log)
    return RawText(config, options, recipe.data.keep_text)


def _reject_unused_text_keys(recipe: Recipe) -> None:
    """Raise RecipeError if the recipe sets keys for reading text that is already in shards."""
    shards = [one for one in recipe.sources if not one.objective.labelled and are_shards(one.paths)]
    keys = [
        f"validation of the source {one.name}"
        for one in recipe.mix
        if one.validation is not None and any(one.name == other.name for other in shards)
    ]
    if len(shards) == len(recipe.sources):
        fields = type(recipe.data).model_fields
        changed = (n for n in _READING_KEYS if getattr(recipe.data, n) != fields[n].default)
        keys += [f"data.{name}" for name in changed]
    if keys:
        raise RecipeError(
            f"{', '.join(keys)}: not used, since {shards[0].paths[0]} holds token shards, whose "
            "text is read and split already. Leave it out, or run `trivium prepare` again with the "
            "option of that name, such as --validation."
        )


def _use_stored_files(config: MixConfig, run: RunFolder) -> MixConfig:
    """Return the data source with standard input and Python data replaced with stored files.

    The files are in the run folder. Standard input is copied to a file because it is read twice,
    first to train the tokenizer and then to encode the text. Labelled examples on standard input
    must be JSON lines. Raises RecipeError if data passed from Python is not stored in the run
    folder.
    """
    stdin = run.standard_input.with_suffix(".jsonl" if config.objective.labelled else ".txt")

    def find_stored_file(path: str) -> str:
        """Return the stored file of standard input or Python data. Other paths are unchanged."""
        if path == STDIN:
            return str(stdin)
        if not path.startswith(PYTHON):
            return path
        file = run.python_data / path.removeprefix(PYTHON)
        if not file.is_file():
            raise RecipeError(
                f"{path}: the data of this recipe was given from Python and is not in its file: "
                "give the data again."
            )
        return str(file)

    given = config.paths
    if isinstance(config.validation, tuple):
        given += config.validation
    if STDIN in given and not stdin.is_file():
        with replace_file(stdin) as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
    paths = tuple(map(find_stored_file, config.paths))
    held_out = config.validation
    if isinstance(held_out, tuple):
        held_out = tuple(map(find_stored_file, held_out))
    return config.model_copy(update={"paths": paths, "validation": held_out})


def _print_columns(
    recipe: Recipe, config: MixConfig, lines: Sequence[str], log: ProgressLine
) -> None:
    """Print which columns of a data source are read. In a mix, the source is named as well."""
    for number, line in enumerate(lines):
        source = f"{config.name}: " if len(recipe.sources) > 1 else ""
        log.print_line(labelled("" if number else "columns", source + line))


def _read_examples(
    config: MixConfig,
    objective: LabelledObjective,
    recipe: Recipe,
    run: RunFolder,
    log: ProgressLine,
) -> ExampleSource:
    """Read the labelled examples of a data source, and warn about skipped records."""
    bad = BadRecords() if recipe.data.bad_records == "skip" else None
    report = ReadReport()
    options = RecordOptions(
        errors=recipe.data.errors, encoding=recipe.data.encoding, bad=bad, report=report
    )
    held_out = config.validation or 0.0
    cache = _choose_cache(recipe, run)
    table = read_table(objective, config.paths, held_out, options, cache)
    objective.check_metric_libraries()
    _print_columns(recipe, config, report.lines, log)
    if bad is not None and bad.count:
        warnings.warn("\n".join(bad.describe_skipped(len(table.groups))), stacklevel=2)
    return ExampleSource(config, objective, table)


def _choose_cache(recipe: Recipe, run: RunFolder) -> Path:
    """Return the folder for labelled examples: the cache, or a folder of the run.

    The cache is shared by the runs on this machine. A folder of the run is used if the recipe says
    so, if the cache cannot be written, and for processes on several machines, which share only the
    run folder.
    """
    is_local = os.environ.get("LOCAL_WORLD_SIZE", "1") == os.environ.get("WORLD_SIZE", "1")
    if is_local and recipe.data.cache:
        cache = cache_folder("examples")
        with contextlib.suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
            if os.access(cache, os.W_OK):
                return cache
    return run.examples


def _remove_validation_examples(sources: Sequence[ExampleSource], log: ProgressLine) -> None:
    """Remove training examples that also occur in the validation data of any source.

    Two examples count as equal if they are in the same group (see `hash_group`). Prints the number
    of removed examples. Raises DataError if a source has no training example left.
    """
    if len(sources) == 1 and not isinstance(sources[0].config.validation, Sequence):
        return  # a fraction of the examples: no group is in both splits
    held_out = [source.table.groups[source.valid.indices] for source in sources]
    for source in sources:
        groups = source.table.groups[source.train.indices]
        train = source.train.select(~np.isin(groups, np.concatenate(held_out)))
        if not train:
            raise DataError(
                f"Every example of {', '.join(source.config.paths)} is also held out for "
                "validation: no example is left to train on. Give other files, or leave "
                "--validation out, which holds out a share of the examples."
            )
        of, where = "--data", "--validation"
        if len(sources) > 1:
            of, where = source.config.name, translated("run.validation_of_source")
        if count := len(source.train) - len(train):
            log.print_message("held_out", "run.held_out_elsewhere", count=count, of=of, where=where)
        source.train = train


def _with_vocabulary_size(recipe: Recipe, spec: Spec, sources: Sequence[_Source]) -> Recipe:
    """Return the recipe with the vocabulary size of a new tokenizer filled in.

    If the recipe does not set the size, it depends on the amount of text.
    """
    config = recipe.tokenizer
    shards = any(isinstance(source, TextSource) for source in sources)
    if not isinstance(config, TokenizerConfig) or config.vocab_size or shards:
        return recipe
    size = defaults.vocabulary_size(spec, _count_text_bytes(sources))
    return recipe.replace(tokenizer=config.replace(vocab_size=size))


def _count_text_bytes(sources: Sequence[_Source], side: str = "texts") -> int:
    """Return the approximate size, in bytes, of the text available to train a new tokenizer."""
    return sum(source.count_bytes(side) for source in sources if not isinstance(source, TextSource))


def _load_tokenizers(
    recipe: Recipe,
    spec: Spec,
    base: LanguageModel | None,
    sources: Sequence[_Source],
    run: RunFolder,
    log: ProgressLine,
) -> tuple[Tokenizer, Tokenizer | None]:
    """Load the tokenizers of a run, or train and save them.

    Returns a pair: the main tokenizer, and the separate tokenizer of the encoder. The second one is
    None if the encoder and decoder share the main tokenizer.
    """
    if base is not None:
        if base.tokenizer is None:
            raise RecipeError(f"{recipe.model.init_from} has no tokenizer, so it cannot read text.")
        own = base.source_tokenizer.reading("special")
        return base.tokenizer, own if own is not base.tokenizer else None
    separate = recipe.model.separate_vocabularies
    labelled = all(isinstance(source, ExampleSource) for source in sources)
    if separate and not (labelled and spec.family == "encoder-decoder"):
        raise RecipeError(
            "model.separate_vocabularies is for fine-tuning an encoder-decoder: leave it out."
        )
    for source in sources:
        if isinstance(source, TextSource):
            return Tokenizer.load(source.shards.tokenizer_path), None

    def load_or_train(file: Path, side: str) -> Tokenizer:
        """Load a tokenizer from a file of the run. If the file is missing, train and save one."""
        if not file.is_file():
            _train_tokenizer(recipe, sources, side, log).save(file)
        return Tokenizer.load(file)

    if isinstance(recipe.tokenizer, TokenizerFile):
        tokenizer = Tokenizer.load(recipe.tokenizer.path)
    else:
        tokenizer = load_or_train(run.tokenizer, "target_texts" if separate else "texts")
    return tokenizer, load_or_train(run.source_tokenizer, "source_texts") if separate else None


def _train_tokenizer(
    recipe: Recipe, sources: Sequence[_Source], side: str, log: ProgressLine
) -> Tokenizer:
    """Train a tokenizer on the text of all data sources, and print the progress.

    `side` selects the texts of labelled examples: "texts" (inputs and outputs), "source_texts"
    (inputs) or "target_texts" (outputs).
    """
    config = recipe.tokenizer
    assert isinstance(config, TokenizerConfig)
    raw = [source for source in sources if not isinstance(source, TextSource)]
    size = min(_count_text_bytes(raw, side), config.sample_bytes)
    shown = f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"
    log.print_message(
        "tokenizer",
        "tokenizer.training_on_text" if size else "tokenizer.training_on_texts",  # unknown size
        kind=config.kind,
        size=config.size,
        shown=shown,
        side=translated(f"side.{_SIDES[side]}"),
    )
    log.update(translated("tokenizer.in_training"))
    # Several sources are read whole, so that each has its share of the sample.
    max_bytes = config.sample_bytes if len(raw) == 1 else None
    texts = itertools.chain.from_iterable(source.texts(side, max_bytes) for source in raw)
    tokenizer = config.train(texts, progress=lambda note: log.print_line(labelled("", note)))
    log.update("")
    return tokenizer


def _encode_source(
    source: RawText,
    sources: Sequence[_Source],
    tokenizer: Tokenizer,
    run: RunFolder,
    log: ProgressLine,
) -> TextSource:
    """Encode a text source to token shards in the run folder, or open its existing shards.

    If another source of the mix uses a document for validation, the document is excluded from
    training.
    """

    def show_progress(progress: PrepareProgress) -> None:
        """Show the encoding progress in the progress line."""
        if progress.note:
            log.print_line(progress.note)
        else:
            log.update_or_log(labelled("encoding", str(progress)))

    config, paths = source.config, list(source.config.paths)
    out = run.shards / config.name
    if has_shards(out):
        shards = Shards.open(out)
        if have_texts_changed(shards, paths, source.options.validation):
            log.warn("resuming with the text as it was when the run began: it has changed since")
    else:
        # With equal fractions, a document's hash assigns it to the same split in all sources.
        others = [
            other
            for other in sources
            if isinstance(other, RawText) and other.options.validation != source.options.validation
        ]
        elsewhere = [hash_validation_texts(list(one.config.paths), one.options) for one in others]
        shards = prepare(
            paths,
            tokenizer,
            out,
            options=source.options,
            progress=show_progress,
            not_in_training=set().union(*elsewhere),
        )
        if source.keep:
            write_split_texts(paths, run.texts / config.name, source.options)
    return TextSource(config, shards)
