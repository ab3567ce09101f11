"""The Transformer: one stack, one model for every family.

Shape letters: B batch, T query positions, S positions of the encoder, M selected positions,
D d_model, E width of token vectors, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError
from trivium.models.base_model import HeadedModel, build_heads, empty_table, refuse
from trivium.nn.block import Block, Memory
from trivium.nn.kv_cache import KVCache, LayerCacheView
from trivium.nn.mask import Mask
from trivium.nn.norm import build_norm
from trivium.nn.positions import (
    LinearBias,
    RelativePositionBias,
    Rotation,
    build_positions,
    check_length,
)


class InputEmbedding(nn.Module):
    """Token vectors -> input of the first block: scale, positions, token types, norm, width."""

    def __init__(self, embedding: spec.Embedding, width: int, dropout: float) -> None:
        super().__init__()
        self.scale, self.dropout = embedding.scale, dropout
        factorised, inner = embedding.factorised, width
        self.project_tokens = self.project_sum = None
        if factorised:
            projection = nn.Linear(factorised.width, width, bias=factorised.bias)
            if factorised.projected == "sum":
                self.project_sum, inner = projection, factorised.width
            else:
                self.project_tokens = projection
        self.positions = build_positions(embedding.positions, inner)
        self.token_types = None
        if embedding.num_token_types:
            self.token_types = empty_table(embedding.num_token_types, inner)
        self.norm = build_norm(embedding.norm, inner)

    def forward(
        self, tokens: Tensor, position_ids: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """[B, T, E] -> [B, T, D]; without token types all are of sentence A."""
        x = tokens if self.scale == 1.0 else tokens * self.scale
        if self.project_tokens is not None:
            x = self.project_tokens(x)
        if self.positions is not None:
            x = x + self.positions(position_ids).to(x.dtype)
        if self.token_types is not None:
            if token_type_ids is None:
                token_type_ids = position_ids.new_zeros(1)
            x = x + self.token_types(token_type_ids)
        x = F.dropout(self.norm(x), self.dropout, self.training)
        return x if self.project_sum is None else self.project_sum(x)


class TransformerStack(nn.Module):
    """Positions, the blocks of an encoder or a decoder and, after pre-norm blocks, a last norm."""

    def __init__(self, model: spec.ModelSpec, stack: spec.Stack, *, is_decoder: bool) -> None:
        super().__init__()
        width, crosses = model.d_model, is_decoder and model.encoder is not None
        self.spec, self.causal = stack, is_decoder
        self.embedding = InputEmbedding(model.embedding, width, stack.dropout)
        self.layers = nn.ModuleList(
            Block(stack, i, width, crosses=crosses) for i in range(stack.distinct_layers)
        )
        self.norm = build_norm(stack.norm if stack.norm_order == "pre" else None, width)
        self.position_bias: RelativePositionBias | LinearBias | None = None
        for attention in stack.attentions:  # the spec allows one kind of bias in a stack
            match attention.positions:
                case spec.RelativeBias() as bias:
                    heads = attention.num_heads
                    self.position_bias = RelativePositionBias(
                        bias, heads, bidirectional=not is_decoder
                    )
                case spec.ALiBi():
                    self.position_bias = LinearBias(attention.num_heads)
                case spec.Rotary() | None:
                    pass
        # Rotations and biases are computed for every kind of attention, not for every layer.
        kinds = [(attention.positions, attention.head_dim) for attention in stack.attentions]
        self.kinds = list(dict.fromkeys(kinds))
        self.kind_of_layer = [self.kinds.index(kind) for kind in kinds]

    @property
    def blocks(self) -> list[Block]:
        """The block of every layer: shared ones several times."""
        distinct: list[Block] = list(self.layers)  # type: ignore[assignment]
        return [distinct[self.spec.block_of(i)] for i in range(self.spec.num_layers)]

    def forward(
        self,
        tokens: Tensor,
        mask: Mask,
        position_ids: Tensor,
        *,
        token_type_ids: Tensor | None = None,
        memory: Memory | None = None,
        cache: Sequence[LayerCacheView] | None = None,
        select: Tensor | None = None,
    ) -> Tensor:
        """Token vectors [B, T, E] -> hidden states [B, T, D]; with `select` [M] those: [M, D].

        `cache` has an entry for every layer; the other arguments are as in `Transformer.forward`.
        """
        x = self.embedding(tokens, position_ids, token_type_ids)
        length = tokens.shape[1]
        # Distances between columns: padding before a text does not change them.
        columns = mask.query_positions(length, tokens.device)
        keys = cache[0].span.end if cache else length
        of_kind = [self._rope_and_bias(*kind, position_ids, columns, keys) for kind in self.kinds]
        for i, block in enumerate(self.blocks):
            rope, position_bias = of_kind[self.kind_of_layer[i]]
            x = block(
                x,
                mask,
                rope=rope,
                position_bias=position_bias,
                memory=memory,
                cache=cache[i] if cache else None,
                select=select if i == self.spec.num_layers - 1 else None,
            )
        return self.norm(x)

    def _rope_and_bias(
        self,
        positions: spec.RelativePositions | None,
        head_dim: int,
        position_ids: Tensor,
        columns: Tensor,
        keys: int,
    ) -> tuple[Rotation | None, Tensor | None]:
        """Rotation and bias of one kind of attention, for all its layers."""
        match positions:
            case spec.Rotary():
                return Rotation(positions, head_dim, position_ids), None
            case spec.RelativeBias() | spec.ALiBi():
                assert self.position_bias is not None
                distance = torch.arange(keys, device=columns.device) - columns[..., None]
                return None, self.position_bias(distance)
            case None:
                return None, None


class Transformer(HeadedModel):
    """Encoder-only, decoder-only or encoder-decoder model; `spec.family` says which.

    The forward pass gives hidden states; heads turn them into logits, or straight into a loss
    with a bounded number of logits at a time.
    """

    def __init__(self, model: spec.ModelSpec) -> None:
        super().__init__()
        self.spec = model
        self.tokens = empty_table(model.vocab_size, model.d_embedding)
        self.source_tokens = None
        if model.source_vocab_size:
            self.source_tokens = empty_table(model.source_vocab_size, model.d_embedding)
        self.encoder = self.decoder = None
        if model.encoder:
            self.encoder = TransformerStack(model, model.encoder, is_decoder=False)
        if model.decoder:
            self.decoder = TransformerStack(model, model.decoder, is_decoder=True)
        self.heads = build_heads(model)

    @property
    def stacks(self) -> Iterator[TransformerStack]:
        """The stacks there are, encoder first."""
        return (stack for stack in (self.encoder, self.decoder) if stack is not None)

    @property
    def num_token_types(self) -> int:
        """Token types (sentence A and B) that the model embeds."""
        return self.spec.embedding.num_token_types

    @property
    def blocks(self) -> Iterator[Block]:
        """The layers of every stack."""
        return (layer for stack in self.stacks for layer in stack.layers)  # type: ignore[misc]

    def compile_blocks(self) -> None:
        """Compile every layer by itself: layers alike share one compilation."""
        for layer in self.blocks:
            layer.compile()

    def new_cache(self, slots: int, slot_length: int) -> KVCache:
        """An empty cache for `forward`, of `slots` texts that are read and extended step by step.

        Args:
            slots: texts that it can hold at a time.
            slot_length: tokens of each, prompts included.

        Raises:
            SpecError: the model has no decoder, or its positions end before `slot_length`.
        """
        if self.decoder is None:
            raise SpecError("an encoder attends to every token at once: it has no cache.")
        check_length(slot_length, self.spec.max_length)
        return KVCache(
            self.decoder.spec,
            slots,
            slot_length,
            dtype=self.dtype,
            device=self.device,
            cross_projections=[
                block.cross_attention.project
                for block in self.decoder.blocks
                if block.cross_attention is not None
            ],
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
        select: Tensor | None = None,
        cache: KVCache | None = None,
        slots: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of the last layer: of the decoder where there is one.

        Args:
            input_ids: int64 [B, T]; of an encoder-decoder the encoder's input, None with a cache
                that holds the encoder's output (`KVCache.set_memory`).
            attention_mask: [B, T], nonzero where a token is real.
            token_type_ids: int64 [B, T], sentence A (0) or B (1).
            position_ids: int64 [B, T]; None: counted as the model's positions say.
            document_ids: int64 [B, T]; tokens attend to their own document only. Of an
                encoder-decoder it concerns the encoder's self-attention.
            decoder_input_ids: int64 [B, T], the decoder's input of an encoder-decoder.
            decoder_attention_mask: [B, T], as `attention_mask` for the decoder.
            prefix_lengths: int64 [B]: that many first tokens of the decoder's input are attended
                to by all others, also by those before them (a prefix language model).
            select: int64 [M], ascending flat positions in B * T whose hidden states are wanted;
                the last feed-forward network runs for them alone.
            cache: earlier tokens of the decoder, extended in place by its input.
            slots: int64 [B], with a cache: the slot of every row; None: the first B slots, which
                are read without a copy.
            lengths: int64 [B], with a cache: real tokens of every row, which is padded on the
                right; None: all. What a row writes after its length is never attended to.

        Returns:
            [B, T, D], or [M, D] with `select`.

        Raises:
            SpecError: the input is longer than the model's positions or the cache, or an input of
                the wrong family.
        """
        if (decoder_input_ids is not None) != (self.spec.family == "encoder-decoder"):
            have = "needs" if decoder_input_ids is None else "takes no"
            raise SpecError(f"this model is {self.spec.family} and {have} decoder_input_ids.")
        memory = None
        if self.encoder is not None:
            if input_ids is not None:
                hidden = self.encode(
                    input_ids,
                    attention_mask=attention_mask,
                    token_type_ids=token_type_ids,
                    position_ids=position_ids,
                    document_ids=document_ids,
                    select=select if self.decoder is None else None,
                )
                if self.decoder is None:
                    refuse("an encoder takes no", cache=cache, prefix_lengths=prefix_lengths)
                    return hidden
                memory = Memory(hidden, Mask(padding=attention_mask))
            input_ids, attention_mask = decoder_input_ids, decoder_attention_mask
            token_type_ids = position_ids = document_ids = None
        if self.decoder is None or input_ids is None:
            raise SpecError("input_ids is missing: the model has nothing to read.")
        span = None
        if cache is None:
            refuse("without a cache a model takes no", slots=slots, lengths=lengths)
        else:
            refuse("a cache takes no", attention_mask=attention_mask, document_ids=document_ids)
            span = cache.begin(len(input_ids), input_ids.shape[1], slots, lengths)
            if memory is None and cache.memory_mask is not None:
                memory = Memory(None, Mask(padding=cache.memory_mask[span.rows]))
        mask = Mask(
            causal=True,
            padding=attention_mask,
            documents=document_ids,
            prefix=prefix_lengths,
            start=span.start if span else 0,
        )
        hidden = self.decoder(
            self.tokens(input_ids),
            mask,
            self._positions(input_ids, position_ids, mask, is_cached=cache is not None),
            token_type_ids=token_type_ids,
            memory=memory,
            cache=cache.at(span) if cache is not None and span is not None else None,
            select=select,
        )
        if cache is not None and span is not None:
            cache.advance(span)
        return hidden

    def encode(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        select: Tensor | None = None,
    ) -> Tensor:
        """The encoder alone; arguments and result as in `forward`."""
        if self.encoder is None:
            raise SpecError(f"this model is {self.spec.family}: it has no encoder.")
        table = self.tokens if self.source_tokens is None else self.source_tokens
        mask = Mask(padding=attention_mask, documents=document_ids)
        return self.encoder(
            table(input_ids),
            mask,
            self._positions(input_ids, position_ids, mask),
            token_type_ids=token_type_ids,
            select=select,
        )

    def _positions(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None,
        mask: Mask,
        *,
        is_cached: bool = False,
    ) -> Tensor:
        """Positions in the text, [1 or B, T]: `position_ids`, or the number of tokens before."""
        length, end = input_ids.shape[1], self.spec.max_length
        if not is_cached and (mask.documents is None or position_ids is None):
            check_length(length, end)
        if position_ids is not None:
            return position_ids
        if not is_cached and (counted := self._counted(input_ids, mask)) is not None:
            return counted.cumsum(1) * counted - 1
        positions = mask.query_positions(length, input_ids.device)
        # Padding after the tokens of a slot may lie beyond the last position.
        return positions.clamp(max=end - 1) if is_cached and end is not None else positions

    def _counted(self, input_ids: Tensor, mask: Mask) -> Tensor | None:
        """Int64 [B, T], 1 for a token that later positions count; None: all."""
        learned = self.spec.embedding.positions
        if not isinstance(learned, spec.Learned) or learned.counted == "all":
            return None
        if learned.counted == "not-padding":
            return (input_ids != learned.offset - 1).long()
        return None if mask.padding is None else mask.padding.bool().long()
