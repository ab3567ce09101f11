"""The frozen description of a model, and what follows from it.

A model is a sentence in a small vocabulary of parts. Every choice is a part (a member of a closed
union, told apart by its `kind`), never a flag, and whatever can be derived is derived: which
family it is, who sees whom, how many parameters it has and what a token costs.

>>> from trivium.presets import presets
>>> presets["gpt2"].family, presets["gpt2"].num_parameters
('decoder-only', 124439808)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trivium.errors import SpecError


class Part(BaseModel):
    """A frozen piece of a description. Unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise SpecError(f"{type(self).__name__}: {describe_validation(error)}") from None

    def replace(self, **changes: Any) -> Self:
        """The same part with some fields changed, checked again."""
        return type(self)(**{**dict(self), **changes})


Count = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Deviation = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Learned(Part):
    """One trained vector for each absolute position, added to the token's (BERT, GPT-2)."""

    kind: Literal["learned"] = "learned"
    max_length: Count


class Sinusoidal(Part):
    """Sines and cosines of the absolute position, added (Vaswani et al. 2017, section 3.5)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: Positive = 10_000.0


class Rotary(Part):
    """Queries and keys are turned by an angle that grows with position (Su et al. 2021)."""

    kind: Literal["rotary"] = "rotary"
    base: Positive = 10_000.0


AbsolutePositions = Annotated[Learned | Sinusoidal, Field(discriminator="kind")]
RelativePositions = Rotary


class Full(Part):
    """Every position sees every other one that causality and documents allow."""

    kind: Literal["full"] = "full"


class Sliding(Part):
    """A position sees `window` positions to each allowed side of it, and itself."""

    kind: Literal["sliding"] = "sliding"
    window: Count


Pattern = Annotated[Full | Sliding, Field(discriminator="kind")]


class LayerNorm(Part):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016)."""

    kind: Literal["layer"] = "layer"
    eps: Positive = 1e-5
    bias: bool = True


class RMSNorm(Part):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""

    kind: Literal["rms"] = "rms"
    eps: Positive = 1e-6


Norm = Annotated[LayerNorm | RMSNorm, Field(discriminator="kind")]


class Attention(Part):
    """Multi-head attention; with fewer key-value heads than query heads it is grouped-query."""

    num_heads: Count
    head_dim: Count
    num_kv_heads: Count | None = None
    bias: bool = True
    scale: Positive | None = None
    pattern: Pattern = Full()
    positions: RelativePositions | None = None

    @property
    def kv_heads(self) -> int:
        """Key-value heads: as many as query heads unless the spec says fewer."""
        return self.num_kv_heads or self.num_heads

    @model_validator(mode="after")
    def _groups_are_whole(self) -> Self:
        if self.num_heads % self.kv_heads:
            raise SpecError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.kv_heads}: "
                "every key-value head serves the same number of query heads."
            )
        if self.positions is not None and self.head_dim % 2:
            raise SpecError(
                f"head_dim={self.head_dim} is odd: rotary positions turn pairs of dimensions, "
                "so it must be even."
            )
        return self


Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]


class FeedForward(Part):
    """act(x W_in) W_out, or with a gate (act(x W_gate) * (x W_in)) W_out (Shazeer 2020)."""

    d_ff: Count
    activation: Activation
    gated: bool = False
    bias: bool = True


class Stack(Part):
    """`num_layers` blocks; a tuple of attentions is a pattern repeated over the layers."""

    num_layers: Count
    attention: Attention | Annotated[tuple[Attention, ...], Field(min_length=1)]
    feed_forward: FeedForward
    norm: Norm
    norm_order: Literal["pre", "post"]
    dropout: Fraction = 0.0

    def attention_of(self, layer: int) -> Attention:
        """The attention of layer `layer`, counted from 0."""
        if isinstance(self.attention, Attention):
            return self.attention
        return self.attention[layer % len(self.attention)]

    @property
    def attentions(self) -> Iterator[Attention]:
        """The attention of every layer in turn."""
        return (self.attention_of(layer) for layer in range(self.num_layers))


