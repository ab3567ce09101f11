"""The Transformer: one model class for encoders, decoders and encoder-decoders.

Shape letters: B batch, T query positions, S positions of the encoder, M selected positions,
D d_model, E width of token embeddings, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from pydantic import SerializeAsAny
from torch import Tensor, nn

from trivium.errors import SpecError
from trivium.models.base_model import LanguageModule, Spec, build_heads, num_matrix_weights, refuse
from trivium.models.heads import HeadInput
from trivium.models.heads.vocabulary import MLMHead
from trivium.models.initialization import Initialization, Initializer, Normal
from trivium.models.stack import Embedding, Stack, TransformerStack
from trivium.nn.blocks import Block
from trivium.nn.mixers.global_attention import GlobalSequenceInfo
from trivium.nn.part import Count, empty_embedding
from trivium.nn.positions import AbsolutePositions
from trivium.nn.positions.learned import Learned
from trivium.nn.positions.sinusoidal import Sinusoidal
from trivium.nn.sequence_info import EncoderOutput, SequenceInfo, check_length
from trivium.nn.state import Cache, make_state_template


class TransformerSpec(Spec):
    """A Transformer, which is an encoder, a decoder or an encoder-decoder.

    The architecture depends on which of the fields `encoder` and `decoder` are set. If both are
    set, they share one token embedding matrix, unless `source_vocab_size` gives the encoder a
    separate vocabulary.
    """

    kind: Literal["transformer"] = "transformer"
    source_vocab_size: Count | None = None
    embedding: Embedding
    encoder: Stack | None = None
    decoder: Stack | None = None
    initialization: SerializeAsAny[Initialization] = Normal()

    def check(self) -> None:
        """Raise SpecError if heads, stacks, mask decoder or initialization do not fit together."""
        super().check()
        self._check_stacks()
        self._check_mask_decoder()
        self.initialization.check_model(self)

    def _check_stacks(self) -> None:
        """Raise SpecError if there is no stack, or a mixer or block cannot be used in its stack."""
        if self.encoder is None and self.decoder is None:
            raise SpecError("a TransformerSpec needs an encoder or a decoder; given: neither.")
        if self.source_vocab_size is not None and not (self.encoder and self.decoder):
            raise SpecError(
                "source_vocab_size is for a model with an encoder and a decoder: leave it out."
            )
        for layer in self.decoder.every_layer if self.encoder and self.decoder else ():
            if not layer.block.has_cross_attention:
                block = layer.block.kind
                raise SpecError(f'decoder.layers.block: "{block}" cannot attend to an encoder.')
        for mixer in self.encoder.mixers if self.encoder else ():
            if not mixer.supports_encoder:
                raise SpecError(f'encoder.layers.mixer: "{mixer.kind}" is causal only.')
        for mixer in self.decoder.mixers if self.decoder else ():
            if not mixer.supports_decoder:
                raise SpecError(f'decoder.layers.mixer: "{mixer.kind}" is bidirectional only.')
            if self.encoder and mixer.cross is None:
                raise SpecError(f'decoder.layers.mixer: "{mixer.kind}" has no cross-attention.')

    def _check_mask_decoder(self) -> None:
        """Raise SpecError if DeBERTa's enhanced mask decoder is set, but does not fit the model."""
        stack = self.encoder
        if self.mask_decoder_positions and (
            self.family != "encoder-only"
            or self.query_stream
            or stack is None
            or "pre_norm" in stack.every_layer[-1].norms
            or stack.mixers[-1].kind != "attention"
        ):
            raise SpecError(
                'heads: mask_decoder_positions of "mlm" are for an encoder alone, without a query '
                'stream, whose last layer is "attention" without a pre-norm.'
            )

    @property
    def family(self) -> Literal["encoder-only", "decoder-only", "encoder-decoder"]:
        """The architecture: encoder-only (bidirectional), decoder-only or encoder-decoder."""
        # "is None", also below: torch.compile of PyTorch 2.11 does not trace the truth of a spec.
        if self.encoder is not None and self.decoder is not None:
            return "encoder-decoder"
        return "decoder-only" if self.encoder is None else "encoder-only"

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The encoder and the decoder, without a stack that the model does not have."""
        return tuple(stack for stack in (self.encoder, self.decoder) if stack is not None)

    @property
    def attention_only(self) -> bool:
        """Whether the mixer of every layer is attention."""
        return all(len(stack.attentions) == stack.num_layers for stack in self.stacks)

    @property
    def supports_packing(self) -> bool:
        """Whether every layer keeps the documents of a packed row separate."""
        return all(mixer.supports_packing for stack in self.stacks for mixer in stack.mixers)

    @property
    def carries_state(self) -> bool:
        """Whether the model has one stack only, and all its mixers can carry state between rows."""
        one = len(self.stacks) == 1
        return one and all(mixer.carries_state for mixer in self.stacks[0].mixers)

    @property
    def has_encoder_position_bias(self) -> bool:
        """Whether the encoder's position encoding adds a position bias to all attention scores."""
        attentions = self.encoder.attentions if self.encoder else ()
        return any(each.positions.has_scores for each in attentions if each.positions)

    @property
    def has_aux_loss(self) -> bool:
        """Whether a feed-forward network adds an auxiliary loss (`FeedForward.has_aux_loss`)."""
        return any(layer.has_aux_loss for stack in self.stacks for layer in stack.every_layer)

    @property
    def input_vocab_size(self) -> int:
        """The vocabulary size of the input: `source_vocab_size` if it is set, else `vocab_size`."""
        return self.source_vocab_size or self.vocab_size

    @property
    def num_token_types(self) -> int:
        """The number of token types (sentence A and B) in embedding or position encodings."""
        compared = [
            attention.positions.num_token_types
            for stack in self.stacks
            for attention in stack.attentions
            if attention.positions
        ]
        return max(self.embedding.num_token_types, *compared, 0)

    @property
    def reads_token_types(self) -> bool:
        """Whether token types are used, as embeddings or to give questions global attention."""
        return self.num_token_types > 1 or self.global_tokens == "question"

    @property
    def has_global_tokens(self) -> bool:
        """Whether a layer of the encoder supports global tokens (`Mixer.has_global_tokens`)."""
        return self.encoder is not None and any(
            mixer.has_global_tokens for mixer in self.encoder.mixers
        )

    @property
    def global_tokens(self) -> Literal["first", "question"] | None:
        """The tokens that are global, set by the first head with `global_tokens`; None: not set."""
        heads = [head for head in self.heads if head.global_tokens and self.has_global_tokens]
        return heads[0].global_tokens if heads else None

    @property
    def query_stream(self) -> bool:
        """Whether the encoder has a query stream, to predict tokens in any order (XLNet)."""
        return self.embedding.query_stream

    @property
    def has_optional_weights(self) -> bool:
        """Whether some weights serve only global tokens, a query stream or relative segments."""
        compares = self.num_token_types > self.embedding.num_token_types
        return self.has_global_tokens or self.query_stream or compares

    @property
    def absolute_position_encoding(self) -> AbsolutePositions | None:
        """The position encoding that is added to token embeddings; None if there is none."""
        return self.embedding.positions

    @property
    def recompute_lengths(self) -> frozenset[int]:
        """Lengths at which the decoder's RoPE frequencies change (`Positions.recompute_length`)."""
        mixers = self.decoder.mixers if self.decoder else ()
        positions = [getattr(mixer, "positions", None) for mixer in mixers]
        lengths = {each.recompute_length for each in positions if each is not None}
        return frozenset(length for length in lengths if length is not None)

    @property
    def fills_blanks(self) -> bool:
        """Whether position ids also tell which blank each generated token fills (GLM, ChatGLM)."""
        attentions = (each for stack in self.stacks for each in stack.attentions)
        positions = (self.embedding.positions, *(each.positions for each in attentions))
        return any(each is not None and each.fills_blanks for each in positions)

    @property
    def mask_decoder_positions(self) -> AbsolutePositions | None:
        """The absolute positions of DeBERTa's enhanced mask decoder (see `MLMHead`), or None."""
        late = (head.mask_decoder_positions for head in self.heads if isinstance(head, MLMHead))
        return next(late, None)

    @property
    def d_embedding(self) -> int:
        """The width of the token embeddings: d_model, unless the embedding is factorised."""
        return self.embedding.factorised.width if self.embedding.factorised else self.d_model

    @property
    def max_length(self) -> int | None:
        """The maximum input length in tokens; None if the positions are unlimited."""
        both = (self.embedding.positions, self.mask_decoder_positions)
        limits = [each.max_length for each in both if each and each.max_length]
        return min(limits) if limits else None

    @property
    def head_config(self) -> HeadInput:
        """The sizes and settings for building heads, with norm and dropout of the last stack."""
        last = self.stacks[-1]
        return HeadInput(
            vocab_size=self.vocab_size,
            d_model=self.d_model,
            d_embedding=self.d_embedding,
            projects=self.embedding.factorised is not None,
            norm=last.every_layer[-1].norm,
            dropout=last.dropout,
        )

    def with_dropout(self, dropout: float) -> Self:
        """Return a copy of the spec with this dropout rate in every stack."""
        stacks = {"encoder": self.encoder, "decoder": self.decoder}
        return self.replace(
            **{name: stack.with_dropout(dropout) for name, stack in stacks.items() if stack}
        )

    def activation_bytes(
        self, length: int, item: int, *, on_cpu: bool, recompute: bool = False
    ) -> int:
        """Return the number of activation bytes per token kept for the backward pass in training.

        A block keeps its residual stream in float32 and the inputs of its matmuls in `item` bytes
        per element (counted as in Korthikanti et al. 2022, section 4.1). On a CPU, a block also
        keeps attention probabilities and the output of RMSNorm. See `Spec.activation_bytes`.
        """
        blocks = [*self._block_bytes(length, item, on_cpu=on_cpu)]
        if recompute:
            blocks = [*(4 * self.d_model for _ in blocks), max(blocks)]
        # One more norm, at the beginning or the end, and the head.
        dense = any(isinstance(head, MLMHead) and head.dense for head in self.heads)
        head = item * self.d_model * (4 if dense else 1)
        last_norm = self.stacks[-1].every_layer[-1].norm
        return sum(blocks) + last_norm.activation_bytes(self.d_model, on_cpu=on_cpu) + head

    def _block_bytes(self, length: int, item: int, *, on_cpu: bool) -> Iterator[int]:
        """Yield the activation bytes per token that each block keeps for the backward pass."""
        width = self.d_model
        for stack in self.stacks:
            mask = width if stack.dropout else 0
            has_cross_attention = stack is self.decoder and self.encoder is not None
            # The encoder's output, in another precision for keys and for values.
            memory = 2 * item * width if has_cross_attention and item < 4 else 0
            again = stack.every_layer[-1:] if self.mask_decoder_positions else ()
            for layer in (*stack.every_layer, *again):
                norms = len(layer.norms) * layer.norm.activation_bytes(width, on_cpu=on_cpu)
                added, feeding = norms + item * mask, 0
                if layer.feed_forward is not None:
                    inner = layer.feed_forward.activation_numel(width)
                    inner += (layer.block.num_sublayer_inputs - 1) * width
                    feeding = item * inner + (layer.block.num_residual_adds - 1) * added
                kept = layer.mixer.activation_numel(
                    length, item=item, on_cpu=on_cpu, dropout=mask > 0
                )
                one = added + item * (width + kept)
                yield one * (1 + has_cross_attention) + memory + feeding

    def build(self) -> Transformer:
        """Return the module with uninitialized weights (see `Spec.build`)."""
        return Transformer(self)


