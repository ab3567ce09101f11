"""The summary that a run prints before its first step, and the run metadata for `run.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

from trivium.config import flatten_keys
from trivium.data.documents import LONG_BYTES
from trivium.data.encoded import has_target
from trivium.data.shards import TRAIN, VALIDATION
from trivium.interop.hf_folder import export_problem
from trivium.interop.marian_tokenizer import marian_problem
from trivium.messages import translated
from trivium.models import flops_per_token, num_parameters
from trivium.models.base_model import Spec
from trivium.objectives.task_metrics import quote_names
from trivium.presets import catalogue, is_own_size
from trivium.presets.published import published_recipes
from trivium.progress import ProgressLine, format_count, format_duration, labelled
from trivium.report import MAX_UNKNOWN_FRACTION
from trivium.train import defaults
from trivium.train.data_config import ExtendedTokenizer, TokenizerFile
from trivium.train.distributed import SINGLE_PROCESS
from trivium.train.recipe import Recipe
from trivium.train.recipe_layers import compare_with_published, get_published_recipe
from trivium.train.trainer import Trainer, TrainState
from trivium.workflows.corpus import Corpus, ExampleSource
from trivium.workflows.finished_run import ValidationMetrics
from trivium.workflows.model_setup import ModelSetup

# Runs with fewer steps than this get a warning, unless the budget is in steps or minutes.
_FEW_STEPS = 50


def make_metadata(
    recipe: Recipe,
    corpus: Corpus,
    setup: ModelSetup,
    probabilities: Mapping[str, float],
    validation: ValidationMetrics,
) -> dict[str, Any]:
    """Return metadata about the model and the data of a run, to be stored in `run.json`.

    Args:
        recipe: the complete recipe of the run.
        corpus: the data of the run.
        setup: the model of the run.
        probabilities: the sampling probability of each data source, by source name.
        validation: computes the validation metrics, and determines how many examples are evaluated.
    """
    spec, texts, examples = setup.lm.spec, corpus.text_sources, corpus.example_sources
    specs = recipe.objectives[0].model_specs(spec)
    length = defaults.row_length(recipe)
    metadata: dict[str, Any] = {
        "objectives": [objective.kind for objective in recipe.objectives],
        "sources": [source.config.name for source in corpus.sources],
        "num_parameters": sum(num_parameters(one) for one in specs),
        "vocab_size": corpus.tokenizer.vocab_size,
        "tokenizer_kind": corpus.tokenizer.kind,
        "unknown_shares": corpus.compute_unk_rates(has_targets=spec.family == "encoder-decoder"),
        "digests": corpus.digests,
        "recipe": recipe.to_tree(),
        "default_lr": defaults.pretraining_learning_rate(spec),
        "flops_per_token": sum(flops_per_token(one, length) for one in specs),  # type: ignore
        "trivium": version("trivium"),
        "samples": [],
        "finished": False,
    }
    if texts:
        metadata |= {
            "documents": corpus.count("documents"),
            "train_tokens": corpus.count("tokens", TRAIN),
            "valid_tokens": corpus.count("tokens", VALIDATION),
            "duplicates_dropped": corpus.count("duplicates"),
            "bytes_per_token": corpus.count("text_bytes") / max(1, corpus.count("tokens")),
            "unigram_loss": corpus.compute_unigram_loss(list(probabilities.values())),
        }
    if corpus.source_tokenizer is not None:
        metadata["source_vocab_size"] = corpus.source_tokenizer.vocab_size
    if examples:
        limit = validation.limit
        metadata |= {
            "eval_limit": limit,
            "eval_seconds": validation.seconds_per_example * corpus.num_validation_examples(limit),
            "task": examples[0].objective.kind,
            "train_examples": sum(source.num_train for source in examples),
            "valid_examples": corpus.num_validation_examples(None),
            "eval_examples": corpus.num_validation_examples(limit),
            "metric_examples": corpus.num_metric_examples(limit),
            "labels": list(setup.lm.settings.labels),
        }
    return metadata


def print_introduction(
    log: ProgressLine,
    recipe: Recipe,
    corpus: Corpus,
    setup: ModelSetup,
    metadata: dict[str, Any],
    state: TrainState,
) -> None:
    """Print a summary of the data, the model and the budget of a run."""
    if corpus.text_sources:
        _print_text_counts(log, recipe, metadata)
        if recipe.data.packing == "truncate":
            _print_truncated_documents(log, corpus, defaults.row_length(recipe))
    if corpus.example_sources:
        _print_example_counts(log, recipe, corpus, setup, metadata)
    _print_model(log, recipe, setup, metadata)
    _warn_about_unknown_tokens(log, recipe, metadata)
    capital, small = setup.lm.source_tokenizer.encode_ids_batch(["ABC", "abc"])
    if capital == small and any(one.advice().reads_case for one in recipe.objectives):
        log.print_message("", "run.lowercase_tags")
    if state.step == 0:
        _print_weights(log, recipe, corpus, setup)
        _print_published_comparison(log, recipe)
    _print_budget(log, recipe, corpus, metadata, state)
    if metadata.get("unigram_loss") is not None:
        log.print_message("baseline", "run.baseline", unigram_loss=metadata["unigram_loss"])


def print_num_steps(log: ProgressLine, trainer: Trainer, spec: Spec) -> None:
    """Print the total number of steps and the number of steps per epoch.

    Also warns if there are only a few steps. Prints nothing for a budget in steps or minutes.
    """
    train, steps = trainer.recipe.train, trainer.budget_steps
    if train.tokens is not None:
        steps = math.ceil(train.tokens / trainer.loader.step(0, SINGLE_PROCESS).num_tokens)
    elif train.epochs is None:
        return
    epoch = trainer.loader.steps_per_epoch()
    log.print_message("steps", "run.steps", steps=steps, epoch=epoch)
    if steps < _FEW_STEPS and not spec.counts:
        log.warn(
            f"{format_count(steps, 'step')} in all, too few to learn much from: set a larger "
            "budget (train.epochs) or smaller steps (train.batch_examples; "
            "for text train.batch_tokens)."
        )


def print_phases(log: ProgressLine, trainer: Trainer) -> None:
    """Print which recipe keys each training phase changes, and when the phase ends."""
    phases, borders = trainer.recipe.phases, trainer.planned_phase_ends()
    for number, phase in enumerate(phases):
        changed = flatten_keys(phase.to_tree())
        keys = ", ".join(f"{key} {value}" for key, value in changed.items() if key != "until")
        log.print_message(
            "" if number else "phases",
            "run.phase_until_step" if borders else "run.phase_until_share",
            number=number + 1,
            count=len(phases) + 1,
            keys=keys,
            end=borders[number] if borders else phase.until,
        )


def print_budget_used_up(log: ProgressLine, recipe: Recipe, state: TrainState) -> None:
    """Print that a resumed run has used up its budget, and how to extend the budget."""
    assert recipe.train.budget is not None
    name, size = recipe.train.budget
    done = {"steps": state.step, "tokens": state.tokens}.get(name, size)
    log.print_message(
        "finished",
        "run.budget_used_up",
        step=state.step,
        size=size,
        unit=translated(f"unit.{name}"),
        name=name,
        more=2 * max(size, done),
    )


def _print_text_counts(log: ProgressLine, recipe: Recipe, metadata: dict[str, Any]) -> None:
    """Print the number of documents and tokens.

    If documents are very long, also recommend another document separator.
    """
    log.print_message("text", "run.documents", **metadata)
    text_bytes = metadata["bytes_per_token"] * (metadata["train_tokens"] + metadata["valid_tokens"])
    if recipe.data.separator == "blank" and text_bytes > LONG_BYTES * metadata["documents"]:
        log.print_message("", "run.long_documents", advice=translated("advice.separator_line"))


def _print_truncated_documents(log: ProgressLine, corpus: Corpus, max_length: int) -> None:
    """Print how many documents exceed `max_length` tokens, and how many tokens are truncated."""
    splits = [source.shards.split(TRAIN) for source in corpus.text_sources]
    bounds = [split.document_bounds(np.arange(split.num_documents)) for split in splits]
    sizes = np.concatenate([stops - starts for starts, stops in bounds])
    beyond = (sizes - max_length).clip(0)
    if cut := (beyond > 0).sum():
        numbers = {"count": len(sizes), "tokens": sizes.sum(), "lost": beyond.sum()}
        log.print_message("cut", "run.cut_documents", cut=cut, length=max_length, **numbers)


def _print_example_counts(
    log: ProgressLine, recipe: Recipe, corpus: Corpus, setup: ModelSetup, metadata: dict[str, Any]
) -> None:
    """Print the numbers of labelled examples, truncated examples and evaluated examples."""
    count, every = len(metadata["labels"]), metadata["valid_examples"]
    log.print_message(
        "examples",
        "run.examples",
        train=metadata["train_examples"],
        every=every,
        labels=translated("run.label_count", count=count) if count > 1 else "",
    )
    for source in corpus.example_sources:
        _print_truncations(log, source, setup)
    some, seconds = metadata["eval_examples"], metadata["eval_seconds"]
    if some < every:
        end = translated("run.end_all", every=every)
        if recipe.train.eval_examples:
            end = translated("run.end_same")
        elif recipe.train.minutes is not None:
            end = translated("run.end_by_budget")
        cost = translated("run.evaluation_cost", time=format_duration(seconds))
        log.print_message(
            "metrics", "run.evaluated_examples", some=some, cost=cost if seconds else "", end=end
        )


def _print_truncations(log: ProgressLine, source: ExampleSource, setup: ModelSetup) -> None:
    """Print how many examples of a data source are truncated, and how many targets are lost."""
    truncations = np.concatenate([np.empty((0, 3), np.int64), *source.truncations.values()])
    cut, targets, lost = ((truncations[:, 0] > 0).sum(), *truncations[:, 1:].sum(axis=0))
    count, dropped = len(truncations), len(truncations) - has_target(truncations).sum()
    if cut:
        length = setup.lm.max_length or 0
        log.print_message(
            "cut", "run.cut_examples", cut=cut, count=count, share=cut / count, length=length
        )
    if cut and targets > count:  # the targets are tokens
        log.print_message("", "run.cut_targets", lost=lost, targets=targets, share=lost / targets)
    if dropped:
        log.print_message("", "run.dropped_examples", dropped=dropped, count=count)


def _print_model(
    log: ProgressLine, recipe: Recipe, setup: ModelSetup, metadata: dict[str, Any]
) -> None:
    """Print the name and size of the model.

    Also prints which dimensions of the preset were recomputed because the recipe overrides others.
    If the model cannot be exported, the reason is printed.
    """
    source_size, parameters = metadata.get("source_vocab_size"), setup.parameters
    trained = translated("run.trained_parameters", count=parameters.trained)
    of_sources = translated("run.source_vocabulary", count=source_size or 0)
    log.print_message(
        "model",
        "run.model",
        name=_format_model_name(recipe, setup),
        trained=trained if parameters.frozen else "",
        of_sources=of_sources if source_size else "",
        **metadata,
    )
    if isinstance(recipe.tokenizer, ExtendedTokenizer):
        new = [*recipe.tokenizer.extend, *recipe.tokenizer.extend_special]
        log.print_message("", "run.new_tokens", count=len(new), names=quote_names(new))
    sizes = [f"{key} = {new:g} ({old:g})" for key, old, new in recipe.model.derived_dimensions()]
    if sizes:
        log.print_message("", "run.derived_sizes", sizes=", ".join(sizes))
    lm = setup.lm
    if source_size and marian_problem(lm.source_tokenizer, lm.text_tokenizer):
        log.print_message("", "run.not_exportable")
    elif problem := export_problem(setup.lm.spec):
        log.print_message("", "run.export_problem", problem=problem)


def _format_model_name(recipe: Recipe, setup: ModelSetup) -> str:
    """Return the model's name for messages, marked as changed if the recipe changes its preset."""
    name = recipe.model.preset or recipe.model.init_from or setup.lm.spec.family
    return translated("run.changed_preset", name=name) if recipe.model.changes_preset else name


