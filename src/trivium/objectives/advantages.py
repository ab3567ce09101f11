"""Advantages of sampled responses for policy gradient methods, and the clipped losses of PPO.

Shape letters: B responses, T positions, M sampled tokens of all responses.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trivium.data.batch import Bools, Floats

# Added to the standard deviation of the rewards in a group, because it may be 0.
_STD_EPSILON = 1e-4
# Added to the variance of advantages.
_VARIANCE_EPSILON = 1e-8


def compute_rloo_advantages(rewards: Floats, group_size: int) -> Floats:
    """Return the RLOO advantages [B]: each reward minus the mean of the other rewards in its group.

    A group consists of the responses to the same prompt. With these advantages the estimate of the
    policy gradient is unbiased.

    Args:
        rewards: the rewards of the responses, [B]; the responses of a group are adjacent.
        group_size: the number of responses per prompt.

    Source: Ahmadian et al. 2024 (RLOO), equation 6.
    """
    grouped = rewards.reshape(-1, group_size)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    # The factor turns the mean of the group into the mean of the other responses.
    return (centred * group_size / (group_size - 1)).ravel()


def compute_grpo_advantages(rewards: Floats, group_size: int) -> Floats:
    """Return the GRPO advantages [B]: the rewards, standardised within each group.

    A group consists of the responses to the same prompt. In each group the advantages have mean 0
    and standard deviation 1.

    Args:
        rewards: the rewards of the responses, [B]; the responses of a group are adjacent.
        group_size: the number of responses per prompt.

    Source: Shao et al. 2024 (GRPO), section 4.1.2.
    """
    grouped = rewards.reshape(-1, group_size)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    deviation = grouped.std(axis=1, ddof=1, keepdims=True)
    return (centred / (deviation + _STD_EPSILON)).ravel()


def mask_equal_rewards(rewards: Floats, group_size: int) -> Bools:
    """Return a mask, bool [B]: True for responses in groups where all rewards are equal.

    A group consists of the responses to the same prompt. If its rewards are all equal, no response
    is better than another, so the advantages should be 0. Without this mask, standardisation would
    amplify tiny differences in the KL penalty. The mask is False for groups of a single response.
    """
    equal = (np.ptp(rewards.reshape(-1, group_size), axis=1) < 1e-9) & (group_size > 1)
    return np.repeat(equal, group_size)


def compute_gae(rewards: Floats, values: Floats, gamma: float, gae_lambda: float) -> Floats:
    """Return the advantages of generalized advantage estimation (GAE), [B, T].

    A_t = d_t + gamma lambda A_(t+1), where d_t = r_t + gamma V_(t+1) - V_t

    At position t, r_t is the reward, V_t the value and d_t the temporal-difference (TD) error. For
    lambda = 0, A_t equals d_t. For lambda = gamma = 1, A_t is the sum of the rewards from position
    t onward, minus V_t.

    Args:
        rewards: r, [B, T]; 0 after the end of a response.
        values: V, [B, T]; 0 after the end of a response.
        gamma: the discount factor.
        gae_lambda: lambda, the trade-off between bias (0) and variance (1).

    Source: Schulman et al. 2016, equations 11, 12 and 16.
    """
    advantages = np.zeros_like(values)
    advantage = value = np.zeros(len(values))
    for t in reversed(range(values.shape[1])):
        td_error = rewards[:, t] + gamma * value - values[:, t]
        advantages[:, t] = advantage = td_error + gamma * gae_lambda * advantage
        value = values[:, t]
    return advantages


def whiten(advantages: Floats, mask: Bools) -> Floats:
    """Standardise advantages to mean 0 and variance 1 over the positions where `mask` is True.

    Returns an array [B, T] with 0 where `mask` is False. If `mask` is True at fewer than two
    positions, the whole array is 0.
    """
    selected = advantages[mask]
    if len(selected) < 2:
        return np.zeros_like(advantages)
    scale = (selected.var(ddof=1) + _VARIANCE_EPSILON) ** -0.5
    return np.where(mask, (advantages - selected.mean()) * scale, 0.0)


def clipped_policy_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the clipped policy loss of PPO for every token.

    loss = - min(r A, clamp(r, 1 - clip, 1 + clip) A)

    Args:
        log_ratio: log r, [M]: the current log-probability of each token, minus its log-probability
            when it was sampled.
        advantage: A, the advantage of each token, [M].
        clip: the maximum distance of r from 1.

    Returns:
        The loss of each token, [M], and a mask of the tokens whose loss is clipped, bool [M].

    Source: Schulman et al. 2017 (PPO), equation 7.
    """
    ratio = log_ratio.exp()
    unclipped = ratio * advantage
    clipped = ratio.clamp(1 - clip, 1 + clip) * advantage
    return -torch.minimum(unclipped, clipped), clipped < unclipped


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Return the clipped value loss of PPO for every token, [M].

    loss = 1/2 max((V - R)^2, (V' - R)^2), where V' = clamp(V, V_old - clip, V_old + clip)

    Args:
        values: V, the current value of each token, [M].
        old_values: V_old, the value of each token when it was sampled, [M].
        returns: R, the return of each token, [M].
        clip: the maximum distance of V' from V_old.

    Source: the code released with Schulman et al. 2017. The paper does not mention this loss.
    """
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
