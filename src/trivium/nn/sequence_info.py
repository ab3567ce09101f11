"""What one forward pass knows of its tokens, beside their vectors.

Shape letters: B batch, T positions, S positions of the encoder, M selected positions, D d_model.
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
    """What a decoder's blocks attend to beside their own tokens.

    Args:
        hidden: [B, S, D]; None where a cache remembers what was made of it
            (`Cache.set_encoder_output`).
        real: [B, S], nonzero where a position is real; None: all are.
        custom: bool, as `SequenceInfo.custom`, of the decoder's queries and the encoder's
            positions.
    """

    hidden: Tensor | None
    is_token: Tensor | None = None
    custom: Tensor | None = None


@dataclass(frozen=True)
class SequenceInfo:
    """What one forward pass of a stack knows of its tokens: the same for every layer.

    A token sees another one only if every limit that is set allows it. What attention attends to
    is described by a context, too: `keys`, or that of the KV cache.

    Args:
        positions: int64 [1 or B, T], of tokens in their text; they begin anew in every document.
        columns: int64 [1 or B, T], of tokens in their row, or in the slot of a cache.
        causal: a token sees none of a later column.
        real: [B, T], nonzero where a token is real.
        documents: int64 [B, T], packed membership, 0 of padding: a token sees its own document.
        prefix: int64 [B]: so many first columns are seen by all, also by tokens before them.
        types: int64 [B, T], sentence A or B, for positions that compare them.
        num_keys: so many first tokens are keys; the others are queries alone.
        custom: bool, True where a token sees another: [T, T], or [B, N, T, T] with 1 for an axis
            along which it is the same.
        select: int64 [M], flat positions in B * T whose feed-forward network is wanted.
        span: where a cache holds the tokens.
        encoder: the encoder's output, of a decoder that attends to one.
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
        cls, length: int, device: torch.device | str = "cpu", **limits: Any
    ) -> SequenceInfo:
        """The context of rows that are one text each, of `length` tokens."""
        columns = torch.arange(length, device=device)[None]
        return cls(columns, columns, **limits)

    @property
    def is_prefill(self) -> bool:
        """Whether nothing is before the tokens: no cache, or one whose slots are empty."""
        return self.cache_slice is None or self.cache_slice.is_prefill

    @property
    def starts_together(self) -> bool:
        """Whether the same number of tokens is before those of every row."""
        return self.cache_slice is None or isinstance(self.cache_slice.start, int)

    @property
    def document_starts(self) -> Tensor | None:
        """Which tokens begin a document after another in their row: bool [B, T]; None: none."""
        if self.documents is None:
            return None
        return self.documents.diff(dim=1, prepend=self.documents[:, :1]) != 0

    @property
    def state_mask(self) -> Tensor | None:
        """Which tokens a state takes up, of a row or of a cache: [B, T]; None: all."""
        return (
            self.is_token
            if self.cache_slice is None
            else self.cache_slice.is_token(self.columns.device)
        )

    @property
    def keys(self) -> SequenceInfo:
        """The context of the tokens that are seen, of this pass alone."""
        return self if self.num_keys is None else self.subset(slice(self.num_keys))

    def subset(self, some: slice | Tensor, keys: slice | Tensor | None = None) -> SequenceInfo:
        """The context of some of the tokens, with `custom` of some of the keys; None: of all."""

        def of(x: Tensor | None) -> Tensor | None:
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
        if self.gather_positions is None:
            return x
        return x.flatten(0, 1).index_select(0, self.gather_positions)


@dataclass(frozen=True)
class LayerContext:
    """What one layer has in a pass beside the context of all.

    Args:
        state: what its mixer keeps of earlier tokens.
        feed_forward_state: the same of its feed-forward network, where that reads any.
        source: what its cross-attention keeps of the encoder's output.
        prepared, cross_prepared: what both have made of the context, once for all layers alike.
    """

    state: State | None = None
    source: CrossAttentionCache | None = None
    prepared: Any = None
    cross_prepared: Any = None
    feed_forward_state: State | None = None


NO_CACHE = LayerContext()
"""A layer outside of a stack: nothing is kept, and it prepares for itself."""


def check_custom(custom: Tensor | None) -> None:
    """Raise SpecError for a mask of one's own that is no bool tensor of two or four axes."""
    if custom is not None and (custom.dtype != torch.bool or custom.ndim not in (2, 4)):
        raise SpecError(
            f"custom is a mask of {custom.dtype} with shape {list(custom.shape)}: give a bool "
            "tensor [T, S] or [B or 1, N or 1, T, S], True where attention is allowed."
        )


def check_length(length: int, max_length: int | None) -> None:
    """Raise SpecError for an input longer than the model reads."""
    if max_length is not None and length > max_length:
        raise SpecError(
            f"the input has {length} tokens, but this model reads at most {max_length}: "
            "shorten the text or cut it into pieces."
        )
