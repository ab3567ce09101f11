"""The Transformer: one stack, one model for every family.

Shape letters: B batch, T query positions, S positions of the encoder, M selected positions,
D d_model, E width of token vectors, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError
from trivium.models.base_model import (
    LanguageModule,
    build_heads,
    empty_table,
    matrix_weights,
    refuse,
)
from trivium.nn.blocks.sequential import Block
from trivium.nn.context import ALONE, Context, EncoderOutput, LayerContext
from trivium.nn.length import check_length
from trivium.nn.norm import build_norm
from trivium.nn.part_module import module_class
from trivium.nn.state import Cache, Span, state_like
from trivium.nn.two_streams import two_streams
from trivium.spec import Learned, ModelSpec


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
        self.positions: nn.Module | None = None
        if embedding.positions is not None:
            self.positions = module_class(embedding.positions)(embedding.positions, inner)
        self.token_types = None
        if embedding.num_token_types:
            self.token_types = empty_table(embedding.num_token_types, inner)
        self.query = empty_table(1, width) if embedding.query_stream else None
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
            if token_type_ids is None or len(self.token_types.weight) == 1:
                token_type_ids = position_ids.new_zeros(1)
            x = x + self.token_types(token_type_ids)
        x = F.dropout(self.norm(x), self.dropout, self.training)
        return x if self.project_sum is None else self.project_sum(x)


class TransformerStack(nn.Module):
    """Positions, the blocks of an encoder or a decoder and, where they have one, a last norm."""

    def __init__(self, model: spec.ModelSpec, stack: spec.Stack, *, is_decoder: bool) -> None:
        super().__init__()
        width, crosses = model.d_model, is_decoder and model.encoder is not None
        self.spec, self.causal = stack, is_decoder
        self.embedding = InputEmbedding(model.embedding, width, stack.dropout)
        block = module_class(stack.block)
        self.layers = nn.ModuleList(
            block(stack, i, width, crosses=crosses) for i in range(stack.distinct_layers)
        )
        self.norm = build_norm(stack.norm if stack.ends_with_norm else None, width)
        # A table for each key that layers have in common, where their mixers have one.
        mixers = {each.mixer.table_key: each.mixer for each in self.every_layer}
        tables = {key: mixer.new_table() for key, mixer in mixers.items()}
        owned = [key for key, table in tables.items() if table is not None]
        self.tables = nn.ModuleList(table for table in tables.values() if table is not None)
        keys = [each.mixer.table_key for each in self.every_layer]
        self._table_of_layer = [owned.index(key) if key in owned else None for key in keys]
        # Layers with equal mixers: the first of them prepares for all.
        self._first_alike = [stack.mixers.index(mixer) for mixer in stack.mixers]

    @property
    def every_layer(self) -> list[Block]:
        """The block of every layer in turn: shared ones several times."""
        distinct: list[Block] = list(self.layers)  # type: ignore[assignment]
        return [distinct[self.spec.block_of(i)] for i in range(self.spec.num_layers)]

    def forward(
        self,
        tokens: Tensor,
        context: Context,
        *,
        token_type_ids: Tensor | None = None,
        late_positions: nn.Module | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Token vectors [B, T, E] -> hidden states [B, T, D], or [M, D] with `context.select`.

        Also the loss that layers add together. `late_positions` are those of a mask decoder, which
        the last layer then is; `cache` holds earlier tokens.
        """
        x, total = self.embedding(tokens, context.positions, token_type_ids), None
        # Where networks read earlier tokens all are computed; what is wanted is chosen after.
        last = None if self.spec.feed_forward.reads_earlier else self.spec.num_layers - 1
        before_last = context if context.select is None else replace(context, select=None)
        prepared: dict[int, tuple[Any, Any]] = {}
        for i, block in enumerate(self.every_layer):
            here = context if i == last else before_last
            own, first = _kept_of(i, cache), self._first_alike[i]
            if first not in prepared:
                prepared[first] = block.prepare(here, own, self._table_of(i))
            mixing, crossing = prepared[first]
            layer, runs = replace(own, prepared=mixing, cross_prepared=crossing), (here,)
            if late_positions is not None and i == last:
                runs = (replace(before_last, seen=x), replace(here, seen=x))
                x = x + late_positions(context.positions).to(x.dtype)
            for each in runs:
                x, loss = block(x, each, layer)
                if loss is not None:
                    total = loss if total is None else total + loss
        if total is not None:
            total = self.every_layer[0].feed_forward.loss(total)
        return self.norm(context.chosen(x) if last is None else x), total

    def _table_of(self, layer: int) -> nn.Module | None:
        """The table that a layer shares with others."""
        table = self._table_of_layer[layer]
        return None if table is None else self.tables[table]


