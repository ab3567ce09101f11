"""What every model's spec has, whatever it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import ValidationError

from trivium.choice import Choice
from trivium.errors import SpecError
from trivium.spec.heads import Head, HeadInput, Heads
from trivium.spec.heads.scalar_mix import ScalarMix
from trivium.spec.heads.vocabulary import LMHead
from trivium.spec.part import Count, Part
from trivium.spec.positions import AbsolutePositions
from trivium.spec.stack import Stack
from trivium.spec.validation_message import field_error

Family = Literal["encoder-only", "decoder-only", "encoder-decoder"]


class Spec(Choice, Part):
    """A whole model. `to_dict` and `from_dict` are plain data for JSON or TOML."""

    aligns: ClassVar[bool] = False
    """Whether it is recurrent and its decoder attends to the encoder (`alignments`)."""
    counts: ClassVar[bool] = False
    """Whether it counts its text in one pass, in place of training."""
    takes_heads: ClassVar[bool] = True
    """Whether a task's own head can read its hidden states."""

    vocab_size: Count
    d_model: Count
    heads: Heads = ()

    def check(self) -> None:
        """Raise SpecError for a mix of other layers than those of the model."""
        for head in self.heads:
            if isinstance(head, ScalarMix) and head != self.scalar_mix:
                raise SpecError(
                    f'heads: "scalar-mix" of {head.num_layers} layers: it is for an RNN of '
                    'direction "two-way" whose layers are d_model wide, and mixes all of them and '
                    "the token vectors, num_layers + 1 in all."
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what is None is left out."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; without a kind it is a Transformer.

        Raises SpecError with the field that does not fit.
        """
        given = {"kind": "transformer", **data} if isinstance(data, Mapping) else data
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise field_error("model spec", error) from None

    def with_heads(self, heads: tuple[Head, ...]) -> Self:
        """The same model with these heads, and with what it has for them."""
        return self.replace(heads=heads)

    def with_dropout(self, dropout: float) -> Self:
        """The same model with this dropout."""
        return self.replace(dropout=dropout)

    @property
    def family(self) -> Family:
        """The family: an encoder alone is bidirectional, a decoder alone is causal, both translate.

        A model that is not made of stacks reads from left to right unless its spec says otherwise.
        """
        return "decoder-only"

    @property
    def head_input(self) -> HeadInput:
        """What the heads are built with."""
        raise NotImplementedError

    @property
    def max_length(self) -> int | None:
        """Longest input in tokens, or None where positions have no end."""
        return None

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Its stacks of blocks, encoder first; none of a model that is not made of blocks."""
        return ()

    @property
    def attends(self) -> bool:
        """Whether every layer is attention."""
        return False

    @property
    def packs(self) -> bool:
        """Whether it keeps the documents of a packed row apart."""
        return True

    @property
    def carries(self) -> bool:
        """Whether it can read a text row by row, with what it keeps of the rows before."""
        return False

    @property
    def two_way(self) -> bool:
        """Whether it is a forward and a backward model (ELMo)."""
        return False

    @property
    def scalar_mix(self) -> ScalarMix | None:
        """The mix of its layers that heads of tasks read."""
        return None

    @property
    def biases_encoder(self) -> bool:
        """Whether an encoder's attention adds to its scores, in full, for any length."""
        return False

    @property
    def adds_loss(self) -> bool:
        """Whether its layers have a loss of their own."""
        return False

    @property
    def source_size(self) -> int:
        """Entries of the vocabulary of its input."""
        return self.vocab_size

    @property
    def num_token_types(self) -> int:
        """Token types (sentence A and B) that it knows."""
        return 0

    @property
    def reads_token_types(self) -> bool:
        """Whether a pair's token types make a difference to it."""
        return self.num_token_types > 1

    @property
    def has_global_tokens(self) -> bool:
        """Whether some tokens may see all others where most see near ones alone."""
        return False

    @property
    def query_stream(self) -> bool:
        """Whether it can predict tokens in any order."""
        return False

    @property
    def has_optional_weights(self) -> bool:
        """Whether some weights are for some inputs alone: not every step has their gradient."""
        return False

    @property
    def absolute_positions(self) -> AbsolutePositions | None:
        """The positions that are added to its token vectors."""
        return None

    def kept_bytes(self, length: int, item: int, *, on_cpu: bool, recompute: bool = False) -> int:
        """Bytes that training keeps of a token between forward and backward pass.

        Args:
            length: tokens of a row.
            item: bytes of a number in the precision of products.
            on_cpu: whether kernels keep what those of a GPU compute again.
            recompute: every block keeps its input alone, and one of them, which is computed again,
                all of it (Chen et al. 2016).
        """
        raise NotImplementedError


def projecting_head_input(spec: Spec, width: int, dropout: float) -> HeadInput:
    """Return what heads on `width` numbers are built with: a tied one has a matrix to `d_model`."""
    tied = any(isinstance(head, LMHead) and head.tied for head in spec.heads)
    return HeadInput(
        vocab_size=spec.vocab_size,
        d_model=width,
        d_embedding=spec.d_model if tied else width,
        projects=tied,
        dropout=dropout,
    )
