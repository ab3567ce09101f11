"""Training settings: the keys of `[train]` and `[parallel]`."""

from __future__ import annotations

import sys
from typing import Any, Literal, Self

import torch
from pydantic import Field, PositiveInt, field_validator, model_validator

from trivium.config import Config
from trivium.errors import RecipeError

BUDGETS = ("steps", "minutes", "tokens", "epochs")
"""The keys of `[train]` that set the length of a run. A recipe sets one of them."""

DataParallelism = Literal["ddp", "fsdp"]
""""ddp": every process has the whole model; "fsdp": every process has a shard of it.

The shards contain weights, gradients and optimizer state.
"""


class TrainConfig(Config):
    """The budget, batch sizes, precision, evaluation, checkpoints and logging of a run."""

    steps: PositiveInt | None = Field(None, description="budget in steps")
    minutes: float | None = Field(
        None,
        gt=0,
        description="budget in minutes from the first step, evaluations included; in one process, "
        "unless eval_examples is set, evaluations of a task are limited to a tenth of it each, and "
        "the final one to a quarter on top; a resumed run is not bit-identical",
    )
    tokens: PositiveInt | None = Field(None, description="budget in tokens")
    epochs: float | None = Field(
        None, gt=0, description="budget in epochs; in a mix, epochs of its labelled examples"
    )
    batch_tokens: PositiveInt | None = Field(
        None, description="tokens per step of text (default: by the model's width)"
    )
    batch_examples: PositiveInt | None = Field(
        None, description="labelled examples per step (default: by the task)"
    )
    micro_batch_tokens: PositiveInt | None = Field(
        None,
        description="tokens per forward pass; affects only dropout and rounding (default: by "
        "memory)",
    )
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto",
        description="precision of activations; auto: the fastest (on a CPU, measured); fp16 uses "
        "loss scaling and is for GPUs without bf16",
    )
    device: str = Field("auto", description='"auto", "cpu", "cuda" or "mps" (untried)')
    compile: bool | None = Field(
        None, description="torch.compile the blocks (default: only on a GPU)"
    )
    attention: Literal["sdpa", "flex"] = Field(
        "sdpa",
        description="self-attention by scaled_dot_product_attention or FlexAttention; the latter "
        "stores no scores for a trained bias (T5) or a soft cap (Gemma 2), and skips masked blocks "
        "of documents and windows; needs a GPU and compile, and no dropout",
    )
    clip: float = Field(1.0, ge=0, description="maximum norm of the gradient; 0: no limit")
    gradual_unfreezing: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="fraction of the run in which layers are unfrozen, the last layer first",
    )
    skip_spikes: float | None = Field(
        None,
        gt=1,
        description="skip steps whose gradient norm exceeds this multiple of the median of the "
        "last 100 (default: no skipping)",
    )
    log_every: PositiveInt | None = Field(
        None,
        description="steps between log lines (default: 10); outside of a terminal, all lines are "
        "printed if this is set, otherwise one every 20 seconds",
    )
    eval_every: PositiveInt | None = Field(
        None,
        description="steps between evaluations (default: 200, for labelled examples an epoch, for "
        "policies at most 25)",
    )
    eval_tokens: PositiveInt = Field(
        32_768, description="evenly spaced validation tokens for the validation loss"
    )
    eval_examples: PositiveInt | None = Field(
        None,
        description="evenly spaced validation examples per source, for metrics and loss in every "
        "evaluation (default: all, or 400 during training if text is generated)",
    )
    save_every: PositiveInt | None = Field(
        None,
        description="steps between checkpoints (default: 500, labelled examples: eval_every); if "
        "steps are slow, also after half a minute and every two minutes, unless average is set or "
        "all are kept",
    )
    keep_checkpoints: PositiveInt | Literal["all"] = Field(
        3, description="older checkpoints are deleted"
    )
    keep_best: bool | None = Field(
        None,
        description="text: end with the weights of the lowest validation loss (default: only "
        "evaluations after the first epoch count; with patience, all count)",
    )
    metric: str | None = Field(
        None,
        description="metric of the first labelled source that decides on the best weights and on "
        'patience, such as "macro_f1" (default: the main metric of the task)',
    )
    patience: PositiveInt | None = Field(
        None,
        description="stop after this number of evaluations without a better metric (text: loss)",
    )
    average: PositiveInt = Field(
        1,
        description="labelled examples without an adapter: also try the mean weights of this many "
        "last checkpoints",
    )
    verify: bool = Field(
        True, description="verify the checksums of shards and checkpoint when the run is resumed"
    )
    tensorboard: bool = Field(False, description="also write TensorBoard events")
    samples: bool = Field(
        False,
        description="print a few outputs of the model at every evaluation, and append them to "
        "samples.jsonl",
    )

    @property
    def budget(self) -> tuple[str, float] | None:
        """The budget as a key and a value, such as ("steps", 1000); None if no budget is set."""
        sizes = ((name, getattr(self, name)) for name in BUDGETS)
        return next(((name, size) for name, size in sizes if size is not None), None)

    @property
    def max_checkpoints(self) -> int:
        """The maximum number of checkpoints to keep."""
        return sys.maxsize if self.keep_checkpoints == "all" else self.keep_checkpoints

    def compiles(self, device: torch.device) -> bool:
        """Return whether `torch.compile` is applied to the blocks on this device."""
        return device.type == "cuda" if self.compile is None else self.compile

    def uses_flex(self, device: torch.device) -> bool:
        """Return whether FlexAttention is used.

        Raises RecipeError if the recipe requests FlexAttention, but `device` is not a GPU or
        `torch.compile` is not applied.
        """
        if self.attention == "flex" and not (device.type == "cuda" and self.compiles(device)):
            raise RecipeError('train.attention = "flex" needs a GPU, and train.compile = true.')
        return self.attention == "flex"

    @field_validator("precision", mode="before")
    @classmethod
    def _reject_fp8(cls, value: Any) -> Any:
        """Raise ValueError for fp8, which is not supported."""
        if value in ("fp8", "float8"):
            raise ValueError('training in fp8 is not supported: set "bf16" or leave it out')
        return value

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        """Raise ValueError if there are several budgets, or early stopping without best weights.

        Early stopping needs `keep_best`, since it counts the evaluations since the best one.
        """
        if len(names := [name for name in BUDGETS if getattr(self, name) is not None]) > 1:
            one = f"set exactly one budget of {', '.join(BUDGETS)}"
            raise ValueError(f"{one}, not {' and '.join(names)}")
        if self.patience is not None and self.keep_best is False:
            raise ValueError("patience counts evaluations since the best: leave keep_best out")
        return self


