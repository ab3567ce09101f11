"""The Transformer: one block, one stack, one model for every family.

Shape letters: B batch, T query positions, S positions of the encoder, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError
from trivium.models.compiled_step import CompiledStep
from trivium.models.headed import HeadedModel, build_heads, empty_table
from trivium.nn.attention import Attention, texts_apart
from trivium.nn.cache import Cache, LayerCache, Start, latest
from trivium.nn.feed_forward import GatedFeedForward, build_feed_forward
from trivium.nn.inference_linear import InferenceLinear
from trivium.nn.mask import Mask
from trivium.nn.norm import build_norm
from trivium.nn.picked import Picked
from trivium.nn.positions import ALiBi, RelativeBias, Rotation, build_positions, check_length
from trivium.nn.precision import for_products

Places = Rotation | Tensor


@dataclass(frozen=True)
class Memory:
    """What an encoder read: hidden states [B, S, D], and which of them are real, [B, S]."""

    hidden: Tensor
    attention_mask: Tensor | None = None


class PreNorm(nn.Module):
    """x + dropout(f(norm(x))): the stream itself is never normalised (GPT-2, LLaMA)."""

    def __init__(self, norm: spec.Norm | None, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = build_norm(norm, width), dropout

    def forward(
        self, x: Tensor, sublayer: Callable[[Tensor], Tensor], picked: Picked | None = None
    ) -> Tensor:
        """[B, T, D] -> [B, T, D], or [M, D] where the sublayer answers for picked ones alone."""
        stream = x if picked is None else picked.stream(x)
        return stream + self._drop(sublayer(for_products(self.norm(x))))

    def _drop(self, x: Tensor) -> Tensor:
        # Decoding has thousands of these a second, and even one that does nothing takes its time.
        return F.dropout(x, self.dropout) if self.training and self.dropout else x


class PostNorm(PreNorm):
    """norm(x + dropout(f(x))): as first published (Vaswani et al. 2017, BERT)."""

    def forward(
        self, x: Tensor, sublayer: Callable[[Tensor], Tensor], picked: Picked | None = None
    ) -> Tensor:
        """[B, T, D] -> [B, T, D], or [M, D] where the sublayer answers for picked ones alone."""
        stream = x if picked is None else picked.stream(x)
        return self.norm(stream + self._drop(sublayer(for_products(x))))


class Block(nn.Module):
    """One layer: attention, attention to a memory in a decoder that has one, feed-forward.

    Each stands inside a residual connection.
    """

    def __init__(self, stack: spec.Stack, layer: int, width: int, *, crosses: bool) -> None:
        super().__init__()
        residual = PreNorm if stack.norm_order == "pre" else PostNorm
        attention, norm, dropout = stack.attention_of(layer), stack.norm, stack.dropout
        self.attention = Attention(attention, width, dropout)
        unnormed = layer == 0 and not stack.first_norm
        self.attention_residual = residual(None if unnormed else norm, width, dropout)
        self.cross_attention = self.cross_residual = None
        if crosses:
            self.cross_attention = Attention(attention.across, width, dropout)
            self.cross_residual = residual(norm, width, dropout)
        self.feed_forward = build_feed_forward(stack.feed_forward, width)
        self.feed_forward_residual = residual(norm, width, dropout)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        *,
        places: Places | None,
        memory: Memory | None,
        cache: LayerCache | None,
        select: Tensor | None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D], or with `select` [M] of those alone: [M, D]."""
        picked = self._picked(x, select, cache)

        def attend(x: Tensor) -> Tensor:
            return self.attention(x, mask, places=places, cache=cache, picked=picked)

        x = self.attention_residual(x, attend, picked)
        if self.cross_attention is not None and self.cross_residual is not None:
            assert memory is not None
            padding = memory.attention_mask
            across = Mask(causal=False, padding=None if padding is None else padding.bool())
            attention = self.cross_attention

            def attend_across(x: Tensor) -> Tensor:
                return attention(x, across, memory=memory.hidden, cache=cache)

            x = self.cross_residual(x, attend_across)
        if select is not None and picked is None:
            x = x.flatten(0, 1).index_select(0, select)
        return self.feed_forward_residual(x, self.feed_forward)

    def join(self, make: Callable[[Tensor, nn.Parameter | None], InferenceLinear]) -> None:
        """For inference: layers that read the same become one product."""
        self.attention.join(make)
        if isinstance(self.feed_forward, GatedFeedForward):
            self.feed_forward.join(make)

    def _picked(self, x: Tensor, select: Tensor | None, cache: LayerCache | None) -> Picked | None:
        """Where it saves time, the grid of positions that ask: on a GPU it would have to wait."""
        if select is None or cache is not None or self.cross_attention is not None:
            return None
        if x.device.type != "cpu" or 2 * len(select) > x.shape[0] * x.shape[1]:
            return None
        return Picked.of(select, x.shape[0], x.shape[1])


