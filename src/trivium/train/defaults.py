"""What a recipe leaves open, decided from the model and the data.

The learning rates are for the default batch; they were found on small models and follow the
published tables of large ones: 2e-3 at width 256 falls with width^-0.75 to 3e-4 at LLaMA-7B's
4096 and 1.5e-4 at 65B's 8192. Post-norm stacks take half of it (Xiong et al. 2020). Recurrent and
n-gram models bear three times as much, an Elman network half of that, which has no gates.

Models with an encoder and a decoder take Muon for their matrices: under AdamW the direction that
every token has in common outgrows all others while token frequencies are learned, and an encoder
comes to say the same of every text. Their token vectors, which stay with AdamW, then want larger
steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

from trivium.errors import RecipeError
from trivium.spec import AnySpec, Learned, ModelSpec, RelativeBias, RNNSpec
from trivium.train.objective_recipe import QuestionSection
from trivium.train.recipe import Recipe

_STEPS = 2000
_SIZES = ((50_000_000, 8_192), (500_000_000, 16_384))
_LARGEST = 32_768
_SENTINELS = 100
_TABLES = 8.0
_PROBABILITY = {"denoising": 0.3}
# Of chosen tokens, the shares that are masked and replaced by any.
_CHANGED = {"replaced-token": (1.0, 0.0)}

Question = TypeVar("Question", bound=QuestionSection)


def vocabulary_size(spec: AnySpec, corpus_bytes: int) -> int:
    """Entries worth learning from so much text: never more than the preset's own."""
    fitting = next((size for limit, size in _SIZES if corpus_bytes <= limit), _LARGEST)
    return min(spec.vocab_size, fitting)


def tokenizer_kind(spec: AnySpec, *objectives: str) -> str:
    """WordPiece for encoders, as BERT; Unigram for sentinels, as T5; else byte-level BPE."""
    if "span-corruption" in _published(spec, objectives):
        return "unigram"
    return "wordpiece" if spec.family == "encoder-only" else "byte-bpe"


def special_tokens(spec: AnySpec, *objectives: str) -> tuple[str, ...] | None:
    """What a new tokenizer needs for some objectives; None: what its kind has anyway."""
    asked = _published(spec, objectives)
    if "span-corruption" in asked:
        sentinels = (f"<extra_id_{n}>" for n in range(_SENTINELS))
        more = ("<s>", "<mask>") if "denoising" in asked else ()
        return ("<pad>", "</s>", "<unk>", *more, *sentinels)
    if "denoising" in asked:
        return ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    return ("<pad>", "</s>", "<unk>") if spec.family == "encoder-decoder" else None


def _published(spec: AnySpec, objectives: Sequence[str]) -> set[str]:
    """The objectives, where a prefix for both stacks goes with the text of the model's paper."""
    asked = set(objectives)
    if "prefix-lm" in asked and spec.family == "encoder-decoder":
        asked |= {kind for kind in (_published_for(spec),) if kind is not None}
    return asked


def _published_for(spec: AnySpec) -> str | None:
    """What a model with an encoder and a decoder was published with; None: translation."""
    assert isinstance(spec, ModelSpec)
    assert spec.encoder is not None
    if isinstance(spec.encoder.attention_of(0).positions, RelativeBias):
        return "span-corruption"
    return "denoising" if isinstance(spec.embedding.positions, Learned) else None


def starts_with_end(spec: AnySpec, objectives: Sequence[str]) -> bool:
    """Whether decoders begin with the end of a text (BART) and not with padding (T5)."""
    asked = {kind: None for kind in objectives if kind != "prefix-lm"}
    return next(iter(asked), _published_for(spec)) == "denoising"


def objective_kind(spec: AnySpec) -> str:
    """What the model's heads can be trained for.

    Of models with an encoder and a decoder, relative biases are T5's and learned positions BART's;
    of encoders one that can tell replaced tokens, and not fill masks, is ELECTRA's.

    Raises RecipeError for others of them, which were published for translation.
    """
    if isinstance(spec, RNNSpec) and spec.direction == "two-way":
        return "bidirectional-lm"
    if spec.family == "encoder-decoder":
        published = _published_for(spec)
        if published is not None:
            return published
        raise RecipeError(
            "this model has an encoder and a decoder, and was not made for pretraining on text: "
            'say how with objective.kind = "span-corruption", "denoising" or "prefix-lm", or take '
            "a T5 or a BART."
        )
    heads = {head.kind for head in spec.heads}
    if "replaced-token" in heads and "mlm" not in heads:
        return "replaced-token"
    return "causal" if "lm" in heads else "masked"


