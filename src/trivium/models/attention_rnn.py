"""A recurrent encoder-decoder with additive attention (Bahdanau et al. 2015).

Shape letters: B batch, T target positions, S source positions, M selected positions, D width of
token embeddings, C width of the cells, A width of the attention, R width of the readout.
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
    projecting_head_config,
    refuse,
)
from trivium.models.heads import HeadInput
from trivium.models.rnn import RNNSpec, find_sequences
from trivium.nn.part import Count, DropoutRate, empty_embedding
from trivium.nn.recurrent import RecurrentLayers
from trivium.nn.sequence_info import gather
from trivium.nn.state import Cache, State, make_state_template


class AttentionRNNSpec(Spec):
    """The spec of a recurrent encoder-decoder: bidirectional GRU, and GRU with attention.

        e_ij = v . tanh(W s_(i-1) + U h_j)      a_ij = softmax_j(e_ij)      c_i = sum_j a_ij h_j
        s_i  = GRU(s_(i-1), y_(i-1), c_i)       s_0 = tanh(W_s h_1), of the backward half of h_1
        t_i  = maxout(U_o s_i + V_o y_(i-1) + C_o c_i)

    Here h_j are the encoder states, s_i the decoder states, y_i the target's token embeddings, c_i
    the contexts and t_i the outputs of the readout layer, which heads read. The widths are
    `d_model` for token embeddings, `d_hidden` for both GRUs (per direction), `d_attention` for v
    and `d_readout` for t_i. Maxout takes the larger of two numbers. A tied head has a projection
    from t_i to `d_model`.

    Source: Bahdanau et al. 2015, sections 3.1 and 3.2 and appendix A. The paper's readout uses
    s_(i-1) in the appendix and s_i in equation 4, as here. The encoder is cuDNN's GRU, with biases.

    Args:
        source_vocab_size: the encoder's vocabulary size, if it has a separate vocabulary.
        initialization: "published": matrices from N(0, 0.01^2), except W and U from N(0, 0.001^2)
            and orthogonal recurrent matrices. "glorot", which speeds up training in short runs:
            embeddings from N(0, 0.1^2), recurrent matrices orthogonal, all others Glorot.
    """

    aligns: ClassVar[bool] = True  # one attention weight per source token
    kind: Literal["attention-rnn"] = "attention-rnn"
    source_vocab_size: Count | None = None
    d_hidden: Count
    d_attention: Count
    d_readout: Count
    initialization: Literal["published", "glorot"] = "published"
    dropout: DropoutRate = 0.0

    def check(self) -> None:
        """Raise SpecError for a head that needs bidirectional context."""
        super().check()
        for head in self.heads:
            if head.needs_bidirectional:
                raise SpecError(
                    f"a recurrent encoder-decoder has no {head.kind} head: its decoder predicts "
                    "from the left, with an lm head."
                )

    @property
    def family(self) -> Literal["encoder-decoder"]:
        """The architecture, always encoder-decoder."""
        return "encoder-decoder"

    @property
    def input_vocab_size(self) -> int:
        """The vocabulary size of the encoder's input (the source)."""
        return self.source_vocab_size or self.vocab_size

    def activation_bytes(
        self, length: int, item: int, *, on_cpu: bool, recompute: bool = False
    ) -> int:
        """Return the number of activation bytes per token kept for the backward pass in training.

        They are gates, states and, for each source token, tanh(W s + U h_j), in float32.
        """
        encoder = 2 * (10 * self.d_hidden + self.d_model) + self.d_attention
        decoder = 16 * self.d_hidden + 2 * self.d_model + 6 * self.d_readout
        return 4 * (encoder + decoder + length * (self.d_attention + 3))

    @property
    def head_config(self) -> HeadInput:
        """The sizes and settings for building heads, which read the output of the readout layer."""
        return projecting_head_config(self, self.d_readout, self.dropout)

    def build(self) -> AttentionRNN:
        """Return the module with uninitialized weights (see `Spec.build`)."""
        return AttentionRNN(self)


class AttentionSource(NamedTuple):
    """The encoder states h that the decoder attends to.

    There are keys U h [B, S, A], values h [B, S, 2 C], and `is_token` [B, S], False for padding.
    """

    keys: Tensor
    values: Tensor
    is_token: Tensor


class DecoderOutput(NamedTuple):
    """The decoder's states [B, T, C], contexts [B, T, 2 C] and attention weights [B, T, S]."""

    states: Tensor
    contexts: Tensor
    attn_weights: Tensor


