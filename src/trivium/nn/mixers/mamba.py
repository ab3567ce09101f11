"""The selective state space model of Mamba.

Shape letters: B batch, T positions, D width, E inner channels, N numbers of a channel's state,
K positions of the convolution.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.nn.activations import build_activation
from trivium.nn.context import Context
from trivium.nn.mixers import MixerModule
from trivium.nn.scan import scan
from trivium.nn.state import State
from trivium.spec.mixers.mamba import Mamba

_LEAST_STEP, _LARGEST_STEP = 1e-3, 0.1


class MambaMixer(MixerModule, of=Mamba):
    """(y * silu(x W_gate)) W_output, with u = act(convolution(x W_input)) and for every channel

        h_t = exp(delta_t A) h_(t-1) + delta_t B_t u_t
        y_t = C_t h_t + skip u_t

    where delta = softplus(step(.)), B and C are linear in u_t. Padding has delta 0, which leaves h
    as it is; at the first token of a packed document h is forgotten.

    Source: Gu and Dao 2023, algorithm 2 and section 3.4. A = -exp(log_decay); B is discretised by
    Euler's rule, as in the authors' code.
    """

    def __init__(self, part: Mamba, width: int, dropout: float = 0.0, num_layers: int = 1) -> None:
        super().__init__(part, width)
        inner, states = part.d_inner, part.d_state
        self.part, self.activation = part, build_activation(part.activation)
        self.input = nn.Linear(width, inner, bias=part.bias)
        self.gate = nn.Linear(width, inner, bias=part.bias)
        self.convolution = nn.Conv1d(
            inner, inner, part.kernel, groups=inner, bias=part.convolution_bias
        )
        self.selection = nn.Linear(inner, part.step_rank + 2 * states, bias=False)
        self.step = nn.Linear(part.step_rank, inner)
        self.log_decay = nn.Parameter(torch.zeros(inner, states))
        self.skip = nn.Parameter(torch.ones(inner))
        self.output = nn.Linear(inner, width, bias=part.bias)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """The start of section 3.6 and of the authors' code; other matrices start as all do."""
        self.log_decay.copy_(torch.arange(1.0, self.part.d_state + 1).log())
        self.skip.fill_(1.0)
        ends = math.log(_LEAST_STEP), math.log(_LARGEST_STEP)
        steps = torch.empty(self.part.d_inner).uniform_(*ends, generator=generator).exp()
        self.step.bias.copy_(steps + (-torch.expm1(-steps)).log())  # softplus of it is steps

    def prepare(
        self, context: Context, state: State | None = None, table: nn.Module | None = None
    ) -> None:
        """Nothing. Raises SpecError for a pass that does not read from left to right."""
        others = context.prefix, context.order, context.num_keys, context.custom
        if not context.causal or any(each is not None for each in others):
            raise SpecError(
                "mamba reads from left to right: it takes no prefix, no order of prediction and "
                "no mask of one's own."
            )

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """The last K - 1 inputs of the convolution, and h, whatever the length."""
        part = self.part
        kept = like.new_zeros(slots, part.kernel - 1, part.d_inner)
        dtype = torch.promote_types(like.dtype, torch.float32)
        return State(kept, like.new_zeros(slots, part.d_state, part.d_inner, dtype=dtype))

    def forward(
        self, x: Tensor, context: Context, state: State | None = None, prepared: Any = None
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]; the state of earlier tokens is replaced in place."""
        self.prepare(context)
        part, dtype = self.part, torch.promote_types(x.dtype, torch.float32)
        real = context.padding if context.span is None else context.span.real(x.device)
        inputs = self.input(x).to(dtype)
        if real is not None:
            inputs = inputs * real[..., None]
        u = self.activation(self._convolved(inputs, context, state))
        sizes = [part.step_rank, part.d_state, part.d_state]
        step, into, out = self.selection(u).split(sizes, -1)
        delta = F.softplus(self.step(step).to(dtype))  # [B, T, E]
        if real is not None:
            delta = delta * real[..., None]
        decay = (delta[:, :, None] * -self.log_decay.to(dtype).exp().T).exp()  # [B, T, N, E]
        if context.documents is not None:
            begins = context.documents.diff(dim=1, prepend=context.documents[:, :1]) != 0
            decay = decay.masked_fill(begins[..., None, None], 0.0)
        new = into.to(dtype)[..., None] * (delta * u)[:, :, None]
        before = new.new_zeros(len(x), part.d_state, part.d_inner)
        if state is not None and context.span is not None:
            kept = state.tensors[1]
            before = kept[context.span.rows].to(dtype).clone()
        states = scan(decay, new, before)
        if state is not None and context.span is not None:
            kept = state.tensors[1]
            kept[context.span.rows] = states[:, -1].detach().to(kept.dtype)
        y = (out.to(dtype)[:, :, None] @ states)[:, :, 0] + self.skip * u
        return self.output((y * F.silu(self.gate(x))).to(x.dtype))

    def _convolved(self, x: Tensor, context: Context, state: State | None) -> Tensor:
        """The convolution with earlier inputs, those of other documents 0: [B, T, E] -> same."""
        length, before = x.shape[1], self.part.kernel - 1
        earlier = x.new_zeros(len(x), before, x.shape[2])
        span = context.span
        if state is not None and span is not None:
            earlier = state.tensors[0][span.rows].to(x.dtype)
        whole = torch.cat((earlier, x), 1)
        if state is not None and span is not None:
            first = length if span.new is None else span.new[:, None, None]
            at = first + torch.arange(before, device=x.device)[None, :, None]
            last = whole.gather(1, at.expand(len(x), -1, x.shape[2])).detach()
            state.tensors[0][span.rows] = last.to(state.tensors[0].dtype)
        total = x.new_zeros(()) if self.convolution.bias is None else self.convolution.bias
        for position in range(before + 1):
            part, back = whole[:, position : position + length], before - position
            if context.documents is not None and back:
                own = context.documents[:, back:] == context.documents[:, : length - back]
                part = part * F.pad(own, (min(back, length), 0))[:, :length, None]
            total = total + part * self.convolution.weight[:, 0, position]
        return total