class ParallelConfig(Config):
    """How training is parallelized over the processes that `torchrun` starts.

    A run with a single process ignores `data`.
    """

    data: DataParallelism | None = Field(
        None,
        description="every process has the whole model (ddp), or a shard of weights, gradients and "
        "optimizer state (fsdp); default: ddp if the whole model fits",
    )
    tensor: PositiveInt = Field(
        1, description="processes that each layer is sharded among (tensor parallelism), with fsdp"
    )
    replicas: PositiveInt = Field(
        1,
        description="with fsdp: groups of processes, such as machines, that each have all shards "
        "and sum their gradients once per step (HSDP)",
    )
    reduce_once: bool = Field(
        False,
        description="with fsdp: keep whole gradients during a step and reduce them once, not after "
        "every micro-batch; needs 4 bytes per parameter more",
    )
    sequence: bool = Field(
        False, description="with tensor: also shard the residual stream (sequence parallelism)"
    )
    context: PositiveInt = Field(
        1,
        description="processes that share the positions of every row (context parallelism), for "
        "long rows of Transformers with one stack of attention layers",
    )
    activation_checkpointing: bool = Field(
        False, description="store only the inputs of blocks and recompute them in the backward pass"
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        """Raise ValueError if the keys do not go together, or a key that they need is missing."""
        if self.data == "ddp" and max(self.tensor, self.replicas) > 1:
            raise ValueError('tensor or replicas > 1 goes with data = "fsdp": leave data out')
        if self.data == "ddp" and self.reduce_once:
            raise ValueError(
                'reduce_once goes with data = "fsdp": ddp reduces gradients once per step anyway'
            )
        if self.context > 1 and self.tensor > 1:
            raise ValueError(
                "context > 1 cannot be combined with tensor > 1: leave one of them out"
            )
        if self.sequence and self.tensor == 1:
            raise ValueError("sequence = true needs tensor > 1")
        return self
