"""Kinds of initialization: what draws the weights of a Transformer."""

from __future__ import annotations

import hashlib
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trivium.choice import Choice
from trivium.errors import SpecError
from trivium.models.base_model import LanguageModule
from trivium.models.heads import DenseLayer
from trivium.models.heads.vocabulary import MaskedHead
from trivium.models.special_initialization import (
    allowed_attention,
    check_attention,
    initialize_attention,
)
from trivium.nn.mixers.attention import AttentionModule
from trivium.nn.part import Deviation, Part, PartModule


class Initialization(Choice, Part):
    """How weights start."""

    attention: Any
    """How queries and keys start: as other matrices do, or `models.special_initialization`."""

    def check_model(self, model: Any) -> None:
        """Raise SpecError if a `ModelSpec` cannot have this initialization."""
        check_attention(self.attention, model)

    def build(self, model: Any) -> Initializer:
        """Return what draws the weights of a `Transformer`."""
        return Initializer(self, model)

    def deviation(self, name: str, weight: Tensor, drawn: Initializer) -> float:
        """The standard deviation that a matrix or table is drawn with."""
        raise NotImplementedError

    def draw(
        self, name: str, weight: Tensor, generator: torch.Generator, drawn: Initializer
    ) -> None:
        """Draw a matrix or a table."""
        std = self.deviation(name, weight, drawn)
        weight.copy_(torch.empty(weight.shape).normal_(0.0, std, generator=generator))

    def finish(self, model: Any) -> None:
        """Change what was drawn."""
        initialize_attention(model, self.attention, getattr(self, "embedding_std", 1.0))


_TABLES = ("tokens", "source_tokens", "positions", "late_positions", "token_types")


class Initializer:
    """What draws the weights of a model.

    Matrices and tables are drawn, biases are 0 and weights of norms 1.

    Args:
        start: the configuration.
        model: whose weights are drawn.
    """

    def __init__(self, start: Any, model: Any) -> None:
        self.start, self.model = start, model
        rows = (row for module in model.modules() for row in _row_weights(module))
        self.adding_to_stream = {id(weight) for weight in rows}
        kinds = nn.LayerNorm | nn.RMSNorm | nn.GroupNorm
        self._scales = {id(norm.weight) for norm in model.modules() if isinstance(norm, kinds)}
        tables = (table for stack in getattr(model, "stacks", ()) for table in stack.tables)
        self.shared_tables = {id(weight) for table in tables for weight in table.parameters()}
        attentions = [each for each in model.modules() if isinstance(each, AttentionModule)]
        self.attention_of_query = {id(each.query.weight): each for each in attentions}

    def draw(self, name: str, weight: Tensor, generator: torch.Generator) -> None:
        """Draw a matrix or a table."""
        self.start.draw(name, weight, generator, self)

    def set_vector(self, name: str, weight: Tensor) -> None:
        """Set a weight of one axis."""
        weight.fill_(1.0 if id(weight) in self._scales else 0.0)

    def finish(self) -> None:
        """Change what was drawn."""
        self.start.finish(self.model)


@torch.no_grad()
def initialize(model: LanguageModule, seed: int) -> None:
    """Draw the weights of a model.

    A weight is a function of the seed and its name alone, so that it is the same on every device
    and in every layout of processes. Parts whose weights start in a way of their own set them last
    (`PartModule.reset_parameters`).
    """
    initializer = model.initializer()
    if initializer is not None:
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                initializer.set_vector(name, weight)
            else:
                initializer.draw(name, weight, generator_of(seed, name))
        initializer.finish()
    for name, module in model.named_modules():
        if isinstance(module, PartModule):
            module.reset_parameters(generator_of(seed, name))


