"""What `run.json` has of a run when it begins: for the report, comparisons and `--resume`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from trivium.data.shards import TRAIN, VALIDATION
from trivium.models import flops_per_token, num_parameters
from trivium.train import defaults
from trivium.train.recipe import Recipe
from trivium.workflows.corpus import Corpus
from trivium.workflows.finished_run import HeldOutMetrics
from trivium.workflows.model_setup import ModelSetup


def run_facts(
    recipe: Recipe,
    corpus: Corpus,
    setup: ModelSetup,
    shares: Mapping[str, float],
    held_out: HeldOutMetrics,
) -> dict[str, Any]:
    """What is trained, and on what.

    Args:
        recipe: with every number decided.
        corpus: the data.
        setup: the model.
        shares: of the steps, by source.
        held_out: the evaluations during training.
    """
    spec, texts, examples = setup.lm.spec, corpus.texts, corpus.examples
    specs = recipe.objectives[0].specs(spec)
    length = defaults.row_length(recipe)
    facts: dict[str, Any] = {
        "objectives": [objective.kind for objective in recipe.objectives],
        "sources": [source.config.name for source in corpus.sources],
        "num_parameters": sum(num_parameters(one) for one in specs),
        "trained_parameters": setup.parameters.trained,
        "vocab_size": corpus.tokenizer.vocab_size,
        "tokenizer_kind": corpus.tokenizer.kind,
        "unknown_shares": corpus.unknown_shares(generates_targets=spec.family == "encoder-decoder"),
        "digests": corpus.digests,
        "recipe": recipe.to_tree(),
        "default_lr": defaults.pretraining_rate(spec),
        "flops_per_token": sum(flops_per_token(one, length) for one in specs),  # type: ignore
        "trivium": version("trivium"),
        "samples": [],
        "finished": False,
    }
    if texts:
        facts |= {
            "documents": corpus.count("documents"),
            "train_tokens": corpus.count("tokens", TRAIN),
            "valid_tokens": corpus.count("tokens", VALIDATION),
            "duplicates_dropped": corpus.count("duplicates"),
            "bytes_per_token": corpus.count("text_bytes") / max(1, corpus.count("tokens")),
            "unigram_loss": corpus.unigram_loss(list(shares.values())),
        }
    if corpus.source_tokenizer is not None:
        facts["source_vocab_size"] = corpus.source_tokenizer.vocab_size
    if examples:
        limit = held_out.limit
        facts |= {
            "eval_limit": limit,
            "eval_seconds": held_out.seconds_per_example * corpus.num_held_out(limit),
            "task": examples[0].objective.kind,
            "train_examples": sum(len(source.train) for source in examples),
            "valid_examples": corpus.num_held_out(None),
            "eval_examples": corpus.num_held_out(limit),
            "metric_examples": corpus.num_measured(limit),
            "labels": list(setup.lm.settings.labels),
        }
    return facts