def _kept_of(layer: int, cache: Cache | None) -> LayerContext:
    """What a cache keeps for a layer."""
    if cache is None:
        return ALONE
    return LayerContext(
        state=cache.states[layer],
        source=cache.sources[layer] if cache.sources else None,
        feed_forward_state=cache.feed_forward_states[layer] if cache.feed_forward_states else None,
    )


class Transformer(LanguageModule, of=spec.ModelSpec):
    """Encoder-only, decoder-only or encoder-decoder model; `spec.family` says which.

    The forward pass gives hidden states; heads turn them into logits, or straight into a loss
    with a bounded number of logits at a time.
    """

    spec: ModelSpec

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        self.spec, self.max_length = model, model.max_length
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
    def blocks(self) -> Iterator[Block]:
        """The layers of every stack."""
        return (layer for stack in self.stacks for layer in stack.layers)  # type: ignore[misc]

    def stack_weights(self) -> list[list[list[nn.Parameter]]]:
        """See `LanguageModule.stack_weights`."""
        stacks = [[list(layer.parameters()) for layer in stack.layers] for stack in self.stacks]
        for layers, stack in zip(stacks, self.stacks, strict=True):
            layers[-1] += stack.norm.parameters()
        return stacks

    def compile_blocks(self) -> None:
        """Compile every layer by itself: layers alike share one compilation."""
        for layer in self.blocks:
            layer.compile()

    def flops_per_token(self, length: int) -> float:
        """See `models.flops_per_token`."""
        total = 6.0 * self.spec.vocab_size * self.spec.d_embedding
        for stack in self.stacks:
            repeats = stack.spec.num_layers / stack.spec.distinct_layers
            for block in stack.layers:
                assert isinstance(block, Block)
                weights = matrix_weights(block) - sum(map(matrix_weights, block.feed_forward.idle))
                total += 6.0 * repeats * weights
            total += 6.0 * matrix_weights(stack.embedding)
            attended, mixers = length / 2 if stack.causal else length, stack.spec.mixers
            if self.spec.late_positions:  # the last layer runs once more
                total += 6.0 * matrix_weights(stack.layers[-1])
                mixers += mixers[-1:]
            for mixer in mixers:
                total += mixer.flops(attended)
                if stack.causal and self.encoder is not None and mixer.cross is not None:
                    total += mixer.cross.flops(length)
        return total

    def new_cache(self, slots: int, slot_length: int) -> Cache:
        """See `LanguageModule.new_cache`."""
        stack = self.decoder or self.encoder
        if stack is None or not (self.decoder or self.spec.carries):
            return super().new_cache(slots, slot_length)
        check_length(slot_length, self.max_length)
        like, layers = state_like(self.tokens.weight), stack.every_layer
        reading = layers if stack.spec.feed_forward.reads_earlier else []
        return Cache(
            slots,
            slot_length,
            [layer.mixer.new_state(slots, slot_length, like) for layer in layers],
            device=self.device,
            projections=[each.project for layer in layers if (each := layer.cross_attention)],
            feed_forward_states=[
                layer.feed_forward.new_state(slots, slot_length, like) for layer in reading
            ],
        )

    def forward(self, input_ids: Tensor | None = None, **inputs: Any) -> Tensor:
        """Hidden states of the last layer: of the decoder where there is one. See `read`."""
        return self.read(input_ids, **inputs)[0]

    def read(
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
        order: Tensor | None = None,
        predicted: Tensor | None = None,
        global_tokens: Tensor | None = None,
        select: Tensor | None = None,
        cache: Cache | None = None,
        slots: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states of the last layer, of the decoder where there is one, and losses of layers.

        Args:
            input_ids: int64 [B, T]; of an encoder-decoder the encoder's input, None with a cache
                that remembers the encoder's output (`Cache.remember`).
            attention_mask: [B, T], nonzero where a token is real.
            token_type_ids: int64 [B, T], sentence A (0) or B (1).
            position_ids: int64 [B, T]; None: counted as the model's positions say. [B, T, 2] where
                they are of two numbers (`TwoDimensional`).
            document_ids: int64 [B, T]; tokens attend to their own document only. Of an
                encoder-decoder it concerns the encoder's self-attention.
            decoder_input_ids: int64 [B, T], the decoder's input of an encoder-decoder.
            decoder_attention_mask: [B, T], as `attention_mask` for the decoder.
            prefix_lengths: int64 [B]: that many first tokens of the decoder's input are attended
                to by all others, also by those before them (a prefix language model).
            order: int64 [B, T], of an encoder with a query stream (`Embedding.query_stream`): when
                a token becomes known. A token sees those that are known no later than itself.
            predicted: int64 [B, A], with `order`: columns of tokens that are predicted, each from
                those that are known before it. The result is then [B, A, D].
            global_tokens: [B, T], of an encoder that has such (`GlobalAttention`): nonzero where a
                token sees all others and is seen by them; None: as its heads say, the first token
                or the question, which is what has token type 0.
            select: int64 [M], ascending flat positions in B * T (or B * A) whose hidden states are
                wanted; the last feed-forward network runs for them alone.
            cache: earlier tokens of the decoder, or of an encoder that carries its state
                (`Spec.carries`), extended in place by its input.
            slots: int64 [B], with a cache: the slot of every row; None: the first B slots.
                Neighbours are read without a copy.
            lengths: int64 [B], with a cache: real tokens of every row, which is padded on the
                right; None: all. What a row writes after its length is never attended to.

        Returns:
            [B, T, D], or [M, D] with `select`; and the sum of the losses that layers add, None
            where none does.

        Raises:
            SpecError: the input is longer than the model's positions or the cache, or an input of
                the wrong family.
        """
        if (decoder_input_ids is not None) != (self.spec.family == "encoder-decoder"):
            have = "needs" if decoder_input_ids is None else "takes no"
            raise SpecError(f"this model is {self.spec.family} and {have} decoder_input_ids.")
        encoded, encoder_loss = None, None
        if self.decoder is None:
            refuse("an encoder takes no", lengths=lengths, prefix_lengths=prefix_lengths)
            refuse("an encoder takes no", cache=None if self.spec.carries else cache)
        if self.encoder is not None:
            if input_ids is not None:
                hidden, encoder_loss = self._encode(
                    input_ids,
                    attention_mask=attention_mask,
                    token_type_ids=token_type_ids,
                    position_ids=position_ids,
                    document_ids=document_ids,
                    order=order,
                    predicted=predicted,
                    global_tokens=global_tokens,
                    select=select if self.decoder is None else None,
                    late_positions=getattr(self.vocabulary_head, "late_positions", None),
                    cache=cache if self.decoder is None else None,
                    slots=slots,
                )
                if self.decoder is None:
                    return hidden, encoder_loss
                encoded = EncoderOutput(hidden, attention_mask)
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
            if not span.is_first:
                refuse("after the first tokens a cache takes no", prefix_lengths=prefix_lengths)
            if encoded is None and cache.source_mask is not None:
                encoded = EncoderOutput(None, cache.source_mask[span.rows])
        context = Context(
            *self._positions(input_ids, position_ids, attention_mask, document_ids, span),
            causal=True,
            real=attention_mask,
            documents=document_ids,
            prefix=prefix_lengths,
            types=token_type_ids,
            select=select,
            span=span,
            encoder=encoded,
        )
        hidden, loss = self.decoder(
            self.tokens(input_ids), context, token_type_ids=token_type_ids, cache=cache
        )
        if cache is not None and span is not None:
            cache.advance(span)
        if encoder_loss is not None:
            loss = encoder_loss if loss is None else loss + encoder_loss
        return hidden, loss

    def encode(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        """The encoder alone; arguments and result as in `read`."""
        return self._encode(input_ids, **inputs)[0]

    def _encode(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        order: Tensor | None = None,
        predicted: Tensor | None = None,
        global_tokens: Tensor | None = None,
        select: Tensor | None = None,
        late_positions: nn.Module | None = None,
        cache: Cache | None = None,
        slots: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if self.encoder is None:
            raise SpecError(f"this model is {self.spec.family}: it has no encoder.")
        table = self.tokens if self.source_tokens is None else self.source_tokens
        span = None
        if cache is not None:
            refuse("a cache takes no", document_ids=document_ids)
            span = cache.begin(len(input_ids), input_ids.shape[1], slots, None)
        context = Context(
            *self._positions(input_ids, position_ids, attention_mask, document_ids, span),
            real=attention_mask,
            documents=document_ids,
            types=token_type_ids,
            global_tokens=self._global(global_tokens, input_ids, token_type_ids, attention_mask),
            select=select,
            span=span,
        )
        tokens, first_query = table(input_ids), 0
        if order is None or predicted is None:
            refuse("order and predicted are given together:", order=order, predicted=predicted)
        else:
            query, first_query = self.encoder.embedding.query, input_ids.shape[1]
            if query is None:
                raise SpecError("a model without a query stream (Embedding) takes no order.")
            context = two_streams(context, order, predicted)
            if select is not None:  # flat positions among queries, which are after the tokens
                row = select.div(predicted.shape[1], rounding_mode="floor")
                context = replace(context, select=select + (row + 1) * first_query)
            tokens = torch.cat((tokens, query(torch.zeros_like(predicted))), 1)
        hidden, loss = self.encoder(
            tokens,
            context,
            token_type_ids=context.types,
            late_positions=late_positions,
            cache=cache,
        )
        if cache is not None and span is not None:
            cache.advance(span)
        return hidden if select is not None else hidden[:, first_query:], loss

    def _global(
        self, global_tokens: Tensor | None, ids: Tensor, types: Tensor | None, real: Tensor | None
    ) -> Tensor | None:
        """Bool [B, T], which tokens see all; None: none."""
        if not self.spec.has_global_tokens:
            refuse("this model has no", global_tokens=global_tokens)
        if global_tokens is None and self.spec.global_tokens == "first":
            global_tokens = torch.zeros_like(ids)
            global_tokens[:, 0] = 1
        elif global_tokens is None and self.spec.global_tokens == "question" and types is not None:
            global_tokens = types == 0
        if global_tokens is None or real is None:
            return None if global_tokens is None else global_tokens.bool()
        return global_tokens.bool() & real.bool()

    def _positions(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None,
        attention_mask: Tensor | None,
        document_ids: Tensor | None,
        span: Span | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Positions in the text and columns in the row, [1 or B, T].

        Positions are `position_ids`, or the number of tokens before.
        """
        length, end = input_ids.shape[1], self.max_length
        if document_ids is not None and not self.spec.packs:
            raise SpecError(
                "a layer of this model does not keep packed documents apart: leave document_ids "
                "out (data.separate_documents = false)."
            )
        columns = torch.arange(length, device=input_ids.device)[None]
        if span is not None:
            columns = span.columns(input_ids.device)
        if position_ids is not None:
            return position_ids, columns
        if span is not None:
            # Padding after the tokens of a slot may lie beyond the last position.
            return columns if end is None else columns.clamp(max=end - 1), columns
        check_length(length, end)
        counted = self._counted(input_ids, attention_mask)
        return columns if counted is None else counted.cumsum(1) * counted - 1, columns

    def _counted(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """Int64 [B, T], 1 for a token that later positions count; None: all."""
        learned = self.spec.embedding.positions
        if not isinstance(learned, Learned) or learned.counted == "all":
            return None
        if learned.counted == "not-padding":
            return (input_ids != learned.offset - 1).long()
        return None if attention_mask is None else attention_mask.bool().long()
