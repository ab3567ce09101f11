"""What a run reads: its tokenizers, token shards of texts, and labelled examples."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.data.documents import list_texts
from trivium.data.prepare import PrepareProgress, prepare
from trivium.data.shards import MANIFEST, VALIDATION, Shards
from trivium.data.splitting import CorpusOptions, training_texts
from trivium.errors import DataError, RecipeError
from trivium.files import replace_file
from trivium.language_model import LanguageModel
from trivium.model_folder import SOURCE_TOKENIZER
from trivium.objectives import LabelledObjective
from trivium.objectives.example_split import split_examples
from trivium.spec import AnySpec
from trivium.text import Tokenizer
from trivium.train import defaults
from trivium.train.recipe import MixConfig, Recipe, TokenizerFile
from trivium.train.run_folder import RunFolder
from trivium.train.run_log import ProgressLine

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_COMPRESSION_RATIO = 3


@dataclass
class TextSource:
    """A source of text, encoded once into shards."""

    config: MixConfig
    shards: Shards

    def count(self, what: str, split: str | None = None) -> int:
        """How many "documents", "tokens", "text_bytes" or "duplicates" there are."""
        infos = self.shards.manifest.splits.items()
        return sum(getattr(info, what) for name, info in infos if split in (None, name))

    @property
    def has_validation(self) -> bool:
        """Whether part of the text is held out."""
        return VALIDATION in self.shards.names


@dataclass
class ExampleSource:
    """A source of labelled examples, as its objective reads them."""

    config: MixConfig
    objective: LabelledObjective
    train: list[Any]
    valid: list[Any]


@dataclass
class Corpus:
    """All that a run reads; `source_tokenizer` is None unless the encoder has one of its own."""

    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None
    sources: list[TextSource | ExampleSource] = field(default_factory=list)

    @property
    def texts(self) -> list[TextSource]:
        """The sources of text."""
        return [source for source in self.sources if isinstance(source, TextSource)]

    @property
    def examples(self) -> list[ExampleSource]:
        """The sources of labelled examples."""
        return [source for source in self.sources if isinstance(source, ExampleSource)]

    @property
    def examples_digest(self) -> str:
        """A hash of all labelled examples: resuming needs the same ones."""
        digest = hashlib.blake2b(digest_size=16)
        for source in self.examples:
            for example in itertools.chain(source.train, source.valid):
                digest.update(repr(example).encode())
        return digest.hexdigest()


def load_corpus(
    recipe: Recipe, spec: AnySpec, base: LanguageModel | None, run: RunFolder, line: ProgressLine
) -> Corpus:
    """Read the examples, train or load the tokenizer, and prepare the shards of a run.

    A folder of shards that `trivium prepare` made may take the place of text. `base` is the model
    that training starts from, whose tokenizers are used.

    Raises:
        DataError: no data, or data that cannot be read.
        RecipeError: a tokenizer that does not belong to the shards or to the model.
    """
    configs = [_without_stdin(config, run) for config in recipe.sources]
    for config in configs:
        if not config.paths:
            raise DataError("there is no data to train on: give --data PATH or set data.paths.")
    examples = {
        config.name: _read_examples(config, config.objective, recipe.seed)
        for config in configs
        if isinstance(config.objective, LabelledObjective)
    }
    ready = {c.name: shards for c in configs if (shards := _prepared(c)) is not None}
    tokenizer, source_tokenizer = _tokenizers(
        recipe, spec, base, configs, examples, ready, run, line
    )
    corpus = Corpus(tokenizer, source_tokenizer)
    for config in configs:
        if config.name in examples:
            corpus.sources.append(examples[config.name])
            continue
        shards = ready.get(config.name)
        if shards is None:
            out = run.shards / config.name if config.name else run.shards
            options = _options(recipe, config)
            shards = prepare(
                list(config.paths), tokenizer, out, options=options, progress=_shower(line)
            )
        elif shards.manifest.tokenizer_fingerprint != tokenizer.fingerprint:
            raise RecipeError(
                f"{shards.folder} was prepared with another tokenizer than this model's: give the "
                "text itself, or prepare it again with this tokenizer."
            )
        corpus.sources.append(TextSource(config, shards))
    return corpus


def _read_examples(config: MixConfig, objective: LabelledObjective, seed: int) -> ExampleSource:
    objective.check_metrics()
    examples = list(objective.read(config.paths))
    if not examples:
        raise DataError(f"{', '.join(config.paths)}: no examples inside.")
    held_out = config.validation
    if isinstance(held_out, tuple):
        return ExampleSource(config, objective, examples, list(objective.read(held_out)))
    train, valid = split_examples(examples, float(held_out or 0.0), seed)
    return ExampleSource(config, objective, train, valid)


def _prepared(config: MixConfig) -> Shards | None:
    if len(config.paths) == 1 and (Path(config.paths[0]) / MANIFEST).is_file():
        return Shards.open(config.paths[0])
    return None


def _tokenizers(
    recipe: Recipe,
    spec: AnySpec,
    base: LanguageModel | None,
    configs: Sequence[MixConfig],
    examples: dict[str, ExampleSource],
    ready: dict[str, Shards],
    run: RunFolder,
    line: ProgressLine,
) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizer of targets and texts, and that of sources where the encoder has its own."""
    if base is not None:
        if base.tokenizer is None:
            raise RecipeError(f"{recipe.model.init_from} has no tokenizer, so it cannot read text.")
        own = base.source_tokenizer
        return base.tokenizer, own if own is not base.tokenizer else None
    separate, source_file = recipe.model.separate_vocabularies, run.path / SOURCE_TOKENIZER
    if separate and (spec.family != "encoder-decoder" or len(examples) != len(configs)):
        raise RecipeError(
            "model.separate_vocabularies is for fine-tuning an encoder-decoder: leave it out."
        )
    config = recipe.tokenizer
    if ready:
        return Tokenizer.load(next(iter(ready.values())).tokenizer_path), None
    if isinstance(config, TokenizerFile):
        tokenizer = Tokenizer.load(config.path)
    elif run.tokenizer.is_file():
        tokenizer = Tokenizer.load(run.tokenizer)
    else:
        texts = _texts(recipe, configs, examples, "target_texts" if separate else "texts")
        tokenizer = _train(recipe, spec, texts, _num_bytes(configs, examples), line)
        tokenizer.save(run.tokenizer)
    if not separate:
        return tokenizer, None
    if source_file.is_file():
        return tokenizer, Tokenizer.load(source_file)
    texts = _texts(recipe, configs, examples, "source_texts")
    sources = _train(recipe, spec, texts, _num_bytes(configs, examples), line)
    sources.save(source_file)
    return tokenizer, sources


