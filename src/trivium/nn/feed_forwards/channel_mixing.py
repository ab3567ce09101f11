"""Channel mixing, the feed-forward network of RWKV.

Shape letters: B batch, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.nn.feed_forwards import FeedForward, FeedForwardModule
from trivium.nn.part import Count
from trivium.nn.sequence_info import SequenceInfo
from trivium.nn.state import State
from trivium.nn.token_shift import initial_mix_weights, shift_tokens


class ChannelMixing(FeedForward):
    """Spec of RWKV's channel mixing, a feed-forward network that also reads the previous token.

    Source: Peng et al. 2023, section 3.1.
    """

    reads_earlier_tokens: ClassVar[bool] = True
    kind: Literal["channel-mixing"] = "channel-mixing"
    d_ff: Count

    def activation_numel(self, width: int) -> int:
        """Return the number of activation elements per token kept for the backward pass.

        It counts the hidden state of the previous token, the inputs of the key and receptance
        layers, the two factors of the output (`width` elements each), and the hidden units after
        relu and after squaring.
        """
        return 5 * width + 2 * self.d_ff

    def scale_width(self, fraction: float) -> Self:
        """Return the spec with `d_ff` multiplied by `fraction`. See `FeedForward.scale_width`."""
        return self.replace(d_ff=max(1, round(self.d_ff * fraction)))

    def build(self, d_model: int) -> ChannelMixingNetwork:
        """Return the module `ChannelMixingNetwork`. See `FeedForward.build`."""
        return ChannelMixingNetwork(self, d_model)


class ChannelMixingNetwork(FeedForwardModule):
    """Module of RWKV's channel mixing.

        output_t = sigmoid(r_t W_receptance) * (relu(k_t W_key)^2 W_value)
        k_t = mix_key * x_t + (1 - mix_key) * x_t-1
        r_t = mix_receptance * x_t + (1 - mix_receptance) * x_t-1

    `mix_key` and `mix_receptance`, [D], are parameters. Source: Peng et al. 2023, section 3.1.
    """

    parallel: ClassVar[Mapping[str, str]] = {"value": "row"}

    def __init__(self, part: ChannelMixing, width: int) -> None:
        super().__init__(part, width)
        self.mix_key = nn.Parameter(torch.ones(width))
        self.mix_receptance = nn.Parameter(torch.ones(width))
        self.key = nn.Linear(width, part.d_ff, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(part.d_ff, width, bias=False)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize the mixing weights of token shift, and set two matrices to zero.

        These are the receptance and value matrices. See `TimeMixingModule.reset_parameters`.
        """
        self.mix_key.copy_(initial_mix_weights(len(self.mix_key)))
        self.mix_receptance.copy_(initial_mix_weights(len(self.mix_key)))
        for weight in (self.receptance.weight, self.value.weight):
            weight.zero_()

    def new_state(self, slots: int, length: int, like: Tensor) -> State:
        """Return an empty state, which holds the hidden state of the last token: [slots, D]."""
        return State(like.new_zeros(slots, len(self.mix_key)))

    def forward(
        self, x: Tensor, sequence: SequenceInfo | None = None, state: State | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output [B, T, D], and None because there is no auxiliary loss.

        If `sequence` is None, each row is a single sequence, without packing or padding.
        """
        sequence = SequenceInfo.of_length(x.shape[1], x.device) if sequence is None else sequence
        cache_slice = sequence.cache_slice
        kept = state.read(cache_slice)[0] if state is not None and cache_slice is not None else None
        before, last = shift_tokens(x, sequence, kept)
        key, receptance = (
            torch.lerp(before, x, mix.to(x.dtype)) for mix in (self.mix_key, self.mix_receptance)
        )
        if state is not None and cache_slice is not None:
            state.write(cache_slice, last)
        return self.receptance(receptance).sigmoid() * self.value(F.relu(self.key(key)) ** 2), None
