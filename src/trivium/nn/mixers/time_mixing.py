"""The time mixing of RWKV.

Shape letters: B batch, T positions, D width, E inner channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from trivium.nn.context import Context
from trivium.nn.mixers import LeftToRightMixer, Mixer, recompute
from trivium.nn.mixers.mamba import scan
from trivium.nn.part import Count
from trivium.nn.state import State
from trivium.nn.token_shift import start_of_mixture, token_before


class TimeMixing(Mixer):
    """A mean of earlier tokens whose weights fade with distance (Peng et al. 2023, section 3.1).

    Each of the `d_inner` channels, in the paper d_model, fades at its own rate. A weight is the
    exponential of a key, as in attention; there are no queries.
    """

    encodes: ClassVar[bool] = False
    carries: ClassVar[bool] = True
    kind: Literal["time-mixing"] = "time-mixing"
    d_inner: Count

    def flops(self, attended: float) -> float:
        """About 30 a channel; forward, again, backward twice."""
        return 4 * 30.0 * self.d_inner

    def kept_numbers(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """The token before and three mixtures with it, as wide as the channels; keys, values, means
        before and after the receptance, and that. What weights are made of is computed again."""
        return 9 * self.d_inner

    def build(self, d_model: int, **options: Any) -> TimeMixingModule:
        """See `Mixer.build`."""
        return TimeMixingModule(self, d_model, **options)


_NEVER = -1e30
"""The exponent of a token that does not count, in float32 too."""


class TimeMixingModule(LeftToRightMixer):
    """(sigmoid(r_t) * wkv_t) W_output, where in every channel

        wkv_t = (a_t-1 + exp(bonus + k_t) v_t) / (b_t-1 + exp(bonus + k_t))
        a_t = exp(-w) a_t-1 + exp(k_t) v_t
        b_t = exp(-w) b_t-1 + exp(k_t)

    with w = exp(decay). r, k and v are linear in mixtures of a token and the one before it, as in
    `ChannelMixingNetwork`. Both sums are kept divided by the exponential of their largest exponent
    m_t = max(m_t-1 - w, k_t), so that none overflows. Padding is read as if it were not there,
    unless it is between real tokens, where the next one reads 0 as the token before.

    Source: Peng et al. 2023, sections 3.1.1 to 3.1.3.
    """

    parallel: ClassVar[Mapping[str, str]] = {"output": "row"}

    def __init__(
        self, part: TimeMixing, width: int, dropout: float = 0.0, num_layers: int = 1
    ) -> None:
        super().__init__(part, width)
        self.mix_key = nn.Parameter(torch.ones(width))
        self.mix_value = nn.Parameter(torch.ones(width))
        self.mix_receptance = nn.Parameter(torch.ones(width))
        self.decay = nn.Parameter(torch.zeros(part.d_inner))
        self.bonus = nn.Parameter(torch.zeros(part.d_inner))
        self.key = nn.Linear(width, part.d_inner, bias=False)
        self.value = nn.Linear(width, part.d_inner, bias=False)
        self.receptance = nn.Linear(width, part.d_inner, bias=False)
        self.output = nn.Linear(part.d_inner, width, bias=False)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Rates from exp(-5) to exp(3), matrices of zeros but for values.

        All layers start as the layer in the middle does in the appendix on initialization.
        """
        width, channel = len(self.mix_key), torch.arange(self.part.d_inner)
        self.mix_key.copy_(start_of_mixture(width))
        self.mix_value.copy_(start_of_mixture(width) + 0.15)
        self.mix_receptance.copy_(start_of_mixture(width, 0.25))
        self.decay.copy_(-5.0 + 8.0 * (channel / max(1, len(channel) - 1)) ** 1.35)
        self.bonus.copy_(math.log(0.3) + 0.5 * ((channel + 1) % 3 - 1))
        for matrix in (self.key, self.receptance, self.output):
            matrix.weight.zero_()

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """The last token; a and b, both divided by exp(m), and m."""
        dtype = torch.promote_types(like.dtype, torch.float32)  # sums of many
        sums = like.new_zeros(slots, 2, self.part.d_inner, dtype=dtype)
        return State(like.new_zeros(slots, len(self.mix_key)), sums, torch.zeros_like(sums[:, 0]))

    def forward(
        self, x: Tensor, context: Context, state: State | None = None, prepared: None = None
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]; the state of earlier tokens is replaced in place."""
        self.prepare(context)
        span, last, sums = context.span, None, None
        largest = x.new_full((), _NEVER, dtype=torch.float32)
        if state is not None and span is not None:
            last, sums, largest = state.read(span)
            largest = largest.masked_fill(sums[:, 1] == 0, _NEVER)  # of a text that begins
        before, last = token_before(x, context, last)
        key, value, receptance = (
            torch.lerp(before, x, mix.to(x.dtype))
            for mix in (self.mix_key, self.mix_value, self.mix_receptance)
        )
        arguments = self.key(key), self.value(value), context, sums, largest
        mean, sums, largest = recompute(self._means, *arguments)
        if state is not None and span is not None:
            state.write(span, last, sums, largest)
        return self.output(self.receptance(receptance).sigmoid() * mean)

    def _means(
        self, key: Tensor, value: Tensor, context: Context, sums: Tensor | None, largest: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """wkv [B, T, E] of keys and values [B, T, E]; a and b [B, 2, E], and m [B, E], after them.

        In float32 at least: sums of many exponentials need it.
        """
        dtype = torch.promote_types(key.dtype, torch.float32)
        with torch.autocast(key.device.type, enabled=False):
            key, fading = key.to(dtype), -self.decay.to(dtype).exp().expand_as(key)
            both = torch.stack((value.to(dtype), torch.ones_like(key)), 2)  # [B, T, 2, E]
            taken = key
            if context.kept is not None:
                real = context.kept[..., None].bool()
                taken, fading = key.where(real, 2 * _NEVER), fading.where(real, 0.0)
            if context.begins is not None:
                fading = fading.masked_fill(context.begins[..., None], _NEVER)
            before, after = _largest(taken.detach(), fading.detach(), largest)
            weights = (taken - after).exp()[:, :, None] * both
            sums = torch.zeros_like(weights[:, 0]) if sums is None else sums.to(dtype)
            states, last = scan((before + fading - after).exp()[:, :, None], weights, sums)
            states = torch.cat((sums[:, None], states[:, :-1]), 1)
            if context.begins is not None:
                before = before.masked_fill(context.begins[..., None], _NEVER)
            own = key + self.bonus.to(dtype)
            most = torch.maximum(before, own.detach())
            earlier = (before - most).exp()[:, :, None] * states
            a, b = (earlier + (own - most).exp()[:, :, None] * both).unbind(2)
            return (a / b).to(value.dtype), last, after[:, -1]


@torch.no_grad()
def _largest(key: Tensor, fading: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """m_t-1 and m_t [B, T, E] for keys and -w [B, T, E]."""
    all_of_them = [largest.to(key.dtype).expand_as(key[:, 0])]
    for each, fades in zip(key.unbind(1), fading.unbind(1), strict=True):
        all_of_them.append(torch.maximum(all_of_them[-1] + fades, each))
    stacked = torch.stack(all_of_them, 1)
    return stacked[:, :-1], stacked[:, 1:]
