"""What a recipe of fine-tuning leaves open, decided from the model and the examples.

The peak learning rate is 5e-5 at BERT-base's width of 768 (Devlin et al. 2018, appendix A.3: 2e-5
to 5e-5) and grows as models get narrower. Pre-norm blocks bear more, narrow ones most: at 256 what
1e-3 and 2e-3 reach is far from what 1.5e-4 does, and ModernBERT-base was tuned at 8e-5 (Warner et
al. 2024, appendix). LoRA bears ten times as much (Hu et al. 2021, table 9), random weights those
of pretraining. Small data is seen often enough for some hundred steps.
"""

from __future__ import annotations

from trivium.spec import AnySpec, ModelSpec
from trivium.train.defaults import learning_rate, optimizer_kind, table_learning_rate
from trivium.train.finetune_recipe import FinetuneRecipe

_PER_STEP = {"translation": 256, "text-to-text": 64, "summarization": 16, "lm": 16, "tagging": 32}
_OTHERS_PER_STEP = 32
_OFTENEST, _RAREST, _WRITTEN = 10, 500, 400
_EPOCHS = ((500, 20.0), (3_000, 10.0), (30_000, 5.0))
_MANY_EPOCHS = 3.0
LONGEST = 512


def complete_finetuning(
    recipe: FinetuneRecipe, spec: AnySpec, examples: int, *, scratch: bool, writes: bool
) -> FinetuneRecipe:
    """The recipe with every open key of optimizer, schedule and budget decided.

    Args:
        examples: rows of training.
        scratch: the weights are random.
        writes: evaluations write texts, which takes long: fewer examples are looked at.
    """
    train, optimizer, schedule = recipe.train, recipe.optimizer, recipe.schedule
    batch = train.batch or min(_PER_STEP.get(recipe.task.kind, _OTHERS_PER_STEP), examples)
    changes: dict[str, object] = {"batch": batch}
    if not train.budget:
        often = next((epochs for limit, epochs in _EPOCHS if examples <= limit), _MANY_EPOCHS)
        changes["epochs"] = often * (2.0 if scratch else 1.0)
    each = min(_RAREST, max(_OFTENEST, examples // batch))
    changes["eval_every"] = train.eval_every or each
    changes["save_every"] = train.save_every or changes["eval_every"]
    if writes and train.eval_examples is None:
        changes["eval_examples"] = _WRITTEN
    if optimizer.kind is None:
        kind = optimizer_kind(spec, started=not scratch)
        optimizer = optimizer.model_copy(update={"kind": kind})
    lr = optimizer.lr
    if lr is None:
        found = finetuning_rate(spec, scratch=scratch, adapted=recipe.adapter.rank > 0)
        lr = float(f"{found:.3g}")
    table_lr = optimizer.table_lr
    if table_lr is None and optimizer.kind == "muon":
        table_lr = table_learning_rate(spec, lr)
    optimizer = optimizer.model_copy(update={"lr": lr, "table_lr": table_lr})
    if schedule.warmup is None:
        schedule = schedule.model_copy(update={"warmup": 0.1})
    return recipe.model_copy(
        update={
            "train": train.model_copy(update=changes),
            "optimizer": optimizer,
            "schedule": schedule,
        }
    )


def finetuning_rate(spec: AnySpec, *, scratch: bool, adapted: bool) -> float:
    """The peak learning rate of AdamW."""
    if scratch or not isinstance(spec, ModelSpec):
        return learning_rate(spec) * (0.5 if scratch else 0.1)
    if any(stack.norm_order == "post" for stack in spec.stacks):
        rate = 5e-5 * (768 / spec.d_model)
    else:
        rate = max(1e-3 * (256 / spec.d_model) ** 2, 2e-5)
    return min(rate * (10.0 if adapted else 1.0), learning_rate(spec))