@dataclass(frozen=True)
class StackInput:
    """The input of an encoder or a decoder.

    Args:
        input_ids: int64 [B, T].
        attention_mask: [B, T], 0 for padding, nonzero for other tokens.
        token_type_ids: int64 [B, T], sentence A (0) or B (1).
        position_ids: int64 [B, T], or [B, T, 2] for two-dimensional positions (`fills_blanks`);
            None: computed by default as the model's position encoding defines.
        document_ids: int64 [B, T]; tokens attend only to their own document.
        gather_positions: int64 [M], ascending flat indices into the B * T positions (with a query
            stream, into B * A). Only the hidden states at these positions are returned, and the
            last feed-forward network computes only these.
        cache: the cache of earlier tokens, which is extended in place. Only for a decoder, or an
            encoder that carries state (`Spec.carries_state`).
        slots: int64 [B], only with a cache: the cache slot of every row; None: the first B slots.
            Adjacent slots are read without a copy.
        lengths: int64 [B], only for a decoder with a cache: the number of tokens in every row,
            without the padding on the right; None: no padding. Padding in the cache is never
            attended to.
    """

    input_ids: Tensor
    attention_mask: Tensor | None = None
    token_type_ids: Tensor | None = None
    position_ids: Tensor | None = None
    document_ids: Tensor | None = None
    gather_positions: Tensor | None = None
    cache: Cache | None = None
    slots: Tensor | None = None
    lengths: Tensor | None = None