class AttentionDecoder(nn.Module):
    """A GRU decoder that computes additive attention over the source in every step.

        z, r = sigmoid(W_z y + U_z s + C_z c), sigmoid(W_r y + U_r s + C_r c)
        s'   = (1 - z) s + z tanh(W y + U (r s) + C c)

    `inputs` contains W_z, W_r and W, `attended` contains C_z, C_r and C, `gates` contains U_z and
    U_r, and `candidate` is U. Source: Bahdanau et al. 2015, appendix A.1.1 and A.2.2.
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

    def initial_state(self, source: AttentionSource) -> Tensor:
        """Return the decoder's initial state s_0 = tanh(W_s h_1), [B, C].

        h_1 is the state of the encoder's backward direction at the first token.
        """
        first = source.is_token.int().argmax(1)
        ends = source.values[torch.arange(len(first), device=first.device), first]
        state = torch.tanh(self.start(ends[:, self.d_hidden :]))
        return state.to(torch.promote_types(state.dtype, torch.float32))

    def attn_weights(self, state: Tensor, source: AttentionSource) -> Tensor:
        """Return the attention weights over the source, [B, S], for the decoder's state [B, C]."""
        features = torch.tanh(self.query(state)[:, None] + source.keys)
        scores = features @ self.score.to(features.dtype)
        return scores.masked_fill(~source.is_token, torch.finfo(scores.dtype).min).softmax(-1)

    def forward(
        self, embeds: Tensor, source: AttentionSource, state: Tensor, is_token: Tensor | None
    ) -> DecoderOutput:
        """Run the decoder on the target's token embeddings [B, T, D], from a given state [B, C].

        At positions where `is_token` [B, T] is False (padding), the state does not change.
        """
        width, steps = self.d_hidden, []
        for step, y in enumerate(self.inputs(embeds).unbind(1)):
            rounded_state = state.to(y.dtype)  # matrices are read in the precision of the model
            attn_weights = self.attn_weights(rounded_state, source)
            context = (attn_weights[:, None].to(source.values.dtype) @ source.values)[:, 0]
            read = y + self.attended(context.to(y.dtype))
            gates, candidate = read.split((2 * width, width), -1)
            z, r = torch.sigmoid(gates + self.gates(rounded_state)).chunk(2, -1)
            candidate = candidate + self.candidate((r * state).to(y.dtype))
            new = (1 - z) * state + z * torch.tanh(candidate)
            state = new if is_token is None else torch.where(is_token[:, step, None], new, state)
            steps.append((state, context, attn_weights))
        return DecoderOutput(*(torch.stack(parts, 1) for parts in zip(*steps, strict=True)))

    def compute_readout(self, state: Tensor, embeds: Tensor, context: Tensor) -> Tensor:
        """Return the outputs of the readout (maxout) layer, t in the paper, [..., R].

        Inputs are decoder states [..., C], token embeddings [..., D] and contexts [..., 2 C].
        """
        parts = torch.cat((state.to(embeds.dtype), embeds, context.to(embeds.dtype)), -1)
        return self.readout(parts).unflatten(-1, (-1, 2)).amax(-1)


