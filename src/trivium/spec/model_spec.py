"""`ModelSpec`: a Transformer in one value, and the facts that follow from it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from trivium.errors import SpecError
from trivium.spec.head_parts import HeadInput, Heads
from trivium.spec.parts import (
    Count,
    Embedding,
    Initialization,
    Learned,
    Normal,
    RelativeBias,
    Rotary,
    Spec,
    Stack,
    Xavier,
)


class ModelSpec(Spec):
    """A Transformer. The slots `encoder` and `decoder` decide the family and the masks.

    With both, they share one token table, unless `source_vocab_size` gives the encoder a
    vocabulary of its own.
    """

    kind: Literal["transformer"] = "transformer"
    vocab_size: Count
    source_vocab_size: Count | None = None
    d_model: Count
    embedding: Embedding
    encoder: Stack | None = None
    decoder: Stack | None = None
    heads: Heads = ()
    initialization: Initialization = Normal()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.encoder is None and self.decoder is None:
            raise SpecError("a ModelSpec needs an encoder, a decoder, or both; given: neither.")
        if self.source_vocab_size is not None and not (self.encoder and self.decoder):
            raise SpecError(
                "source_vocab_size is for a model with an encoder and a decoder: leave it out."
            )
        return self

    @model_validator(mode="after")
    def _initialization_fits(self) -> Self:
        if isinstance(self.initialization, Xavier):
            return self
        start = self.initialization.attention
        if start == "position_offsets" and not self.allows_position_offsets:
            raise SpecError(
                'initialization.attention="position_offsets" needs learned positions, or rotary '
                'ones in attention with biases: use "random" here.'
            )
        if start == "copy_heads" and not self.allows_copy_heads:
            raise SpecError(
                'initialization.attention="copy_heads" needs an encoder and a decoder, with '
                'learned positions or relative biases: use "random" here.'
            )
        return self

    @property
    def allows_position_offsets(self) -> bool:
        """Whether heads can start as attention to fixed distances."""
        return isinstance(self.embedding.positions, Learned) or all(
            isinstance(attention.positions, Rotary) and attention.bias
            for stack in self.stacks
            for attention in stack.attentions
        )

    @property
    def allows_copy_heads(self) -> bool:
        """Whether cross-attention can start by finding equal tokens, and their neighbours."""
        relative = [each.positions for stack in self.stacks for each in stack.attentions]
        if isinstance(self.embedding.positions, Learned):
            positions = not self.embedding.factorised and not any(relative)
        else:
            positions = all(isinstance(each, RelativeBias) for each in relative)
        return self.family == "encoder-decoder" and positions

    @property
    def family(self) -> Literal["encoder-only", "decoder-only", "encoder-decoder"]:
        """An encoder alone is bidirectional, a decoder alone causal; both translate."""
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
        """What the heads are built with: norm and dropout are those of the last stack."""
        last = self.stacks[-1]
        return HeadInput(
            vocab_size=self.vocab_size,
            d_model=self.d_model,
            d_embedding=self.d_embedding,
            projects=self.embedding.factorised is not None,
            norm=last.norm,
            dropout=last.dropout,
        )

    def with_dropout(self, dropout: float) -> Self:
        """The same model with this dropout in every stack."""
        stacks = {"encoder": self.encoder, "decoder": self.decoder}
        return self.replace(
            **{name: stack.replace(dropout=dropout) for name, stack in stacks.items() if stack}
        )