class Embedding(Part):
    """Token vectors, with absolute positions, token types and a norm where a family has them."""

    positions: AbsolutePositions | None = None
    num_token_types: Annotated[int, Field(ge=0)] = 0
    norm: Norm | None = None
    scale: Positive = 1.0


class LMHead(Part):
    """Logits of the next token, through the embedding's matrix if tied."""

    kind: Literal["lm"] = "lm"
    tied: bool


class MLMHead(Part):
    """Logits of masked tokens: dense, activation, norm, tied projection with a bias (BERT).

    With activation "none" the projection reads the hidden states as they are: a short run learns
    faster so, since the last block already does what the dense layer would.
    """

    kind: Literal["mlm"] = "mlm"
    activation: Activation | Literal["none"] = "gelu"
    bias: bool = True


class NSPHead(Part):
    """Is B the next sentence of A: tanh(dense(first position)), two logits (BERT)."""

    kind: Literal["nsp"] = "nsp"


Head = Annotated[LMHead | MLMHead | NSPHead, Field(discriminator="kind")]


class Initialization(Part):
    """Where training starts: normal weights of deviation `std`, biases 0, norms 1.

    `branches` is what the two matrices that write into the residual stream start as: like the
    others ("full": BERT as published), with std / sqrt(2 layers) ("scaled": GPT-2), or at zero
    ("zero": every block, and the transform of an MLM head, starts as the identity, which lets a
    short run leave the plateau of word frequencies).

    `attention` "offsets" is for learned positions: they start as sinusoids, and every head as
    attention to one fixed distance (-1, +1, -2, ...), so that a short run need not first find
    out which tokens are neighbours.
    """

    std: Deviation = 0.02
    embedding_std: Deviation = 0.02
    branches: Literal["full", "scaled", "zero"] = "full"
    attention: Literal["random", "offsets"] = "random"


