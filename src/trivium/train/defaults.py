"""What a recipe leaves open, decided from the model and the data.

The learning rates are for the default batch; they were found on small models and follow the
published tables of large ones: 2e-3 at width 256 falls with width^-0.75 to 3e-4 at LLaMA-7B's
4096 and 1.5e-4 at 65B's 8192. Post-norm stacks take half of it (Xiong et al. 2020). Recurrent and
n-gram models bear three times as much, an Elman network half of that, which has no gates.
"""

from __future__ import annotations

from trivium.spec import AnySpec, LMHead, ModelSpec, RNNSpec
from trivium.train.recipe import Recipe

_STEPS = 2000
_SIZES = ((50_000_000, 8_192), (500_000_000, 16_384))
_LARGEST = 32_768


def vocabulary_size(spec: AnySpec, corpus_bytes: int) -> int:
    """Entries worth learning from so much text: never more than the preset's own."""
    fitting = next((size for limit, size in _SIZES if corpus_bytes <= limit), _LARGEST)
    return min(spec.vocab_size, fitting)


def tokenizer_kind(spec: AnySpec) -> str:
    """WordPiece for encoders, as BERT; byte-level BPE for decoders, as GPT-2."""
    return "wordpiece" if spec.family == "encoder-only" else "byte-bpe"


def objective_kind(spec: AnySpec) -> str:
    """What the model's heads can be trained for."""
    if isinstance(spec, RNNSpec) and spec.direction == "two-way":
        return "bidirectional-lm"
    return "causal" if any(isinstance(head, LMHead) for head in spec.heads) else "masked"


def learning_rate(spec: AnySpec) -> float:
    """The peak learning rate of AdamW for a model of this width and norm order."""
    if not isinstance(spec, ModelSpec):
        gated = not (isinstance(spec, RNNSpec) and spec.cell == "elman")
        return 6e-3 * (256 / spec.d_model) ** 0.5 * (1.0 if gated else 0.5)
    post = any(stack.norm_order == "post" for stack in spec.stacks)
    return 2e-3 * (256 / spec.d_model) ** 0.75 * (0.5 if post else 1.0)


def batch_tokens(spec: AnySpec, length: int) -> int:
    """Tokens a step: 8 for each unit of width, in whole rows."""
    rows = max(4, round(8 * spec.d_model / length))
    return rows * length


def complete(recipe: Recipe, spec: AnySpec) -> Recipe:
    """The recipe with every open key of objective, optimizer, schedule and budget decided."""
    train, optimizer, schedule = recipe.train, recipe.optimizer, recipe.schedule
    changes: dict[str, object] = {}
    if train.batch_tokens is None:
        changes["batch_tokens"] = batch_tokens(spec, recipe.data.length)
    if not train.budget:
        changes["steps"] = _STEPS
    train = train.model_copy(update=changes)
    if optimizer.lr is None:
        # Weights that have learned something would forget it at the rate of a new model.
        lr = learning_rate(spec) * (0.1 if recipe.model.start else 1.0)
        optimizer = optimizer.model_copy(update={"lr": float(f"{lr:.3g}")})
    if schedule.warmup is None:
        # 100 steps, but no more than a twentieth of the run.
        warmup = 0.05 if train.steps is None or train.steps < 2000 else 100
        schedule = schedule.model_copy(update={"warmup": warmup})
    objective = recipe.objective
    if objective.kind is None:
        objective = objective.model_copy(update={"kind": objective_kind(spec)})
    return recipe.model_copy(
        update={
            "train": train,
            "optimizer": optimizer,
            "schedule": schedule,
            "objective": objective,
        }
    )
