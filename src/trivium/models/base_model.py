"""Base classes of models: token embeddings, and heads that read the hidden states.

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
from trivium.nn.activations import apply_soft_cap
from trivium.nn.flex import MIN_HEAD_DIM
from trivium.nn.loss import PAD_TO_MULTIPLE_OF, linear_cross_entropy
from trivium.nn.mixers.attention import AttentionModule
from trivium.nn.part import Count, Part, PartModule, to_field_error
from trivium.nn.positions import AbsolutePositions
from trivium.nn.state import Cache

Family = Literal["encoder-only", "decoder-only", "encoder-decoder"]


class Spec(Choice, Part):
    """Base class of model configurations, which can be saved as plain data for JSON or TOML."""

    aligns: ClassVar[bool] = False
    """Whether the model is a recurrent encoder-decoder that supports `alignments`."""
    counts: ClassVar[bool] = False
    """Whether training counts n-grams in one pass over the text, without gradient steps."""
    supports_task_heads: ClassVar[bool] = True
    """Whether a task-specific head can read the model's hidden states."""

    vocab_size: Count
    d_model: Count
    heads: Heads = ()

    def check(self) -> None:
        """Raise SpecError if a "scalar-mix" head does not fit the layers of the model."""
        for head in self.heads:
            if isinstance(head, ScalarMix) and head != self.scalar_mix:
                raise SpecError(
                    f'heads: "scalar-mix" of {head.num_layers} layers: it is for an RNN of '
                    'direction "bilm" whose layers are d_model wide, and mixes all of them and '
                    "the token vectors, num_layers + 1 in all."
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as a dict of plain data, without the fields that are None."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the spec described by a dict of plain data, as returned by `to_dict`.

        If the dict has no `kind`, the result is a `TransformerSpec`. Raises a SpecError that names
        the invalid field.
        """
        given = {"kind": "transformer", **data} if isinstance(data, Mapping) else data
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise to_field_error("model spec", error) from None

    def with_heads(self, heads: tuple[Head, ...]) -> Self:
        """Return a copy of the spec with these heads; a biLM adds its scalar mix to task heads."""
        return self.replace(heads=heads)

    def with_dropout(self, dropout: float) -> Self:
        """Return a copy of the spec with this dropout rate."""
        return self.replace(dropout=dropout)

    @property
    def family(self) -> Family:
        """The architecture: encoder-only (bidirectional), decoder-only (causal) or encoder-decoder.

        Models without stacks of blocks are decoder-only unless their spec overrides this property.
        """
        return "decoder-only"

    @property
    def head_config(self) -> HeadInput:
        """The sizes and settings that the modules of the heads are built with."""
        raise NotImplementedError

    @property
    def max_length(self) -> int | None:
        """The maximum input length in tokens; None if the positions are unlimited."""
        return None

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks of blocks, encoder first; empty for a model without stacks."""
        return ()

    @property
    def attention_only(self) -> bool:
        """Whether the mixer of every layer is attention."""
        return False

    @property
    def supports_packing(self) -> bool:
        """Whether documents packed into one row can be kept from affecting each other."""
        return True

    @property
    def carries_state(self) -> bool:
        """Whether the model can carry its state from one row to the next row of the same text."""
        return False

    @property
    def is_bilm(self) -> bool:
        """Whether the model combines a forward and a backward language model (biLM, as in ELMo)."""
        return False

    @property
    def scalar_mix(self) -> ScalarMix | None:
        """The head that mixes all layers for task heads (ELMo); None if the model has none."""
        return None

    @property
    def has_encoder_position_bias(self) -> bool:
        """Whether the encoder's position encoding adds a position bias to all attention scores."""
        return False

    @property
    def has_aux_loss(self) -> bool:
        """Whether a layer adds an auxiliary loss to the training loss."""
        return False

    @property
    def input_vocab_size(self) -> int:
        """The vocabulary size of the model's input; by default, that of its output."""
        return self.vocab_size

    @property
    def num_token_types(self) -> int:
        """The number of token types (segments such as sentence A and B); 0 if there are none."""
        return 0

    @property
    def reads_token_types(self) -> bool:
        """Whether the token types of a text pair affect the hidden states."""
        return self.num_token_types > 1

    @property
    def has_global_tokens(self) -> bool:
        """Whether the model supports global tokens alongside local attention (Longformer)."""
        return False

    @property
    def query_stream(self) -> bool:
        """Whether the model has a query stream (XLNet), to predict tokens in any order."""
        return False

    @property
    def has_optional_weights(self) -> bool:
        """Whether some weights are used only for some inputs, and may get no gradient in a step."""
        return False

    @property
    def absolute_position_encoding(self) -> AbsolutePositions | None:
        """The position encoding that is added to token embeddings; None if there is none."""
        return None

    @property
    def recompute_lengths(self) -> frozenset[int]:
        """Lengths at which cached keys expire: a text that grows beyond one is read again."""
        return frozenset()

    @property
    def fills_blanks(self) -> bool:
        """Whether position ids also tell which blank each generated token fills (GLM)."""
        return False

    def activation_bytes(
        self, length: int, item: int, *, on_cpu: bool, recompute: bool = False
    ) -> int:
        """Return the number of activation bytes per token kept for the backward pass in training.

        Args:
            length: the number of tokens in a row.
            item: the number of bytes per element in the precision of matmuls.
            on_cpu: whether CPU kernels are used, which keep activations that GPU kernels recompute.
            recompute: whether activation checkpointing is on (Chen et al. 2016). Every block then
                keeps only its input, except the one block whose activations are being recomputed.
        """
        raise NotImplementedError

    def build(self) -> LanguageModule:
        """Return the module with uninitialized weights; `models.build` also initializes them."""
        raise NotImplementedError


def projecting_head_config(spec: Spec, width: int, dropout: float) -> HeadInput:
    """Return the `HeadInput` of a model whose hidden states have the width `width`.

    A tied LM head projects the hidden states to `d_model`, the width of the token embeddings.
    """
    tied = any(isinstance(head, LMHead) and head.tied for head in spec.heads)
    return HeadInput(
        vocab_size=spec.vocab_size,
        d_model=width,
        d_embedding=spec.d_model if tied else width,
        projects=tied,
        dropout=dropout,
    )


_PACKED_ROWS = 256  # rows of logits that are held at a time in a model packed for inference


class LanguageModule(PartModule):
    """Base class of models: token embeddings and heads; subclasses add the layers between them.

    A subclass defines `forward`, which maps token ids [B, T] to hidden states [B, T, D]. It also
    defines `initializer` and, if the model generates text, `new_cache`.
    """

    spec: Any
    tokens: Any
    """The token embeddings: an `nn.Embedding`, or a module that computes them from characters."""
    heads: nn.ModuleDict
    linear_cross_entropy: Callable[..., Tensor] = staticmethod(linear_cross_entropy)
    """Cross-entropy from hidden states and output matrix; replaced in tensor parallelism."""
    compiles_loss: bool = False
    """Whether `lm_loss` on a GPU uses a compiled function; set by `compile_blocks`."""

    def initializer(self) -> Any:
        """Return the `Initializer` of the weights; None if `reset_parameters` sets all weights."""
        return None

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(self.parameters()).dtype

    @property
    def vocabulary_head(self) -> VocabularyHead | None:
        """The head over the vocabulary (lm or mlm), if there is one."""
        heads = (head for head in self.heads.values() if isinstance(head, VocabularyHead))
        return next(heads, None)

    @property
    def vocabulary_tables(self) -> list[nn.Parameter]:
        """The matrices with one row per token id: token embeddings and untied output matrices."""
        heads = (head.weight for head in self.heads.values() if isinstance(head, VocabularyHead))
        tables = (getattr(self.tokens, "weight", None), *heads)
        return [table for table in tables if isinstance(table, nn.Parameter)]

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """The modules between token embeddings and heads; Muon may optimize their matrices."""
        raise NotImplementedError

    def layer_parameters(self) -> list[list[list[nn.Parameter]]]:
        """Return the parameters of every layer of every stack: `result[stack][layer]` is a list.

        Layers that share weights occur once. A module after the last layer, such as a norm, counts
        as part of the last layer.
        """
        return [[list(block.parameters())] for block in self.blocks]

    def layer_depths(self) -> dict[nn.Parameter, int]:
        """Return the depth of every parameter, counted from the output.

        Heads have depth 0, the last layer of each stack has depth 1, the layer before it 2, and so
        on. Embeddings and all other parameters have depth 1 + the number of layers of the deepest
        stack.
        """
        stacks = self.layer_parameters()
        depths = dict.fromkeys(self.heads.parameters(), 0)
        for stack in stacks:
            for depth, layer in enumerate(reversed(stack), start=1):
                depths |= dict.fromkeys(layer, depth)
        deepest = 1 + max(map(len, stacks))
        return {weight: depths.get(weight, deepest) for weight in self.parameters()}

    def set_character_ids(self, tokenizer: Any) -> None:
        """Set the characters of every token in character embeddings; called before training.

        Does nothing in models without character embeddings.
        """

    def new_cache(self, slots: int, slot_length: int) -> Cache:
        """Return an empty cache of keys and values, or of states, for decoding step by step.

        Args:
            slots: the number of sequences that the cache can hold at the same time.
            slot_length: the maximum number of tokens per sequence, including the prompt.

        Raises:
            SpecError: the model is bidirectional, or `slot_length` exceeds its maximum length.
        """
        raise SpecError("an encoder reads every token at once: it has no cache.")

    def read(self, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        """Run `forward`. Returns the hidden states, and the auxiliary loss or None."""
        return self(*inputs, **options), None

    def flops_per_token(self, length: int) -> float:
        """Return the training FLOPs per token, forward and backward, in a row of `length` tokens.

        By default, they are those of the matrices of blocks and vocabulary heads, without
        attention (see `models.flops_per_token`).
        """
        vocabulary = self.spec.vocab_size * self.spec.head_config.d_embedding
        blocks = sum(map(num_matrix_weights, self.blocks))
        return 6.0 * (blocks + vocabulary * (2 if self.spec.is_bilm else 1))

    def encode(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        """Return the encoder's hidden states [B, S, D] for token ids [B, S]."""
        raise SpecError(f"this model is {self.spec.family}: it has no encoder.")

    def alignments(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        """Return the decoder's attention weights over the source [B, T, S] if `spec.aligns`."""
        raise SpecError("a layer of this model is no attention: it has no attention weights.")

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether no shape in a decode step depends on the tokens or on the lengths of texts.

        Such a decode step can be compiled, and captured in a CUDA graph.
        """
        return False

    def compile_blocks(self, **options: Any) -> None:
        """Compile blocks and loss with `torch.compile`, in models that become faster by it.

        The options are those of `torch.compile`.
        """

    def use_flex_attention(self) -> str:
        """Let self-attention use FlexAttention where it can, except with a cache (see `nn.flex`).

        Returns a warning if some blocks cannot use FlexAttention, else "".
        """
        blocks = [*self.blocks]
        mixers = [getattr(block, "mixer", None) for block in blocks]
        flex = [each for each in mixers if isinstance(each, AttentionModule) and each.supports_flex]
        for mixer in flex:
            mixer.uses_flex = True
        if len(flex) == len(blocks):
            return ""
        return (
            f"FlexAttention computes {len(flex)} of {len(blocks)} layers: it supports attention "
            f"without dropout (model.dropout = 0), relative position embeddings and attention "
            f"sinks, whose heads have at least {MIN_HEAD_DIM} dimensions."
        )

    def logits(
        self, hidden: Tensor, head: str | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return the logits of a head: [..., V] for a vocabulary head, otherwise in its own shape.

        Args:
            hidden: hidden states [..., D]; [B, T, D] for heads that pool all positions of a text.
            head: the kind of head; None: the vocabulary head if there is one, otherwise the first
                head that returns logits.
            attention_mask: [B, T], 0 for padding; used only by heads that pool.

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
            logits = F.linear(module(hidden), self.output_matrix(module), module.bias)
        return logits if module.soft_cap is None else apply_soft_cap(logits, module.soft_cap)

    def lm_loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the summed cross-entropy in nats of `targets` [M] for hidden states [M, D].

        `smoothing` is the label smoothing: the fraction of the target probability that is spread
        uniformly over the vocabulary.

        Raises:
            SpecError: the model has no head over the vocabulary.
            ValueError: the numbers of targets and of hidden states differ.
        """
        if len(hidden) != len(targets):
            raise ValueError(f"{len(hidden)} hidden states, but {len(targets)} targets")
        head = self.vocabulary_head
        if head is None:
            raise SpecError("this model has no head over the vocabulary (lm or mlm).")
        features = head(hidden)
        if head.packed is None:
            padding = -len(targets) % PAD_TO_MULTIPLE_OF
            if padding:
                features = F.pad(features, (0, 0, 0, padding))
            return self.linear_cross_entropy(
                features,
                self.output_matrix(head),
                head.bias,
                targets,
                smoothing=smoothing,
                soft_cap=head.soft_cap,
                compiled=self.compiles_loss and features.is_cuda,
            )
        total = hidden.new_zeros((), dtype=torch.float32)
        for part, target in zip(features.split(_PACKED_ROWS), targets.split(_PACKED_ROWS)):
            logits = head.packed(part).float()
            if head.soft_cap is not None:
                logits = apply_soft_cap(logits, head.soft_cap)
            total += F.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)
        return total

    def output_matrix(self, head: VocabularyHead) -> Tensor:
        """Return the output matrix [V, E] of a vocabulary head; if tied, the token embeddings."""
        return self.tokens.weight if head.weight is None else head.weight


def build_heads(model: Spec) -> nn.ModuleDict:
    """Return the modules of the heads of a model spec, keyed by the kind of head."""
    inputs = model.head_config
    return nn.ModuleDict({head.kind: head.build(inputs) for head in model.heads})


def num_matrix_weights(module: nn.Module) -> int:
    """Return the number of weights in the matrices of linear and recurrent layers of a module."""
    layers = (m for m in module.modules() if isinstance(m, nn.Linear | nn.RNNBase))
    return sum(w.numel() for m in layers for w in m.parameters() if w.ndim > 1)


def refuse(reason: str, **arguments: object) -> None:
    """Raise SpecError if one of the keyword arguments is not None; `reason` begins its message."""
    for name, value in arguments.items():
        if value is not None:
            raise SpecError(f"{reason} {name}: leave it out.")
