"""Sequence models before the Transformer: `RNNSpec` and `NGramSpec`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from trivium.errors import SpecError
from trivium.spec.counts import head_parameters
from trivium.spec.head_input import HeadInput
from trivium.spec.parts import (
    Count,
    Fraction,
    Head,
    LayerNorm,
    LMHead,
    MLMHead,
    NSPHead,
    Part,
    Positive,
    ReplacedTokenHead,
    describe_validation,
)

Cell = Literal["elman", "lstm", "gru"]

# Gates and candidates: matrices of the size of one recurrent matrix that a cell has.
GATES: dict[str, int] = {"elman": 1, "lstm": 4, "gru": 3}

# What a head needs: to see no later token, or to see both sides of a token.
_CAUSAL_HEADS = (LMHead,)
_TWO_SIDED_HEADS = (MLMHead, NSPHead, ReplacedTokenHead)


class RNNSpec(Part):
    """A recurrent network: Elman 1990, LSTM (Hochreiter and Schmidhuber 1997), GRU (Cho 2014).

    `direction` "forward" reads from left to right: a language model. "both" lets every layer read
    both ways and joins the two (Schuster and Paliwal 1997): an encoder. "two-way" is a forward and
    a backward language model that share token vectors and softmax (ELMo, Peters et al. 2018).

    Token vectors are `d_model` wide and cells `d_hidden`; hidden states of another width than
    `d_model` are multiplied by a matrix to it. Cells read token vectors times `scale`: where they
    are the vocabulary's matrix too they start small, and cells wake up late on small numbers.
    Dropout is on all that is not recurrent (Zaremba et al. 2014): token vectors, between the
    layers, hidden states.
    """

    kind: Literal["rnn"] = "rnn"
    vocab_size: Count
    d_model: Count
    cell: Cell
    d_hidden: Count
    num_layers: Count
    direction: Literal["forward", "both", "two-way"] = "forward"
    scale: Positive = 1.0
    dropout: Fraction = 0.0
    heads: tuple[Head, ...] = ()

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        _check_kinds(self.heads)
        for head in self.heads:
            if self.direction == "two-way" and not isinstance(head, LMHead):
                raise SpecError(
                    f'a "two-way" RNN has an lm head only, which both directions share; given: '
                    f'{head.kind}. Use direction "both" for an encoder.'
                )
            if self.direction == "both" and isinstance(head, _CAUSAL_HEADS):
                raise SpecError(
                    f"an RNN that reads both ways sees the next token, so it has no {head.kind} "
                    'head: use direction "forward" or "two-way".'
                )
            if self.direction == "forward" and isinstance(head, _TWO_SIDED_HEADS):
                raise SpecError(
                    f'the {head.kind} head needs both sides of a token: use direction "both".'
                )
        return self

    @property
    def family(self) -> Literal["encoder-only", "decoder-only"]:
        """As of a Transformer: what sees both ways is an encoder, what goes forward a decoder.

        A two-way model goes on with texts by its forward half.
        """
        return "encoder-only" if self.direction == "both" else "decoder-only"

    @property
    def max_length(self) -> None:
        """There is no end: a state has no positions."""
        return

    @property
    def d_embedding(self) -> int:
        """Width of the token vectors."""
        return self.d_model

    @property
    def d_state(self) -> int:
        """Width of what the last layer says at a position, in one reading of a text."""
        return self.d_hidden * (2 if self.direction == "both" else 1)

    @property
    def head_input(self) -> HeadInput:
        """What the heads are made with."""
        return HeadInput(
            vocab_size=self.vocab_size,
            d_model=self.d_model,
            d_embedding=self.d_model,
            narrows=False,
            norm=LayerNorm(),
            dropout=self.dropout,
        )

    @property
    def num_matrix_parameters(self) -> int:
        """Weights that every token is multiplied with: no token vectors, biases or vocabulary."""
        directions = 1 if self.direction == "forward" else 2
        inputs, total = self.d_model, 0
        for _ in range(self.num_layers):
            total += GATES[self.cell] * self.d_hidden * (inputs + self.d_hidden) * directions
            inputs = self.d_state
        return total + self._projection * (2 if self.direction == "two-way" else 1)

    @property
    def _projection(self) -> int:
        return self.d_state * self.d_model if self.d_state != self.d_model else 0

    @property
    def num_parameters(self) -> int:
        """Every trained number. A cell has two biases for each gate, as PyTorch's have."""
        directions = 1 if self.direction == "forward" else 2
        biases = 2 * GATES[self.cell] * self.d_hidden * self.num_layers * directions
        if self._projection:
            biases += self.d_model * (2 if self.direction == "two-way" else 1)
        total = self.vocab_size * self.d_model + self.num_matrix_parameters + biases
        return total + sum(head_parameters(head, self.head_input) for head in self.heads)

    def flops_per_token(self, length: int, *, labelled: float = 1.0) -> float:
        """Floating-point operations to train on one token, whatever the length of a row.

        6 per weight; the projection to the vocabulary runs on the `labelled` fraction of positions,
        in a two-way model once for each direction.
        """
        readings = 2 if self.direction == "two-way" else 1
        head = self.vocab_size * self.d_model * labelled * readings
        return 6.0 * (self.num_matrix_parameters + head)

    def with_dropout(self, dropout: float) -> RNNSpec:
        """The same model with this dropout."""
        return self.replace(dropout=dropout)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON or TOML; what is None is left out."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RNNSpec:
        """The inverse of `to_dict`. Raises SpecError with the field that does not fit."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise SpecError(f"RNN description: {describe_validation(error)}") from None


class NGramSpec(Part):
    """The feed-forward language model of Bengio et al. 2003: the n-1 tokens before tell the next.

        y = b + W x + U tanh(d + H x),   x = (C(w_t-1), ..., C(w_t-n+1))

    `order` is n, `d_model` the width m of a token's vector in C, `d_hidden` that of the tanh
    layer, h. `connections` "direct" has the matrix W from token vectors to the vocabulary, "hidden"
    leaves it out. An LM head that is tied reads the vocabulary's matrix from C, through a matrix to
    width m. Places before the text have one trained vector (the paper pads with a token).
    """

    kind: Literal["n-gram"] = "n-gram"
    vocab_size: Count
    order: Annotated[int, Field(ge=2)]
    d_model: Count
    d_hidden: Count
    connections: Literal["hidden", "direct"] = "hidden"
    dropout: Fraction = 0.0
    heads: tuple[LMHead, ...] = ()

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        _check_kinds(self.heads)
        return self

    @property
    def family(self) -> Literal["decoder-only"]:
        """It sees no later token."""
        return "decoder-only"

    @property
    def max_length(self) -> None:
        """There is no end: what lies further back than n-1 tokens is not seen."""
        return

    @property
    def d_context(self) -> int:
        """Width of the vectors of a whole context, (n-1) m."""
        return (self.order - 1) * self.d_model

    @property
    def d_output(self) -> int:
        """Width of what the head reads: the tanh layer and, with direct connections, x."""
        return self.d_hidden + (self.d_context if self.connections == "direct" else 0)

    @property
    def head_input(self) -> HeadInput:
        """What the heads are made with."""
        tied = any(head.tied for head in self.heads)
        return HeadInput(
            vocab_size=self.vocab_size,
            d_model=self.d_output,
            d_embedding=self.d_model if tied else self.d_output,
            narrows=tied,
            norm=None,
            dropout=self.dropout,
        )

    @property
    def num_matrix_parameters(self) -> int:
        """Weights that every position is multiplied with, without the vocabulary's."""
        narrow = self.d_output * self.d_model if self.head_input.narrows else 0
        return self.d_context * self.d_hidden + narrow

    @property
    def num_parameters(self) -> int:
        """Every trained number, a tied matrix once."""
        own = self.vocab_size * self.d_model + self.d_model
        own += self.d_context * self.d_hidden + self.d_hidden
        return own + sum(head_parameters(head, self.head_input) for head in self.heads)

    def flops_per_token(self, length: int, *, labelled: float = 1.0) -> float:
        """Floating-point operations to train on one token: 6 per weight, where there is a label."""
        head = self.vocab_size * self.head_input.d_embedding
        return 6.0 * labelled * (self.num_matrix_parameters + head)

    def with_dropout(self, dropout: float) -> NGramSpec:
        """The same model with this dropout."""
        return self.replace(dropout=dropout)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON or TOML; what is None is left out."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NGramSpec:
        """The inverse of `to_dict`. Raises SpecError with the field that does not fit."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise SpecError(f"n-gram description: {describe_validation(error)}") from None


def _check_kinds(heads: tuple[Head, ...]) -> None:
    kinds = [head.kind for head in heads]
    if len(set(kinds)) < len(kinds):
        raise SpecError(f"heads holds {kinds}: a model has at most one head of each kind.")
