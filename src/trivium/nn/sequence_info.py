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
        custom: bool, True where a decoder token may attend to an encoder position: [T, S], or
            [B, N, T, S] in which any axis may have size 1; None: no custom mask.
    """

    hidden: Tensor | None
    is_token: Tensor | None = None
    custom: Tensor | None = None


@dataclass(frozen=True)
class SequenceInfo:
    """The metadata of the tokens of a forward pass, the same for every layer of a stack.

    Attention uses one `SequenceInfo` for the queries and one for the keys. The keys are the tokens
    of `SequenceInfo.keys`, or the tokens in the KV cache. A query attends to a key only if all
    conditions that are set hold (see `attention_mask`).

    Args:
        positions: int64 [1 or B, T], the position ids of the tokens; they restart in every
            document. int64 [B, T, 2] for two-dimensional positions (GLM, ChatGLM-6B).
        columns: int64 [1 or B, T], the indices of the tokens in their row, or in their slot of a
            cache. Unlike `positions`, they do not restart.
        causal: whether queries attend only to keys that are not later (by `columns`).
        is_token: [B, T], nonzero for tokens, 0 for padding; None: no padding.
        documents: int64 [B, T], the number of each token's document in a packed row, 0 for padding.
            Tokens attend only to their own document.
        prefix: int64 [B], the number of tokens at the beginning of each row that are visible to all
            tokens of the row, although attention is causal (prefix LM).
        types: int64 [B, T], token types (sentence A or B), for position encodings that compare the
            token types of query and key.
        num_keys: only the first `num_keys` tokens serve as keys; the rest are query-only. None: all
            tokens serve as keys.
        custom: bool, True where a query may attend to a key: [T, T], or [B, N, T, T] in which any
            axis may have size 1.
        gather_positions: int64 [M], indices into the B * T tokens of the flattened batch. The last
            block returns only the hidden states of these tokens (similar to `logits_to_keep` in
            `transformers`).
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
        check_custom_mask(self.custom)

    @classmethod
    def of_length(
        cls, length: int, device: torch.device | str = "cpu", **conditions: Any
    ) -> SequenceInfo:
        """Return the metadata of unpacked rows of `length` tokens, without a cache.

        Args:
            length: T, the number of tokens per row.
            device: the device of the positions.
            conditions: values for the other fields, for example `causal=True`.
        """
        columns = torch.arange(length, device=device)[None]
        return cls(columns, columns, **conditions)

    @property
    def is_prefill(self) -> bool:
        """Whether there are no earlier tokens: no cache is used, or all its slots are empty."""
        return self.cache_slice is None or self.cache_slice.is_prefill

    @property
    def are_last_keys(self) -> bool:
        """Whether the tokens are the last tokens of `keys`, and no keys are in a cache."""
        return self.is_prefill

    @property
    def has_equal_starts(self) -> bool:
        """Whether the number of earlier (cached) tokens is the same in every row."""
        return self.cache_slice is None or isinstance(self.cache_slice.start, int)

    @property
    def document_starts(self) -> Tensor | None:
        """The tokens that start another document of a packed row: bool [B, T].

        The first token of a row does not count. None if the rows are not packed.
        """
        if self.documents is None:
            return None
        return self.documents.diff(dim=1, prepend=self.documents[:, :1]) != 0

    @property
    def state_mask(self) -> Tensor | None:
        """The padding mask for recurrent states: [B, T], nonzero for tokens that update the state.

        Padding does not update the state. None if all tokens update it.
        """
        new = self.cache_slice
        return self.is_token if new is None else new.is_token(self.columns.device)

    @property
    def keys(self) -> SequenceInfo:
        """The metadata of the tokens of this forward pass that serve as keys.

        They are the first `num_keys` tokens. Keys in a cache are not included.
        """
        return self if self.num_keys is None else self.subset(slice(self.num_keys))

    def gather_keys(self, x: Tensor) -> Tensor:
        """Return the keys or values of all tokens that `keys` describes, [B, K, S, H].

        Here, they are x itself. In context parallelism, x has only the tokens of this process
        (see `train.context_parallel`).
        """
        return x

    def subset(self, some: slice | Tensor, keys: slice | Tensor | None = None) -> SequenceInfo:
        """Return the metadata of a subset of the tokens.

        Args:
            some: the tokens to keep, as a slice or as indices along axis T.
            keys: the keys to keep in the custom attention mask `custom`, as a slice or as indices
                along its last axis; None: all keys.
        """

        def select(x: Tensor | None) -> Tensor | None:
            """Return a field [B, T] for the tokens `some` only; None if the field is None."""
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
            is_token=select(self.is_token),
            documents=select(self.documents),
            types=select(self.types),
            custom=custom,
        )

    def gather(self, x: Tensor) -> Tensor:
        """Return the vectors at `gather_positions`, [B, T, D] -> [M, D].

        If `gather_positions` is None, x is returned unchanged.
        """
        return gather(x, self.gather_positions)


@dataclass(frozen=True)
class LayerContext:
    """The cached states of one layer, and the precomputed values that it shares with other layers.

    Args:
        state: the cached state of the mixer; None: no cache.
        source: the cross-attention cache; None: no cache or no cross-attention.
        prepared: the result of the mixer's `prepare`, such as the attention mask; None: the mixer
            calls `prepare` itself.
        cross_prepared: the result of the cross-attention's `prepare`, likewise.
        feed_forward_state: the state of a feed-forward network that reads earlier tokens; None: no
            cache, or the network has no state.
    """

    state: State | None = None
    source: CrossAttentionCache | None = None
    prepared: Any = None
    cross_prepared: Any = None
    feed_forward_state: State | None = None


NO_CACHE = LayerContext()
"""The context of a layer without cached states and without precomputed values."""


def gather(x: Tensor, positions: Tensor | None) -> Tensor:
    """Return the vectors of some tokens of a batch: [B, T, D] -> [M, D].

    Args:
        x: [B, T, D].
        positions: int64 [M], indices into the B * T tokens of the flattened batch; None: x is
            returned unchanged.
    """
    return x if positions is None else x.flatten(0, 1).index_select(0, positions)


def check_custom_mask(custom: Tensor | None) -> None:
    """Raise SpecError if a custom attention mask is not a bool tensor with two or four axes."""
    if custom is not None and (custom.dtype != torch.bool or custom.ndim not in (2, 4)):
        raise SpecError(
            f"custom is a mask of {custom.dtype} with shape {list(custom.shape)}: give a bool "
            "tensor [T, S] or [B or 1, N or 1, T, S], True where attention is allowed."
        )


def check_length(length: int, max_length: int | None) -> None:
    """Raise SpecError if the input has more than `max_length` tokens; None: any length."""
    if max_length is not None and length > max_length:
        raise SpecError(
            f"the input has {length} tokens, but this model reads at most {max_length}: "
            "shorten the text or cut it into pieces."
        )
