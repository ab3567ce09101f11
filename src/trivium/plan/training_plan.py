"""A training run on many GPUs on paper: its layout, days, GPU-hours, memory and FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trivium.errors import RecipeError
from trivium.messages import english
from trivium.models import active_parameters
from trivium.plan.layouts import Step, Workload

_DAY, _HOUR = 86_400, 3_600
# A simpler layout is chosen where it is slower by no more than this.
_SIMPLER = 0.97
_MOST_DOUBLINGS = 15


@dataclass(frozen=True)
class TrainingPlan:
    """A run with the layout that was chosen for it.

    Args:
        name: of the model.
        tokens: of the whole run; 0 where they are unknown: then FLOPs, hours and days are 0, too.
        step: in the chosen layout.
        steps: in every layout.
        measured: tokens per second of each GPU, where a rate is used in place of the predicted one.
    """

    name: str
    tokens: float
    step: Step
    steps: Sequence[Step]
    measured: float | None = None

    @property
    def flops(self) -> float:
        """To train on all tokens, of the model itself: nothing that is computed again."""
        return self.tokens * self.step.work.flops_per_token

    @property
    def tokens_per_second(self) -> float:
        """Of each GPU, predicted or measured."""
        return self.measured or self.step.tokens_per_second

    @property
    def gpu_hours(self) -> float:
        """Hours of all GPUs together."""
        return self.tokens / self.tokens_per_second / _HOUR

    @property
    def days(self) -> float:
        """Days from the first to the last step."""
        return self.gpu_hours * _HOUR / _DAY / self.step.work.gpus

    @property
    def reasons(self) -> list[str]:
        """Why this layout, in several parts."""
        fitting = [step for step in self.steps if step.problem is None]
        simplest, best = self.steps[0], max(step.tokens_per_second for step in fitting)
        parts = [english("reason.fitting_layouts", some=len(fitting), all=len(self.steps))]
        if simplest.problem:
            parts.append(simplest.explanation)
        if self.step is simplest:
            parts.append(english("reason.simplest"))
        slower = 1 - self.step.tokens_per_second / best
        speed = "reason.behind_fastest" if slower else "reason.fastest"
        parts.append(english(speed, share=slower))
        return parts

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `trivium plan --json` prints it."""
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
            "tokens_per_second_per_gpu": self.tokens_per_second,
            "utilization": step.utilization(self.tokens_per_second),
            "memory_per_gpu_bytes": step.memory_bytes,
            "reason": "; ".join(self.reasons),
            "layout": step.to_dict(),
            "layouts": [one.to_dict() for one in self.steps],
        }


def plan_training(
    name: str, work: Workload, tokens: float, *, measured: float | None = None
) -> TrainingPlan:
    """The plan of a run in the fastest layout that fits, or a simpler one that is nearly as fast.

    Raises RecipeError where no layout can run, or `measured` is more than the GPU's peak.
    """
    steps = work.steps()
    step = _best(steps)
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


def fewest_gpus(work: Workload) -> Workload:
    """The work on the smallest power of two of GPUs where the best layout computes nothing twice.

    Where there is none: on the smallest that suffices. Raises RecipeError where none does.
    """
    fitting: list[Workload] = []
    for exponent in range(_MOST_DOUBLINGS):
        work = replace(work, gpus=2**exponent)
        step = _best(work.steps())
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


def _best(steps: Sequence[Step]) -> Step | None:
    """The first that is about as fast as the fastest; None where none can run."""
    fitting = [step for step in steps if step.problem is None]
    best = max((step.tokens_per_second for step in fitting), default=0.0)
    return next((step for step in fitting if step.tokens_per_second >= _SIMPLER * best), None)
