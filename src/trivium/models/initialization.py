"""Kinds of weight initialization of a Transformer."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trivium.choice import Choice
from trivium.errors import SpecError
from trivium.models.base_model import LanguageModule
from trivium.models.heads import DenseLayer
from trivium.models.heads.vocabulary import MaskedHead
from trivium.models.special_initialization import (
    SpecialInits,
    allowed_attention_inits,
    check_attention_init,
    special_attention_inits,
)
from trivium.nn.mixers.attention import AttentionModule
from trivium.nn.part import Part, PartModule, StandardDeviation


class Initialization(Choice, Part):
    """Base class of weight initializations."""

    attention: Any
    """The initialization of query and key weights: "random", like other matrices, or a special one
    in `models.special_initialization`."""

    def check_model(self, model: Any) -> None:
        """Raise SpecError if a `TransformerSpec` does not support this initialization."""
        check_attention_init(self.attention, model)

    def build(self, model: Any) -> Initializer:
        """Return an `Initializer` that initializes the weights of a `Transformer` in this way."""
        return Initializer(self, model)

    def weight_std(self, name: str, weight: Tensor, model_info: Initializer) -> float:
        """Return the standard deviation of the initial values of a matrix or embedding table."""
        raise NotImplementedError

    def init_matrix(
        self, name: str, weight: Tensor, generator: torch.Generator, model_info: Initializer
    ) -> None:
        """Initialize a matrix or embedding table at random, by default from N(0, weight_std^2)."""
        std = self.weight_std(name, weight, model_info)
        weight.copy_(torch.empty(weight.shape).normal_(0.0, std, generator=generator))

    def special_inits(self, model: Any) -> SpecialInits:
        """Yield the modules with a special initialization, and the functions that apply it."""
        return special_attention_inits(model, self.attention, getattr(self, "embedding_std", 1.0))


_EMBEDDINGS = ("tokens", "source_tokens", "positions", "mask_decoder_positions", "token_types")


class Initializer:
    """Initializer of the weights of a model.

    Matrices and embedding tables are initialized at random, biases to 0 and norm weights to 1.

    Args:
        start: the configuration of the initialization.
        model: the model whose weights are initialized.
    """

    def __init__(self, start: Any, model: Any) -> None:
        self.start, self.model = start, model
        self.name_of = {id(weight): name for name, weight in model.named_parameters()}
        rows = (row for module in model.modules() for row in _output_matrices(module))
        self.output_matrices = self.names_of(rows)
        kinds = nn.LayerNorm | nn.RMSNorm | nn.GroupNorm
        norms = (norm for norm in model.modules() if isinstance(norm, kinds))
        self._scales = self.names_of(norm.weight for norm in norms if norm.weight is not None)
        tables = (table for stack in getattr(model, "stacks", ()) for table in stack.tables)
        self.shared_tables = self.names_of(w for table in tables for w in table.parameters())
        attentions = [each for each in model.modules() if isinstance(each, AttentionModule)]
        self.attention_of_query = {self.name_of[id(each.query.weight)]: each for each in attentions}

    def names_of(self, weights: Iterable[Tensor]) -> set[str]:
        """Return the names of parameters of the model."""
        return {self.name_of[id(weight)] for weight in weights}

    def init_matrix(self, name: str, weight: Tensor, generator: torch.Generator) -> None:
        """Initialize a matrix or embedding table at random."""
        self.start.init_matrix(name, weight, generator, self)

    def init_vector(self, name: str, weight: Tensor) -> None:
        """Initialize a norm weight to 1, and a bias or any other vector to 0."""
        weight.fill_(1.0 if name in self._scales else 0.0)

    def special_inits(self) -> SpecialInits:
        """Yield the modules with a special initialization, and the functions that apply it.

        The function of a module is called after the weights of the module were initialized.
        """
        return self.start.special_inits(self.model)


class SeededInitialization:
    """The random initialization of a model from a seed, one part of the model at a time.

    The random values of a parameter depend only on the seed and on the parameter's name. They are
    therefore the same on every device, for every layout of processes, and for any order of the
    parts. The parts are the blocks and the modules outside of all blocks, such as the token
    embeddings. A part may be initialized while the other parts are on the meta device.

    Args:
        model: the model, on any device.
        seed: the seed.
    """

    def __init__(self, model: LanguageModule, seed: int) -> None:
        self.model, self.seed = model, seed
        self._initializer = model.initializer()
        self._special_inits: dict[nn.Module, Callable[[], None]] = {}
        if self._initializer is not None:
            self._special_inits = dict(self._initializer.special_inits())

    @property
    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """The parts of the model, each with its path in the model.

        A model without an `Initializer` sets all of its weights together, so that it is one part.
        """
        if self._initializer is None:
            yield "", self.model
        else:
            yield from _split_into_parts("", self.model, {*self.model.blocks})

    @torch.no_grad()
    def initialize(self, path: str, part: nn.Module) -> None:
        """Initialize the weights of one part of the model, in place.

        Modules with a special initialization set their weights last (`special_inits` and
        `PartModule.reset_parameters`).
        """
        if self._initializer is not None:
            for name, weight in part.named_parameters(prefix=path):
                if weight.ndim == 1:
                    self._initializer.init_vector(name, weight)
                else:
                    generator = weight_generator(self.seed, name)
                    self._initializer.init_matrix(name, weight, generator)
            for module in part.modules():
                if module in self._special_inits:
                    self._special_inits[module]()
        for name, module in part.named_modules(prefix=path):
            if isinstance(module, PartModule):
                module.reset_parameters(weight_generator(self.seed, name))


def initialize(model: LanguageModule, seed: int) -> None:
    """Initialize the weights of a model at random (see `SeededInitialization`)."""
    initialization = SeededInitialization(model, seed)
    for path, part in initialization.parts:
        initialization.initialize(path, part)


def _split_into_parts(
    path: str, module: nn.Module, blocks: set[nn.Module]
) -> Iterator[tuple[str, nn.Module]]:
    """Yield (path, module) of the blocks and of the largest modules that contain no block.

    `path` is the path of `module` in the model. A module that contains blocks and also parameters
    of its own is not split.
    """
    contains_blocks = module not in blocks and not blocks.isdisjoint(module.modules())
    if not contains_blocks or any(True for _ in module.parameters(recurse=False)):
        yield path, module
    else:
        for name, child in module.named_children():
            yield from _split_into_parts(f"{path}.{name}".lstrip("."), child, blocks)


def weight_generator(seed: int, name: str) -> torch.Generator:
    """Return the random generator for initializing the parameter or module called `name`."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))


