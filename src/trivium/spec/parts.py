"""The parts of a model's spec; alternatives are closed unions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trivium.errors import SpecError
from trivium.spec.validation_message import field_error


class Part(BaseModel):
    """A frozen piece of a spec. Unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            part = type(self)
            raise field_error(part.__name__, error, part.model_fields) from None

    def replace(self, **changes: Any) -> Self:
        """The same part with some fields changed, checked again."""
        return type(self)(**{**dict(self), **changes})


class Spec(Part):
    """A whole model. `to_dict` and `from_dict` are plain data for JSON or TOML."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what is None is left out."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`. Raises SpecError with the field that does not fit."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise field_error("model spec", error) from None

    def with_dropout(self, dropout: float) -> Self:
        """The same model with this dropout."""
        return self.replace(dropout=dropout)


Count = Annotated[int, Field(gt=0, lt=2**31)]
NumLayers = Annotated[int, Field(gt=0, le=1000)]  # more fill the memory without weights
DropoutRate = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Deviation = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Learned(Part):
    """One trained vector for each absolute position, added to the token's (BERT, GPT-2).

    The table has `offset` rows before that of the first position (RoBERTa, BART and OPT, whose
    first two rows once stood for padding). A token's position is the number of tokens before it
    that are `counted`: all of them, those that the attention mask marks as real (OPT), or those
    that are not the padding token, `offset` - 1 (RoBERTa). Tokens that are not counted read the row
    before that of the first position.
    """

    kind: Literal["learned"] = "learned"
    max_length: Count
    offset: Annotated[int, Field(ge=0, lt=2**31)] = 0
    counted: Literal["all", "attended", "not-padding"] = "all"

    @model_validator(mode="after")
    def _padding_has_a_row(self) -> Self:
        if self.counted != "all" and not self.offset:
            raise SpecError(f'counted="{self.counted}" needs an offset of at least 1.')
        return self


class Sinusoidal(Part):
    """Sines and cosines of the absolute position, added (Vaswani et al. 2017, section 3.5).

    Layout "interleaved" is the paper's (sine, cosine, sine, ...); "halves" has all sines first
    (Marian). `max_length` is where a family ends them.
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: Positive = 10_000.0
    layout: Literal["interleaved", "halves"] = "interleaved"
    max_length: Count | None = None


class LinearScaling(Part):
    """Every rotary angle divided by `factor` (Chen et al. 2023, position interpolation)."""

    kind: Literal["linear"] = "linear"
    factor: Positive


class Llama3Scaling(Part):
    """Slow rotary frequencies divided by `factor`, fast ones kept, those between blended.

    Slow: a wavelength above original_max_length / low_frequency_factor; fast: one below
    original_max_length / high_frequency_factor (Llama 3.1, Grattafiori et al. 2024).
    """

    kind: Literal["llama3"] = "llama3"
    factor: Positive
    low_frequency_factor: Positive = 1.0
    high_frequency_factor: Positive = 4.0
    original_max_length: Count = 8192


RotaryScaling = Annotated[LinearScaling | Llama3Scaling, Field(discriminator="kind")]


class Rotary(Part):
    """Queries and keys are turned by an angle that grows with position (Su et al. 2021).

    Layout "halves" turns dimension i of the first half of a head with that of the second, as the
    LLaMA weights for `transformers` want it; "interleaved" turns neighbours, as in the paper.
    """

    kind: Literal["rotary"] = "rotary"
    base: Positive = 10_000.0
    layout: Literal["halves", "interleaved"] = "halves"
    scaling: RotaryScaling | None = None


class RelativeBias(Part):
    """A trained number for each head and bucket of distances, added to scores (T5, section 2.1).

    Near distances have a bucket each, farther ones share buckets that widen logarithmically up to
    `max_distance`. One table a stack.
    """

    kind: Literal["relative-bias"] = "relative-bias"
    num_buckets: Annotated[int, Field(ge=4, lt=2**31, multiple_of=2)] = 32
    max_distance: Count = 128

    @model_validator(mode="after")
    def _buckets_reach_their_end(self) -> Self:
        # Of a decoder half of the buckets are one distance wide.
        if self.max_distance <= self.num_buckets // 2:
            raise SpecError(f"max_distance={self.max_distance} must exceed num_buckets / 2.")
        return self


class ALiBi(Part):
    """Scores lowered in proportion to distance, each head with its slope (Press et al. 2022)."""

    kind: Literal["alibi"] = "alibi"


AbsolutePositions = Annotated[Learned | Sinusoidal, Field(discriminator="kind")]
RelativePositions = Annotated[Rotary | RelativeBias | ALiBi, Field(discriminator="kind")]


class Full(Part):
    """Every position attends to every other one that causality and documents allow."""

    kind: Literal["full"] = "full"