class AttentionRNN(LanguageModule):
    """Recurrent encoder-decoder with attention (Bahdanau et al. 2015).

    Its hidden states are the outputs of the readout (maxout) layer, t in the paper.
    """

    def __init__(self, model: AttentionRNNSpec) -> None:
        super().__init__()
        self.spec = model
        self.tokens = empty_embedding(model.vocab_size, model.d_model)
        self.source_tokens = None
        if model.source_vocab_size:
            self.source_tokens = empty_embedding(model.source_vocab_size, model.d_model)
        self.encoder = RecurrentLayers(
            RNNSpec(
                vocab_size=model.input_vocab_size,
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
        """The encoder and the decoder."""
        return iter((self.encoder, self.decoder))

    @property
    def has_fixed_shapes(self) -> bool:
        """True. See `LanguageModule.has_fixed_shapes`."""
        return True

    def new_cache(self, slots: int, slot_length: int) -> Cache:
        """Return an empty cache of decoder states, whose size does not depend on `slot_length`."""
        state = make_state_template(self.tokens.weight).new_zeros(slots, self.spec.d_hidden)
        return Cache(
            slots, slot_length, [State(state)], device=self.device, projections=[self._project_kv]
        )

    def encode(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        **unused: Any,
    ) -> Tensor:
        """Return the encoder's states [B, S, 2 C], both directions concatenated.

        Arguments are as in `forward`; `unused` are ignored.
        """
        table = self.tokens if self.source_tokens is None else self.source_tokens
        embeds = F.dropout(table(input_ids), self.spec.dropout, self.training)
        sequences = find_sequences(input_ids, attention_mask, document_ids)
        return self.encoder(embeds, sequences=sequences)[0]

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        gather_positions: Tensor | None = None,
        cache: Cache | None = None,
        slots: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Return the outputs of the readout layer [B, T, R], or [M, R] with `gather_positions`.

        They are the hidden states that heads read. Arguments are as in `Transformer.read`;
        `position_ids` are not used. Padding leaves the recurrent state unchanged. `document_ids`
        apply to the encoder's input. No gradient flows into the cache.

        Raises:
            SpecError: the decoder's input is missing, or there is no source to attend to (neither
                `input_ids` nor encoder states in the cache).
        """
        if decoder_input_ids is None:
            raise SpecError("this model is encoder-decoder and needs decoder_input_ids.")
        source = None
        if input_ids is not None:
            limits = {"attention_mask": attention_mask, "document_ids": document_ids}
            source = self._attention_source(self.encode(input_ids, **limits), attention_mask)
        embeds = self.tokens(decoder_input_ids)
        embeds = F.dropout(embeds, self.spec.dropout, self.training)
        if cache is None:
            refuse("without a cache a model takes no", slots=slots, lengths=lengths)
            written = self._decode(embeds, source, decoder_attention_mask)
        else:
            refuse("a cache takes no", decoder_attention_mask=decoder_attention_mask)
            rows, length = decoder_input_ids.shape
            cache_slice = cache.start_pass(rows, length, slots, lengths)
            if source is None and cache.source_mask is not None:
                keys, values = (part[:, 0] for part in cache.cross_caches[0].read(cache_slice))
                source = AttentionSource(keys, values, cache.source_mask[cache_slice.rows])
            (state,) = cache.states[0].read(cache_slice)
            starts = cache_slice.columns(self.device)[:, :1] == 0
            written = self._decode(embeds, source, cache_slice.is_token(self.device), state, starts)
            cache.states[0].write(cache_slice, written.states[:, -1])
            cache.end_pass(cache_slice)
        parts = (written.states, embeds, written.contexts)
        parts = (gather(part, gather_positions) for part in parts)
        return F.dropout(self.decoder.compute_readout(*parts), self.spec.dropout, self.training)

    def alignments(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        """Return the decoder's attention weights over the source, [B, T, S].

        Arguments are as in `forward`.
        """
        is_token, written = inputs.get("attention_mask"), inputs.get("decoder_attention_mask")
        source = self._attention_source(self.encode(input_ids, **inputs), is_token)
        return self._decode(self.tokens(inputs["decoder_input_ids"]), source, written).attn_weights

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Initialize all matrices at random, and biases to 0 (appendix B.1).

        The attention vector v is 0, too, except with `initialization` "glorot".
        """
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

    def _project_kv(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return attention keys [B, 1, S, A] and values [B, 1, S, 2 C] of encoder states.

        `hidden` are the encoder's states [B, S, 2 C].
        """
        keys = self.decoder.key(hidden)
        return keys[:, None], hidden[:, None].to(keys.dtype)  # cast once, not in every step

    def _attention_source(self, hidden: Tensor, attention_mask: Tensor | None) -> AttentionSource:
        """Return what the decoder attends to, from encoder states [B, S, 2 C] and padding mask."""
        keys, values = (part[:, 0] for part in self._project_kv(hidden))
        if attention_mask is None:
            attention_mask = torch.ones(hidden.shape[:2], device=hidden.device)
        return AttentionSource(keys, values, attention_mask.bool())

    def _decode(
        self,
        embeds: Tensor,
        source: AttentionSource | None,
        is_token: Tensor | None,
        state: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> DecoderOutput:
        """Run the decoder from `state` [B, C], or from its initial state where a sequence begins.

        `starts`, bool [B, 1], is True for rows in which a sequence begins. Without a `state`, all
        rows start from the initial state.
        """
        if source is None:
            raise SpecError("input_ids is missing: the model has nothing to read.")
        first = self.decoder.initial_state(source)
        if state is not None and starts is not None:
            first = torch.where(starts, first, state.to(first.dtype))
        return self.decoder(embeds, source, first, None if is_token is None else is_token.bool())