class Stack(nn.Module):
    """Positions, the blocks of an encoder or a decoder and, after pre-norm blocks, a last norm."""

    def __init__(self, model: spec.ModelSpec, stack: spec.Stack) -> None:
        super().__init__()
        width, crosses = model.d_model, model.crosses(stack)
        self.spec, self.causal = stack, stack is model.decoder
        self.embedding = Embedding(model.embedding, width, stack.dropout)
        self.layers = nn.ModuleList(
            Block(stack, i, width, crosses=crosses) for i in range(stack.distinct_layers)
        )
        self.norm = build_norm(stack.norm if stack.norm_order == "pre" else None, width)
        relative = [_Relative(each.positions, each.head_dim) for each in stack.attentions]
        self._kinds = list(dict.fromkeys(relative))
        # Of every layer, its block and which kind of relative positions it has.
        self.order = [(stack.block_of(i), self._kinds.index(x)) for i, x in enumerate(relative)]
        self.step: CompiledStep | None = None
        self.bias: RelativeBias | ALiBi | None = None
        for attention in stack.attentions:
            match attention.positions:
                case spec.RelativeBias() as bias:
                    self.bias = RelativeBias(
                        bias, attention.num_heads, bidirectional=not self.causal
                    )
                case spec.ALiBi():
                    self.bias = ALiBi(attention.num_heads)
                case _:
                    pass

    def forward(
        self,
        tokens: Tensor,
        mask: Mask,
        position_ids: Tensor,
        *,
        token_type_ids: Tensor | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
        select: Tensor | None = None,
    ) -> Tensor:
        """Token vectors [B, T, E] -> hidden states [B, T, D]; with `select` [M] those: [M, D]."""
        whole = select is None and token_type_ids is None
        if self.step and cache and whole and self.step.takes(tokens, mask, memory, cache):
            return self.step(self, tokens, mask.start, position_ids, memory, cache)
        x = self.embedding(tokens, position_ids, token_type_ids)
        # Distances between columns: padding before a text does not change them.
        length = position_ids.shape[1]
        columns = mask.positions(length, position_ids.device)
        places = self.places(columns, position_ids, latest(mask.start) + length)
        last, blocks = self.spec.num_layers - 1, list(self.layers)
        for i, (block, kind) in enumerate(self.order):
            x = blocks[block](
                x,
                mask,
                places=places[kind],
                memory=memory,
                cache=cache.layers[i] if cache else None,
                select=select if i == last else None,
            )
        return self.norm(x)

    def places(self, columns: Tensor, position_ids: Tensor, keys: int) -> list[Places | None]:
        """Every kind of relative positions in this stack, computed once for all its layers.

        Args:
            columns: where queries stand among the keys, int64 [1 or B, T].
            position_ids: where they stand in their texts, int64 [1 or B, T].
            keys: how many keys there are.
        """
        places: list[Places | None] = []
        for kind in self._kinds:
            if isinstance(kind.positions, spec.Rotary):
                places.append(Rotation(kind.positions, kind.head_dim, position_ids))
            elif kind.positions is not None and self.bias is not None:
                places.append(self.bias(columns, keys))
            else:
                places.append(None)
        return places


class _Relative(NamedTuple):
    positions: spec.RelativePositions | None
    head_dim: int


