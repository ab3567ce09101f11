"""What a complete recipe stands for: its objective, its model's description, its optimizers."""

from __future__ import annotations

import math
from typing import Any

import torch

from trivium.errors import RecipeError
from trivium.models import LanguageModule
from trivium.nn.attention import Attention
from trivium.objectives import (
    Bidirectional,
    Causal,
    Denoising,
    Masked,
    SpanCorruption,
    TextObjective,
)
from trivium.objectives.denoising import ends_sentence
from trivium.objectives.span_corruption import sentinel_ids
from trivium.optim.optimizers import adamw, muon, remember_peaks
from trivium.spec import AnySpec, ModelSpec, RNNSpec
from trivium.text import Tokenizer
from trivium.train.finetune_recipe import FinetuneRecipe
from trivium.train.recipe import Recipe


def build_objective(
    recipe: Recipe, tokenizer: Tokenizer, *, decoder_start: int | None = None
) -> TextObjective:
    """The objective of a complete recipe.

    Args:
        recipe: complete.
        tokenizer: of the text.
        decoder_start: what the decoder of an encoder-decoder begins with; None: as published.

    Raises RecipeError where the tokenizer lacks a token that the objective needs.
    """
    section = recipe.objective
    assert section.probability is not None
    match section.kind:
        case "causal":
            return Causal()
        case "bidirectional-lm":
            return Bidirectional()
        case "span-corruption":
            return _span_corruption(recipe, tokenizer, decoder_start)
        case "denoising":
            return _denoising(recipe, tokenizer, decoder_start)
    return Masked.for_vocabulary(
        tokenizer.vocab_size,
        _mask(tokenizer, "masked language modelling"),
        tokenizer.special_ids,
        probability=section.probability,
        mask_share=section.mask_share,
        random_share=section.random_share,
        continues_word=tokenizer.continues_word() if section.whole_words else None,
    )


def _mask(tokenizer: Tokenizer, objective: str) -> int:
    if tokenizer.mask_id is None:
        raise RecipeError(
            f"{objective} needs a mask token, and this {tokenizer.kind} tokenizer "
            "has none: add one, such as tokenizer.special_tokens = "
            '["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].'
        )
    return tokenizer.mask_id


def _span_corruption(recipe: Recipe, tokenizer: Tokenizer, start: int | None) -> SpanCorruption:
    section, length = recipe.objective, recipe.data.length
    assert section.probability is not None
    pad, end = _both_stacks(recipe, tokenizer)
    objective = SpanCorruption(
        sentinels=sentinel_ids(tokenizer.tokens),
        start_id=pad if start is None else start,
        end_id=end,
        pad_id=pad,
        probability=section.probability,
        mean_span=section.mean_span,
    )
    needed = max(objective.hidden(shorter)[1] for shorter in range(1, length + 1))
    if needed > len(objective.sentinels):
        raise RecipeError(
            f"span corruption hides {needed} spans of a row of {length} tokens, but this "
            f"tokenizer has {len(objective.sentinels)} sentinels (<extra_id_0>, <extra_id_1>, "
            "...): give a tokenizer with more, a shorter data.length or a larger "
            "objective.mean_span."
        )
    return objective


def _denoising(recipe: Recipe, tokenizer: Tokenizer, start: int | None) -> Denoising:
    section = recipe.objective
    assert section.probability is not None
    pad, end = _both_stacks(recipe, tokenizer)
    ends = None
    if section.permute_sentences:
        ends = ends_sentence(tokenizer.decode_batch([i] for i in range(tokenizer.vocab_size)))
    return Denoising(
        mask_id=_mask(tokenizer, "denoising"),
        start_id=end if start is None else start,
        end_id=end,
        pad_id=pad,
        probability=section.probability,
        mean_span=section.mean_span,
        sentence_ends=ends,
        begin_id=next(iter(tokenizer.prefix_ids), -1),
    )


def _both_stacks(recipe: Recipe, tokenizer: Tokenizer) -> tuple[int, int]:
    """The ids of padding and of the end of a text, which both objectives of two stacks need."""
    if recipe.data.separate_documents:
        raise RecipeError(
            "data.separate_documents cannot part what a decoder sees of an encoder's text: use "
            'data.mode = "truncate" (one row a document) for models with both.'
        )
    end = tokenizer.eos_id if tokenizer.sep_id is None else tokenizer.sep_id
    if tokenizer.pad_id is None or end is None:
        raise RecipeError(
            f"objective.kind = {recipe.objective.kind!r} needs tokens for padding and for the end "
            f"of a text (<pad> and </s>), and this {tokenizer.kind} tokenizer lacks one."
        )
    return tokenizer.pad_id, end


def fit_spec(
    spec: AnySpec, tokenizer: Tokenizer, objective: TextObjective, *, started: bool = False
) -> AnySpec:
    """The spec with this tokenizer's vocabulary, a multiple of 64, and the heads that are trained.

    One that has weights already (`started`) keeps its vocabulary.

    Raises RecipeError where the model has no head for the objective.
    """
    both = isinstance(objective, SpanCorruption | Denoising)
    if both != (spec.family == "encoder-decoder"):
        raise RecipeError(
            'objective.kind = "span-corruption" or "denoising" and a model with an encoder and a '
            "decoder (t5-mini, bart-mini) belong together: neither trains with another."
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


def training_flops(spec: AnySpec, objective: TextObjective, length: int) -> float:
    """Floating-point operations to train on one token of the text, in rows of `length` tokens."""
    if isinstance(spec, ModelSpec) and isinstance(objective, SpanCorruption | Denoising):
        return spec.flops_of_pair(*objective.lengths(length)) / length
    labelled = objective.probability if isinstance(objective, Masked) else 1.0
    return spec.flops_per_token(length, labelled=labelled)


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
