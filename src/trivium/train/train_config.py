"""How a run trains, and on what: the keys of `[train]` and `[parallel]`."""

from __future__ import annotations

import sys
from typing import Any, Literal, Self

import torch
from pydantic import Field, PositiveInt, field_validator, model_validator

from trivium.config import Config
from trivium.errors import RecipeError

BUDGETS = ("steps", "minutes", "tokens", "epochs")
"""The keys of `[train]` that say how long a run is; a recipe has exactly one."""

DataParallelism = Literal["ddp", "fsdp"]
"""Every process holds the whole model, or a shard of weights, gradients and optimizer state."""


class TrainConfig(Config):
    """How long, in which pieces, on what, and what is logged."""

    steps: PositiveInt | None = Field(None, description="budget in steps")
    minutes: float | None = Field(
        None,
        gt=0,
        description="budget in minutes from the first step, with evaluations; those of a task are, "
        "in one process, cut to a tenth of it each, and the one at the end to a quarter more, "
        "unless eval_examples is set; not bit-equal when resumed",
    )
    tokens: PositiveInt | None = Field(None, description="budget in tokens")
    epochs: float | None = Field(
        None,
        gt=0,
        description="budget in passes over the data; in a mix, over its labelled examples",
    )
    batch_tokens: PositiveInt | None = Field(
        None, description="tokens per step of text; by the model's width unless set"
    )
    batch_examples: PositiveInt | None = Field(
        None, description="labelled examples per step; by the task unless set"
    )
    micro_batch_tokens: PositiveInt | None = Field(
        None,
        description="tokens that pass through the model together, which changes dropout and "
        "rounding only; by memory unless set",
    )
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto",
        description="of activations; auto: what is faster (on a CPU by measurement); fp16 scales "
        "the loss, and is for GPUs without bf16",
    )
    device: str = Field("auto", description='"auto", "cpu", "cuda" or "mps" (untried)')
    compile: bool | None = Field(None, description="torch.compile the blocks; on a GPU unless set")
    attention: Literal["sdpa", "flex"] = Field(
        "sdpa",
        description="self-attention by scaled_dot_product_attention, or by FlexAttention, which "
        "keeps no scores for a trained bias (T5) or a soft cap (Gemma 2), and skips what documents "
        "and windows mask: on a GPU, with compile, not with dropout",
    )
    clip: float = Field(1.0, ge=0, description="maximum norm of the gradient; 0: no limit")
    gradual_unfreezing: float | None = Field(
        None, gt=0, lt=1, description="share of the run in which layers unfreeze, the last first"
    )
    skip_spikes: float | None = Field(
        None,
        gt=1,
        description="skip steps whose gradient norm is more than so many times the median of the "
        "last 100; none unless set",
    )
    log_every: PositiveInt | None = Field(
        None,
        description="steps between log lines, 10 unless set; where the output is no terminal these "
        "are all shown if it is set, else one in 20 seconds",
    )
    eval_every: PositiveInt | None = Field(
        None, description="steps between evaluations; 200, or an epoch (policies: 25), unless set"
    )
    eval_tokens: PositiveInt = Field(
        32_768, description="held-out tokens that the validation loss is measured on, evenly spaced"
    )
    eval_examples: PositiveInt | None = Field(
        None,
        description="held-out examples of each source per evaluation, evenly spaced, for metrics "
        "and loss, and in the evaluation at the end; unless set all, but 400 during training where "
        "text is generated",
    )
    save_every: PositiveInt | None = Field(
        None,
        description="steps between checkpoints; 500, or as eval_every, unless set; where "
        "steps are slow also one after half a minute and every two minutes, unless average is set "
        "or all are kept",
    )
    keep_checkpoints: PositiveInt | Literal["all"] = Field(3, description="older ones are deleted")
    keep_best: bool | None = Field(
        None,
        description="of text: end with the weights of lowest validation loss; unless set, of those "
        "after the first pass over the text, with patience of all",
    )
    metric: str | None = Field(
        None,
        description="metric by which the best weights are kept and patience counts, of the first "
        'source with labels, such as "macro_f1"; the task\'s first one unless set',
    )
    patience: PositiveInt | None = Field(
        None, description="stop after so many evaluations without a better metric, or loss of text"
    )
    average: PositiveInt = Field(
        1,
        description="on labelled examples without an adapter: also try the mean of so many last "
        "checkpoints",
    )
    verify: bool = Field(
        True, description="compare the checksums of shards and checkpoint when the run is resumed"
    )
    tensorboard: bool = Field(False, description="also write TensorBoard events")

    @property
    def budget(self) -> tuple[str, float] | None:
        """The name of the budget and its size; None while it is open."""
        sizes = ((name, getattr(self, name)) for name in BUDGETS)
        return next(((name, size) for name, size in sizes if size is not None), None)

    @property
    def most_checkpoints(self) -> int:
        """How many are kept."""
        return sys.maxsize if self.keep_checkpoints == "all" else self.keep_checkpoints

    def compiles(self, device: torch.device) -> bool:
        """Whether the blocks are compiled on this device."""
        return device.type == "cuda" if self.compile is None else self.compile

    def uses_flex(self, device: torch.device) -> bool:
        """Whether FlexAttention is chosen. Raises RecipeError if `device` does not support it."""
        if self.attention == "flex" and not (device.type == "cuda" and self.compiles(device)):
            raise RecipeError('train.attention = "flex" needs a GPU, and train.compile = true.')
        return self.attention == "flex"

    @field_validator("precision", mode="before")
    @classmethod
    def _no_fp8(cls, value: Any) -> Any:
        if value in ("fp8", "float8"):
            raise ValueError('training in fp8 is not supported: set "bf16" or leave it out')
        return value

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if len(names := [name for name in BUDGETS if getattr(self, name) is not None]) > 1:
            one = f"set exactly one budget of {', '.join(BUDGETS)}"
            raise ValueError(f"{one}, not {' and '.join(names)}")
        if self.patience is not None and self.keep_best is False:
            raise ValueError("patience counts evaluations since the best: leave keep_best out")
        return self


class ParallelConfig(Config):
    """How the processes that `torchrun` starts divide the work; one process ignores `data`."""

    data: DataParallelism | None = Field(
        None,
        description="every process holds the whole model (ddp), or a shard of weights, gradients "
        "and optimizer state (fsdp); ddp where the whole fits unless set",
    )
    tensor: PositiveInt = Field(
        1, description="processes that share each layer (tensor parallelism), with fsdp"
    )
    replicas: PositiveInt = Field(
        1,
        description="with fsdp: groups of processes, such as machines, that each hold all shards "
        "and sum their gradients once a step (HSDP)",
    )
    sequence: bool = Field(
        False, description="with tensor: divide the residual stream, too (sequence parallelism)"
    )
    activation_checkpointing: bool = Field(
        False, description="keep only the inputs of blocks, which the backward pass computes again"
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.data == "ddp" and max(self.tensor, self.replicas) > 1:
            raise ValueError('tensor or replicas > 1 goes with data = "fsdp": leave data out')
        if self.sequence and self.tensor == 1:
            raise ValueError("sequence = true needs tensor > 1")
        return self