class Sliding(Part):
    """A position attends to itself and to `window` positions on each allowed side of it."""

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
    """Multi-head attention; with fewer key-value heads than query heads it is grouped-query.

    Q K^T is multiplied by `scale`, head_dim^-0.5 unless set.
    """

    num_heads: Count
    head_dim: Count
    num_kv_heads: Count | None = None
    bias: bool = True
    output_bias: bool | None = None
    scale: Positive | None = None
    pattern: Pattern = Full()
    positions: RelativePositions | None = None

    @property
    def kv_heads(self) -> int:
        """Key-value heads: `num_kv_heads`, or as many as query heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def has_output_bias(self) -> bool:
        """Whether the output matrix has a bias: `output_bias`, or as the others."""
        return self.bias if self.output_bias is None else self.output_bias

    @property
    def cross(self) -> Attention:
        """The cross-attention beside it: without relative positions and pattern."""
        return self.replace(pattern=Full(), positions=None)

    @model_validator(mode="after")
    def _groups_are_whole(self) -> Self:
        if self.num_heads % self.kv_heads:
            raise SpecError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.kv_heads}: "
                "every key-value head serves the same number of query heads."
            )
        if isinstance(self.positions, Rotary) and self.head_dim % 2:
            raise SpecError(
                f"head_dim={self.head_dim} is odd: rotary positions turn pairs of dimensions, "
                "so it must be even."
            )
        return self


class Swish(Part):
    """x * sigmoid(beta x) (Ramachandran et al. 2017); "silu" is the one with beta 1."""

    kind: Literal["swish"] = "swish"
    beta: Positive


Activation = str
"""A name in `trivium.nn.feed_forward.ACTIVATIONS`, which is checked when a model is built."""


class FeedForward(Part):
    """act(x W_up) W_down, or with a gate (act(x W_gate) * (x W_up)) W_down (Shazeer 2020)."""

    d_ff: Count
    activation: Activation | Swish
    gated: bool = False
    bias: bool = True


class Stack(Part):
    """`num_layers` blocks; a tuple of attentions is repeated over the layers.

    With `num_distinct` the blocks share weights in that many runs of neighbours (ALBERT: 1).
    `first_norm` False: the first attention of a pre-norm stack has no norm before it, since the
    embedding ends with one (ModernBERT).
    """

    num_layers: NumLayers
    num_distinct: Count | None = None
    attention: Attention | Annotated[tuple[Attention, ...], Field(min_length=1)]
    feed_forward: FeedForward
    norm: Norm
    norm_order: Literal["pre", "post"]
    first_norm: bool = True
    dropout: DropoutRate = 0.0

    @property
    def distinct_layers(self) -> int:
        """Blocks with weights of their own."""
        return self.num_distinct or self.num_layers

    def block_of(self, layer: int) -> int:
        """Which of the distinct blocks layer `layer` is."""
        return layer * self.distinct_layers // self.num_layers

    def attention_of(self, layer: int) -> Attention:
        """The attention of layer `layer`, counted from 0."""
        if isinstance(self.attention, Attention):
            return self.attention
        return self.attention[layer % len(self.attention)]

    @property
    def attentions(self) -> Iterator[Attention]:
        """The attention of every layer in turn."""
        return (self.attention_of(layer) for layer in range(self.num_layers))

    @model_validator(mode="after")
    def _shared_blocks_are_alike(self) -> Self:
        if self.distinct_layers > self.num_layers:
            raise SpecError(
                f"num_distinct={self.num_distinct} is more than num_layers={self.num_layers}."
            )
        if self.num_distinct and not isinstance(self.attention, Attention):
            raise SpecError(
                "layers that share weights (num_distinct) have one attention: give no tuple."
            )
        biases = {
            (type(each.positions).__name__, str(each.positions), each.num_heads)
            for each in self.attentions
            if isinstance(each.positions, RelativeBias | ALiBi)
        }
        if len(biases) > 1:
            kinds = " and ".join(f"{kind} of {heads} heads" for kind, _, heads in sorted(biases))
            raise SpecError(
                f"a stack has one position bias for all its layers; given: {kinds}. Give every "
                "layer that has one the same."
            )
        return self


class Factorised(Part):
    """Token vectors of another width than the model's, and a matrix between the two.

    `projected` is what that matrix projects: the normalised sum of tokens, positions and types
    (ALBERT, ELECTRA), or the token vectors alone, before positions are added (OPT 350M).
    """

    width: Count
    bias: bool = True
    projected: Literal["sum", "tokens"] = "sum"


class Embedding(Part):
    """Token vectors times `scale`; positions, token types and a norm where a family has them."""

    factorised: Factorised | None = None
    positions: AbsolutePositions | None = None
    num_token_types: Annotated[int, Field(ge=0, lt=2**31)] = 0
    norm: Norm | None = None
    scale: Positive = 1.0


class Normal(Part):
    """Start: normal weights of deviation `std`, biases 0, norms 1.

    `residual_init` is the start of the output matrices of attention, cross-attention and
    feed-forward, which add to the residual stream: with `std` ("full": BERT as published), with
    std / sqrt(2 layers), layers of encoder and decoder together ("scaled": GPT-2), or zero ("zero":
    every block, and the dense layer of an MLM head, starts as the identity).

    `attention` is the start of queries and keys: "position_offsets" and "copy_heads" learn faster
    in short runs; see `trivium.models.initialization`. The first is for learned positions, and for
    rotary ones in attention with biases; the second for encoder-decoders with learned positions or
    relative biases.
    """

    kind: Literal["normal"] = "normal"
    std: Deviation = 0.02
    embedding_std: Deviation = 0.02
    residual_init: Literal["full", "scaled", "zero"] = "full"
    attention: Literal["random", "position_offsets", "copy_heads"] = "random"


class Xavier(Part):
    """Start: uniform in +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010), biases 0.

    Token vectors are normal with deviation d_model^-0.5, as the scaled, tied embeddings of the
    first Transformer want them.
    """

    kind: Literal["xavier"] = "xavier"


class FanIn(Part):
    """Start of T5: normal with variance 1 / fan-in; token vectors with variance 1.

    Queries start with variance 1 / (fan-in * head_dim), because T5 does not divide attention
    scores by sqrt(head_dim). `attention` is as in `Normal`.
    """

    kind: Literal["fan-in"] = "fan-in"
    attention: Literal["random", "copy_heads"] = "random"


Initialization = Annotated[Normal | Xavier | FanIn, Field(discriminator="kind")]