def _warn_about_unknown_tokens(log: ProgressLine, recipe: Recipe, metadata: dict[str, Any]) -> None:
    """Warn if many tokens of the data are unknown tokens, and suggest what to change."""
    advice = (
        "though it was trained on this text: the model cannot tell them apart. Set a larger "
        "tokenizer.vocab_size, or another tokenizer.kind: byte-bpe knows every text."
    )
    if recipe.model.init_from is not None:
        advice = (
            "which was trained on other text: the model cannot tell them apart, and loss and "
            "metrics count them as one. Take a preset, which gets a new tokenizer, or pretrain on "
            "text of both kinds, or with tokenizer.kind=byte-bpe, which knows every text."
        )
    elif recipe.tokenizer is None:
        advice = (
            "with which the shards were prepared: the model cannot tell them apart. Prepare the "
            "text again with a tokenizer that was trained on it, or with --kind byte-bpe."
        )
    elif isinstance(recipe.tokenizer, TokenizerFile):
        advice = (
            "which was trained on other text: the model cannot tell them apart. Leave "
            "tokenizer.path out for a tokenizer that is trained on this text."
        )
    for side, share in metadata["unknown_shares"].items():
        if share > MAX_UNKNOWN_FRACTION:
            log.warn(
                f"{share:.1%} of the tokens of the {side} are unknown to the tokenizer, {advice}"
            )


