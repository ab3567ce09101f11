"""The selective state space model of Mamba.

Shape letters: B batch, T positions, D width, E inner channels, N state size per channel,
R rank of the step sizes, K kernel size of the convolution. In equations and code A, B, C and D are
the matrices of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.nn.activations import Activation, build_activation
from trivium.nn.mixers import Mixer, RecurrentMixer, recompute
from trivium.nn.part import Count
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import State

SEGMENT = 64
"""The number of positions per segment. Backward recomputes the states h of a segment at a time."""


class Mamba(Mixer):
    """Mamba: a state space model whose decay, input and output matrices depend on the token.

    The input is projected to `d_inner` channels, followed by a depthwise convolution over `d_conv`
    positions. Each channel has a state of `d_state` numbers. The step sizes are computed by a
    projection of rank `dt_rank`. The paper uses d_inner = 2 d_model (`expand`) and
    dt_rank = d_model / 16. With `bias` the input, gate and output projections have biases.

    Source: Gu and Dao 2023, section 3.
    """

    supports_encoder: ClassVar[bool] = False
    carries_state: ClassVar[bool] = True
    kind: Literal["mamba"] = "mamba"
    d_inner: Count
    dt_rank: Count
    d_state: Count = 16
    d_conv: Count = 4
    bias: bool = False
    conv_bias: bool = True
    activation: Activation = "silu"

    def flops(self, attended: float) -> float:
        """Return the training FLOPs per token of the convolution and the recurrence.

        The convolution takes 6 FLOPs per weight, forward and backward. The recurrence takes about
        36 FLOPs per element of the state: 9 in the forward pass, 9 for recomputation and 18 in the
        backward pass. See `Mixer.flops`.
        """
        return self.d_inner * (6.0 * self.d_conv + 4 * 9.0 * self.d_state)

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        They are dt, B, C and six vectors of `d_inner` elements: the inputs, the output of the
        convolution before and after the activation, the step sizes, the gate and the outputs. The
        state before every segment of `SEGMENT` tokens except the first is also kept, in float32.
        """
        channels = 6 * self.d_inner + self.dt_rank + 2 * self.d_state
        states = (length - 1) // SEGMENT * self.d_inner * self.d_state * 4 // item
        return channels + states // length

    def build(self, d_model: int, **options: Any) -> MambaModule:
        """See `Mixer.build`."""
        return MambaModule(self, d_model, **options)


_DT_MIN, _DT_MAX = 1e-3, 0.1


