"""From rewards to what a policy learns: advantages, and clipped losses.

Shape letters: B responses, T positions, M drawn tokens.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trivium.data.batch import Bools, Floats

# Added to the deviation of a group, which may be 0.
_LEAST_DEVIATION = 1e-4
# Added to the variance of advantages.
_LEAST_VARIANCE = 1e-8


def leave_one_out(rewards: Floats, group: int) -> Floats:
    """Each reward less the mean of the others of its group, [B]: the exact gradient on average.

    Source: Ahmadian et al. 2024 (RLOO), equation 6.
    """
    grouped = rewards.reshape(-1, group)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    return (centred * group / (group - 1)).ravel()  # the mean of the others is further off


def group_normalized(rewards: Floats, group: int) -> Floats:
    """Each reward less the mean of its group, divided by the group's deviation, [B].

    Source: Shao et al. 2024 (GRPO), section 4.1.2.
    """
    grouped = rewards.reshape(-1, group)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    deviation = grouped.std(axis=1, ddof=1, keepdims=True)
    return (centred / (deviation + _LEAST_DEVIATION)).ravel()


def have_equal_rewards(rewards: Floats, group: int) -> Bools:
    """Return for each response whether all rewards of its group are equal, [B].

    Then no response is better than another. Advantages that are divided by their deviation are set
    to 0, since they would consist of rounding errors of the divergence. A group of one has no
    other response to compare with, and is never equal.
    """
    equal = (np.ptp(rewards.reshape(-1, group), axis=1) < 1e-9) & (group > 1)
    return np.repeat(equal, group)


def generalized_advantages(
    rewards: Floats, values: Floats, gamma: float, gae_lambda: float
) -> Floats:
    """GAE, [B, T]: A_t = d_t + gamma lambda A_(t+1), where d_t = r_t + gamma V_(t+1) - V_t.

    r and V are 0 after a response. With lambda = gamma = 1 A is the sum of the rewards to come
    less V, with lambda = 0 it is d.

    Source: Schulman et al. 2016, equations 11, 12 and 16.
    """
    advantages = np.zeros_like(values)
    advantage = value = np.zeros(len(values))
    for t in reversed(range(values.shape[1])):
        change = rewards[:, t] + gamma * value - values[:, t]
        advantages[:, t] = advantage = change + gamma * gae_lambda * advantage
        value = values[:, t]
    return advantages


def whitened(advantages: Floats, real: Bools) -> Floats:
    """Scale advantages to mean 0 and variance 1 over the real tokens, 0 elsewhere: [B, T]."""
    some = advantages[real]
    if len(some) < 2:
        return np.zeros_like(advantages)
    scale = (some.var(ddof=1) + _LEAST_VARIANCE) ** -0.5
    return np.where(real, (advantages - some.mean()) * scale, 0.0)


def clipped_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """- min(r A, clamp(r, 1 - clip, 1 + clip) A) of every token, and where the bound holds: [M].

    r = exp(log ratio) is the probability now over that when the token was drawn.

    Source: Schulman et al. 2017 (PPO), equation 7.
    """
    ratio = log_ratio.exp()
    free = ratio * advantage
    bound = ratio.clamp(1 - clip, 1 + clip) * advantage
    return -torch.minimum(free, bound), bound < free


def clipped_value_loss(values: Tensor, before: Tensor, returns: Tensor, clip: float) -> Tensor:
    """1/2 max((V - R)^2, (V' - R)^2) of every token, V' within `clip` of V before: [M].

    Source: the released code of Schulman et al. 2017, which their paper does not mention.
    """
    bound = before + (values - before).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (bound - returns) ** 2)