def _print_weights(log: ProgressLine, recipe: Recipe, corpus: Corpus, setup: ModelSetup) -> None:
    """Print the origin of the weights, the newly initialized heads and the changes of labels."""
    name, preset = _format_model_name(recipe, setup), recipe.model.preset
    if preset is not None and not corpus.text_sources:
        # The name of a preset may also be the name of a pretrained model on the hub.
        published = not recipe.model.changes_preset and not catalogue[preset].paper.startswith(
            "after"
        )
        on_hub = published and not is_own_size(preset)
        hub = translated("run.hub_name", name=preset) if on_hub else ""
        log.print_message("weights", "run.random_weights", name=preset, hub=hub)
    if setup.new_heads:
        heads = ", ".join(setup.new_heads)
        log.print_message("weights", "run.new_heads", name=name, heads=heads)
    for sentence in setup.labels.describe_changes():
        log.print_line(labelled("labels", sentence))


def _print_published_comparison(log: ProgressLine, recipe: Recipe) -> None:
    """Compare the recipe with the published recipe of its preset, and print the result.

    Prints which keys agree, which keys differ, and which features this library implements
    differently. If the published recipe is incomplete, prints what the publication does not state.
    """
    preset = recipe.model.preset
    if preset is None or is_own_size(preset) or recipe.labelled:
        return
    published = get_published_recipe(recipe.to_tree())
    if published is None:
        known = published_recipes().get(preset)
        if recipe.defaults == "fast" and known is not None and not known.is_complete:
            missing = "; ".join(known.missing)
            log.print_message("", "run.not_published", paper=known.paper, missing=missing)
        return
    same, changed = compare_with_published(recipe, published)
    log.print_message("", "run.as_published", paper=published.paper, keys=", ".join(same))
    if changed:
        keys = ", ".join(
            translated(
                "run.changed_from_published",
                key=key,
                value=_format_recipe_value(value),
                published=_format_recipe_value(before),
            )
            for key, (value, before) in changed.items()
        )
        log.print_message("", "run.not_as_published", keys=keys)
    if published.differences:
        subjects = ", ".join(published.differences)
        log.print_message("", "run.published_differences", subjects=subjects, preset=preset)