class Embedding(nn.Module):
    """What a stack makes of token vectors: positions and types added, normed, widened."""

    def __init__(self, embedding: spec.Embedding, width: int, dropout: float) -> None:
        super().__init__()
        self.scale, self.dropout = embedding.scale, dropout
        factorised, inner = embedding.factorised, width
        self.widen_tokens = self.widen_sum = None
        if factorised:
            widen = nn.Linear(factorised.width, width, bias=factorised.bias)
            if factorised.projected == "sum":
                self.widen_sum, inner = widen, factorised.width
            else:
                self.widen_tokens = widen
        self.positions = build_positions(embedding.positions, inner)
        self.token_types = None
        if embedding.num_token_types:
            self.token_types = empty_table(embedding.num_token_types, inner)
        self.norm = build_norm(embedding.norm, inner)

    def forward(
        self, tokens: Tensor, position_ids: Tensor, token_type_ids: Tensor | None
    ) -> Tensor:
        """[B, T, E] -> [B, T, D]."""
        x = tokens if self.scale == 1.0 else tokens * self.scale
        if self.widen_tokens is not None:
            x = self.widen_tokens(x)
        if self.positions is not None:
            x = x + self.positions(position_ids).to(x.dtype)
        if self.token_types is not None:
            # Sentence A everywhere unless told otherwise.
            first = self.token_types.weight[0]
            x = x + (first if token_type_ids is None else self.token_types(token_type_ids))
        x = F.dropout(self.norm(x), self.dropout, self.training)
        return x if self.widen_sum is None else self.widen_sum(x)


