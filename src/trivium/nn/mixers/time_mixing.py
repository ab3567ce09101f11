"""RWKV time mixing.

Shape letters: B batch, T positions, D width, E inner channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from trivium.nn.mixers import Mixer, RecurrentMixer, recompute
from trivium.nn.mixers.mamba import scan
from trivium.nn.part import Count
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import State
from trivium.nn.token_shift import initial_mix_weights, shift_tokens


class TimeMixing(Mixer):
    """RWKV time mixing: a weighted mean of values, with weights that decay with distance.

    Each of the `d_inner` channels has its own decay rate; the paper uses d_inner = d_model. The
    weight of a token is the exponential of its key. Unlike in attention, there are no queries.

    Source: Peng et al. 2023, section 3.1.
    """

    supports_encoder: ClassVar[bool] = False
    carries_state: ClassVar[bool] = True
    kind: Literal["time-mixing"] = "time-mixing"
    d_inner: Count

    def flops(self, attended: float) -> float:
        """Return the training FLOPs per token of the recurrence: 120 per channel.

        They are 30 FLOPs in the forward pass, 30 for recomputation and 60 in the backward pass. See
        `Mixer.flops`.
        """
        return 4 * 30.0 * self.d_inner

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        They are nine vectors of `d_inner` elements: the previous token, three mixtures of the token
        with the previous token, keys, values, the receptance, and wkv before and after the
        receptance is applied. The weights of the mean are recomputed in the backward pass.
        """
        return 9 * self.d_inner

    def build(self, d_model: int, **options: Any) -> TimeMixingModule:
        """See `Mixer.build`."""
        return TimeMixingModule(self, d_model, **options)


_NO_EXPONENT = -1e30
"""The exponent of a token with weight 0. Twice this number is still finite in float32."""


