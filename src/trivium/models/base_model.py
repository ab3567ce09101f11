"""What every model has: token embeddings, and heads that read its hidden states.

Shape letters: B batch, T positions, M selected positions, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium import spec
from trivium.errors import SpecError
from trivium.models.heads.vocabulary import VocabularyHead
from trivium.nn.activations import soft_capped
from trivium.nn.loss import ROUNDED_ROWS, linear_cross_entropy
from trivium.nn.part_module import PartModule, module_class
from trivium.nn.state import Cache

_PACKED_ROWS = 256


class LanguageModule(PartModule):
    """Any model: token embeddings and heads; what is between them makes one model another.

    A subclass says `of` which spec it is built. Besides these it has a `forward`, which turns ids
    [B, T] into hidden states [B, T, D], `reset_parameters`, which draws the weights it starts with,
    and `new_cache` if it generates text.
    """

    spec: Any
    tokens: Any
    """An `nn.Embedding`, or what makes token vectors from characters."""
    heads: nn.ModuleDict
    linear_cross_entropy: Callable[..., Tensor] = staticmethod(linear_cross_entropy)
    """Loss of hidden states and a vocabulary matrix; tensor parallelism divides the matrix."""

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


def build_heads(model: spec.Spec) -> nn.ModuleDict:
    """The heads of a model, by kind."""
    inputs = model.head_input
    return nn.ModuleDict({head.kind: module_class(head)(head, inputs) for head in model.heads})


def matrix_weights(module: nn.Module) -> int:
    """Weights of the linear layers and cells of a module: no tables, norms or biases."""
    layers = (m for m in module.modules() if isinstance(m, nn.Linear | nn.RNNBase))
    return sum(w.numel() for m in layers for w in m.parameters() if w.ndim > 1)


def empty_table(rows: int, width: int) -> nn.Embedding:
    """A table without numbers: on the meta device drawing some costs an import of seconds."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


def refuse(reason: str, **arguments: object) -> None:
    """Raise SpecError for an argument that the model does not take."""
    for name, value in arguments.items():
        if value is not None:
            raise SpecError(f"{reason} {name}: leave it out.")