@dataclass(frozen=True)
class EncoderInput(StackInput):
    """The input of an encoder.

    Args:
        order: int64 [B, T], the rank of each token in the prediction order of permutation language
            modeling (XLNet). A token attends to tokens of its own or a lower rank. Only for an
            encoder with a query stream (`Embedding.query_stream`).
        predicted: int64 [B, A], given with `order`: the position of each token to be predicted in
            its row. Each is predicted from tokens of a lower rank.
        global_tokens: [B, T], nonzero for tokens that attend to all tokens and that all tokens
            attend to. Only for an encoder with `GlobalAttention`. If None, the output head decides:
            the first token is global, or the question (token type 0) in question answering.
    """

    order: Tensor | None = None
    predicted: Tensor | None = None
    global_tokens: Tensor | None = None


@dataclass(frozen=True)
class DecoderInput(StackInput):
    """The input of a decoder.

    Args:
        prefix_lengths: int64 [B], the number of tokens at the start of each row that all tokens of
            the row attend to (prefix language model).
    """

    prefix_lengths: Tensor | None = None


# The inputs of an encoder-decoder that belong to its decoder.
_DECODER_INPUTS = (
    *("decoder_input_ids", "decoder_attention_mask"),
    *("prefix_lengths", "gather_positions", "cache", "slots", "lengths"),
)


