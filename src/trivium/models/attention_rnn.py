"""A recurrent encoder-decoder with additive attention (Bahdanau et al. 2015).

Shape letters: B batch, T positions of the target, S of the source, M selected positions, D width
of token vectors, C of the cells, A of the attention, R of the readout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.models.base_model import (
    LanguageModule,
    Spec,
    build_heads,
    projecting_head_input,
    refuse,
)
from trivium.models.heads import HeadInput
from trivium.models.rnn import RNNSpec, find_sequences
from trivium.nn.part import Count, DropoutRate, empty_table
from trivium.nn.recurrent import RecurrentLayers
from trivium.nn.state import Cache, State, state_like


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

    def build(self) -> AttentionRNN:
        """See `Spec.build`."""
        return AttentionRNN(self)


class Attended(NamedTuple):
    """What a decoder attends to: U h [B, S, A], h [B, S, 2 C], which are real [B, S]."""

    keys: Tensor
    values: Tensor
    real: Tensor


class Written(NamedTuple):
    """States [B, T, C], contexts c [B, T, 2 C] and attention weights [B, T, S] of a target."""

    states: Tensor
    contexts: Tensor
    weights: Tensor


class AttentionDecoder(nn.Module):
    """A GRU whose every step reads a weighted sum of the source.

        z, r = sigmoid(W_z y + U_z s + C_z c), sigmoid(W_r y + U_r s + C_r c)
        s'   = (1 - z) s + z tanh(W y + U (r s) + C c)

    `inputs`, `attended` and `gates` hold the matrices of z, r and, but `gates`, of the candidate,
    one after another. Source: Bahdanau et al. 2015, appendix A.1.1 and A.2.2.
    """

    def __init__(self, model: AttentionRNNSpec) -> None:
        super().__init__()
        self.d_hidden = cells = model.d_hidden
        both = 2 * cells
        self.start = nn.Linear(cells, cells)
        self.query = nn.Linear(cells, model.d_attention, bias=False)
        self.key = nn.Linear(both, model.d_attention)
        self.score = nn.Parameter(torch.empty(model.d_attention))
        self.inputs = nn.Linear(model.d_model, 3 * cells)
        self.attended = nn.Linear(both, 3 * cells, bias=False)
        self.gates = nn.Linear(cells, 2 * cells, bias=False)
        self.candidate = nn.Linear(cells, cells, bias=False)
        self.readout = nn.Linear(cells + model.d_model + both, 2 * model.d_readout)

    def first_state(self, source: Attended) -> Tensor:
        """s_0 = tanh(W_s h_1) of the backward reading: [B, C]."""
        first = source.real.int().argmax(1)
        ends = source.values[torch.arange(len(first), device=first.device), first]
        state = torch.tanh(self.start(ends[:, self.d_hidden :]))
        return state.to(torch.promote_types(state.dtype, torch.float32))

    def weights(self, state: Tensor, source: Attended) -> Tensor:
        """a_i: how much the token after a state attends to each of the source: [B, S]."""
        features = torch.tanh(self.query(state)[:, None] + source.keys)
        scores = features @ self.score.to(features.dtype)
        return scores.masked_fill(~source.real, torch.finfo(scores.dtype).min).softmax(-1)

    def forward(
        self, vectors: Tensor, source: Attended, state: Tensor, real: Tensor | None
    ) -> Written:
        """Read the vectors of a target, [B, T, D], from a state [B, C] on.

        Where `real` [B, T] is False, the state stays as it was.
        """
        width, steps = self.d_hidden, []
        for step, y in enumerate(self.inputs(vectors).unbind(1)):
            low = state.to(y.dtype)  # matrices are read in the precision of the model
            weights = self.weights(low, source)
            context = (weights[:, None].to(source.values.dtype) @ source.values)[:, 0]
            read = y + self.attended(context.to(y.dtype))
            gates, candidate = read.split((2 * width, width), -1)
            z, r = torch.sigmoid(gates + self.gates(low)).chunk(2, -1)
            candidate = candidate + self.candidate((r * state).to(y.dtype))
            new = (1 - z) * state + z * torch.tanh(candidate)
            state = new if real is None else torch.where(real[:, step, None], new, state)
            steps.append((state, context, weights))
        return Written(*(torch.stack(parts, 1) for parts in zip(*steps, strict=True)))

    def read_out(self, state: Tensor, vectors: Tensor, context: Tensor) -> Tensor:
        """t: [..., C], [..., D], [..., 2 C] -> [..., R]."""
        parts = torch.cat((state.to(vectors.dtype), vectors, context.to(vectors.dtype)), -1)
        return self.readout(parts).unflatten(-1, (-1, 2)).amax(-1)


class AttentionRNN(LanguageModule):
    """Encoder, decoder and token vectors; the hidden states are t."""

    def __init__(self, model: AttentionRNNSpec) -> None:
        super().__init__()
        self.spec = model
        self.tokens = empty_table(model.vocab_size, model.d_model)
        self.source_tokens = None
        if model.source_vocab_size:
            self.source_tokens = empty_table(model.source_vocab_size, model.d_model)
        self.encoder = RecurrentLayers(
            RNNSpec(
                vocab_size=model.source_size,
                d_model=model.d_model,
                cell="gru",
                d_hidden=model.d_hidden,
                num_layers=1,
                direction="both",
            )
        )
        self.decoder = AttentionDecoder(model)
        self.heads = build_heads(model)

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """Encoder and decoder."""
        return iter((self.encoder, self.decoder))

    def new_cache(self, slots: int, slot_length: int) -> Cache:
        """See `LanguageModule.new_cache`. The state of the decoder has a size of its own."""
        state = state_like(self.tokens.weight).new_zeros(slots, self.spec.d_hidden)
        return Cache(
            slots, slot_length, [State(state)], device=self.device, projections=[self._project]
        )

    def encode(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        **unused: Any,
    ) -> Tensor:
        """h, what both directions have read: [B, S] -> [B, S, 2 C]; arguments as in `forward`."""
        table = self.tokens if self.source_tokens is None else self.source_tokens
        vectors = F.dropout(table(input_ids), self.spec.dropout, self.training)
        sequences = find_sequences(input_ids, attention_mask, document_ids)
        return self.encoder(vectors, sequences=sequences)[0]

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        select: Tensor | None = None,
        cache: Cache | None = None,
        slots: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Hidden states t of the decoder: [B, T, R], or [M, R] with `select`.

        Arguments are as in `Transformer.read`. Padding leaves a state as it was; documents are the
        encoder's. Gradients end at what a cache holds.

        Raises:
            SpecError: no input of the decoder, or nothing that it attends to.
        """
        if decoder_input_ids is None:
            raise SpecError("this model is encoder-decoder and needs decoder_input_ids.")
        source = None
        if input_ids is not None:
            limits = {"attention_mask": attention_mask, "document_ids": document_ids}
            source = self._source(self.encode(input_ids, **limits), attention_mask)
        vectors = self.tokens(decoder_input_ids)
        vectors = F.dropout(vectors, self.spec.dropout, self.training)
        if cache is None:
            refuse("without a cache a model takes no", slots=slots, lengths=lengths)
            written = self._write(vectors, source, decoder_attention_mask)
        else:
            refuse("a cache takes no", decoder_attention_mask=decoder_attention_mask)
            rows, length = decoder_input_ids.shape
            span = cache.begin(rows, length, slots, lengths)
            if source is None and cache.source_mask is not None:
                keys, values = (part[:, 0] for part in cache.sources[0].read(span))
                source = Attended(keys, values, cache.source_mask[span.rows])
            (state,) = cache.states[0].read(span)
            begins = span.columns(self.device)[:, :1] == 0
            written = self._write(vectors, source, span.real(self.device), state, begins)
            cache.states[0].write(span, written.states[:, -1])
            cache.advance(span)
        parts = written.states, vectors, written.contexts
        if select is not None:
            parts = tuple(part.flatten(0, 1).index_select(0, select) for part in parts)
        return F.dropout(self.decoder.read_out(*parts), self.spec.dropout, self.training)

    def alignments(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        """The attention weights of every target token: [B, T, S]; arguments as in `forward`."""
        real, written = inputs.get("attention_mask"), inputs.get("decoder_attention_mask")
        source = self._source(self.encode(input_ids, **inputs), real)
        return self._write(self.tokens(inputs["decoder_input_ids"]), source, written).weights

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw all weights; biases and v are 0 (appendix B.1), with "glorot" v as the others."""
        cells, glorot = self.spec.d_hidden, self.spec.initialization == "glorot"
        tables = {id(table) for table in self.vocabulary_tables}
        recurrent = (".weight_hh_", "decoder.gates.", "decoder.candidate.")
        for name, weight in self.named_parameters():
            if weight.ndim == 1 and not (glorot and name == "decoder.score"):
                weight.zero_()
            elif any(part in f".{name}" for part in recurrent):
                for gate in weight.split(cells):
                    nn.init.orthogonal_(gate, generator=generator)
            elif glorot and id(weight) not in tables and not name.startswith("source_tokens"):
                inputs, outputs = weight.shape[-1], len(weight) if weight.ndim > 1 else 1
                weight.uniform_(-1, 1, generator=generator)
                weight.mul_(math.sqrt(6.0 / (inputs + min(outputs, cells))))
            else:
                small = any(part in name for part in ("decoder.query", "decoder.key"))
                std = 0.1 if glorot else 0.001 if small else 0.01
                weight.normal_(0.0, std, generator=generator)

    def _project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [B, 1, S, A] and values [B, 1, S, 2 C] of the encoder's output [B, S, 2 C]."""
        keys = self.decoder.key(hidden)
        return keys[:, None], hidden[:, None].to(keys.dtype)  # cast once, not in every step

    def _source(self, hidden: Tensor, attention_mask: Tensor | None) -> Attended:
        keys, values = (part[:, 0] for part in self._project(hidden))
        if attention_mask is None:
            attention_mask = torch.ones(hidden.shape[:2], device=hidden.device)
        return Attended(keys, values, attention_mask.bool())

    def _write(
        self,
        vectors: Tensor,
        source: Attended | None,
        real: Tensor | None,
        state: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> Written:
        """From a state [B, C] on; where a text `begins`, [B, 1], or without one, from s_0."""
        if source is None:
            raise SpecError("input_ids is missing: the model has nothing to read.")
        first = self.decoder.first_state(source)
        if state is not None and begins is not None:
            first = torch.where(begins, first, state.to(first.dtype))
        return self.decoder(vectors, source, first, None if real is None else real.bool())
