"""What a complete recipe stands for: its model's description, its model, its optimizers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch

from trivium.errors import RecipeError, SpecError
from trivium.models import LanguageModule, build
from trivium.models.replaced import GeneratorAndDiscriminator, build_with_generator, generator_spec
from trivium.nn.attention import Attention
from trivium.objectives import (
    Masked,
    Mixture,
    PrefixLM,
    ReplacedToken,
    SentencePairs,
    TextObjective,
)
from trivium.optim.optimizers import adamw, muon, remember_peaks
from trivium.spec import AnySpec, Head, ModelSpec, NSPHead, ReplacedTokenHead
from trivium.text import Tokenizer
from trivium.train.finetune_recipe import FinetuneRecipe
from trivium.train.loop import Plan
from trivium.train.recipe import Recipe, TrainSection
from trivium.workflows.objectives import PAIRED

# Heads that any encoder can be given, where it has none of their kind.
_GIVEN: tuple[Head, ...] = (NSPHead(), ReplacedTokenHead())


def fit_spec(
    spec: AnySpec,
    tokenizer: Tokenizer,
    objectives: Sequence[TextObjective],
    *,
    started: bool = False,
) -> AnySpec:
    """The spec with this tokenizer's vocabulary, a multiple of 64, and the heads that are trained.

    One that has weights already (`started`) keeps its vocabulary.

    Raises RecipeError where the model has no head for an objective.
    """
    heads = {head.kind: head for objective in objectives for head in _heads(spec, objective)}
    size = spec.vocab_size if started else math.ceil(tokenizer.vocab_size / 64) * 64
    ours = [head.kind for head in spec.heads]
    kinds = sorted(heads, key=lambda kind: ours.index(kind) if kind in ours else len(ours))
    fitted = spec.replace(vocab_size=size, heads=tuple(heads[kind] for kind in kinds))
    if isinstance(fitted, ModelSpec) and any(isinstance(o, SentencePairs) for o in objectives):
        return _with_token_types(fitted, started)
    return fitted


def _heads(spec: AnySpec, objective: TextObjective) -> list[Head]:
    """The heads an objective trains. Those of the vocabulary a model must have."""
    have = {head.kind: head for head in spec.heads}
    given = {head.kind: head for head in _GIVEN if head.kind in objective.heads}
    found = {**given, **{kind: head for kind, head in have.items() if kind in objective.heads}}
    missing = [kind for kind in objective.heads if kind not in found]
    if missing and (isinstance(objective, SentencePairs) or not found):
        known = ", ".join(have) or "none"
        raise RecipeError(
            f"objective.kind asks for a head of kind {' or '.join(missing)}; this model's "
            f"heads: {known}. Encoders train with masked, decoders with causal."
        )
    return list(found.values())


def _with_token_types(spec: ModelSpec, started: bool) -> ModelSpec:
    """The spec with none or two token types, which sentence pairs tell apart."""
    if spec.embedding.num_token_types != 1:
        return spec
    if started:
        raise RecipeError(
            "sentence pairs have two token types, and the model to start from has one: take "
            'objective.kind = "masked".'
        )
    return spec.replace(embedding=spec.embedding.replace(num_token_types=2))


def build_model(recipe: Recipe, spec: AnySpec, device: torch.device) -> LanguageModule:
    """The model to train, with random weights; replaced tokens come with what makes them.

    Raises:
        RecipeError: a model for which there is no generator.
    """
    question = recipe.objective.questions[0]
    if question.kind != "replaced-token":
        return build(spec, seed=recipe.seed, device=device)
    assert isinstance(spec, ModelSpec)
    both = build_with_generator(
        spec, fraction=question.generator_size, seed=recipe.seed, device=device
    )
    # What its objective takes for a model; all else that training asks of one, it has.
    return cast(LanguageModule, both)


def models_of(model: LanguageModule) -> tuple[LanguageModule, LanguageModule | None]:
    """The model that is kept of training, and its generator where it has one."""
    if isinstance(model, GeneratorAndDiscriminator):
        return model.discriminator, model.whole_generator()
    return model, None


def trained_specs(recipe: Recipe, spec: AnySpec) -> tuple[AnySpec, ...]:
    """The descriptions of all that is trained: the model, and its generator where it has one.

    Raises:
        RecipeError: a model for which there is no generator.
    """
    question = recipe.objective.questions[0]
    if question.kind != "replaced-token":
        return (spec,)
    assert isinstance(spec, ModelSpec)
    try:
        return spec, generator_spec(spec, question.generator_size)
    except SpecError as error:
        raise RecipeError(f'objective.kind = "replaced-token": {error}') from None


def training_flops(recipe: Recipe, spec: AnySpec, mixture: Mixture) -> float:
    """Floating-point operations to train on one token of the text, on average."""
    length = recipe.data.length
    if isinstance(mixture.objectives[0], ReplacedToken):
        assert isinstance(spec, ModelSpec)
        *_, generator = trained_specs(recipe, spec)
        labelled = mixture.objectives[0].masked.probability
        # Of the discriminator every position is asked, but not for a token.
        unasked = 6.0 * spec.vocab_size * spec.d_embedding
        return (
            generator.flops_per_token(length, labelled=labelled)
            + spec.flops_per_token(length)
            - unasked
        )
    each = [_flops(spec, objective, length) for objective in mixture.objectives]
    total = sum(share * flops for share, flops in zip(mixture.shares, each, strict=True))
    return total / sum(mixture.shares)


def _flops(spec: AnySpec, objective: TextObjective, length: int) -> float:
    if isinstance(spec, ModelSpec) and isinstance(objective, PAIRED):
        return spec.flops_of_pair(*objective.lengths(length)) / length
    match objective:
        case Masked():
            labelled = objective.probability
        case SentencePairs():
            labelled = objective.masked.probability
        case PrefixLM():
            labelled = 0.5
        case _:
            labelled = 1.0
    return spec.flops_per_token(length, labelled=labelled)


def build_plan(
    recipe: Recipe | FinetuneRecipe,
    *,
    steps_an_epoch: float,
    tokens_a_step: int | None = None,
    device: torch.device,
    precision: torch.dtype,
    started: float,
) -> Plan:
    """The plan of a complete recipe, its budget in steps or minutes.

    `tokens_a_step` is for recipes whose budget may be in tokens.
    """
    section, schedule = recipe.train, recipe.schedule
    assert schedule.warmup is not None
    assert section.eval_every is not None
    assert section.save_every is not None
    steps = section.steps
    if section.epochs is not None:
        steps = max(1, round(section.epochs * steps_an_epoch))
    if isinstance(section, TrainSection) and section.tokens is not None:
        assert tokens_a_step is not None
        steps = math.ceil(section.tokens / tokens_a_step)
    return Plan(
        seed=recipe.seed,
        precision=precision,
        device=device,
        steps=steps,
        minutes=section.minutes,
        started=started,
        schedule=schedule.kind,
        warmup=schedule.warmup,
        decay=schedule.decay,
        final=schedule.final,
        clip=section.clip,
        log_every=section.log_every,
        eval_every=section.eval_every,
        save_every=section.save_every,
    )


def build_optimizers(
    recipe: Recipe | FinetuneRecipe, model: LanguageModule
) -> list[torch.optim.Optimizer]:
    """The optimizers of a complete recipe, each group's peak learning rate noted."""
    section = recipe.optimizer
    assert section.lr is not None
    common: dict[str, Any] = {
        "lr": section.lr,
        "table_lr": section.table_lr,
        "betas": section.betas,
        "eps": section.eps,
        "weight_decay": section.weight_decay,
    }
    if section.kind == "adamw":
        optimizers = adamw(model, **common)
    else:
        blocks = {id(p) for block in model.blocks for p in block.parameters()}
        matrices = [n for n, p in model.named_parameters() if id(p) in blocks and p.ndim == 2]
        optimizers = muon(
            model,
            matrices,
            matrix_lr=section.matrix_lr,
            shares=_query_shares(model),
            momentum=section.momentum,
            **common,
        )
    remember_peaks(optimizers)
    return optimizers


def _query_shares(model: LanguageModule) -> dict[str, float]:
    """Smaller steps for queries whose scores are not divided by the root of the head's width (T5).

    Muon's steps are as large for every matrix, and their queries want to be that much smaller.
    """
    return {
        f"{name}.query.weight": module.head_dim**-0.5 / module.scale
        for name, module in model.named_modules()
        if isinstance(module, Attention)
    }
