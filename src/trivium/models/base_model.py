"""What every model has: token embeddings, and heads that read its hidden states.

Shape letters: B batch, T positions, M selected positions, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.choice import Choice
from trivium.errors import SpecError
from trivium.models.heads import Head, HeadInput, Heads
from trivium.models.heads.scalar_mix import ScalarMix
from trivium.models.heads.vocabulary import LMHead, VocabularyHead
from trivium.models.stack import Stack
from trivium.nn.activations import soft_capped
from trivium.nn.loss import ROUNDED_ROWS, linear_cross_entropy
from trivium.nn.part import Count, Part, PartModule, field_error
from trivium.nn.positions import AbsolutePositions
from trivium.nn.state import Cache

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

    def build(self) -> LanguageModule:
        """Return the module, whose weights `models.build` draws."""
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


_PACKED_ROWS = 256


class LanguageModule(PartModule):
    """Any model: token embeddings and heads; what is between them makes one model another.

    A subclass has a `forward`, which turns ids [B, T] into hidden states [B, T, D], an
    `initializer`, and `new_cache` if it generates text.
    """

    spec: Any
    tokens: Any
    """An `nn.Embedding`, or what makes token vectors from characters."""
    heads: nn.ModuleDict
    linear_cross_entropy: Callable[..., Tensor] = staticmethod(linear_cross_entropy)
    """Loss of hidden states and a vocabulary matrix; tensor parallelism divides the matrix."""

    def initializer(self) -> Any:
        """Return the `Initializer` of the weights; None if the parts set all of their weights."""
        return None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return next(self.parameters()).dtype

    @property
    def vocabulary_head(self) -> VocabularyHead | None:
        """The head over the vocabulary (lm or mlm), if there is one."""
        heads = (head for head in self.heads.values() if isinstance(head, VocabularyHead))
        return next(heads, None)

    @property
    def vocabulary_tables(self) -> list[nn.Parameter]:
        """The matrices with a row for each token: the token embeddings, and those of heads."""
        heads = (head.weight for head in self.heads.values() if isinstance(head, VocabularyHead))
        tables = (getattr(self.tokens, "weight", None), *heads)
        return [table for table in tables if isinstance(table, nn.Parameter)]

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """The modules between token embeddings and heads, whose matrices Muon may train."""
        raise NotImplementedError

    def stack_weights(self) -> list[list[list[nn.Parameter]]]:
        """The parameters of every layer, by stack, from the first layer to the last.

        Shared layers count once. What follows the last layer, such as a norm, belongs to it.
        """
        return [[list(block.parameters())] for block in self.blocks]

    def layer_depths(self) -> dict[nn.Parameter, int]:
        """Depth of every weight below the heads: heads 0, the last layer of a stack 1, ...

        Embeddings and all else have 1 + the layers of the deepest stack.
        """
        stacks = self.stack_weights()
        depths = dict.fromkeys(self.heads.parameters(), 0)
        for stack in stacks:
            for depth, layer in enumerate(reversed(stack), start=1):
                depths |= dict.fromkeys(layer, depth)
        deepest = 1 + max(map(len, stacks))
        return {weight: depths.get(weight, deepest) for weight in self.parameters()}

    def set_character_ids(self, tokenizer: Any) -> None:
        """Before training: take the characters of every token from a `Tokenizer`.

        Models that do not read characters leave it alone.
        """

    def new_cache(self, slots: int, slot_length: int) -> Cache:
        """An empty cache for `forward`, of `slots` texts that are read and extended step by step.

        Args:
            slots: texts that it can hold at a time.
            slot_length: tokens of each, prompts included.

        Raises:
            SpecError: the model reads both sides of a token, or its positions end before
                `slot_length`.
        """
        raise SpecError("an encoder reads every token at once: it has no cache.")

    def read(self, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        """What `forward` gives, and the loss that layers add, if any does (experts)."""
        return self(*inputs, **options), None

    def flops_per_token(self, length: int) -> float:
        """See `models.flops_per_token`."""
        vocabulary = self.spec.vocab_size * self.spec.head_input.d_embedding
        blocks = sum(map(matrix_weights, self.blocks))
        return 6.0 * (blocks + vocabulary * (2 if self.spec.two_way else 1))

    def encode(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        """The encoder's hidden states alone: [B, S] -> [B, S, D]."""
        raise SpecError(f"this model is {self.spec.family}: it has no encoder.")

    def alignments(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        """Of a spec that `aligns`: how a decoder attends to its source, [B, T, S]."""
        raise SpecError("a layer of this model is no attention: it has no attention weights.")

    def compile_blocks(self) -> None:
        """Compile the blocks for training; a model without a gain from it stays as it is."""

    def logits(
        self, hidden: Tensor, head: str | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Logits of a head: [..., V] over the vocabulary, or of the head's own shape.

        Args:
            hidden: [..., D]; [B, T, D] for heads that pool a text.
            head: the kind of head; None: that over the vocabulary, or else the first.
            attention_mask: [B, T], nonzero where a token is real, for heads that pool a text.

        Raises:
            SpecError: the model has no such head.
        """
        heads = {one.kind: self.heads[one.kind] for one in self.spec.heads if one.predicts}
        if head is None and heads:
            module = self.vocabulary_head or next(iter(heads.values()))
        elif head is not None and head in heads:
            module = heads[head]
        else:
            kind, known = f' of kind "{head}"' if head else "", ", ".join(heads) or "none"
            raise SpecError(f"this model has no head{kind}; it has: {known}.")
        if not isinstance(module, VocabularyHead):
            return module(hidden, attention_mask)
        if module.packed is not None:
            logits = module.packed(module(hidden))
        else:
            logits = F.linear(module(hidden), self.matrix_of(module), module.bias)
        return logits if module.soft_cap is None else soft_capped(logits, module.soft_cap)

    def lm_loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Cross-entropy in nats of `targets` [M] from hidden states [M, D], summed.

        `smoothing` is the share of every target that is spread over the whole vocabulary.

        Raises:
            SpecError: the model has no head over the vocabulary.
            ValueError: there are more or fewer targets than hidden states.
        """
        if len(hidden) != len(targets):
            raise ValueError(f"{len(hidden)} hidden states, but {len(targets)} targets")
        head = self.vocabulary_head
        if head is None:
            raise SpecError("this model has no head over the vocabulary (lm or mlm).")
        features = head(hidden)
        if head.packed is None:
            padding = -len(targets) % ROUNDED_ROWS
            if padding:
                features = F.pad(features, (0, 0, 0, padding))
            return self.linear_cross_entropy(
                features,
                self.matrix_of(head),
                head.bias,
                targets,
                smoothing=smoothing,
                soft_cap=head.soft_cap,
            )
        total = hidden.new_zeros((), dtype=torch.float32)
        for part, target in zip(features.split(_PACKED_ROWS), targets.split(_PACKED_ROWS)):
            logits = head.packed(part).float()
            if head.soft_cap is not None:
                logits = soft_capped(logits, head.soft_cap)
            total += F.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)
        return total

    def matrix_of(self, head: VocabularyHead) -> Tensor:
        """The matrix of a vocabulary head, [V, E]: its own, or the token embeddings."""
        return self.tokens.weight if head.weight is None else head.weight


def build_heads(model: Spec) -> nn.ModuleDict:
    """The heads of a model, by kind."""
    inputs = model.head_input
    return nn.ModuleDict({head.kind: head.build(inputs) for head in model.heads})


def matrix_weights(module: nn.Module) -> int:
    """Weights of the linear layers and cells of a module: no tables, norms or biases."""
    layers = (m for m in module.modules() if isinstance(m, nn.Linear | nn.RNNBase))
    return sum(w.numel() for m in layers for w in m.parameters() if w.ndim > 1)


def refuse(reason: str, **arguments: object) -> None:
    """Raise SpecError for an argument that the model does not take."""
    for name, value in arguments.items():
        if value is not None:
            raise SpecError(f"{reason} {name}: leave it out.")
