"""`ModelSpec`: a Transformer in one value, and the facts that follow from it."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import ValidationError, field_validator, model_validator

from trivium.errors import SpecError
from trivium.spec.counts import attention_parameters, count_parameters, feed_forward_parameters
from trivium.spec.head_input import HeadInput
from trivium.spec.parts import (
    Count,
    Embedding,
    FanIn,
    Head,
    Initialization,
    Learned,
    Normal,
    Part,
    RelativeBias,
    Rotary,
    Stack,
    describe_validation,
)


class ModelSpec(Part):
    """A Transformer. The slots `encoder` and `decoder` decide the family and who sees whom.

    With both, they read the same token table, unless `source_vocab_size` gives the encoder a
    vocabulary of its own.
    """

    kind: Literal["transformer"] = "transformer"
    vocab_size: Count
    source_vocab_size: Count | None = None
    d_model: Count
    embedding: Embedding
    encoder: Stack | None = None
    decoder: Stack | None = None
    heads: tuple[Head, ...] = ()
    initialization: Initialization = Normal()

    @field_validator("decoder", mode="after")
    @classmethod
    def _decoder_is_its_own(cls, decoder: Stack | None) -> Stack | None:
        """A stack's role comes from its slot: one description in both slots is two stacks."""
        return decoder and decoder.model_copy()

    @model_validator(mode="after")
    def _has_a_stack(self) -> Self:
        if self.encoder is None and self.decoder is None:
            raise SpecError("a ModelSpec needs an encoder, a decoder, or both; neither was given.")
        return self

    @model_validator(mode="after")
    def _source_vocabulary_has_an_encoder(self) -> Self:
        if self.source_vocab_size is not None and not (self.encoder and self.decoder):
            raise SpecError(
                "source_vocab_size is for a model with an encoder and a decoder: leave it out."
            )
        return self

    @model_validator(mode="after")
    def _heads_differ(self) -> Self:
        kinds = [head.kind for head in self.heads]
        if len(set(kinds)) < len(kinds):
            raise SpecError(f"heads holds {kinds}: a model has at most one head of each kind.")
        return self

    @model_validator(mode="after")
    def _offsets_need_positions_that_can_turn(self) -> Self:
        start, positions = self.initialization, self.embedding.positions
        offsets = isinstance(start, Normal) and start.attention == "offsets"
        turning = all(
            isinstance(attention.positions, Rotary) and attention.bias
            for stack in self.stacks
            for attention in stack.attentions
        )
        if offsets and not (isinstance(positions, Learned) or turning):
            raise SpecError(
                'initialization.attention="offsets" needs learned positions, or rotary ones in '
                'attention with biases: use "random" here.'
            )
        return self

    @model_validator(mode="after")
    def _lookup_needs_two_stacks_and_positions_to_look_at(self) -> Self:
        start, embedding = self.initialization, self.embedding
        if not isinstance(start, Normal | FanIn) or start.attention != "lookup":
            return self
        relative = [a.positions for stack in self.stacks for a in stack.attentions]
        if isinstance(embedding.positions, Learned):
            able = not embedding.factorised and not any(relative)
        else:
            able = all(isinstance(positions, RelativeBias) for positions in relative)
        if self.family != "encoder-decoder" or not able:
            raise SpecError(
                'initialization.attention="lookup" needs an encoder and a decoder, with learned '
                'positions or relative biases: use "random" here.'
            )
        return self

    @property
    def family(self) -> Literal["encoder-only", "decoder-only", "encoder-decoder"]:
        """Only an encoder sees both ways; only a decoder is causal; both translate."""
        if self.encoder and self.decoder:
            return "encoder-decoder"
        return "encoder-only" if self.encoder else "decoder-only"

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks there are, encoder first."""
        return tuple(stack for stack in (self.encoder, self.decoder) if stack)

    @property
    def d_embedding(self) -> int:
        """Width of the token vectors: d_model, unless they are factorised."""
        return self.embedding.factorised.width if self.embedding.factorised else self.d_model

    @property
    def max_length(self) -> int | None:
        """Longest input in tokens, or None where positions have no end."""
        positions = self.embedding.positions
        return positions.max_length if positions else None

    @property
    def head_input(self) -> HeadInput:
        """What the heads are made with: the norm and dropout are those of the last stack."""
        last = self.stacks[-1]
        return HeadInput(
            vocab_size=self.vocab_size,
            d_model=self.d_model,
            d_embedding=self.d_embedding,
            narrows=self.embedding.factorised is not None,
            norm=last.norm,
            dropout=last.dropout,
        )

    def with_dropout(self, dropout: float) -> ModelSpec:
        """The same model with this dropout in every stack."""
        slots = {"encoder": self.encoder, "decoder": self.decoder}
        return self.replace(
            **{slot: stack.replace(dropout=dropout) for slot, stack in slots.items() if stack}
        )

    def crosses(self, stack: Stack) -> bool:
        """Whether the blocks of `stack` also attend to the encoder's output."""
        return self.encoder is not None and stack is self.decoder

    @property
    def num_parameters(self) -> int:
        """Every trained number, tied matrices counted once, from the description alone."""
        return count_parameters(self)

    @property
    def num_matrix_parameters(self) -> int:
        """Weights that every token is multiplied with: no embeddings, norms or vocabulary."""
        return sum(
            attention_parameters(attention, self.d_model) * (1 + self.crosses(stack))
            + feed_forward_parameters(stack.feed_forward, self.d_model)
            for stack in self.stacks
            for attention in stack.attentions
        )

    def flops_per_token(self, length: int, *, labelled: float = 1.0) -> float:
        """Floating-point operations to train on one token of a row of `length` tokens.

        6 per weight (2 forward, 4 backward; Kaplan et al. 2020), 12 N H T a layer for the two
        products of attention (half of it where causal); the last feed-forward network and the
        vocabulary projection run on the `labelled` fraction of positions only. With an encoder and
        a decoder, a token is one of the source and one of the target, in rows of equal length.
        What a CPU saves in the last attention, whose other positions do not ask, is not taken off:
        a few per cent.
        """
        products = 0.0
        for stack in self.stacks:
            seen = (0.5 if stack is self.decoder else 1.0) + self.crosses(stack)
            for attention in stack.attentions:
                products += 12.0 * attention.num_heads * attention.head_dim * length * seen
        last = feed_forward_parameters(self.stacks[-1].feed_forward, self.d_model)
        weights = self.num_matrix_parameters - (1.0 - labelled) * last
        if self.embedding.factorised:
            weights += self.d_embedding * self.d_model * len(self.stacks)
        head = self.vocab_size * self.d_embedding * labelled
        return 6.0 * (weights + head) + products

    def flops_of_pair(self, source: int, target: int) -> float:
        """Floating-point operations to train on one source and one target of these lengths.

        As `flops_per_token`, which it equals a token where both are equally long.
        """
        total = 6.0 * self.vocab_size * self.d_embedding * target
        for stack in self.stacks:
            here, share = (target, 0.5) if stack is self.decoder else (source, 1.0)
            for attention in stack.attentions:
                matrix = attention_parameters(attention, self.d_model)
                keys = 2 * self.d_model * attention.kv_heads * attention.head_dim
                product = 12.0 * attention.num_heads * attention.head_dim * here
                inner = matrix + feed_forward_parameters(stack.feed_forward, self.d_model)
                total += 6.0 * inner * here + product * here * share
                if self.crosses(stack):
                    total += 6.0 * ((matrix - keys) * here + keys * source) + product * source
            if self.embedding.factorised:
                total += 6.0 * self.d_embedding * self.d_model * here
        return total

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON or TOML; what is None is left out."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelSpec:
        """The inverse of `to_dict`. Raises SpecError with the field that does not fit."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise SpecError(f"model description: {describe_validation(error)}") from None