class Transformer(HeadedModel):
    """Encoder-only, decoder-only or encoder-decoder model; `spec.family` says which.

    The forward pass gives hidden states; heads turn them into logits, or straight into a loss
    without ever holding all logits.
    """

    def __init__(self, model: spec.ModelSpec) -> None:
        super().__init__()
        self.spec = model
        self.tokens = empty_table(model.vocab_size, model.d_embedding)
        self.source_tokens = None
        if model.source_vocab_size:
            self.source_tokens = empty_table(model.source_vocab_size, model.d_embedding)
        self.encoder = Stack(model, model.encoder) if model.encoder else None
        self.decoder = Stack(model, model.decoder) if model.decoder else None
        self.heads = build_heads(model)

    @property
    def stacks(self) -> Iterator[Stack]:
        """The stacks there are, encoder first."""
        return (stack for stack in (self.encoder, self.decoder) if stack is not None)

    @property
    def num_token_types(self) -> int:
        """Kinds of sentence (A and B) that the embedding tells apart."""
        return self.spec.embedding.num_token_types

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """The layers of every stack."""
        return (layer for stack in self.stacks for layer in stack.layers)

    def compile_blocks(self) -> None:
        """Compile every layer by itself: layers alike share one compilation."""
        for layer in self.blocks:
            layer.compile()

    def compile_step(self) -> None:
        """Compile writing one more token of every text, where no layer forgets what is far away.

        For layers that were never compiled before it takes 20 to 40 seconds, and up to 130 for
        packed ones, of which some are compiled for one text and for few, too; later some 3.

        Raises:
            TriviumError: a model on a GPU, no C++ compiler, or PyTorch cannot compile it.
        """
        if self.decoder is not None and CompiledStep.suits(self.decoder.spec):
            self.decoder.step = None
            self.decoder.step = CompiledStep(self)

    def new_cache(self, batch: int, max_length: int) -> Cache:
        """What `forward` takes as `cache` to go on with `batch` texts, step by step.

        Every model has this method, and its cache is its own affair; what all have is `length`
        (tokens read so far), `max_length` and `reorder(rows)`, which keeps some rows in some order.

        Args:
            batch: rows.
            max_length: tokens to make room for, those of the prompts included.

        Raises:
            SpecError: the model has no decoder.
        """
        if self.spec.decoder is None:
            raise SpecError("an encoder sees every token at once: it has no cache to go on with.")
        return Cache(self.spec.decoder, batch, max_length, dtype=self.dtype, device=self.device)

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
        cache: Cache | None = None,
        select: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of the last layer: of the decoder where there is one.

        Args:
            input_ids: int64 [B, T]; with an encoder and a decoder, what the encoder reads.
            attention_mask: [B, T], nonzero where a token is real; with a cache it covers the
                cached tokens too.
            token_type_ids: int64 [B, T], sentence A (0) or B (1).
            position_ids: int64 [B, T]; None: counted from the first token.
            document_ids: int64 [B, T]; tokens see only those of the same document. With an encoder
                and a decoder it parts what the encoder reads, not what the decoder sees of it.
            decoder_input_ids: int64 [B, T], what the decoder reads of an encoder-decoder.
            decoder_attention_mask: [B, T], as `attention_mask` for the decoder.
            prefix_lengths: int64 [B], of what a decoder reads: that many first tokens are seen by
                all others, also by those before them (a prefix language model).
            cache: keys and values of earlier tokens of the decoder, extended in place.
            select: int64 [M], ascending flat positions in B * T whose hidden states are wanted;
                the last layer runs for them alone.

        Returns:
            [B, T, D], or [M, D] with `select`.

        Raises:
            SpecError: the input is longer than the model's positions, or a decoder's input is
                missing or given to a model without both stacks.
        """
        if (decoder_input_ids is not None) != (self.spec.family == "encoder-decoder"):
            have = "needs" if decoder_input_ids is None else "takes no"
            raise SpecError(f"this model is {self.spec.family} and {have} decoder_input_ids.")
        if self.encoder is None:
            return self.decode(
                input_ids,
                attention_mask=attention_mask,
                token_type_ids=token_type_ids,
                position_ids=position_ids,
                document_ids=document_ids,
                prefix_lengths=prefix_lengths,
                cache=cache,
                select=select,
            )
        hidden = self.encode(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            document_ids=document_ids,
            select=select if self.decoder is None else None,
        )
        if decoder_input_ids is None:
            return hidden
        return self.decode(
            decoder_input_ids,
            attention_mask=decoder_attention_mask,
            memory=Memory(hidden, attention_mask),
            prefix_lengths=prefix_lengths,
            cache=cache,
            select=select,
        )

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
        assert self.encoder is not None
        table = self.tokens if self.source_tokens is None else self.source_tokens
        mask = _mask(False, attention_mask, document_ids)
        return self.encoder(
            table(input_ids),
            mask,
            self._positions(input_ids, position_ids, mask),
            token_type_ids=token_type_ids,
            select=select,
        )

    def decode(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        memory: Memory | None = None,
        prefix_lengths: Tensor | None = None,
        cache: Cache | None = None,
        select: Tensor | None = None,
    ) -> Tensor:
        """The decoder alone, given what the encoder read; otherwise as in `forward`."""
        assert self.decoder is not None
        start = cache.start if cache else 0
        mask = _mask(True, attention_mask, document_ids, prefix_lengths, start)
        hidden = self.decoder(
            self.tokens(input_ids),
            mask,
            self._positions(input_ids, position_ids, mask),
            token_type_ids=token_type_ids,
            memory=memory,
            cache=cache,
            select=select,
        )
        if cache is not None:
            cache.advance(input_ids.shape[1])
        return hidden

    def _positions(self, input_ids: Tensor, position_ids: Tensor | None, mask: Mask) -> Tensor:
        length = input_ids.shape[1]
        if mask.documents is None or position_ids is None:  # else each counts from its own first
            check_length(latest(mask.start) + length, self.spec.max_length)
        return mask.positions(length, input_ids.device) if position_ids is None else position_ids


def _mask(
    causal: bool,
    attention_mask: Tensor | None,
    document_ids: Tensor | None,
    prefix: Tensor | None = None,
    start: Start = 0,
) -> Mask:
    padding = None if attention_mask is None else attention_mask.bool()
    texts = None
    if document_ids is not None and padding is None and prefix is None and start == 0:
        texts = _texts(document_ids)
    return Mask(causal, padding, document_ids, prefix, start, texts)


def _texts(document_ids: Tensor) -> tuple[int, ...] | None:
    """Lengths of the documents of a single row, where each attends by itself.

    With gradients they attend together: the formula of `attend` is the faster there.
    """
    if len(document_ids) > 1 or torch.is_grad_enabled() or not texts_apart(document_ids.device):
        return None
    ids, lengths = document_ids[0].unique_consecutive(return_counts=True)
    in_pieces = len(ids.unique()) < len(ids)
    return None if in_pieces else tuple(lengths.tolist())
