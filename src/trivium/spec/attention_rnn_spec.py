"""The spec of a recurrent encoder-decoder with attention (Bahdanau et al. 2015)."""

from __future__ import annotations

from typing import ClassVar, Literal

from trivium.errors import SpecError
from trivium.spec.base_spec import Spec, projecting_head_input
from trivium.spec.heads import HeadInput
from trivium.spec.part import Count, DropoutRate


class AttentionRNNSpec(Spec):
    """A bidirectional GRU reads the source, and a GRU with attention to it writes the target.

        e_ij = v . tanh(W s_(i-1) + U h_j)      a_ij = softmax_j(e_ij)      c_i = sum_j a_ij h_j
        s_i  = GRU(s_(i-1), y_(i-1), c_i)       s_0 = tanh(W_s h_1), of the backward half of h_1
        t_i  = maxout(U_o s_i + V_o y_(i-1) + C_o c_i)

    Token vectors are `d_model` wide, both GRUs `d_hidden` in each direction, v `d_attention`, and
    t_i `d_readout`, of which each number is the larger of two; a head reads t_i. A tied head has a
    matrix from t_i to `d_model`.

    Source: Bahdanau et al. 2015, sections 3.1 and 3.2 and appendix A. Their readout takes s_(i-1)
    in the appendix and s_i in equation 4, as here. The encoder's GRU is cuDNN's, with biases.

    Args:
        source_vocab_size: of the encoder, where it has a vocabulary of its own.
        initialization: "published", N(0, 0.01^2) and orthogonal recurrent matrices; or "glorot"
            for all others, which learns faster in short runs.
    """

    aligns: ClassVar[bool] = True  # one weight a source token
    kind: Literal["attention-rnn"] = "attention-rnn"
    source_vocab_size: Count | None = None
    d_hidden: Count
    d_attention: Count
    d_readout: Count
    initialization: Literal["published", "glorot"] = "published"
    dropout: DropoutRate = 0.0

    def check(self) -> None:
        """Raise SpecError for a head that reads both sides of a token."""
        super().check()
        for head in self.heads:
            if head.reads_both_sides:
                raise SpecError(
                    f"a recurrent encoder-decoder has no {head.kind} head: its decoder predicts "
                    "from the left, with an lm head."
                )

    @property
    def family(self) -> Literal["encoder-decoder"]:
        """It translates."""
        return "encoder-decoder"

    @property
    def source_size(self) -> int:
        """Entries of the vocabulary of its input."""
        return self.source_vocab_size or self.vocab_size

    def kept_bytes(self, length: int, item: int, *, on_cpu: bool, recompute: bool = False) -> int:
        """Gates and states as of an RNN; of each target token tanh(W s + U h_j) of the source."""
        encoder = 2 * (10 * self.d_hidden + self.d_model) + self.d_attention
        decoder = 16 * self.d_hidden + 2 * self.d_model + 6 * self.d_readout
        return 4 * (encoder + decoder + length * (self.d_attention + 3))

    @property
    def head_input(self) -> HeadInput:
        """What the heads are built with."""
        return projecting_head_input(self, self.d_readout, self.dropout)
