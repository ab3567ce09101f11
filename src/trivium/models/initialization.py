"""Kinds of initialization: what draws the weights of a Transformer."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trivium.choice import Choice
from trivium.nn.mixers.attention import AttentionModule
from trivium.nn.part import Deviation, Part, PartModule


class Initialization(Choice, Part):
    """How weights start."""

    attention: Any
    """How queries and keys start: as other matrices do, or see `trivium.models.special_initialization`."""

    def build(self, model: Any) -> WeightStart:
        """Return what draws the weights of a `Transformer`."""
        raise NotImplementedError


_TABLES = ("tokens", "source_tokens", "positions", "late_positions", "token_types")


class WeightStart:
    """How matrices and tables start; biases are 0 and norms 1 whatever the start.

    Args:
        start: the kind of start, with its numbers.
        model: whose weights are drawn.
    """

    embedding_std = 1.0
    """Deviation of token vectors."""

    def __init__(self, start: Any, model: Any) -> None:
        self.start, self.model = start, model
        rows = (row for module in model.modules() for row in _row_weights(module))
        self.adding_to_stream = {id(weight) for weight in rows}

    def deviation(self, name: str, weight: Tensor) -> float:
        """The standard deviation that a matrix or table is drawn with."""
        raise NotImplementedError

    def draw(self, name: str, weight: Tensor, generator: torch.Generator) -> None:
        """Draw a matrix or a table."""
        std = self.deviation(name, weight)
        weight.copy_(torch.empty(weight.shape).normal_(0.0, std, generator=generator))


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
    in short runs; see `trivium.models.special_initialization`. The first is for learned positions, and for
    rotary ones in attention with biases; the second for encoder-decoders with learned positions or
    relative biases.
    """

    kind: Literal["normal"] = "normal"
    std: Deviation = 0.02
    embedding_std: Deviation = 0.02
    residual_init: Literal["full", "scaled", "zero"] = "full"
    attention: Literal["random", "position_offsets", "copy_heads"] = "random"

    def build(self, model: Any) -> NormalStart:
        """See `Initialization.build`."""
        return NormalStart(self, model)


class NormalStart(WeightStart):
    """One deviation for matrices, one for tables; see `Normal`."""

    def __init__(self, start: Any, model: Any) -> None:
        super().__init__(start, model)
        self.embedding_std = start.embedding_std

    def deviation(self, name: str, weight: Tensor) -> float:
        """See `WeightStart.deviation`."""
        std = self.start.std
        if is_table(name):
            return self.embedding_std
        if id(weight) not in self.adding_to_stream:
            return std
        layers = sum(stack.num_layers for stack in self.model.spec.stacks)
        starts = {"full": std, "scaled": std / (2 * layers) ** 0.5, "zero": 0.0}
        return starts[self.start.residual_init]


class FanIn(Initialization):
    """Start of T5 and PaLM: normal with variance 1 / fan-in; token vectors with variance 1.

    Queries make up for a `scale` of scores that is not 1 / sqrt(head_dim): T5's is 1, so that they
    start with variance 1 / (fan-in * head_dim); PaLM's start as all other matrices do (Chowdhery et
    al. 2022, section 5). `attention` is as in `Normal`.
    """

    kind: Literal["fan-in"] = "fan-in"
    attention: Literal["random", "copy_heads"] = "random"

    def build(self, model: Any) -> FanInStart:
        """See `Initialization.build`."""
        return FanInStart(self, model)


class FanInStart(WeightStart):
    """See `FanIn`; a bias of distances has deviation d_model^-0.5."""

    def __init__(self, start: Any, model: Any) -> None:
        super().__init__(start, model)
        attentions = [each for each in model.modules() if isinstance(each, AttentionModule)]
        self._sizes = {id(each.query.weight): _size_of_queries(each) for each in attentions}
        tables = (table for stack in model.stacks for table in stack.tables)
        self._biases = {id(weight) for table in tables for weight in table.parameters()}

    def deviation(self, name: str, weight: Tensor) -> float:
        """See `WeightStart.deviation`."""
        if is_table(name):
            return 1.0
        if id(weight) in self._biases:
            return self.model.spec.d_model**-0.5
        return weight.shape[-1] ** -0.5 * self._sizes.get(id(weight), 1.0)


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

    def build(self, model: Any) -> SmallStart:
        """See `Initialization.build`."""
        return SmallStart(self, model)


class SmallStart(WeightStart):
    """See `Small`."""

    def deviation(self, name: str, weight: Tensor) -> float:
        """See `WeightStart.deviation`."""
        model = self.model.spec
        if id(weight) in self.adding_to_stream:
            return 2.0 / sum(stack.num_layers for stack in model.stacks) / model.d_model**0.5
        return (2.0 / (5.0 * model.d_model)) ** 0.5


class Xavier(Initialization):
    """Start: uniform in +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010), biases 0.

    Token vectors are normal with deviation d_model^-0.5, as the scaled, tied embeddings of the
    first Transformer want them; with `tables` "uniform" they start as matrices do.

    `attention` is the start of queries and keys: "diagonal" cross-attention learns faster from
    little; see `trivium.models.special_initialization`.
    """

    kind: Literal["xavier"] = "xavier"
    tables: Literal["normal", "uniform"] = "normal"
    attention: Literal["random", "diagonal"] = "random"

    def build(self, model: Any) -> XavierStart:
        """See `Initialization.build`."""
        return XavierStart(self, model)


class XavierStart(WeightStart):
    """See `Xavier`."""

    def deviation(self, name: str, weight: Tensor) -> float:
        """That of tables."""
        return self.model.spec.d_model**-0.5

    def draw(self, name: str, weight: Tensor, generator: torch.Generator) -> None:
        """See `WeightStart.draw`."""
        if is_table(name) and self.start.tables == "normal":
            super().draw(name, weight, generator)
        else:
            draw_uniform(weight, math.sqrt(6.0 / sum(weight.shape)), generator)
