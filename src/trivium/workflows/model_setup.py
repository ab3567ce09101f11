"""The model of a run: its final spec, module, weights to start from, settings and adapter."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trivium.adapt import LoRA, ParameterCounts, add_lora, freeze
from trivium.errors import RecipeError
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel, load
from trivium.objectives import Objective
from trivium.spec import AnySpec, Head
from trivium.text import Tokenizer
from trivium.text.vocabulary import Vocabulary
from trivium.train import defaults
from trivium.train.recipe import AdapterConfig, Recipe
from trivium.workflows.corpus import Corpus


@dataclass
class ModelSetup:
    """What is trained.

    Args:
        recipe: with keys of labelled objectives that follow from their examples.
        vocabulary: facts of the tokenizer, with the decoder's start.
        module: what the trainer sees; `lm.module` or, of ELECTRA, both models.
        lm: the model that the run saves.
        adapted: how many parameters are trained.
    """

    recipe: Recipe
    vocabulary: Vocabulary
    module: nn.Module
    lm: LanguageModel
    adapted: ParameterCounts


def load_base(recipe: Recipe) -> LanguageModel | None:
    """The model that training starts from; None for new weights of a preset or a spec."""
    if recipe.model.init_from is None:
        return None
    return load(recipe.model.init_from, device="cpu")


def set_up_model(
    recipe: Recipe,
    corpus: Corpus,
    spec: AnySpec,
    base: LanguageModel | None,
    device: torch.device,
) -> ModelSetup:
    """Build the model for the objectives and tokenizer of a run.

    Raises:
        RecipeError: a model, tokenizer, weights or adapter that do not fit.
    """
    recipe = _resolve_objectives(recipe, spec, corpus)
    objectives = recipe.objectives
    settings = base.settings if base is not None else Settings()
    vocabulary = _vocabulary(corpus.tokenizer, settings)
    if spec.family == "encoder-decoder":
        settings = _with_generation_ids(settings, objectives, vocabulary)
        vocabulary = _vocabulary(corpus.tokenizer, settings)
    for source in corpus.examples:
        settings = source.objective.settings(settings, source.train)
    final = _final_spec(recipe, spec, settings, corpus, new=base is None)
    for objective in objectives:
        objective.check(final, vocabulary)
    module = objectives[0].build(final, seed=recipe.seed, device=device)
    models = objectives[0].models(module)
    if base is not None and not recipe.model.new_weights:
        for name, model in models.items():
            start = base if not name else _load_beside(base, recipe, name)
            if start is not None:
                copy_weights(start, model)
    lm = LanguageModel(
        final,
        models[""],
        corpus.tokenizer,
        _limit_length(settings, recipe, final, corpus),
        source_tokenizer=corpus.source_tokenizer,
    )
    if recipe.adapter.rank:
        adapted = add_lora(lm.module, lora_of(recipe.adapter), seed=recipe.seed)
    else:
        adapted = freeze(lm.module, recipe.model.freeze)
    return ModelSetup(recipe, vocabulary, module, lm, adapted)


def lora_of(config: AdapterConfig) -> LoRA:
    """LoRA as a recipe describes it."""
    return LoRA(
        rank=config.rank, alpha=config.alpha, dropout=config.dropout, targets=config.targets
    )


def copy_weights(base: LanguageModel, model: Any) -> None:
    """Fill a model with the weights of another one; only heads the other has not stay new.

    Raises RecipeError where a weight is missing or has another shape.
    """
    theirs, ours = base.module.state_dict(), model.state_dict()
    known = {head.kind: head for head in base.spec.heads}
    new = [head.kind for head in model.spec.heads if known.get(head.kind) != head]
    taken = {}
    for name, weight in ours.items():
        if name.startswith(tuple(f"heads.{kind}." for kind in new)):
            continue
        if name not in theirs or theirs[name].shape != weight.shape:
            raise RecipeError(
                f"the model to start from has no {name} of shape {list(weight.shape)}: it is built "
                "differently, so its weights cannot be used."
            )
        taken[name] = theirs[name]
    model.load_state_dict(taken, strict=False)


def _load_beside(base: LanguageModel, recipe: Recipe, name: str) -> LanguageModel | None:
    """Another model of the run that training starts from, such as ELECTRA's generator."""
    folder = Path(str(recipe.model.init_from)) / name
    return load(folder, device="cpu") if folder.is_dir() else None