class MambaModule(RecurrentMixer):
    """Selective SSM: (y * silu(x W_gate)) W_output, with u = act(conv(x W_input)) and per channel

        h_t = exp(delta_t A) h_t-1 + delta_t B_t u_t
        y_t = C_t h_t + D u_t

    with A = -exp(A_log) and delta = softplus(dt_proj(dt)); `x_proj` computes dt, B and C from u.
    Padding does not change the state h. The convolution reads padding between tokens as zeros.

    Source: Gu and Dao 2023, algorithm 2, section 3.4. As in the authors' code, B is discretised
    with Euler's rule instead of equation 4.
    """

    parallel: ClassVar[Mapping[str, str]] = {"output": "row"}
    non_matrices: ClassVar[tuple[str, ...]] = ("A_log",)

    def __init__(self, part: Mamba, width: int, **options: Any) -> None:
        super().__init__(part, width, **options)
        inner = part.d_inner
        self.activation = build_activation(part.activation)
        self.input = nn.Linear(width, inner, bias=part.bias)
        self.gate = nn.Linear(width, inner, bias=part.bias)
        self.conv = nn.Conv1d(inner, inner, part.d_conv, groups=inner, bias=part.conv_bias)
        self.x_proj = nn.Linear(inner, part.dt_rank + 2 * part.d_state, bias=False)
        self.dt_proj = nn.Linear(part.dt_rank, inner)
        self.A_log = nn.Parameter(torch.zeros(inner, part.d_state))
        self.D = nn.Parameter(torch.ones(inner))
        self.output = nn.Linear(inner, width, bias=part.bias)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize A to -1, ..., -N, D to 1 and the step sizes to random values in [0.001, 0.1].

        Source: Gu and Dao 2023, sections 3.5 and 3.6, and the authors' code.
        """
        part = self.part
        self.A_log.copy_(torch.arange(1.0, part.d_state + 1).log())
        self.D.fill_(1.0)
        for linear, inputs in ((self.conv, part.d_conv), (self.dt_proj, part.dt_rank)):
            uniform = torch.empty(linear.weight.shape).uniform_(-1.0, 1.0, generator=generator)
            linear.weight.copy_(uniform * inputs**-0.5)
        ends = math.log(_DT_MIN), math.log(_DT_MAX)
        steps = torch.empty(part.d_inner).uniform_(*ends, generator=generator).exp()
        self.dt_proj.bias.copy_(steps + (-torch.expm1(-steps)).log())  # softplus(bias) = steps

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Return an empty state of fixed size: the last K - 1 inputs of the convolution, and h.

        `length` is ignored. The state h of the recurrence has at least float32.
        """
        part = self.part
        dtype = torch.promote_types(like.dtype, torch.float32)  # h is a sum of many terms
        return State(
            like.new_zeros(slots, part.d_conv - 1, part.d_inner),
            like.new_zeros(slots, part.d_state, part.d_inner, dtype=dtype),
        )

    def forward(
        self, x: Tensor, sequence: SequenceInfo, state: State | None = None, prepared: None = None
    ) -> Tensor:
        """Return the output of the mixer: [B, T, D] -> [B, T, D]. Updates `state` in place."""
        self.prepare(sequence)
        part, cache_slice = self.part, sequence.cache_slice
        is_token = x.new_ones(1, 1) if sequence.state_mask is None else sequence.state_mask
        inputs = self.input(x)
        inputs = inputs * is_token[..., None].to(inputs.dtype)
        if state is None or cache_slice is None:
            before, h = inputs.new_zeros(len(x), part.d_conv - 1, part.d_inner), None
        else:
            before, h = state.read(cache_slice)
        inputs = torch.cat((before.to(inputs.dtype), inputs), 1)
        u = self.activation(causal_conv(self.conv, inputs, sequence.documents))
        sizes = [part.dt_rank, part.d_state, part.d_state]
        dt, B, C = self.x_proj(u).split(sizes, -1)
        token_inputs = self.dt_proj(dt), u, B, C, self.gate(x), is_token.expand(*x.shape[:2])
        y, h = self._selective_scan(token_inputs, sequence.document_starts, h)
        if state is not None and cache_slice is not None:
            state.write(cache_slice, cache_slice.last(inputs, part.d_conv - 1), h)
        return self.output(y)

    def _selective_scan(
        self, token_inputs: tuple[Tensor, ...], document_starts: Tensor | None, h: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence of the state space model, one segment of `SEGMENT` tokens at a time.

        The states h of all tokens would take N times the memory of the inputs. Therefore the
        backward pass recomputes the states of each segment.

        Args:
            token_inputs: the first six arguments of `_scan_segment`, each [B, T, ...].
            document_starts: bool [B, T], True where h is reset to 0 because another document of a
                packed row starts; None: no documents.
            h: [B, N, E], the state before the first token; None: 0.

        Returns:
            The gated outputs [B, T, E], and the state h after the last token.
        """
        outputs, new_documents = (
            [],
            None if document_starts is None else document_starts.split(SEGMENT, 1),
        )
        # The gradient of a split is one tensor; each slice would have a gradient of a row's length.
        segments = zip(*(each.split(SEGMENT, 1) for each in token_inputs), strict=True)
        for i, segment in enumerate(segments):
            arguments: tuple[Any, ...] = *segment, h, self.A_log, self.D
            arguments += (None if new_documents is None else new_documents[i],)
            y, h = recompute(self._scan_segment, *arguments)
            outputs.append(y)
        assert h is not None  # there is a token
        return torch.cat(outputs, 1), h

    def _scan_segment(
        self,
        dt: Tensor,
        u: Tensor,
        B: Tensor,
        C: Tensor,
        gate: Tensor,
        is_token: Tensor,
        h: Tensor | None,
        A_log: Tensor,
        D: Tensor,
        document_starts: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the gated outputs of one segment and the state h after its last token.

        The computation is in float32 or wider, because a product of many decay factors is too
        inaccurate in half precision.
        """
        dtype = torch.promote_types(dt.dtype, torch.float32)
        with torch.autocast(u.device.type, enabled=False):
            delta = F.softplus(dt.to(dtype)) * is_token[..., None]  # 0 leaves h as it is
            decay = (delta[:, :, None] * -A_log.to(dtype).exp().T).exp()  # [B, T, N, E]
            if document_starts is not None:
                decay = decay.masked_fill(document_starts[..., None, None], 0.0)
            new = B.to(dtype)[..., None] * (delta * u)[:, :, None]
            h = torch.zeros_like(new[:, 0]) if h is None else h
            states, h = scan(decay, new, h)
            y = (C.to(dtype)[:, :, None] @ states)[:, :, 0] + D * u
            return (y * F.silu(gate.to(dtype))).to(u.dtype), h


def causal_conv(conv: nn.Conv1d, inputs: Tensor, documents: Tensor | None) -> Tensor:
    """Return the output of a causal depthwise convolution: [B, K - 1 + T, E] -> [B, T, E].

    Args:
        conv: the weights of the convolution over K positions.
        inputs: the inputs, which begin with the K - 1 inputs before the T positions.
        documents: the document of each position [B, T]; inputs from other documents of a packed
            row are replaced with 0. None: no documents.
    """
    kernel, total = conv.kernel_size[0], conv.bias
    length = inputs.shape[1] - kernel + 1
    for back, weight in enumerate(conv.weight[:, 0].to(inputs.dtype).unbind(1)[::-1]):
        first = kernel - 1 - back
        product = inputs[:, first : first + length] * weight
        if documents is not None and 0 < back < length:
            own = documents[:, back:] == documents[:, :-back]
            product = product * F.pad(own, (back, 0), value=True)[..., None]
        total = product if total is None else total + product
    assert total is not None
    return total.to(inputs.dtype)


def scan(decay: Tensor, new: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the linear recurrence h_t = decay_t * h_t-1 + new_t in a loop over t.

    A parallel scan would have to read and write more intermediate values. On a CPU that is slower,
    because memory traffic limits the speed (`benchmarks/scan.py`).

    Args:
        decay: [B, T, ...], the factor of the previous state.
        new: [B, T, ...], the values added to the state.
        h: [B, ...], the state before the first step.

    Returns:
        The states h_t of all steps [B, T, ...], and the last state [B, ...].
    """
    states = []
    for each, x in zip(decay.unbind(1), new.unbind(1), strict=True):
        h = torch.addcmul(x, each, h)
        states.append(h)
    return torch.stack(states, 1), h
