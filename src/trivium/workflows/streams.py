"""Builds the batch streams of a run's data sources, and their sampling probabilities."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import shutil
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trivium.data.data_cache import CacheEntry
from trivium.data.encoded import EncodedExamples
from trivium.data.row_order import derived_seed
from trivium.data.rows import Rows
from trivium.data.shards import TRAIN
from trivium.errors import RecipeError, TriviumError
from trivium.inference.forward import check_ids
from trivium.language_model import LanguageModel
from trivium.objectives.example_split import record_warnings
from trivium.objectives.labelled import check_example_ids
from trivium.train import defaults
from trivium.train.distributed import Parallel
from trivium.train.loader import BatchStream, LoaderPhase
from trivium.train.recipe import Recipe
from trivium.workflows.corpus import Corpus, ExampleSource, TextSource
from trivium.workflows.model_setup import ModelSetup

# The numbers of examples that are encoded at a time: at least, at most, and a fraction of all.
_LEAST_AT_ONCE, _MOST_AT_ONCE, _FRACTION_AT_ONCE = 1 << 8, 1 << 14, 1 / 64
# Added to the seed to derive a new row order, for phases with a different row length.
_ORDER = 1 << 21


def build_streams(
    recipe: Recipe, corpus: Corpus, setup: ModelSetup, split: str, folder: Path, parallel: Parallel
) -> list[BatchStream]:
    """Build one batch stream for every data source that has data in the given split.

    Labelled examples are encoded to files, which all processes read.

    Args:
        recipe: the complete recipe of the run.
        corpus: the data of the run.
        setup: the model of the run.
        split: "train" or "validation".
        folder: the folder for the encoded examples.
        parallel: the processes of the run.

    Raises:
        DataError: a data source is too short for one row.
        SpecError: a text contains a token id that the model does not have.
        RecipeError: a data source has too few rows for stateful training, in which each row
            continues a row of the previous step.
    """
    streams, spec = [], setup.lm.spec
    for number, source in enumerate(corpus.sources):
        objective = source.objective
        if isinstance(source, ExampleSource):
            data = None
            if source.select(split):
                encode = _encode_prompts if source.objective.rolls_out else _encode_or_open
                data = encode(source, split, setup.lm, folder / f"{number}-{split}", parallel)
                if split != TRAIN:  # metrics are computed on validation examples
                    source.objective.remember_encoded(source.select(split), data)
                check_example_ids(data, spec)
                source.store_truncations(split, data.truncations, setup.lm.max_length)
            rows_per_step = recipe.train.batch_examples
        else:
            data = _open_rows(source, recipe, setup, split)
            text = _open_rows(source, recipe, setup, TRAIN)
            assert text is not None
            if data is not None:
                seen = np.flatnonzero(source.shards.split(split).counts())
                check_ids(seen[-1:].tolist(), spec.vocab_size, f"a text of {source.config.name}")
            objective = objective.fit(text, setup.vocabulary)
            rows_per_step = _count_rows_per_step(recipe)
        if data is not None:
            assert rows_per_step is not None
            # Each source has its own noise. Validation data has the same noise in every run.
            seed = recipe.seed if number == 0 else derived_seed(recipe.seed, number)
            stream = BatchStream(
                source.config.name,
                objective,
                data,
                setup.vocabulary,
                seed=seed if split == TRAIN else 0,
                rows_per_step=rows_per_step,
                separate_documents=recipe.data.separate_documents,
                has_aux_loss=setup.lm.spec.has_aux_loss,
                num_taken=_count_rows_to_read(recipe, len(data)) if split == TRAIN else None,
            )
            if (
                split == TRAIN
                and source.objective.carries_state
                and stream.contiguous_steps_per_epoch == 1
            ):
                raise RecipeError(
                    f"objective.carry_state = true, but a step takes {rows_per_step} rows and the "
                    f"text has {len(data)}: no row goes on with another. Set a smaller "
                    "train.batch_tokens or data.length."
                )
            streams.append(stream)
    return streams


def _encode_chunks(
    source: ExampleSource, split: str, lm: LanguageModel, chunks: Sequence[slice]
) -> Iterator[EncodedExamples]:
    """Encode some chunks of the examples of a split (see `_split_into_chunks`).

    Yields the encoded chunks.
    """
    examples = source.select(split)
    for chunk in chunks:
        yield source.objective.encode(examples[chunk], lm)


def _split_into_chunks(source: ExampleSource, split: str) -> Sequence[slice]:
    """Split the examples of a split into chunks of similar size, which are encoded one at a time.

    Token ids as Python integers take ten times the memory of those in files. There are enough
    chunks for several processes, but the chunks do not depend on their number.
    """
    total = len(source.select(split))
    size = min(max(_LEAST_AT_ONCE, total * _FRACTION_AT_ONCE), _MOST_AT_ONCE)
    count = math.ceil(total / size)
    ends = [total * number // count for number in range(count + 1)]
    return [slice(*pair) for pair in itertools.pairwise(ends)]


def _encode_prompts(
    source: ExampleSource, split: str, lm: LanguageModel, folder: Path, parallel: Parallel
) -> EncodedExamples:
    """Encode the prompts of a split, for an objective that samples responses.

    All processes encode all prompts, since `encode` also stores them in the objective. Rank 0
    writes them to a folder, which all processes open.
    """
    with parallel.main_process_first():
        encoded = _encode_chunks(source, split, lm, _split_into_chunks(source, split))
        if parallel.is_main:
            EncodedExamples.store(encoded, folder)
        else:
            deque(encoded, maxlen=0)
        return EncodedExamples.open(folder)


def _encode_or_open(
    source: ExampleSource, split: str, lm: LanguageModel, folder: Path, parallel: Parallel
) -> EncodedExamples:
    """Open the encoded examples of a split in the cache. If there are none, encode them.

    The processes share the work: each one encodes a part of the examples. Without a cache, the
    encoded examples are stored in `folder`, a folder of the run.
    """
    entry = None
    if source.table.cache is not None:
        entry = CacheEntry(source.table.cache, "encoded", *_encoding_keys(source, split, lm))
        with parallel.main_process_first():
            is_missing = not entry.is_valid()
        [is_missing] = parallel.all_reduce_max(is_missing)
        if not is_missing:
            for message in entry.read_notes()["warnings"]:
                warnings.warn(message, stacklevel=2)
            return EncodedExamples.open(entry.folder)
    parts_folder = folder.with_name(f"{folder.name}-parts")

    def encode(chunks: Sequence[slice]) -> list[tuple[Path, list[str], TriviumError | None]]:
        """Encode some chunks to a folder. Returns it, its warnings and the error, if any."""
        part = parts_folder / str(chunks[0].start)
        try:
            with record_warnings() as messages:
                EncodedExamples.store(_encode_chunks(source, split, lm, chunks), part)
        except TriviumError as error:
            return [(part, [], error)]
        return [(part, messages, None)]

    parts = parallel.map(encode, _split_into_chunks(source, split))
    for _, _, error in parts:
        if error is not None:
            raise error
    with parallel.main_process_first():
        if parallel.is_main:
            messages = dict.fromkeys(message for _, each, _ in parts for message in each)
            opened = (EncodedExamples.open(part) for part, _, _ in parts)
            if entry is None:
                EncodedExamples.store(opened, folder)
            else:
                with entry.write({"warnings": list(messages)}) as new:
                    EncodedExamples.write(opened, new)
            shutil.rmtree(parts_folder)
            with contextlib.suppress(OSError):  # not empty
                folder.parent.rmdir()
        return EncodedExamples.open(folder if entry is None else entry.folder)


def _encoding_keys(source: ExampleSource, split: str, lm: LanguageModel) -> list[str]:
    """Return texts that determine the encoded examples of a split, except for the code."""
    contents = source.table.contents[source.select(split).indices]
    keys = [
        hashlib.sha256(contents.tobytes()).hexdigest(),
        repr(source.objective),
        repr(lm.settings),
    ]
    for tokenizer in (lm.text_tokenizer, lm.source_tokenizer):
        keys += [tokenizer.fingerprint, f"{tokenizer.roles} {tokenizer.split_special_tokens}"]
    return [*keys, repr(lm.spec), str(lm.max_length)]


def build_phases(
    recipe: Recipe, streams: Sequence[BatchStream], corpus: Corpus, setup: ModelSetup
) -> list[LoaderPhase]:
    """Build the training phases of a run.

    A phase is a part of training with its own values for some recipe keys. If its row length
    differs from that of the previous phase, it gets a new row order. `streams` are the batch
    streams of the last phase, which uses the values of the recipe itself.
    """
    phases, order, length = list[LoaderPhase](), 0, 0
    for number in range(len(recipe.phases) + 1):
        current, fields = recipe.for_phase(number), {}
        if number < len(recipe.phases):
            fields = recipe.phases[number].objective or {}
        continues = number > 0 and defaults.row_length(current) == length
        order, length = order + (number > 0 and not continues), defaults.row_length(current)
        changed = []
        for stream, source, config in zip(streams, corpus.sources, current.sources, strict=True):
            values = {name: getattr(config.objective, name) for name in fields}
            data, objective = stream.data, stream.objective.model_copy(update=values)
            rows_per_step = stream.rows_per_step
            if isinstance(source, TextSource):
                rows = _open_rows(source, current, setup, TRAIN)
                assert rows is not None
                data = rows
                rows_per_step = _count_rows_per_step(current)
                objective = objective.fit(rows, setup.vocabulary) if values else objective
            seed = derived_seed(stream.seed, _ORDER, order) if order else stream.seed
            changed.append(
                replace(
                    stream, objective=objective, data=data, seed=seed, rows_per_step=rows_per_step
                )
            )
        probabilities = compute_probabilities(current, changed)
        phases.append(LoaderPhase(changed, list(probabilities.values()), continues))
    return phases


def _count_rows_per_step(recipe: Recipe) -> int:
    """Return the number of rows of text per training step."""
    return max(1, (recipe.train.batch_tokens or 0) // defaults.row_length(recipe))


def _count_rows_to_read(recipe: Recipe, num_rows: int) -> int | None:
    """Return the total number of rows that a run reads, if this is known in advance.

    Returns None if the budget is not in epochs, or if the run has a mix or phases. `num_rows` is
    the number of rows per epoch.
    """
    if recipe.mix or recipe.phases or recipe.train.epochs is None:
        return None
    return max(1, math.ceil(recipe.train.epochs * num_rows - 1e-6))


def compute_probabilities(recipe: Recipe, streams: Sequence[BatchStream]) -> dict[str, float]:
    """Return the sampling probability of each data source, by source name.

    The probability is proportional to the weight of the source in the recipe. A source without a
    weight uses `rows ** (1 / temperature)`, where `rows` is its number of rows and `temperature` is
    the sampling temperature `data.temperature`.
    """
    exponent = 1.0 / recipe.data.temperature
    sampling_weights = {
        source.name: source.weight or len(stream.data) ** exponent
        for source, stream in zip(recipe.sources, streams, strict=True)
    }
    total = sum(sampling_weights.values())
    return {name: weight / total for name, weight in sampling_weights.items()}


def _open_rows(source: TextSource, recipe: Recipe, setup: ModelSetup, split: str) -> Rows | None:
    """Open a split of a text source as rows of tokens. Returns None if the split does not exist."""
    if split != TRAIN and split not in source.shards.names:
        return None
    pad_ids = (setup.vocabulary.pad_id, setup.vocabulary.eos_id, 0)
    return Rows(
        source.shards.split(split),
        defaults.row_length(recipe),
        recipe.data.packing,
        pad_id=next(pad_id for pad_id in pad_ids if pad_id is not None),
        keep_suffix=setup.lm.spec.family != "decoder-only",
    )
