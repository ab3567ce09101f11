"""From rewards to what a policy learns: advantages, and the clipped loss.

Shape letters: B responses, M drawn tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.data.batch import Floats

# Added to the deviation of a group, which may be 0.
_LEAST_DEVIATION = 1e-4


def leave_one_out(rewards: Floats, group: int) -> Floats:
    """Each reward less the mean of the others of its group, [B]: the exact gradient on average.

    Source: Ahmadian et al. 2024 (RLOO), equation 6.
    """
    grouped = rewards.reshape(-1, group)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    return (centred * group / (group - 1)).ravel()  # the mean of the others is further off


def by_deviation(rewards: Floats, group: int) -> Floats:
    """Each reward less the mean of its group, divided by the group's deviation, [B].

    Source: Shao et al. 2024 (GRPO), section 4.1.2.
    """
    grouped = rewards.reshape(-1, group)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    deviation = grouped.std(axis=1, ddof=1, keepdims=True)
    return (centred / (deviation + _LEAST_DEVIATION)).ravel()


def clipped_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """- min(r A, clamp(r, 1 - clip, 1 + clip) A) of every token, and where the bound holds: [M].

    r = exp(log ratio) is the probability now over that when the token was drawn.

    Source: Schulman et al. 2017 (PPO), equation 7.
    """
    ratio = log_ratio.exp()
    free = ratio * advantage
    bound = ratio.clamp(1 - clip, 1 + clip) * advantage
    return -torch.minimum(free, bound), bound < free