def is_embedding(name: str) -> bool:
    """Return whether the parameter called `name` embeds tokens, positions or token types."""
    return name.removesuffix(".weight").rpartition(".")[2] in _EMBEDDINGS


def init_uniform(weight: Tensor, bound: float, generator: torch.Generator) -> None:
    """Initialize a weight from the uniform distribution on [-bound, bound], in place."""
    weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))


def _output_matrices(module: nn.Module) -> list[Tensor]:
    """Return the output matrices of a module, whose products are added to the residual stream."""
    if not isinstance(module, PartModule):
        return []
    rows = [getattr(module, name) for name, side in module.parallel.items() if side == "row"]
    return [row.weight if isinstance(row, nn.Linear) else row for row in rows]


class Normal(Initialization):
    """Gaussian initialization: weights with standard deviation `std`, biases 0, norm weights 1.

    `residual_init` sets the standard deviation of the output matrices of attention, cross-attention
    and feed-forward networks, whose outputs are added to the residual stream. "full" (BERT as
    published) uses `std`. "scaled" (GPT-2) uses std / sqrt(2 layers), counting the layers of
    encoder and decoder together. "zero" uses 0, so that every block starts as the identity; the
    dense layer of an MLM head then starts as the identity, too.

    `attention` is the initialization of query and key weights. With "position_offsets" and
    "copy_heads", models learn faster in short runs (see `models.special_initialization`).
    "position_offsets" needs learned positions, or RoPE in attention with biases. "copy_heads" needs
    an encoder-decoder with learned positions or relative position biases.
    """

    kind: Literal["normal"] = "normal"
    std: StandardDeviation = 0.02
    embedding_std: StandardDeviation = 0.02
    residual_init: Literal["full", "scaled", "zero"] = "full"
    attention: Literal["random", "position_offsets", "copy_heads"] = "random"

    def weight_std(self, name: str, weight: Tensor, model_info: Initializer) -> float:
        """Return `embedding_std` for embeddings; for matrices `std`, changed by `residual_init`."""
        if is_embedding(name):
            return self.embedding_std
        if name not in model_info.output_matrices:
            return self.std
        layers = sum(stack.num_layers for stack in model_info.model.spec.stacks)
        starts = {"full": self.std, "scaled": self.std / (2 * layers) ** 0.5, "zero": 0.0}
        return starts[self.residual_init]

    def special_inits(self, model: Any) -> SpecialInits:
        """Yield those of attention and, with "zero", that of the dense layer of an MLM head."""
        if self.residual_init == "zero":
            for head in model.heads.values():
                if isinstance(head, MaskedHead) and isinstance(head.dense, DenseLayer):
                    yield head.dense.linear, partial(_set_to_identity, head.dense.linear)
        yield from super().special_inits(model)


