"""What a run says before its first step, and what `run.json` has of it from then on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from trivium.data.documents import LONG_ADVICE, LONG_BYTES
from trivium.data.shards import TRAIN, VALIDATION
from trivium.models import flops_per_token, num_parameters
from trivium.presets import is_own_size
from trivium.progress import ProgressLine, short_duration
from trivium.report import UNKNOWN_SHARE
from trivium.train import defaults
from trivium.train.recipe import Recipe, TokenizerFile
from trivium.train.trainer import TrainState
from trivium.workflows.corpus import Corpus
from trivium.workflows.finished_run import HeldOutMetrics
from trivium.workflows.model_setup import ModelSetup

Say = Callable[[str], None]


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
            "train_examples": sum(source.num_train for source in examples),
            "valid_examples": corpus.num_held_out(None),
            "eval_examples": corpus.num_held_out(limit),
            "metric_examples": corpus.num_measured(limit),
            "labels": list(setup.lm.settings.labels),
        }
    return facts


def introduce(
    line: ProgressLine,
    recipe: Recipe,
    corpus: Corpus,
    setup: ModelSetup,
    facts: dict[str, Any],
    state: TrainState,
) -> None:
    """Say what a run trains, on what, and for how long; `facts` are those of `run.json`."""
    if corpus.texts:
        _say_text(line.say, recipe, facts)
    if corpus.examples:
        _say_examples(line.say, recipe, corpus, setup, facts)
    _say_model(line.say, recipe, setup, facts)
    _warn_of_unknown_tokens(line.warn, recipe, facts)
    capital, small = setup.lm.source_tokenizer.encode_ids_batch(["ABC", "abc"])
    if capital == small and any(one.reads_case for one in recipe.objectives):
        line.say(
            "           its tokenizer lower-cases, so that names are not known by their capitals: "
            "train it with --set tokenizer.lowercase=false, or take a cased model"
        )
    if state.step == 0:
        _say_weights(line.say, recipe, corpus, setup)
        if recipe.defaults == "published" and not is_own_size(recipe.model.preset or ""):
            line.say("           it trains as published; --set defaults=fast learns in fewer steps")
    _say_budget(line.say, recipe, corpus, facts, state)
    if facts.get("unigram_loss") is not None:
        line.say(
            "baseline   token frequencies alone give a loss of "
            f"{facts['unigram_loss']:.3f} nats per token"
        )


def say_finished(line: ProgressLine, recipe: Recipe, state: TrainState) -> None:
    """Say that a resumed run has used up its budget, and how to train on."""
    assert recipe.train.budget is not None
    name, size = recipe.train.budget
    done = {"steps": state.step, "tokens": state.tokens}.get(name, size)
    line.say(
        f"finished   nothing is left to train: after step {state.step:,} the budget of {size:,} "
        f"{name} is used up; to train on, add --set train.{name}={2 * max(size, done)}"
    )


def _say_text(say: Say, recipe: Recipe, facts: dict[str, Any]) -> None:
    say(
        f"text       {facts['documents']:,} documents, {facts['train_tokens']:,} tokens to "
        f"train on, {facts['valid_tokens']:,} held out, "
        f"{facts['duplicates_dropped']:,} duplicate documents dropped"
    )
    text_bytes = facts["bytes_per_token"] * (facts["train_tokens"] + facts["valid_tokens"])
    if recipe.data.separator == "blank" and text_bytes > LONG_BYTES * facts["documents"]:
        say(f"           few and long: {LONG_ADVICE}")


def _say_examples(
    say: Say, recipe: Recipe, corpus: Corpus, setup: ModelSetup, facts: dict[str, Any]
) -> None:
    labels = f", {len(facts['labels'])} labels" if len(facts["labels"]) > 1 else ""
    say(
        f"examples   {facts['train_examples']:,} to train on, "
        f"{facts['valid_examples']:,} held out{labels}"
    )
    longest = setup.lm.max_length
    long = 0.0 if longest is None else corpus.long_share(longest)
    if long:
        say(
            f"           about {long:.1%} have more than the {longest:,} tokens that are read "
            "at once (data.length)"
        )
    some, every = facts["eval_examples"], facts["valid_examples"]
    if some < every:
        end = " and" if recipe.train.eval_examples else f", on all {every:,}"
        if recipe.train.minutes is not None and not recipe.train.eval_examples:
            end = ", on as many as take a quarter of the budget more"
        seconds = facts["eval_seconds"]
        cost = f" (about {short_duration(seconds)} each time)" if seconds else ""
        say(
            f"metrics    on {some:,} of the held-out examples during training{cost}{end} at the end"
        )


def _say_model(say: Say, recipe: Recipe, setup: ModelSetup, facts: dict[str, Any]) -> None:
    source_size, parameters = facts.get("source_vocab_size"), setup.parameters
    trained = f", {parameters.trained:,} of them trained" if parameters.frozen else ""
    say(
        f"model      {_name(recipe, setup)}: {facts['num_parameters']:,} parameters{trained}, "
        f"{facts['tokenizer_kind']} vocabulary of {facts['vocab_size']:,}"
        + (f" for targets, {source_size:,} for sources" if source_size else "")
    )
    if source_size:
        say("           with two vocabularies it cannot be exported to Hugging Face")


def _name(recipe: Recipe, setup: ModelSetup) -> str:
    return recipe.model.preset or recipe.model.init_from or setup.lm.spec.family


def _warn_of_unknown_tokens(warn: Say, recipe: Recipe, facts: dict[str, Any]) -> None:
    is_new = recipe.model.init_from is None and not isinstance(recipe.tokenizer, TokenizerFile)
    own = (
        "though it was trained on this text: the model cannot tell them apart. Set a larger "
        "tokenizer.vocab_size, or another tokenizer.kind: byte-bpe knows every text."
    )
    other = (
        "which was trained on other text: the model cannot tell them apart, and loss and metrics "
        "count them as one. Take a preset, which gets a new tokenizer, or pretrain on text of both "
        "kinds, or with tokenizer.kind=byte-bpe, which knows every text."
    )
    for side, share in facts["unknown_shares"].items():
        if share > UNKNOWN_SHARE:
            warn(
                f"{share:.1%} of the tokens of the {side} are unknown to the tokenizer, "
                + (own if is_new else other)
            )


def _say_weights(say: Say, recipe: Recipe, corpus: Corpus, setup: ModelSetup) -> None:
    name = _name(recipe, setup)
    if recipe.model.preset is not None and not corpus.texts:
        say(
            f"weights    new and random: {name} is a preset. To start from trained ones, name "
            f"a run, a folder or a model on the Hugging Face hub ({name}@main if it is there)"
        )
    if setup.new_heads:
        say(f"weights    of {name}; the head {', '.join(setup.new_heads)} starts new")


def _say_budget(
    say: Say, recipe: Recipe, corpus: Corpus, facts: dict[str, Any], state: TrainState
) -> None:
    assert recipe.train.budget is not None
    budget, size = recipe.train.budget
    length = f"{size:g} {budget.removesuffix('s') if size == 1 else budget}"
    batch = []
    if corpus.texts:
        batch.append(f"{recipe.train.batch_tokens:,} tokens")
    if corpus.examples:
        batch.append(f"{recipe.train.batch_examples:,} examples")
    processes, threads = facts["processes"], facts["threads"]
    several = f"{processes} processes, each with " if processes > 1 else ""
    learns = facts["num_parameters"] > 0  # an n-gram model of counts has none
    rate = f"learning rate {recipe.optimizer.lr:.2g}, {facts['precision']} " if learns else ""
    say(
        f"training   {length}, {' or '.join(batch)} per step, {rate}on {facts['device']} "
        f"({several}{threads} thread{'s' if threads > 1 else ''})"
    )
    if facts["gflops"] and learns:
        speeds = (f"{speed:,.0f} GFLOP/s in {name}" for name, speed in facts["gflops"].items())
        say(f"           products measured here, on one core: {', '.join(speeds)}")
    if facts["preparation_seconds"] > 10 or budget == "minutes":
        timed = f"; the {length} begin{'s' if size == 1 else ''} now" if budget == "minutes" else ""
        if timed and state.step:
            left = 60 * size - (state.seconds - (state.preparation_seconds or 0.0))
            timed = f"; {short_duration(max(0.0, left))} of the {length} left"
        say(f"prepared   in {short_duration(facts['preparation_seconds'])}{timed}")
