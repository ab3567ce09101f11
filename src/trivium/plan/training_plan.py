"""Plans of training runs on many GPUs: layout, duration, GPU-hours, memory and FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trivium.errors import RecipeError
from trivium.messages import english
from trivium.models import active_parameters
from trivium.plan.layouts import Step, Workload

_DAY, _HOUR = 86_400, 3_600
# A simpler layout is preferred if it reaches this fraction of the best throughput.
_SIMPLER = 0.97
_MOST_DOUBLINGS = 15


@dataclass(frozen=True)
class TrainingPlan:
    """A planned training run in the chosen layout.

    Args:
        name: the name of the model.
        tokens: the number of training tokens, or 0 if it is unknown. In that case `flops`,
            `gpu_hours` and `days` are also 0.
        step: the training step in the chosen layout.
        steps: the training step in every layout that was considered.
        measured: the measured throughput in tokens per second per GPU; if None, the predicted
            throughput is used.
    """

    name: str
    tokens: float
    step: Step
    steps: Sequence[Step]
    measured: float | None = None

    @property
    def flops(self) -> float:
        """The FLOPs needed to train the model on all tokens, not counting recomputation."""
        return self.tokens * self.step.work.flops_per_token

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """The throughput in tokens per second per GPU, measured or predicted."""
        return self.measured or self.step.tokens_per_second_per_gpu

    @property
    def gpu_hours(self) -> float:
        """The GPU-hours of the run: its duration in hours multiplied by the number of GPUs."""
        return self.tokens / self.tokens_per_second_per_gpu / _HOUR

    @property
    def days(self) -> float:
        """The duration of training in days."""
        return self.gpu_hours * _HOUR / _DAY / self.step.work.gpus

    @property
    def reasons(self) -> list[str]:
        """The reasons for choosing this layout, one phrase per reason."""
        fitting = [step for step in self.steps if step.problem is None]
        simplest, best = self.steps[0], max(step.tokens_per_second_per_gpu for step in fitting)
        parts = [english("reason.fitting_layouts", some=len(fitting), all=len(self.steps))]
        if simplest.problem:
            parts.append(simplest.explanation)
        if self.step is simplest:
            parts.append(english("reason.simplest"))
        slower = 1 - self.step.tokens_per_second_per_gpu / best
        speed = "reason.behind_fastest" if slower else "reason.fastest"
        parts.append(english(speed, share=slower))
        return parts

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a dict for `trivium plan --json`."""
        step, work = self.step, self.step.work
        return {
            "model": self.name,
            "parameters": work.sizes.parameters,
            "active_parameters": active_parameters(work.spec),
            "tokens": self.tokens or None,
            "flops": self.flops or None,
            "flops_per_token": work.flops_per_token,
            "gpus": work.gpus,
            "days": self.days or None,
            "gpu_hours": self.gpu_hours or None,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "utilization": step.utilization(self.tokens_per_second_per_gpu),
            "memory_per_gpu_bytes": step.memory_bytes,
            "host_memory_per_process_bytes": step.host_bytes,
            "host_memory_of_first_process_bytes": step.first_host_bytes,
            "reason": "; ".join(self.reasons),
            "layout": step.to_dict(),
            "layouts": [one.to_dict() for one in self.steps],
        }


def plan_training(
    name: str, work: Workload, tokens: float, *, measured: float | None = None
) -> TrainingPlan:
    """Plan a training run: choose the fastest layout that fits in memory.

    A simpler layout is preferred if it is almost as fast.

    Args:
        name: the name of the model, for messages.
        work: the model, the batch and the GPUs.
        tokens: the number of training tokens; 0 if it is unknown.
        measured: the measured throughput in tokens per second per GPU; if None, it is predicted.

    Raises:
        RecipeError: no layout is possible, or `measured` is higher than the peak FLOPS of the GPU
            allow.
    """
    steps = work.list_steps()
    step = _choose_step(steps)
    if step is None:
        least = min(steps, key=lambda step: step.memory_bytes)
        raise RecipeError(
            f"{name} cannot be trained on {work.gpus:,} of these GPUs in steps of "
            f"{work.batch_tokens:,.0f} tokens: with the least memory, {least.explanation}. "
            "Take more or larger GPUs, a shorter --length, or another --batch-tokens."
        )
    if measured is not None and step.utilization(measured) > 1:
        raise RecipeError(
            f"{measured:,.0f} tokens/s of each GPU is more than its peak allows: at most "
            f"{1 / step.utilization(1.0):,.0f} for {name}."
        )
    return TrainingPlan(name, tokens, step, steps, measured)


def find_fewest_gpus(work: Workload) -> Workload:
    """Return a copy of the workload with the smallest sufficient number of GPUs (a power of two).

    Layouts without activation checkpointing are preferred, even if they need more GPUs. Raises
    RecipeError if no number of GPUs is sufficient.
    """
    fitting: list[Workload] = []
    for exponent in range(_MOST_DOUBLINGS):
        work = replace(work, gpus=2**exponent)
        step = _choose_step(work.list_steps())
        if step is not None and not step.layout.activation_checkpointing:
            return work
        if step is not None:
            fitting.append(work)
    if fitting:
        return fitting[0]
    raise RecipeError(
        f"no number of these GPUs suffices for rows of {work.length:,} tokens: give a shorter "
        "--length, or a larger --gpu."
    )


def _choose_step(steps: Sequence[Step]) -> Step | None:
    """Return the step with the simplest layout whose throughput is close to the highest.

    `steps` are sorted from simple to complex layouts. Impossible layouts are ignored. Returns None
    if no layout is possible.
    """
    fitting = [step for step in steps if step.problem is None]
    best = max((step.tokens_per_second_per_gpu for step in fitting), default=0.0)
    return next(
        (step for step in fitting if step.tokens_per_second_per_gpu >= _SIMPLER * best), None
    )