def _train(
    recipe: Recipe, spec: AnySpec, texts: Iterable[str], num_bytes: int, line: ProgressLine
) -> Tokenizer:
    """A new tokenizer; its size follows from the amount of text unless the recipe sets it."""
    config = recipe.tokenizer
    assert config is not None
    assert not isinstance(config, TokenizerFile)
    if "vocab_size" not in config.model_fields_set:
        config = config.replace(vocab_size=defaults.vocabulary_size(spec, num_bytes))
    line.say(
        f"tokenizer  training a {config.kind} tokenizer of {config.vocab_size:,} tokens on "
        f"{min(num_bytes, config.sample_bytes) / 1e6:,.0f} MB of the training text"
    )
    return config.train(texts, progress=line.say)


def _texts(
    recipe: Recipe, configs: Sequence[MixConfig], examples: dict[str, ExampleSource], side: str
) -> Iterator[str]:
    """The training texts of all sources."""
    for config in configs:
        if config.name in examples:
            source = examples[config.name]
            yield from getattr(source.objective, side)(source.train)
        else:
            yield from training_texts(list(config.paths), _options(recipe, config))


def _num_bytes(configs: Sequence[MixConfig], examples: dict[str, ExampleSource]) -> int:
    """About how many bytes of text there are; compressed ones count three times."""
    total = 0
    for config in configs:
        if config.name in examples:
            source = examples[config.name]
            total += sum(len(text.encode()) for text in source.objective.texts(source.train))
            continue
        for file in list_texts(list(config.paths)).sources:
            packed = Path(file.name).suffix in _COMPRESSED
            total += file.size * (_COMPRESSION_RATIO if packed else 1)
    return total


def _options(recipe: Recipe, config: MixConfig) -> CorpusOptions:
    data, validation = recipe.data, config.validation
    assert validation is not None
    return CorpusOptions(
        separator=data.separator,
        text_field=data.text_field,
        errors=data.errors,
        validation=list(validation) if isinstance(validation, tuple) else validation,
        keep_duplicates=data.keep_duplicates,
    )


def _without_stdin(config: MixConfig, run: RunFolder) -> MixConfig:
    """The source with standard input as a file of the run: tokenizer and shards both read it."""
    if "-" not in config.paths:
        return config
    kept = run.path / "standard_input.txt"
    if not kept.is_file():
        with replace_file(kept) as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
    paths = tuple(str(kept) if path == "-" else path for path in config.paths)
    return config.model_copy(update={"paths": paths})


def _shower(line: ProgressLine) -> Callable[[PrepareProgress], None]:
    def show(progress: PrepareProgress) -> None:
        if progress.note:
            line.say(progress.note)
        else:
            line.update(
                f"encoding: {progress.documents:,} documents, {progress.tokens:,} tokens, "
                f"{progress.bytes_per_second / 1e6:.1f} MB/s"
            )

    return show
