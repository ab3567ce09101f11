"""The metadata of a forward pass: positions, conditions of the attention mask, cache slots.

Shape letters: B batch, T positions, S positions of the encoder, M gathered positions, D d_model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trivium.errors import SpecError
from trivium.nn.state import CacheSlice, CrossAttentionCache, State


@dataclass(frozen=True)
class EncoderOutput:
    """The encoder's output, which a decoder's cross-attention reads.

    Args:
        hidden: [B, S, D]; None if a cache holds its keys and values (`Cache.set_encoder_output`).
        is_token: [B, S], nonzero for tokens, 0 for padding; None: no padding.
        custom: a bool mask between the decoder's queries and the encoder's positions, in the
            shapes of `SequenceInfo.custom`.
    """

    hidden: Tensor | None
    is_token: Tensor | None = None
    custom: Tensor | None = None


@dataclass(frozen=True)
class SequenceInfo:
    """The metadata of the tokens of a forward pass through one stack, the same for every layer.

    Attention describes both queries and keys by a `SequenceInfo`: the keys are `keys`, or the
    tokens in the KV cache. A query attends to a key only if all conditions that are set hold
    (`attention_mask`).

    Args:
        positions: int64 [1 or B, T], the position ids of the tokens; they restart in every
            document.
        columns: int64 [1 or B, T], the indices of the tokens in their row, or in their slot of a
            cache.
        causal: whether queries do not attend to later columns.
        is_token: [B, T], nonzero for tokens, 0 for padding; None: no padding.
        documents: int64 [B, T], the document of each token of a packed row, 0 for padding. Tokens
            attend only to their own document.
        prefix: int64 [B]; the first `prefix` columns are visible to all tokens of the row.
        types: int64 [B, T], token types (sentence A or B), for positions that compare token types.
        num_keys: only the first `num_keys` tokens serve as keys; the rest are query-only.
        custom: bool, True where a query may attend to a key: [T, T], or [B, N, T, T] in which any
            axis may have size 1.
        gather_positions: int64 [M], flat positions in B * T; the last block returns only the hidden
            states at these positions (similar to `logits_to_keep` in `transformers`).
        cache_slice: the slots and positions of a cache that the tokens are written to.
        encoder: the encoder's output, for a decoder with cross-attention.
    """

    positions: Tensor
    columns: Tensor
    causal: bool = False
    is_token: Tensor | None = None
    documents: Tensor | None = None
    prefix: Tensor | None = None
    types: Tensor | None = None
    num_keys: int | None = None
    custom: Tensor | None = None
    gather_positions: Tensor | None = None
    cache_slice: CacheSlice | None = None
    encoder: EncoderOutput | None = None

    def __post_init__(self) -> None:
        check_custom(self.custom)

    @classmethod
    def of_length(
        cls, length: int, device: torch.device | str = "cpu", **conditions: Any
    ) -> SequenceInfo:
        """Return the metadata of rows of `length` tokens; `conditions` are fields of the class."""
        columns = torch.arange(length, device=device)[None]
        return cls(columns, columns, **conditions)

    @property
    def is_prefill(self) -> bool:
        """Whether no tokens precede these: there is no cache, or its slots are empty."""
        return self.cache_slice is None or self.cache_slice.is_prefill

    @property
    def starts_together(self) -> bool:
        """Whether the number of earlier tokens is the same in every row."""
        return self.cache_slice is None or isinstance(self.cache_slice.start, int)

    @property
    def document_starts(self) -> Tensor | None:
        """The tokens that start another document in their row: bool [B, T]; None: no documents."""
        if self.documents is None:
            return None
        return self.documents.diff(dim=1, prepend=self.documents[:, :1]) != 0

    @property
    def state_mask(self) -> Tensor | None:
        """The tokens that update a recurrent state (no padding): [B, T]; None: all tokens."""
        new = self.cache_slice
        return self.is_token if new is None else new.is_token(self.columns.device)

    @property
    def keys(self) -> SequenceInfo:
        """The metadata of the tokens of this pass that serve as keys."""
        return self if self.num_keys is None else self.subset(slice(self.num_keys))

    def subset(self, some: slice | Tensor, keys: slice | Tensor | None = None) -> SequenceInfo:
        """Return the metadata of some tokens, with the columns `keys` of `custom` (None: all)."""

        def of(x: Tensor | None) -> Tensor | None:
            """Return the entries of the tokens in a field [B, T], or None if it is not set."""
            return None if x is None else x[:, some]

        custom = self.custom
        if custom is not None:
            rows, columns = (size > 1 for size in custom.shape[-2:])
            custom = custom[..., some, :] if rows else custom
            custom = custom[..., keys] if columns and keys is not None else custom
        return replace(
            self,
            positions=self.positions[:, some],
            columns=self.columns[:, some],
            is_token=of(self.is_token),
            documents=of(self.documents),
            types=of(self.types),
            custom=custom,
        )

    def gather(self, x: Tensor) -> Tensor:
        """Return the vectors at `gather_positions`, [B, T, D] -> [M, D]; None: all vectors."""
        return gather(x, self.gather_positions)


@dataclass(frozen=True)
class LayerContext:
    """The state of one layer in a forward pass.

    Args:
        state: the state of the layer's mixer.
        source: the cross-attention cache.
        prepared, cross_prepared: what mixer and cross-attention have prepared (masks, angles), once
            for all layers with equal mixers; None: they prepare it themselves.
        feed_forward_state: the state of a feed-forward network that reads earlier tokens.
    """

    state: State | None = None
    source: CrossAttentionCache | None = None
    prepared: Any = None
    cross_prepared: Any = None
    feed_forward_state: State | None = None


NO_CACHE = LayerContext()
"""The context of a layer without a cache that prepares for itself."""


def gather(x: Tensor, positions: Tensor | None) -> Tensor:
    """Return the vectors at flat positions, int64 [M]: [B, T, D] -> [M, D]; None: all vectors."""
    return x if positions is None else x.flatten(0, 1).index_select(0, positions)


def check_custom(custom: Tensor | None) -> None:
    """Raise SpecError if a custom mask is not a bool tensor with two or four axes."""
    if custom is not None and (custom.dtype != torch.bool or custom.ndim not in (2, 4)):
        raise SpecError(
            f"custom is a mask of {custom.dtype} with shape {list(custom.shape)}: give a bool "
            "tensor [T, S] or [B or 1, N or 1, T, S], True where attention is allowed."
        )


def check_length(length: int, max_length: int | None) -> None:
    """Raise SpecError if the input is longer than the model supports."""
    if max_length is not None and length > max_length:
        raise SpecError(
            f"the input has {length} tokens, but this model reads at most {max_length}: "
            "shorten the text or cut it into pieces."
        )
