"""The state space duality (SSD) mixer of Mamba 2.

Shape letters: B batch, T positions, D width, N heads, P head_dim, G groups, S state size,
E = N P inner channels, K kernel size of the convolution, Q positions of a chunk. In equations and
code A, B, C and D are the matrices of the paper.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.nn.activations import Activation, build_activation
from trivium.nn.mixers import Mixer, RecurrentMixer, recompute
from trivium.nn.mixers.mamba import causal_conv
from trivium.nn.part import Count, Positive
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import State

CHUNK = 64
"""The number of positions per chunk. Backward recomputes one chunk at a time."""


class Mamba2(Mixer):
    """Mamba 2: a state space model with one decay per head, computed as masked attention.

    The input is projected to x, B and C, followed by a depthwise convolution over `d_conv`
    positions. x has `num_heads` heads of `head_dim` channels, each with a state of `d_state`
    numbers. The heads of each of the `num_groups` groups share B and C. The step sizes are limited
    to [`dt_min`, `dt_max`], also in decoding (`transformers` does not limit single tokens after the
    prompt). With `bias` the input and output projections have biases.

    Source: Dao and Gu 2024 (Transformers are SSMs), sections 5 to 7.
    """

    supports_encoder: ClassVar[bool] = False
    carries_state: ClassVar[bool] = True
    kind: Literal["mamba2"] = "mamba2"
    num_heads: Count
    head_dim: Count
    d_state: Count = 128
    d_conv: Count = 4
    num_groups: Count = 1
    bias: bool = False
    conv_bias: bool = True
    activation: Activation = "silu"
    norm_eps: Positive = 1e-5
    dt_min: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    dt_max: Positive | None = None

    @property
    def d_inner(self) -> int:
        """The number of channels of all heads."""
        return self.num_heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """The number of channels of the convolution: those of x, B and C."""
        return self.d_inner + 2 * self.num_groups * self.d_state

    def check(self) -> None:
        """Raise SpecError if the heads cannot be divided into equal groups, or dt has no range."""
        if self.num_heads % self.num_groups:
            raise SpecError(
                f"num_heads={self.num_heads} is not a multiple of num_groups={self.num_groups}."
            )
        if self.dt_max is not None and self.dt_max < self.dt_min:
            raise SpecError(f"dt_max={self.dt_max} is less than dt_min={self.dt_min}.")

    def flops(self, attended: float) -> float:
        """Return the training FLOPs per token of the convolution and of the chunks.

        The convolution takes 6 FLOPs per weight, forward and backward. Chunks take three times
        their forward pass and once more for recomputation: scores in each group, their products
        with x, and the products of the state with B and C. See `Mixer.flops`.
        """
        scores = CHUNK * (self.num_groups * self.d_state + self.d_inner)
        states = 4 * self.d_inner * self.d_state
        return 6.0 * self.d_conv * self.conv_width + 4.0 * (scores + states)

    def activation_numel(self, length: int, *, item: int, on_cpu: bool, dropout: bool) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        They are the inputs and outputs of the convolution and of its activation, the gate, the step
        sizes, and the output before and after the gate and the norm. The state before every chunk
        except the first is also kept. Chunks and gate are kept in float32.
        """
        wide = 4 // min(item, 4)
        channels = (2 + wide) * self.conv_width + (2 + 3 * wide) * self.d_inner
        states = (length - 1) // CHUNK * self.d_inner * self.d_state * wide
        return channels + 2 * self.num_heads + states // length

    def build(self, d_model: int, **options: Any) -> Mamba2Module:
        """See `Mixer.build`."""
        return Mamba2Module(self, d_model, **options)


_DT_MIN, _DT_MAX, _A_MAX = 1e-3, 0.1, 16.0