class TimeMixingModule(RecurrentMixer):
    """RWKV time mixing: (sigmoid(r_t) * wkv_t) W_output, where in every channel

        wkv_t = (a_t-1 + exp(u + k_t) v_t) / (b_t-1 + exp(u + k_t))
        a_t = exp(-w) a_t-1 + exp(k_t) v_t
        b_t = exp(-w) b_t-1 + exp(k_t)

    with w = exp(time_decay) and u = time_first. r, k and v are linear projections of weighted means
    of a token and the previous token, as in `ChannelMixingNetwork`. To avoid overflow, the state
    stores a and b divided by exp(p), where p_t = max(p_t-1 - w, k_t) is the largest exponent so
    far. Padding does not change the state. For a token directly after padding, the previous token
    is 0.

    Source: Peng et al. 2023, sections 3.1.1 to 3.1.3. The largest exponents (p, and q in the code)
    follow the paper's appendix on time mixing as an RNN cell.
    """

    parallel: ClassVar[Mapping[str, str]] = {"output": "row"}

    def __init__(self, part: TimeMixing, width: int, **options: Any) -> None:
        super().__init__(part, width, **options)
        self.mix_key = nn.Parameter(torch.ones(width))
        self.mix_value = nn.Parameter(torch.ones(width))
        self.mix_receptance = nn.Parameter(torch.ones(width))
        self.time_decay = nn.Parameter(torch.zeros(part.d_inner))
        self.time_first = nn.Parameter(torch.zeros(part.d_inner))
        self.key = nn.Linear(width, part.d_inner, bias=False)
        self.value = nn.Linear(width, part.d_inner, bias=False)
        self.receptance = nn.Linear(width, part.d_inner, bias=False)
        self.output = nn.Linear(part.d_inner, width, bias=False)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize the decay rates, `time_first` and the mixing weights as in the paper.

        The decay rates increase over the channels from exp(-5) to exp(3). All projection matrices
        except `value` are zero. In the paper's appendix on initialization, the values depend on the
        layer; here every layer has the values of the middle layer.
        """
        width, channel = len(self.mix_key), torch.arange(self.part.d_inner)
        self.mix_key.copy_(initial_mix_weights(width))
        self.mix_value.copy_(initial_mix_weights(width) + 0.15)
        self.mix_receptance.copy_(initial_mix_weights(width, 0.25))
        self.time_decay.copy_(-5.0 + 8.0 * (channel / max(1, len(channel) - 1)) ** 1.35)
        self.time_first.copy_(math.log(0.3) + 0.5 * ((channel + 1) % 3 - 1))
        for matrix in (self.key, self.receptance, self.output):
            matrix.weight.zero_()

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Return an empty state of fixed size: the last token, the sums a and b, and p.

        The sums are divided by exp(p), where p is the largest exponent so far. `length` is ignored.
        """
        dtype = torch.promote_types(like.dtype, torch.float32)  # for sums of many terms
        sums = like.new_zeros(slots, 2, self.part.d_inner, dtype=dtype)
        return State(like.new_zeros(slots, len(self.mix_key)), sums, torch.zeros_like(sums[:, 0]))

    def forward(
        self, x: Tensor, sequence: SequenceInfo, state: State | None = None, prepared: None = None
    ) -> Tensor:
        """Return the output of the mixer: [B, T, D] -> [B, T, D]. Updates `state` in place."""
        self.prepare(sequence)
        cache_slice, last, sums = sequence.cache_slice, None, None
        p = x.new_full((), _NO_EXPONENT, dtype=torch.float32)
        if state is not None and cache_slice is not None:
            last, sums, p = state.read(cache_slice)
            p = p.masked_fill(
                sums[:, 1] == 0, _NO_EXPONENT
            )  # the text begins: there is no exponent yet
        before, last = shift_tokens(x, sequence, last)
        key, value, receptance = (
            torch.lerp(before, x, mix.to(x.dtype))
            for mix in (self.mix_key, self.mix_value, self.mix_receptance)
        )
        arguments = self.key(key), self.value(value), sequence, sums, p
        wkv, sums, p = recompute(self._wkv, *arguments)
        if state is not None and cache_slice is not None:
            state.write(cache_slice, last, sums, p)
        return self.output(self.receptance(receptance).sigmoid() * wkv)

    def _wkv(
        self, k: Tensor, v: Tensor, sequence: SequenceInfo, sums: Tensor | None, p: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weighted means wkv of the values, and the state after the last token.

        The computation is in float32 or wider, because sums of many exponentials are too inaccurate
        in half precision.

        Args:
            k: the keys [B, T, E].
            v: the values [B, T, E].
            sequence: the metadata of the forward pass.
            sums: [B, 2, E], the sums a and b divided by exp(p), before the first token; None: 0.
            p: [B, E] or a scalar, the largest exponent so far.

        Returns:
            wkv [B, T, E], and the new `sums` and `p`.
        """
        dtype = torch.promote_types(k.dtype, torch.float32)
        with torch.autocast(k.device.type, enabled=False):
            k, w, u = k.to(dtype), self.time_decay.to(dtype).exp(), self.time_first.to(dtype)
            value_and_one = torch.stack(
                (v.to(dtype), torch.ones_like(k)), 2
            )  # for a and b: [B, T, 2, E]
            added, w = k, w.expand_as(k)
            if sequence.state_mask is not None:  # padding adds nothing, and nothing decays
                is_token = sequence.state_mask[..., None].bool()
                added, w = k.where(is_token, 2 * _NO_EXPONENT), w.where(is_token, 0.0)
            if sequence.document_starts is not None:
                w = w.masked_fill(sequence.document_starts[..., None], -_NO_EXPONENT)
            before, after = _running_max_exponents(added.detach(), w.detach(), p)
            terms = (added - after).exp()[:, :, None] * value_and_one
            sums = torch.zeros_like(terms[:, 0]) if sums is None else sums.to(dtype)
            states, last = scan((before - w - after).exp()[:, :, None], terms, sums)
            states = torch.cat((sums[:, None], states[:, :-1]), 1)
            if sequence.document_starts is not None:
                before = before.masked_fill(sequence.document_starts[..., None], _NO_EXPONENT)
            own = u + k
            q = torch.maximum(before, own.detach())
            earlier = (before - q).exp()[:, :, None] * states
            a, b = (earlier + (own - q).exp()[:, :, None] * value_and_one).unbind(2)
            return (a / b).to(v.dtype), last, after[:, -1]


@torch.no_grad()
def _running_max_exponents(k: Tensor, w: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Return the running maximum p of the exponents before and after each step, [B, T, E] each.

    p is used for a numerically stable wkv: p_t = max(p_t-1 - w_t, k_t).

    Args:
        k: the keys [B, T, E], which are the exponents of the new terms.
        w: the decay [B, T, E], by which earlier exponents decrease.
        p: [B, E] or a scalar, the maximum before the first step.
    """
    exponents = [p.to(k.dtype).expand_as(k[:, 0])]
    for k_t, w_t in zip(k.unbind(1), w.unbind(1), strict=True):
        exponents.append(torch.maximum(exponents[-1] - w_t, k_t))
    stacked = torch.stack(exponents, 1)
    return stacked[:, :-1], stacked[:, 1:]