def generator_of(seed: int, name: str) -> torch.Generator:
    """The random numbers of the weight or the module of this name."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))


def is_table(name: str) -> bool:
    """Whether a parameter is a table of vectors: of tokens, positions or token types."""
    return name.removesuffix(".weight").rpartition(".")[2] in _TABLES


def draw_uniform(weight: Tensor, bound: float, generator: torch.Generator) -> None:
    """Draw from +-bound."""
    weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))


def _row_weights(module: nn.Module) -> list[Tensor]:
    """The matrices of a module whose products are added to the residual stream."""
    if not isinstance(module, PartModule):
        return []
    rows = [getattr(module, name) for name, side in module.parallel.items() if side == "row"]
    return [row.weight if isinstance(row, nn.Linear) else row for row in rows]


class Normal(Initialization):
    """Start: normal weights of deviation `std`, biases 0, norms 1.

    `residual_init` is the start of the output matrices of attention, cross-attention and
    feed-forward, which add to the residual stream: with `std` ("full": BERT as published), with
    std / sqrt(2 layers), layers of encoder and decoder together ("scaled": GPT-2), or zero ("zero":
    every block, and the dense layer of an MLM head, starts as the identity).

    `attention` is the start of queries and keys: "position_offsets" and "copy_heads" learn faster
    in short runs; see `models.special_initialization`. The first is for learned positions, and for
    rotary ones in attention with biases; the second for encoder-decoders with learned positions or
    relative biases.
    """

    kind: Literal["normal"] = "normal"
    std: Deviation = 0.02
    embedding_std: Deviation = 0.02
    residual_init: Literal["full", "scaled", "zero"] = "full"
    attention: Literal["random", "position_offsets", "copy_heads"] = "random"

    def deviation(self, name: str, weight: Tensor, drawn: Initializer) -> float:
        """See `Initialization.deviation`."""
        if is_table(name):
            return self.embedding_std
        if id(weight) not in drawn.adding_to_stream:
            return self.std
        layers = sum(stack.num_layers for stack in drawn.model.spec.stacks)
        starts = {"full": self.std, "scaled": self.std / (2 * layers) ** 0.5, "zero": 0.0}
        return starts[self.residual_init]

    def finish(self, model: Any) -> None:
        """See `Initialization.finish`; also the dense layer of an MLM head, for a "zero" start."""
        if self.residual_init == "zero":
            for head in model.heads.values():
                if isinstance(head, MaskedHead) and isinstance(head.dense, DenseLayer):
                    _set_to_identity(head.dense.linear)
        super().finish(model)


class FanIn(Initialization):
    """Start of T5 and PaLM: normal with variance 1 / fan-in; token vectors with variance 1.

    Queries make up for a `scale` of scores that is not 1 / sqrt(head_dim): T5's is 1, so that they
    start with variance 1 / (fan-in * head_dim); PaLM's start as all other matrices do (Chowdhery et
    al. 2022, section 5). `attention` is as in `Normal`.
    """

    kind: Literal["fan-in"] = "fan-in"
    attention: Literal["random", "copy_heads"] = "random"

    def deviation(self, name: str, weight: Tensor, drawn: Initializer) -> float:
        """See `Initialization.deviation`; that of a bias of distances is d_model^-0.5."""
        if is_table(name):
            return 1.0
        if id(weight) in drawn.shared_tables:
            return drawn.model.spec.d_model**-0.5
        attention = drawn.attention_of_query.get(id(weight))
        size = 1.0 if attention is None else _size_of_queries(attention)
        return weight.shape[-1] ** -0.5 * size


def _size_of_queries(attention: AttentionModule) -> float:
    """What makes up for a scale of scores that is not the usual one."""
    return attention.part.replace(scale=None).score_scale / attention.scale


class Small(Initialization):
    """Start of GPT-NeoX: normal weights of deviation sqrt(2 / (5 d_model)), biases 0, norms 1.

    The output matrices of attention and feed-forward, which add to the residual stream, have 2 /
    (layers sqrt(d_model)), layers of encoder and decoder together. Token vectors start as other
    matrices do.

    Source: Black et al. 2022, section 2.1, after Nguyen and Salazar 2019 (the first) and Wang 2021
    (the second). The text names the feed-forward network's output alone; the authors' code, and
    this, starts attention's so, too.
    """

    kind: Literal["small"] = "small"
    attention: Literal["random"] = "random"

    def deviation(self, name: str, weight: Tensor, drawn: Initializer) -> float:
        """See `Initialization.deviation`."""
        model = drawn.model.spec
        if id(weight) in drawn.adding_to_stream:
            return 2.0 / sum(stack.num_layers for stack in model.stacks) / model.d_model**0.5
        return (2.0 / (5.0 * model.d_model)) ** 0.5


class Xavier(Initialization):
    """Start: uniform in +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010), biases 0.

    Token vectors are normal with deviation d_model^-0.5, as the scaled, tied embeddings of the
    first Transformer want them; with `tables` "uniform" they start as matrices do.

    `attention` is the start of queries and keys: "diagonal" cross-attention learns faster from
    little; see `models.special_initialization`.
    """

    kind: Literal["xavier"] = "xavier"
    tables: Literal["normal", "uniform"] = "normal"
    attention: Literal["random", "diagonal"] = "random"

    def deviation(self, name: str, weight: Tensor, drawn: Initializer) -> float:
        """See `Initialization.deviation`: that of tables."""
        return drawn.model.spec.d_model**-0.5

    def draw(
        self, name: str, weight: Tensor, generator: torch.Generator, drawn: Initializer
    ) -> None:
        """See `Initialization.draw`."""
        if is_table(name) and self.tables == "normal":
            super().draw(name, weight, generator, drawn)
        else:
            draw_uniform(weight, math.sqrt(6.0 / sum(weight.shape)), generator)


def _set_to_identity(linear: nn.Linear) -> None:
    """h + 3, so that gelu(h + 3) is almost h + 3; the LayerNorm after it subtracts the 3."""
    nn.init.eye_(linear.weight)
    if linear.bias is not None:
        nn.init.constant_(linear.bias, 3.0)


def with_fast_initialization(model: Any) -> Any:
    """Return the same `ModelSpec` with the initialization that learns faster in short runs.

    Encoders get position offsets where their positions allow it; encoder-decoders get copy heads,
    those with a Xavier start and sinusoids diagonal cross-attention.
    A normal start also becomes a "zero" one whose matrices, and in encoder-decoders token vectors,
    have deviation d_model^-0.5. A fan-in start (T5) keeps its deviations.

    Raises:
        SpecError: no faster start is known: of decoders, and of encoder-decoders whose positions
            allow neither.
    """
    allowed = allowed_attention(model)
    start, attention = model.initialization, "random"
    if model.family == "encoder-only" and "position_offsets" in allowed:
        attention = "position_offsets"
    elif "copy_heads" in allowed:
        attention = "copy_heads"
    std = round(model.d_model**-0.5, 4)
    match start:
        case Normal() if model.family == "encoder-only":
            start = start.replace(std=std, residual_init="zero", attention=attention)
        case Normal() if attention == "copy_heads":
            start = start.replace(
                std=std, embedding_std=std, residual_init="zero", attention=attention
            )
        case FanIn() if attention == "copy_heads":
            start = start.replace(attention=attention)
        case Xavier() if "diagonal" in allowed:
            start = start.replace(attention="diagonal")
        case _:
            raise SpecError(
                'initialization = "fast" is for encoders, for encoder-decoders with learned '
                "positions or relative biases that start normal or fan-in, and for those with "
                f"sinusoids that start xavier; this model is {model.family} and starts "
                f'{start.kind}: leave "published".'
            )
    return model.replace(initialization=start)