class Mamba2Module(RecurrentMixer):
    """State space duality: norm(y * silu(x W_gate)) W_output, and for every head

        h_t = exp(delta_t A) h_t-1 + delta_t B_t u_t
        y_t = C_t h_t + D u_t

    with (u, B, C) = act(conv(x W_input)), A = -exp(A_log) and delta = softplus(x W_dt + dt_bias).
    The norm is an RMSNorm of the channels of each group. Padding does not change the state h. The
    convolution reads padding between tokens as zeros.

    Inside a chunk, y is a product of the scores C_t B_s, multiplied by the decay between s and t,
    with delta_s u_s. The state carries the rest from chunk to chunk.

    Source: Dao and Gu 2024, equation 1, section 6 (the chunks) and section 7.
    """

    def __init__(self, part: Mamba2, width: int, **options: Any) -> None:
        super().__init__(part, width, **options)
        channels = part.conv_width
        self.activation = build_activation(part.activation)
        self.gate = nn.Linear(width, part.d_inner, bias=part.bias)
        self.input = nn.Linear(width, channels, bias=part.bias)
        self.dt = nn.Linear(width, part.num_heads, bias=part.bias)
        self.conv = nn.Conv1d(channels, channels, part.d_conv, groups=channels, bias=part.conv_bias)
        self.dt_bias = nn.Parameter(torch.zeros(part.num_heads))
        self.A_log = nn.Parameter(torch.zeros(part.num_heads))
        self.D = nn.Parameter(torch.ones(part.num_heads))
        self.norm = nn.Parameter(torch.ones(part.d_inner))
        self.output = nn.Linear(part.d_inner, width, bias=part.bias)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize A to values in [-16, -1], D to 1 and the step sizes to values in [0.001, 0.1].

        Source: the authors' code.
        """
        part = self.part
        shape = (part.num_heads,)
        self.A_log.copy_(torch.empty(shape).uniform_(1.0, _A_MAX, generator=generator).log())
        self.D.fill_(1.0)
        self.norm.fill_(1.0)
        uniform = torch.empty(self.conv.weight.shape).uniform_(-1.0, 1.0, generator=generator)
        self.conv.weight.copy_(uniform * part.d_conv**-0.5)
        ends = math.log(_DT_MIN), math.log(_DT_MAX)
        steps = torch.empty(shape).uniform_(*ends, generator=generator).exp()
        self.dt_bias.copy_(steps + (-torch.expm1(-steps)).log())  # softplus(bias) = steps

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Return an empty state of fixed size: the last K - 1 inputs of the convolution, and h.

        `length` is ignored. The state h of the recurrence has at least float32.
        """
        part = self.part
        dtype = torch.promote_types(like.dtype, torch.float32)  # h is a sum of many terms
        return State(
            like.new_zeros(slots, part.d_conv - 1, part.conv_width),
            like.new_zeros(slots, part.num_heads, part.head_dim, part.d_state, dtype=dtype),
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
            before, h = inputs.new_zeros(len(x), part.d_conv - 1, part.conv_width), None
        else:
            before, h = state.read(cache_slice)
        inputs = torch.cat((before.to(inputs.dtype), inputs), 1)
        channels = self.activation(causal_conv(self.conv, inputs, sequence.documents))
        y, h = self._scan_chunks(
            (self.dt(x), channels, is_token.expand(*x.shape[:2])), sequence.document_starts, h
        )
        if state is not None and cache_slice is not None:
            state.write(cache_slice, cache_slice.last(inputs, part.d_conv - 1), h)
        return self.output(self._gate_and_norm(y, self.gate(x)).to(x.dtype))

    def _gate_and_norm(self, y: Tensor, gate: Tensor) -> Tensor:
        """Return norm(y * silu(gate)), where the norm is over the channels of each group."""
        dtype = torch.promote_types(y.dtype, torch.float32)
        y = (y.to(dtype) * F.silu(gate.to(dtype))).unflatten(-1, (self.part.num_groups, -1))
        y = F.rms_norm(y, y.shape[-1:], eps=self.part.norm_eps)
        return y.flatten(-2) * self.norm.to(dtype)

    def _scan_chunks(
        self, token_inputs: tuple[Tensor, ...], document_starts: Tensor | None, h: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence, one chunk of `CHUNK` tokens at a time.

        Args:
            token_inputs: the first three arguments of `_scan_chunk`, each [B, T, ...].
            document_starts: bool [B, T], True where h is reset to 0 because another document of a
                packed row starts; None: no documents.
            h: [B, N, P, S], the state before the first token; None: 0.

        Returns:
            The outputs y [B, T, E], and the state h after the last token.
        """
        outputs = []
        new_documents = None if document_starts is None else document_starts.split(CHUNK, 1)
        chunks = zip(*(each.split(CHUNK, 1) for each in token_inputs), strict=True)
        for i, chunk in enumerate(chunks):
            arguments: tuple[Any, ...] = *chunk, h, self.A_log, self.D, self.dt_bias
            arguments += (None if new_documents is None else new_documents[i],)
            y, h = recompute(self._scan_chunk, *arguments)
            outputs.append(y)
        assert h is not None  # there is a token
        return torch.cat(outputs, 1), h

    def _scan_chunk(
        self,
        dt: Tensor,
        channels: Tensor,
        is_token: Tensor,
        h: Tensor | None,
        A_log: Tensor,
        D: Tensor,
        dt_bias: Tensor,
        document_starts: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs [B, Q, E] of one chunk and the state h after its last token.

        The computation is in float32 or wider, because a product of many decay factors is too
        inaccurate in half precision.
        """
        part, dtype = self.part, torch.promote_types(dt.dtype, torch.float32)
        sizes = [part.d_inner, part.num_groups * part.d_state, part.num_groups * part.d_state]
        with torch.autocast(dt.device.type, enabled=False):
            delta = F.softplus(dt.to(dtype) + dt_bias.to(dtype))
            delta = delta.clamp(part.dt_min, part.dt_max) * is_token[..., None]  # 0 leaves h
            u, B, C = channels.to(dtype).split(sizes, -1)
            u = u.unflatten(-1, (part.num_heads, -1))  # [B, Q, N, P]
            B, C = (each.unflatten(-1, (part.num_groups, -1)) for each in (B, C))  # [B, Q, G, S]
            total = (delta * -A_log.to(dtype).exp()).cumsum(1)  # [B, Q, N], log of the decay
            same, first, last = _same_document(total, document_starts)
            between = (total[:, :, None] - total[:, None]).masked_fill(~same, -torch.inf).exp()
            scores = torch.einsum("btgs,bkgs->btkg", C, B)
            share = part.num_heads // part.num_groups
            new = delta[..., None] * u
            weights = scores.repeat_interleave(share, -1) * between
            y = torch.einsum("btkn,bknp->btnp", weights, new) + D.to(dtype)[:, None] * u
            rest = (total[:, -1:] - total).masked_fill(~last, -torch.inf).exp()
            B, C = (each.repeat_interleave(share, 2) for each in (B, C))  # [B, Q, N, S]
            after = torch.einsum("bknp,bkns->bnps", rest[..., None] * new, B)
            if h is not None:
                decay = total.exp() * first  # [B, Q, N]
                y = y + decay[..., None] * torch.einsum("btns,bnps->btnp", C, h)
                after = after + decay[:, -1, :, None, None] * h
            return y.flatten(2).to(channels.dtype), after


def _same_document(like: Tensor, document_starts: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return which positions of a chunk belong together.

    Returns whether key k is at or before query t in the same document, bool [1 or B, Q, Q, 1];
    whether a position continues the document of the chunk before, [1 or B, Q, 1]; and whether it is
    in the last document of the chunk, [1 or B, Q, 1].

    Args:
        like: any tensor [B, Q, ...] on the device.
        document_starts: bool [B, Q], whether another document starts; None: one document.
    """
    size = like.shape[1]
    earlier = torch.ones(size, size, dtype=torch.bool, device=like.device).tril()[None, :, :, None]
    if document_starts is None:
        everywhere = earlier.new_ones(1, size, 1)
        return earlier, everywhere, everywhere
    document = document_starts.long().cumsum(1)
    same = (document[:, :, None] == document[:, None])[..., None] & earlier
    return same, (document == 0)[..., None], (document == document[:, -1:])[..., None]