class FanIn(Initialization):
    """Initialization of T5 and PaLM: Gaussian with variance 1 / fan-in; embeddings with variance 1.

    If attention scores are not scaled by 1 / sqrt(head_dim), query matrices are scaled to make up
    for the difference. T5's scores are not scaled, so that T5's query matrices have variance
    1 / (fan-in * head_dim). PaLM's query matrices are initialized like all other matrices
    (Chowdhery et al. 2022, section 5). `attention` has the same meaning as in `Normal`.
    """

    kind: Literal["fan-in"] = "fan-in"
    attention: Literal["random", "copy_heads"] = "random"

    def weight_std(self, name: str, weight: Tensor, model_info: Initializer) -> float:
        """Return 1 for embeddings, d_model^-0.5 for position biases, fan-in^-0.5 for matrices."""
        if is_embedding(name):
            return 1.0
        if name in model_info.shared_tables:
            return model_info.model.spec.d_model**-0.5
        attention = model_info.attention_of_query.get(name)
        size = 1.0 if attention is None else _query_std_factor(attention)
        return weight.shape[-1] ** -0.5 * size


def _query_std_factor(attention: AttentionModule) -> float:
    """Return the factor for the standard deviation of query weights (see `FanIn`).

    It is the default scale of attention scores divided by the configured scale.
    """
    return attention.part.replace(scale=None).score_scale / attention.scale


class Small(Initialization):
    """Initialization of GPT-NeoX: Gaussian with standard deviation sqrt(2 / (5 d_model)).

    The output matrices of attention and feed-forward networks, whose outputs are added to the
    residual stream, have the standard deviation 2 / (layers sqrt(d_model)), counting the layers of
    encoder and decoder together. Token embeddings are initialized like other matrices. Biases are
    0 and norm weights 1.

    Source: Black et al. 2022, section 2.1, after Nguyen and Salazar 2019 (first formula) and Wang
    2021 (second formula). The paper applies the second formula only to the output of feed-forward
    networks; the authors' code, as here, also applies it to the output of attention.
    """

    kind: Literal["small"] = "small"
    attention: Literal["random"] = "random"

    def weight_std(self, name: str, weight: Tensor, model_info: Initializer) -> float:
        """Return the standard deviation of a weight by one of the two formulas in the class."""
        model = model_info.model.spec
        if name in model_info.output_matrices:
            return 2.0 / sum(stack.num_layers for stack in model.stacks) / model.d_model**0.5
        return (2.0 / (5.0 * model.d_model)) ** 0.5


class Xavier(Initialization):
    """Xavier initialization: uniform in +-sqrt(6 / (inputs + outputs)), biases 0.

    Embedding tables are Gaussian with standard deviation d_model^-0.5, which suits the scaled, tied
    embeddings of the original Transformer. With `tables` "uniform", they are initialized like
    matrices.

    `attention` is the initialization of query and key weights. With "diagonal", cross-attention
    learns faster from little data (see `models.special_initialization`). Source: Glorot and Bengio
    2010.
    """

    kind: Literal["xavier"] = "xavier"
    tables: Literal["normal", "uniform"] = "normal"
    attention: Literal["random", "diagonal"] = "random"

    def weight_std(self, name: str, weight: Tensor, model_info: Initializer) -> float:
        """Return the standard deviation of Gaussian embedding tables (matrices are uniform)."""
        return model_info.model.spec.d_model**-0.5

    def init_matrix(
        self, name: str, weight: Tensor, generator: torch.Generator, model_info: Initializer
    ) -> None:
        """Initialize a matrix uniformly; an embedding table too, unless `tables` is "normal"."""
        if is_embedding(name) and self.tables == "normal":
            super().init_matrix(name, weight, generator, model_info)
        else:
            init_uniform(weight, math.sqrt(6.0 / sum(weight.shape)), generator)


def _set_to_identity(linear: nn.Linear) -> None:
    """Set a linear layer to h + 3, so that it is the identity with the GELU and norm after it.

    gelu(h + 3) is almost h + 3, and the LayerNorm subtracts the 3 with the mean.
    """
    nn.init.eye_(linear.weight)
    if linear.bias is not None:
        nn.init.constant_(linear.bias, 3.0)


def with_fast_initialization(model: Any) -> Any:
    """Return the `TransformerSpec` with an initialization that speeds up training in short runs.

    Encoders get the attention initialization "position_offsets", if their position encoding
    supports it. Encoder-decoders get "copy_heads", or "diagonal" if they have sinusoidal positions
    and a Xavier initialization. If the initialization is Gaussian (`Normal`), `residual_init` is
    also set to "zero", and the standard deviation of matrices (in encoder-decoders also of
    embeddings) to d_model^-0.5. A fan-in initialization (T5) keeps its standard deviations.

    Raises:
        SpecError: no faster initialization is known for the model: it is a decoder, or its
            position encoding or kind of initialization is not one of those above.
    """
    allowed = allowed_attention_inits(model)
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