def learning_rate(spec: AnySpec) -> float:
    """The peak learning rate of AdamW for a model of this width and norm order."""
    if not isinstance(spec, ModelSpec):
        gated = not (isinstance(spec, RNNSpec) and spec.cell == "elman")
        return 6e-3 * (256 / spec.d_model) ** 0.5 * (1.0 if gated else 0.5)
    post = any(stack.norm_order == "post" for stack in spec.stacks)
    return 2e-3 * (256 / spec.d_model) ** 0.75 * (0.5 if post else 1.0)


def optimizer_kind(spec: AnySpec, *, started: bool) -> Literal["adamw", "muon"]:
    """Muon for new models with both stacks; weights there are go on as they were trained."""
    return "muon" if spec.family == "encoder-decoder" and not started else "adamw"


def table_learning_rate(spec: AnySpec, lr: float) -> float | None:
    """The rate of token vectors; None: as all the rest."""
    return lr * _TABLES if spec.family == "encoder-decoder" else None


def batch_tokens(spec: AnySpec, length: int) -> int:
    """Tokens a step: 8 for each unit of width, in whole rows."""
    rows = max(4, round(8 * spec.d_model / length))
    return rows * length


def with_objective(recipe: Recipe, spec: AnySpec) -> Recipe:
    """The recipe with its objectives decided.

    Raises RecipeError where the model tells none, or a key belongs to another kind.
    """
    section = recipe.objective
    if section.mix is None:
        section = _completed(section, spec)
    else:
        mix = tuple(_completed(one, spec) for one in section.mix)
        section = section.model_copy(update={"mix": mix})
    return recipe.model_copy(update={"objective": section})


def _completed(section: Question, spec: AnySpec) -> Question:
    kind = section.kind or objective_kind(spec)
    masked, replaced = _CHANGED.get(kind, (0.8, 0.1))
    chosen = {"probability": _PROBABILITY.get(kind, 0.15)}
    chosen |= {"mask_share": masked, "random_share": replaced}
    open_keys = {name: value for name, value in chosen.items() if getattr(section, name) is None}
    section = section.model_copy(update={"kind": kind, **open_keys})
    section.check_keys()
    return section


def complete(recipe: Recipe, spec: AnySpec) -> Recipe:
    """The recipe with every open key of objective, optimizer, schedule and budget decided."""
    recipe = with_objective(recipe, spec)
    train, optimizer, schedule = recipe.train, recipe.optimizer, recipe.schedule
    changes: dict[str, object] = {}
    if train.batch_tokens is None:
        changes["batch_tokens"] = batch_tokens(spec, recipe.data.length)
    if not train.budget:
        changes["steps"] = _STEPS
    train = train.model_copy(update=changes)
    if optimizer.kind is None:
        kind = optimizer_kind(spec, started=recipe.model.start is not None)
        optimizer = optimizer.model_copy(update={"kind": kind})
    lr = optimizer.lr
    if lr is None:
        # Weights that have learned something would forget it at the rate of a new model.
        lr = learning_rate(spec) * (0.1 if recipe.model.start else 1.0)
        lr = float(f"{lr:.3g}")
    table_lr = optimizer.table_lr
    if table_lr is None and optimizer.kind == "muon":
        table_lr = table_learning_rate(spec, lr)
    optimizer = optimizer.model_copy(update={"lr": lr, "table_lr": table_lr})
    if schedule.warmup is None:
        # 100 steps, but no more than a twentieth of the run.
        warmup = 0.05 if train.steps is None or train.steps < 2000 else 100
        schedule = schedule.model_copy(update={"warmup": warmup})
    return recipe.model_copy(
        update={
            "train": train,
            "optimizer": optimizer,
            "schedule": schedule,
        }
    )
