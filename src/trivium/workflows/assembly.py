"""What a complete recipe stands for: its objective, its model's description, its optimizers."""

from __future__ import annotations

import math
from typing import Any

import torch

from trivium.errors import RecipeError
from trivium.models import LanguageModule
from trivium.objectives import Bidirectional, Causal, Masked, Objective
from trivium.optim.optimizers import adamw, muon, remember_peaks
from trivium.spec import AnySpec, RNNSpec
from trivium.text import Tokenizer
from trivium.train.recipe import Recipe


def build_objective(recipe: Recipe, tokenizer: Tokenizer) -> Objective:
    """The objective of a complete recipe. Raises RecipeError where the tokenizer has no mask."""
    section = recipe.objective
    if section.kind == "causal":
        return Causal()
    if section.kind == "bidirectional-lm":
        return Bidirectional()
    if tokenizer.mask_id is None:
        raise RecipeError(
            f"masked language modelling needs a mask token, and this {tokenizer.kind} tokenizer "
            "has none: add one, such as tokenizer.special_tokens = "
            '["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].'
        )
    return Masked.for_vocabulary(
        tokenizer.vocab_size,
        tokenizer.mask_id,
        tokenizer.special_ids,
        probability=section.probability,
        mask_share=section.mask_share,
        random_share=section.random_share,
        continues_word=tokenizer.continues_word() if section.whole_words else None,
    )


def fit_spec(
    spec: AnySpec, tokenizer: Tokenizer, objective: Objective, *, started: bool = False
) -> AnySpec:
    """The spec with this tokenizer's vocabulary, a multiple of 64, and the heads that are trained.

    One that has weights already (`started`) keeps its vocabulary.

    Raises RecipeError where the model has no head for the objective.
    """
    if spec.family == "encoder-decoder":
        raise RecipeError(
            "models with an encoder and a decoder cannot be pretrained yet: take an encoder or a "
            "decoder. (They can be imported, used and exported.)"
        )
    two_way = isinstance(spec, RNNSpec) and spec.direction == "two-way"
    if two_way != isinstance(objective, Bidirectional):
        raise RecipeError(
            'objective.kind = "bidirectional-lm" and an RNN of direction "two-way" (elmo-mini) '
            "belong together: neither trains with another."
        )
    heads = tuple(head for head in spec.heads if head.kind in objective.heads)
    if not heads:
        have = ", ".join(head.kind for head in spec.heads) or "none"
        raise RecipeError(
            f"objective.kind asks for a head of kind {' or '.join(objective.heads)}; this model's "
            f"heads: {have}. Encoders train with masked, decoders with causal."
        )
    size = spec.vocab_size if started else math.ceil(tokenizer.vocab_size / 64) * 64
    return spec.replace(vocab_size=size, heads=heads)


def build_optimizers(recipe: Recipe, model: LanguageModule) -> list[torch.optim.Optimizer]:
    """The optimizers of a complete recipe, each group's peak learning rate noted."""
    section = recipe.optimizer
    assert section.lr is not None
    common: dict[str, Any] = {
        "lr": section.lr,
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
            model, matrices, matrix_lr=section.matrix_lr, momentum=section.momentum, **common
        )
    remember_peaks(optimizers)
    return optimizers