def _build_input(kind: type[Any], input_ids: Tensor | None, inputs: Mapping[str, Any]) -> Any:
    """Return an instance of `kind`, `EncoderInput` or `DecoderInput`.

    Raises SpecError if `input_ids` is missing or `kind` has no field for one of the inputs.
    """
    if input_ids is None:
        raise SpecError("input_ids is missing: the model has nothing to read.")
    for name in inputs:
        if name not in kind.__dataclass_fields__:
            stack = "an encoder" if kind is EncoderInput else "a decoder"
            raise SpecError(f"{stack} takes no {name}: leave it out.")
    return kind(input_ids, **inputs)


class Transformer(LanguageModule):
    """An encoder-only, decoder-only or encoder-decoder Transformer, according to `spec.family`.

    The forward pass returns hidden states, from which `logits` computes logits. `lm_loss` computes
    the loss directly and keeps only a bounded number of logits in memory at a time.
    """

    spec: TransformerSpec

    def __init__(self, model: TransformerSpec) -> None:
        super().__init__()
        self.spec, self.max_length = model, model.max_length
        self.tokens = empty_embedding(model.vocab_size, model.d_embedding)
        self.source_tokens = None
        if model.source_vocab_size:
            self.source_tokens = empty_embedding(model.source_vocab_size, model.d_embedding)
        self.encoder = self.decoder = None
        if model.encoder:
            self.encoder = TransformerStack(model, model.encoder, is_decoder=False)
        if model.decoder:
            self.decoder = TransformerStack(model, model.decoder, is_decoder=True)
        self.heads = build_heads(model)

    def initializer(self) -> Initializer:
        """Return the `Initializer` of the weights."""
        return self.spec.initialization.build(self)

    @property
    def stacks(self) -> Iterator[TransformerStack]:
        """The encoder and the decoder, without a stack that the model does not have."""
        return (stack for stack in (self.encoder, self.decoder) if stack is not None)

    @property
    def blocks(self) -> Iterator[Block]:
        """The blocks of all stacks, encoder first; a block that layers share occurs once."""
        return (layer for stack in self.stacks for layer in stack.layers)  # type: ignore[misc]

    def layer_parameters(self) -> list[list[list[nn.Parameter]]]:
        """Return the parameters of every layer; a stack's final norm belongs to its last layer."""
        stacks = [[list(layer.parameters()) for layer in stack.layers] for stack in self.stacks]
        for layers, stack in zip(stacks, self.stacks, strict=True):
            layers[-1] += stack.norm.parameters()
        return stacks

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether no layer has experts. See `LanguageModule.has_fixed_shapes`."""
        layers = [layer for stack in self.spec.stacks for layer in stack.every_layer]
        return all(layer.has_fixed_shapes for layer in layers)

    def compile_blocks(self, **options: Any) -> None:
        """Compile every layer separately and, on a GPU, the loss over the vocabulary.

        See `LanguageModule.compile_blocks`.
        """
        for stack in self.stacks:
            stack.compile_blocks(**options)
        self.compiles_loss = True

    def flops_per_token(self, length: int) -> float:
        """Return the training FLOPs per token, forward and backward, in a row of `length` tokens.

        See `models.flops_per_token`.
        """
        total = 6.0 * self.spec.vocab_size * self.spec.d_embedding
        for stack in self.stacks:
            repeats = stack.spec.num_layers / stack.spec.num_distinct_layers
            for block in stack.layers:
                assert isinstance(block, Block)
                weights = num_matrix_weights(block) - sum(
                    map(num_matrix_weights, block.inactive_experts)
                )
                total += 6.0 * repeats * weights
            total += 6.0 * num_matrix_weights(stack.embedding)
            attended, mixers = length / 2 if stack.causal else length, stack.spec.mixers
            if self.spec.mask_decoder_positions:  # the last layer runs once more
                total += 6.0 * num_matrix_weights(stack.layers[-1])
                mixers += mixers[-1:]
            for mixer in mixers:
                total += mixer.flops(attended)
                if stack.causal and self.encoder is not None and mixer.cross is not None:
                    total += mixer.cross.flops(length)
        return total

    def new_cache(self, slots: int, slot_length: int) -> Cache:
        """Return an empty cache for a decoder, or for an encoder that carries state.

        See `LanguageModule.new_cache`.
        """
        stack = self.decoder or self.encoder
        if stack is None or not (self.decoder or self.spec.carries_state):
            return super().new_cache(slots, slot_length)
        check_length(slot_length, self.max_length)
        like, layers = make_state_template(self.tokens.weight), stack.every_layer
        networks = [
            block.feed_forward if layer.reads_earlier_tokens else None
            for block, layer in zip(layers, stack.spec.every_layer, strict=True)
        ]
        return Cache(
            slots,
            slot_length,
            [layer.mixer.new_state(slots, slot_length, like) for layer in layers],
            device=self.device,
            projections=[each.project_kv for layer in layers if (each := layer.cross_attention)],
            feed_forward_states=[
                None if network is None else network.new_state(slots, slot_length, like)
                for network in networks
            ],
        )

    def forward(self, input_ids: Tensor | None = None, **inputs: Any) -> Tensor:
        """Return the final hidden states of the decoder or, without a decoder, of the encoder.

        Arguments are as in `read`, which also returns the auxiliary loss.
        """
        return self.read(input_ids, **inputs)[0]

    def read(self, input_ids: Tensor | None = None, **inputs: Any) -> tuple[Tensor, Tensor | None]:
        """Run the forward pass. Returns the final hidden states and the auxiliary loss.

        Args:
            input_ids: int64 [B, T]; for an encoder-decoder the encoder's input, or None if the
                cache holds the encoder's output (`Cache.set_encoder_output`).
            inputs: the other fields of `EncoderInput` (encoder) or `DecoderInput` (decoder).
                An encoder-decoder takes the fields of `EncoderInput` for its encoder, and
                `decoder_input_ids` (int64 [B, T]), `decoder_attention_mask`, `prefix_lengths`,
                `gather_positions`, `cache`, `slots` and `lengths` for its decoder. A field that is
                None counts as not given.

        Returns:
            Hidden states [B, T, D], or [M, D] with `gather_positions`, of the decoder or, without a
            decoder, of the encoder; and the summed auxiliary loss of all layers, or None.

        Raises:
            SpecError: the input is too long for the model's positions or for the cache, or the
                model does not take one of the inputs.
        """
        inputs = {name: value for name, value in inputs.items() if value is not None}
        if ("decoder_input_ids" in inputs) != (self.spec.family == "encoder-decoder"):
            have = "takes no" if "decoder_input_ids" in inputs else "needs"
            raise SpecError(f"this model is {self.spec.family} and {have} decoder_input_ids.")
        if self.decoder is None:
            late = getattr(self.vocabulary_head, "mask_decoder_positions", None)
            return self.run_encoder(_build_input(EncoderInput, input_ids, inputs), late)
        if self.encoder is None:
            return self.run_decoder(_build_input(DecoderInput, input_ids, inputs))
        target = {name: inputs.pop(name) for name in _DECODER_INPUTS if name in inputs}
        target = {name.removeprefix("decoder_"): value for name, value in target.items()}
        output, encoder_loss = None, None
        if input_ids is not None:
            source = _build_input(EncoderInput, input_ids, inputs)
            hidden, encoder_loss = self.run_encoder(source)
            output = EncoderOutput(hidden, source.attention_mask)
        hidden, loss = self.run_decoder(DecoderInput(**target), output)
        if encoder_loss is not None:
            loss = encoder_loss if loss is None else encoder_loss + loss
        return hidden, loss

    def encode(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        """Return the encoder's hidden states [B, T, D]; `inputs` are fields of `EncoderInput`."""
        return self.run_encoder(EncoderInput(input_ids, **inputs))[0]

    def run_encoder(
        self, inputs: EncoderInput, mask_decoder_positions: nn.Module | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run the encoder. Returns its hidden states and auxiliary loss, as `read` does.

        If `inputs.order` is set, the hidden states are those of XLNet's query stream [B, A, D].
        With `mask_decoder_positions`, the last layer serves as DeBERTa's enhanced mask decoder.
        """
        if self.encoder is None:
            raise SpecError(f"this model is {self.spec.family}: it has no encoder.")
        uncached = None if self.spec.carries_state else inputs.cache
        refuse("an encoder takes no", cache=uncached, lengths=inputs.lengths)
        table = self.tokens if self.source_tokens is None else self.source_tokens
        tokens, sequence, num_tokens = table(inputs.input_ids), self._sequence_info(inputs), 0
        if (chosen := self._global_token_mask(inputs)) is not None:
            sequence = GlobalSequenceInfo(**vars(sequence), global_tokens=chosen)
        order, predicted = inputs.order, inputs.predicted
        if order is None or predicted is None:
            refuse("order and predicted are given together:", order=order, predicted=predicted)
        else:
            query, num_tokens = self.encoder.embedding.query, order.shape[1]
            if query is None:
                raise SpecError("a model without a query stream (Embedding) takes no order.")
            tokens = torch.cat((tokens, query(torch.zeros_like(predicted))), 1)
            sequence = add_queries(sequence, order, predicted)
        hidden, loss = self.encoder(
            tokens,
            sequence,
            token_type_ids=sequence.types,
            mask_decoder_positions=mask_decoder_positions,
            cache=inputs.cache,
        )
        return hidden if inputs.gather_positions is not None else hidden[:, num_tokens:], loss

    def run_decoder(
        self, inputs: DecoderInput, encoded: EncoderOutput | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run the decoder. Returns its hidden states and auxiliary loss, as `read` does.

        Args:
            inputs: the decoder's input.
            encoded: the encoder's output for cross-attention; None: taken from the cache, if there.
        """
        if self.decoder is None:
            raise SpecError(f"this model is {self.spec.family}: it has no decoder.")
        sequence = self._sequence_info(inputs, causal=True, prefix=inputs.prefix_lengths)
        cache, cache_slice = inputs.cache, sequence.cache_slice
        if cache is not None and cache_slice is not None:
            if not cache_slice.is_prefill:
                refuse("after the first tokens a cache takes no", prefix_lengths=sequence.prefix)
            if encoded is None and cache.source_mask is not None:
                encoded = EncoderOutput(None, cache.source_mask[cache_slice.rows])
        return self.decoder(
            self.tokens(inputs.input_ids),
            replace(sequence, encoder=encoded),
            token_type_ids=inputs.token_type_ids,
            cache=cache,
        )

    def _global_token_mask(self, inputs: EncoderInput) -> Tensor | None:
        """Return a bool mask [B, T] that is True for global tokens; None if there are none."""
        chosen, types = inputs.global_tokens, inputs.token_type_ids
        if not self.spec.has_global_tokens:
            refuse("this model has no", global_tokens=chosen)
        if chosen is None and self.spec.global_tokens == "first":
            chosen = torch.zeros_like(inputs.input_ids)
            chosen[:, 0] = 1
        elif chosen is None and self.spec.global_tokens == "question" and types is not None:
            chosen = types == 0
        if chosen is None or inputs.attention_mask is None:
            return None if chosen is None else chosen.bool()
        return chosen.bool() & inputs.attention_mask.bool()

    def _sequence_info(self, inputs: StackInput, **conditions: Any) -> SequenceInfo:
        """Return the `SequenceInfo` of the input: its positions and who may attend to whom.

        With a cache, the pass over the cache slots is started.
        """
        rows, length = inputs.input_ids.shape
        documents, cache_slice = inputs.document_ids, None
        columns = torch.arange(length, device=inputs.input_ids.device)[None]
        if documents is not None and not self.spec.supports_packing:
            raise SpecError(
                "a layer of this model does not keep packed documents apart: leave document_ids "
                "out (data.separate_documents = false)."
            )
        if inputs.cache is None:
            refuse("without a cache a model takes no", slots=inputs.slots, lengths=inputs.lengths)
        else:
            mask = inputs.attention_mask
            refuse("a cache takes no", attention_mask=mask, document_ids=documents)
            cache_slice = inputs.cache.start_pass(rows, length, inputs.slots, inputs.lengths)
            columns = cache_slice.columns(columns.device)
        return SequenceInfo(
            positions=self._position_ids(inputs, columns),
            columns=columns,
            is_token=inputs.attention_mask,
            documents=documents,
            types=inputs.token_type_ids,
            gather_positions=inputs.gather_positions,
            cache_slice=cache_slice,
            **conditions,
        )

    def _position_ids(self, inputs: StackInput, columns: Tensor) -> Tensor:
        """Return position ids [1 or B, T].

        By default, position ids are indices in the row (with a cache, in the slot). If an absolute
        position encoding counts only some tokens, the position id of a counted token is the number
        of counted tokens before it; other tokens get -1.
        """
        end = self.max_length
        if inputs.position_ids is not None:
            return inputs.position_ids
        if inputs.cache is not None:
            # Padding after the tokens of a slot may lie beyond the last position.
            return columns if end is None else columns.clamp(max=end - 1)
        check_length(columns.shape[1], end)
        counted = self._counted_mask(inputs.input_ids, inputs.attention_mask)
        return columns if counted is None else counted.cumsum(1) * counted - 1

    def _counted_mask(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """Return int64 [B, T], 1 for tokens that advance the position ids; None: all tokens do."""
        positions = self.spec.embedding.positions
        if not isinstance(positions, Learned | Sinusoidal) or positions.counted == "all":
            return None
        if positions.counted == "not-padding":
            return (input_ids != positions.offset - 1).long()
        return None if attention_mask is None else attention_mask.bool().long()


def add_queries(sequence: SequenceInfo, order: Tensor, predicted: Tensor) -> SequenceInfo:
    """Return the `SequenceInfo` of T tokens followed by the M queries of XLNet's query stream.

    Each query has the position of the token that it predicts. A token attends to tokens of its own
    or a lower rank in `order`. A query attends only to tokens of a lower rank than the token that
    it predicts. No token or query attends to queries. Source: Yang et al. 2019, section 2.3.

    Args:
        sequence: the `SequenceInfo` of the tokens.
        order: int64 [B, T], the rank of each token in the prediction order.
        predicted: int64 [B, M], the position of each predicted token in its row.
    """

    def append_queries(x: Tensor | None) -> Tensor | None:
        """Append to per-token values the values of the predicted tokens: [B, T] to [B, T + M]."""
        if x is None:
            return None
        x = x.expand(len(predicted), -1)
        return torch.cat((x, x.gather(1, predicted)), 1)

    gathered, num_queries = sequence.gather_positions, predicted.shape[1]
    if gathered is not None:  # flat positions among queries, which come after the tokens
        row = gathered.div(num_queries, rounding_mode="floor")
        gathered = gathered + (row + 1) * order.shape[1]
    # A token attends to ranks up to its own, a query to ranks below that of its predicted token.
    known = order[:, None] <= torch.cat((order, order.gather(1, predicted) - 1), 1)[..., None]
    positions, columns = append_queries(sequence.positions), append_queries(sequence.columns)
    assert positions is not None
    assert columns is not None
    return replace(
        sequence,
        positions=positions,
        columns=columns,
        is_token=append_queries(sequence.is_token),
        documents=append_queries(sequence.documents),
        types=append_queries(sequence.types),
        custom=known[:, None],
        num_keys=order.shape[1],
        gather_positions=gathered,
    )