def _resolve_objectives(recipe: Recipe, spec: AnySpec, corpus: Corpus) -> Recipe:
    resolved: dict[str, Objective] = {}
    for source in corpus.examples:
        source.objective = source.objective.resolve(spec, source.train)
        resolved[source.config.name] = source.objective
    if not recipe.mix:
        return recipe.replace(objective=resolved.get("", recipe.objective))
    mix = tuple(
        source.replace(objective=resolved.get(source.name, source.objective))
        for source in recipe.mix
    )
    return recipe.replace(mix=mix)


def _vocabulary(tokenizer: Tokenizer, settings: Settings) -> Vocabulary:
    start = next(iter(settings.decoder_start), None)
    return dataclasses.replace(tokenizer.vocabulary, decoder_start_id=start)


def _with_generation_ids(
    settings: Settings, objectives: Sequence[Objective], vocabulary: Vocabulary
) -> Settings:
    """Settings with the ids an encoder-decoder generates with: first, last, and padding."""
    starts = [objective.decoder_start(vocabulary) for objective in objectives]
    default = vocabulary.pad_id if vocabulary.bos_id is None else vocabulary.bos_id
    ids = {
        "decoder_start_token_id": next((one for one in starts if one is not None), default),
        "eos_token_id": vocabulary.end_id,
        "pad_token_id": vocabulary.pad_id,
    }
    ids = {**ids, **settings.config, **settings.generation}
    missing = [name for name, index in ids.items() if index is None]
    if missing:
        raise RecipeError(
            f"this tokenizer has no {missing[0].removesuffix('_id')}: use one with <pad>, </s> "
            "and <s>."
        )
    kept = {name: ids[name] for name in ids if name.endswith("_token_id")}
    return dataclasses.replace(
        settings, generation={**kept, **settings.generation}, config={**kept, **settings.config}
    )


def _final_spec(
    recipe: Recipe, spec: AnySpec, settings: Settings, corpus: Corpus, *, new: bool
) -> AnySpec:
    """The spec with its vocabulary, the heads of all objectives, and this run's dropout."""
    heads: dict[str, Head] = {}
    for objective in recipe.objectives:
        heads |= {head.kind: head for head in objective.heads(spec, settings.labels)}
    if len({len(objective.specs(spec)) for objective in recipe.objectives}) > 1:
        raise RecipeError(
            "an objective that trains two models at once (replaced-token) cannot be mixed with "
            "others: leave it out of [[mix]]."
        )
    known = [head.kind for head in spec.heads]
    ordered = sorted(heads, key=lambda kind: known.index(kind) if kind in known else len(known))
    changes: dict[str, Any] = {"heads": tuple(heads[kind] for kind in ordered)}
    if new:
        changes["vocab_size"] = _table_rows(corpus.tokenizer)
        if corpus.source_tokenizer is not None:
            changes["source_vocab_size"] = _table_rows(corpus.source_tokenizer)
    return spec.replace(**changes).with_dropout(defaults.dropout(recipe))


def _limit_length(settings: Settings, recipe: Recipe, spec: AnySpec, corpus: Corpus) -> Settings:
    """Settings with the longest input that labelled examples are encoded with."""
    length = recipe.data.length
    if not corpus.examples or (length is None and not _has_long_example(corpus)):
        return settings
    length = length or defaults.LONGEST_EXAMPLE
    limit = getattr(spec, "max_length", None)
    options = {**settings.tokenizer, "model_max_length": min(length, limit or length)}
    return dataclasses.replace(settings, tokenizer=options)


def _has_long_example(corpus: Corpus) -> bool:
    """Whether some example is longer than what is read of it by default."""
    for source in corpus.examples:
        texts = [*source.objective.texts(source.train), *source.objective.texts(source.valid)]
        # A pair adds up to three special tokens.
        longest = defaults.LONGEST_EXAMPLE - 3
        if any(len(ids) > longest for ids in corpus.tokenizer.encode_ids_batch(texts)):
            return True
    return False


def _table_rows(tokenizer: Tokenizer) -> int:
    """Rows of a table of token vectors: a multiple of 64."""
    return math.ceil(tokenizer.vocab_size / 64) * 64