def _format_recipe_value(value: Any) -> str:
    """Format a recipe value for a message. For a list of tables, only its length is shown."""
    if value is None:
        return translated("run.unset")
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return str(len(value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value}"


def _print_budget(
    log: ProgressLine, recipe: Recipe, corpus: Corpus, metadata: dict[str, Any], state: TrainState
) -> None:
    """Print the training budget, batch size, learning rate, precision and hardware of the run."""
    assert recipe.train.budget is not None
    budget, size = recipe.train.budget
    unit = budget.removesuffix("s") if size == 1 else budget
    number = f"{size:,.0f}" if size == round(size) else f"{size:g}"
    length = f"{number} {translated(f'unit.{unit}')}"
    batch, rate, several, threads = [], "", "", metadata["threads"]
    if corpus.text_sources:
        batch.append(translated("run.batch_tokens", count=recipe.train.batch_tokens))
    if corpus.example_sources:
        batch.append(translated("run.batch_examples", count=recipe.train.batch_examples))
    learns = metadata["num_parameters"] > 0  # an n-gram model of counts has none
    if learns:
        lr, precision = recipe.optimizer.lr, metadata["precision"]
        rate = translated("run.rate_and_precision", lr=lr, precision=precision)
    if metadata["processes"] > 1:
        several = translated("run.processes", count=metadata["processes"])
    log.print_message(
        "training",
        "run.budget",
        length=length,
        batch=translated("join.or").join(batch),
        rate=rate,
        device=metadata["device"],
        several=several,
        threads=translated("run.one_thread" if threads == 1 else "run.threads", count=threads),
    )
    if metadata["gflops"] and learns:
        speeds = (
            translated("run.product_speed", speed=speed, name=name)
            for name, speed in metadata["gflops"].items()
        )
        log.print_message("", "run.measured_products", speeds=", ".join(speeds))
    time, timed = format_duration(metadata["preparation_seconds"]), ""
    if budget == "minutes" and state.step:
        used = state.seconds - (state.preparation_seconds or 0.0)
        left = format_duration(max(0.0, 60 * size - used))
        timed = translated("run.budget_left", left=left, length=length)
    elif budget == "minutes":
        begin = "run.budget_of_one_begins" if size == 1 else "run.budget_begins"
        timed = translated(begin, length=length)
    if timed or metadata["preparation_seconds"] > 10:
        log.print_message("prepared", "run.prepared", time=time, timed=timed)