class ModelSpec(Part):
    """A Transformer. The slots `encoder` and `decoder` decide the family and who sees whom."""

    vocab_size: Count
    d_model: Count
    embedding: Embedding
    encoder: Stack | None = None
    decoder: Stack | None = None
    heads: tuple[Head, ...] = ()
    initialization: Initialization = Initialization()

    @model_validator(mode="after")
    def _has_a_stack(self) -> Self:
        if self.encoder is None and self.decoder is None:
            raise SpecError("a ModelSpec needs an encoder, a decoder, or both; neither was given.")
        return self

    @model_validator(mode="after")
    def _heads_differ(self) -> Self:
        kinds = [head.kind for head in self.heads]
        if len(set(kinds)) < len(kinds):
            raise SpecError(f"heads holds {kinds}: a model has at most one head of each kind.")
        return self

    @model_validator(mode="after")
    def _offsets_need_learned_positions(self) -> Self:
        learned = isinstance(self.embedding.positions, Learned)
        if self.initialization.attention == "offsets" and not learned:
            raise SpecError(
                'initialization.attention="offsets" needs learned positions: use "random" here.'
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
    def max_length(self) -> int | None:
        """Longest input in tokens, or None where positions have no end."""
        positions = self.embedding.positions
        return positions.max_length if isinstance(positions, Learned) else None

    @property
    def num_parameters(self) -> int:
        """Every trained number, tied matrices counted once, from the description alone."""
        return _num_parameters(self)

    @property
    def num_matrix_parameters(self) -> int:
        """Weights that every token is multiplied with: no embeddings, norms or vocabulary."""
        return sum(
            _attention_parameters(attention, self.d_model)
            + _feed_forward_parameters(stack.feed_forward, self.d_model)
            for stack in self.stacks
            for attention in stack.attentions
        )

    def flops_per_token(self, length: int, *, labelled: float = 1.0) -> float:
        """Floating-point operations to train on one token of a row of `length` tokens.

        6 per weight (2 forward, 4 backward; Kaplan et al. 2020), 12 N H T a layer for the two
        products of attention (half of it where causal); the last feed-forward network and the
        vocabulary projection run on the `labelled` fraction of positions only.
        """
        products = 0.0
        for stack in self.stacks:
            causal = 0.5 if stack is self.decoder else 1.0
            for attention in stack.attentions:
                products += 12.0 * attention.num_heads * attention.head_dim * length * causal
        last = _feed_forward_parameters(self.stacks[-1].feed_forward, self.d_model)
        weights = self.num_matrix_parameters - (1.0 - labelled) * last
        head = self.vocab_size * self.d_model * labelled
        return 6.0 * (weights + head) + products

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


def describe_validation(error: ValidationError) -> str:
    """The first problem pydantic found as one line: where, what was given, what is wrong."""
    errors = error.errors()
    # Of a union such as Attention | tuple, the member that was not meant only says so.
    meant = [e for e in errors if e["type"] not in ("model_type", "tuple_type")]
    first = (meant or errors)[0]
    where = ".".join(str(step) for step in first["loc"] if "[" not in str(step))
    cause = first.get("ctx", {}).get("error")
    if cause is not None:
        # A check of ours, or of a part inside: its message stands for itself.
        return f"{where}: {cause}" if where else str(cause)
    given = repr(first["input"])
    given = given if len(given) <= 100 else f"{given[:97]}..."
    return f"{where or 'value'}: {first['msg']} (given: {given})."


def _linear(inputs: int, outputs: int, bias: bool) -> int:
    return inputs * outputs + outputs * bias


def _norm_parameters(norm: LayerNorm | RMSNorm, width: int) -> int:
    return width * (1 + (isinstance(norm, LayerNorm) and norm.bias))


def _attention_parameters(attention: Attention, width: int) -> int:
    queries = attention.num_heads * attention.head_dim
    keys = attention.kv_heads * attention.head_dim
    return (
        _linear(width, queries, attention.bias)
        + 2 * _linear(width, keys, attention.bias)
        + _linear(queries, width, attention.bias)
    )


def _feed_forward_parameters(feed_forward: FeedForward, width: int) -> int:
    inward = _linear(width, feed_forward.d_ff, feed_forward.bias) * (1 + feed_forward.gated)
    return inward + _linear(feed_forward.d_ff, width, feed_forward.bias)


def _stack_parameters(stack: Stack, width: int, *, cross: bool) -> int:
    total = _norm_parameters(stack.norm, width) if stack.norm_order == "pre" else 0
    for attention in stack.attentions:
        total += _attention_parameters(attention, width) * (1 + cross)
        total += _norm_parameters(stack.norm, width) * (2 + cross)
        total += _feed_forward_parameters(stack.feed_forward, width)
    return total


def _head_parameters(head: LMHead | MLMHead | NSPHead, spec: ModelSpec) -> int:
    width = spec.d_model
    match head:
        case LMHead(tied=tied):
            return 0 if tied else spec.vocab_size * width
        case MLMHead(activation="none"):
            return spec.vocab_size
        case MLMHead(bias=bias):
            norm = _norm_parameters(spec.stacks[0].norm, width)
            return _linear(width, width, bias) + norm + spec.vocab_size
        case NSPHead():
            return _linear(width, width, True) + _linear(width, 2, True)


def _num_parameters(spec: ModelSpec) -> int:
    embedding, width = spec.embedding, spec.d_model
    total = (spec.vocab_size + embedding.num_token_types) * width
    for stack in spec.stacks:
        if isinstance(embedding.positions, Learned):
            total += embedding.positions.max_length * width
        if embedding.norm:
            total += _norm_parameters(embedding.norm, width)
        cross = stack is spec.decoder and spec.encoder is not None
        total += _stack_parameters(stack, width, cross=cross)
    return total + sum(_head_parameters(head, spec) for head in spec.heads)
