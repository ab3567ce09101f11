"""The training batches and held-out data of a run's sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trivium.data.rows import Rows
from trivium.data.shards import TRAIN, VALIDATION
from trivium.objectives import LabelledObjective
from trivium.train import defaults
from trivium.train.loader import BatchStream, ExampleStream, RowStream, source_seed
from trivium.train.memory import fitting_tokens
from trivium.train.recipe import Recipe
from trivium.train.validation import HeldOut, HeldOutExamples, HeldOutRows
from trivium.workflows.corpus import Corpus, ExampleSource, TextSource
from trivium.workflows.model_setup import ModelSetup


def build_streams(
    recipe: Recipe, corpus: Corpus, setup: ModelSetup
) -> tuple[list[BatchStream], list[float]]:
    """The batches of every source, and the sources' shares of the steps.

    Raises DataError where a source does not fill a row.
    """
    train = recipe.train
    assert train.batch_tokens is not None
    streams: list[BatchStream] = []
    for number, (source, objective) in enumerate(
        zip(corpus.sources, recipe.objectives, strict=True)
    ):
        common: dict[str, Any] = {
            "name": source.config.name,
            "objective": objective,
            "vocabulary": setup.vocabulary,
            "seed": source_seed(recipe.seed, number),
        }
        if isinstance(source, ExampleSource):
            assert isinstance(objective, LabelledObjective)
            assert train.batch_examples is not None
            encoded = objective.encode(source.train, setup.lm)
            stream = ExampleStream(**common, examples=encoded, rows_per_step=train.batch_examples)
        else:
            stream = RowStream(
                **common,
                rows=_rows(recipe, setup, source, TRAIN),
                rows_per_step=max(1, train.batch_tokens // defaults.row_length(recipe)),
                separate_documents=recipe.data.separate_documents,
            )
        streams.append(stream)
    exponent = 1.0 / recipe.data.temperature
    weights = [
        stream.num_rows**exponent if source.config.weight is None else source.config.weight
        for source, stream in zip(corpus.sources, streams, strict=True)
    ]
    return streams, [weight / sum(weights) for weight in weights]


def build_held_out(
    recipe: Recipe, corpus: Corpus, setup: ModelSetup, shares: Sequence[float]
) -> list[HeldOut]:
    """The held-out rows and examples of the sources that have some."""
    held_out: list[HeldOut] = []
    for source, objective, share in zip(corpus.sources, recipe.objectives, shares, strict=True):
        common: dict[str, Any] = {
            "name": source.config.name,
            "objective": objective,
            "share": share,
            "vocabulary": setup.vocabulary,
        }
        if isinstance(source, ExampleSource):
            if source.valid:
                assert isinstance(objective, LabelledObjective)
                encoded = objective.encode(source.valid, setup.lm)
                held_out.append(HeldOutExamples(**common, examples=encoded))
        elif source.has_validation:
            held_out.append(
                HeldOutRows(
                    **common,
                    rows=_rows(recipe, setup, source, VALIDATION),
                    tokens=max(1, round(share * recipe.train.eval_tokens)),
                    separate_documents=recipe.data.separate_documents,
                )
            )
    return held_out


def fitting_micro_batch(
    recipe: Recipe,
    setup: ModelSetup,
    streams: Sequence[BatchStream],
    *,
    precision: torch.dtype,
    device: torch.device,
) -> int:
    """Tokens that fit into memory together. Raises RecipeError where not even one row does."""
    lengths = [
        int(stream.examples.lengths.max(initial=1))
        if isinstance(stream, ExampleStream)
        else defaults.row_length(recipe)
        for stream in streams
    ]
    return fitting_tokens(
        recipe.objectives[0].specs(setup.lm.spec),
        length=max(lengths),
        precision=precision,
        device=device,
    )


def _rows(recipe: Recipe, setup: ModelSetup, source: TextSource, split: str) -> Rows:
    vocabulary = setup.vocabulary
    pad = vocabulary.eos_id if vocabulary.pad_id is None else vocabulary.pad_id
    return Rows(
        source.shards.split(split),
        defaults.row_length(recipe),
        recipe.data.packing,
        pad_id=pad or 0,
    )
